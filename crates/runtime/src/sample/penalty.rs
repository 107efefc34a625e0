//! Repetition penalty.
//!
//! For every distinct token of the last `repetition_window` tokens: a logit above zero is divided
//! by the penalty, any other multiplied. The penalty is that of the CTRL paper (arXiv 1909.05858,
//! section 4.1), which divides always; multiplying a negative logit keeps a penalty above 1 a
//! penalty there too, as in Hugging Face's transformers. Memory: one bit for each token of the
//! vocabulary. Cost: O(window + `n_vocab` / 64).

use super::{SamplerOptions, SamplerStep};

/// The step behind `repetition_penalty` and `repetition_window`.
#[derive(Debug)]
pub(super) struct RepetitionPenalty {
    penalty: f32,
    window_tokens: usize,
    /// One bit for each id that has had its share in this call.
    done: Vec<u64>,
}

impl RepetitionPenalty {
    pub(super) fn is_on(options: &SamplerOptions) -> bool {
        (options.repetition_penalty - 1.0).abs() > 0.0 && options.repetition_window > 0
    }

    pub(super) fn new(options: &SamplerOptions) -> Self {
        Self {
            penalty: options.repetition_penalty,
            window_tokens: options.repetition_window,
            done: Vec::new(),
        }
    }
}

impl SamplerStep for RepetitionPenalty {
    fn name(&self) -> &'static str {
        "repetition_penalty"
    }

    fn adjust(&mut self, logits: &mut [f32], history: &[u32]) {
        self.done.clear();
        self.done.resize(logits.len().div_ceil(64), 0);
        let window = &history[history.len().saturating_sub(self.window_tokens)..];
        for &id in window {
            let index = id as usize;
            let Some(logit) = logits.get_mut(index) else {
                continue;
            };
            let (word, bit) = (&mut self.done[index / 64], 1 << (index % 64));
            if *word & bit == 0 {
                *word |= bit;
                *logit = penalized(*logit, self.penalty);
            }
        }
    }
}

/// The changed logit. What is finite stays finite: overflow must neither forbid nor force a token.
fn penalized(logit: f32, penalty: f32) -> f32 {
    if !logit.is_finite() {
        logit
    } else if logit > 0.0 {
        (logit / penalty).min(f32::MAX)
    } else {
        (logit * penalty).max(f32::MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adjusted(window: usize, logits: &[f32], history: &[u32]) -> Vec<f32> {
        let mut step = RepetitionPenalty::new(&SamplerOptions {
            repetition_penalty: 2.0,
            repetition_window: window,
            ..Default::default()
        });
        let mut logits = logits.to_vec();
        step.adjust(&mut logits, history);
        // Twice on fresh input, so that state left by a call would show.
        let once = logits.clone();
        step.adjust(&mut logits, &[]);
        assert_eq!(logits, once);
        logits
    }

    #[test]
    fn a_token_is_penalized_once_however_often_it_occurs() {
        let logits = [4.0, -4.0, 0.0, 4.0];
        let once = adjusted(usize::MAX, &logits, &[0, 1, 2]);
        let often = adjusted(
            usize::MAX,
            &logits,
            &[[0; 200], [1; 200], [2; 200]].concat(),
        );
        assert_eq!(once, [2.0, -8.0, 0.0, 4.0]);
        assert_eq!(often, once);
    }

    #[test]
    fn only_the_window_counts() {
        let logits = [4.0; 4];
        assert_eq!(adjusted(2, &logits, &[0, 1, 2, 3]), [4.0, 4.0, 2.0, 2.0]);
        assert_eq!(adjusted(0, &logits, &[0, 1, 2, 3]), logits);
        assert_eq!(adjusted(5, &logits, &[0, 1]), [2.0, 2.0, 4.0, 4.0]);
        assert_eq!(adjusted(usize::MAX, &logits, &[0, 1, 2, 3]), [2.0; 4]);
    }

    #[test]
    fn tokens_outside_of_the_vocabulary_are_ignored() {
        assert_eq!(adjusted(usize::MAX, &[4.0], &[u32::MAX, 1, 0]), [2.0]);
    }

    #[test]
    fn finite_logits_stay_finite_and_others_unchanged() {
        assert_eq!(penalized(f32::MAX, 0.5).to_bits(), f32::MAX.to_bits());
        assert_eq!(penalized(f32::MIN, 2.0).to_bits(), f32::MIN.to_bits());
        assert!(penalized(f32::NAN, 2.0).is_nan());
        assert_eq!(
            penalized(f32::INFINITY, 2.0).to_bits(),
            f32::INFINITY.to_bits()
        );
        assert_eq!(
            penalized(f32::NEG_INFINITY, 0.5).to_bits(),
            f32::NEG_INFINITY.to_bits()
        );
    }
}
