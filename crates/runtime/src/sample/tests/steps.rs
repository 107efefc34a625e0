//! The chain, steps from outside, log probabilities.

use super::*;

#[test]
fn log_probs_are_normalized_after_all_changes() {
    let mut sampler = sampler(SamplerOptions {
        repetition_penalty: 2.0,
        ..plain()
    });
    sampler.mask(&[4]);
    let log_probs = sampler
        .top_log_probs(&[2.0, 1.0, -1.0, NAN, 9.0], &[0], 9)
        .unwrap();
    // Token 0 fell to 1 and ties with token 1.
    let total = 2.0 * 1_f64.exp() + (-1_f64).exp();
    let expected = [(0, 1.0), (1, 1.0), (2, -1.0)];
    assert_eq!(log_probs.len(), expected.len());
    for ((id, log_prob), (expected_id, logit)) in log_probs.into_iter().zip(expected) {
        assert_eq!(id, expected_id);
        assert!((f64::from(log_prob) - (logit - total.ln())).abs() < 1e-6);
    }
    assert_eq!(sampler.top_log_probs(&[1.0], &[], 0), Ok(vec![]));
}

#[test]
fn log_probs_of_greedy_options_are_those_of_temperature_one() {
    let logits = tailed(100);
    let mut greedy = sampler(SamplerOptions::default());
    let mut plain = sampler(plain());
    let log_probs = greedy.top_log_probs(&logits, &[], 5).unwrap();
    assert_eq!(
        plain.top_log_probs(&logits, &[], 5).as_ref(),
        Ok(&log_probs)
    );
    assert_eq!(greedy.sample(&logits, &[]), Ok(log_probs[0].0));
}

/// Adds to one logit.
#[derive(Debug)]
struct Bias(usize, f32);

impl SamplerStep for Bias {
    fn name(&self) -> &'static str {
        "bias"
    }

    fn adjust(&mut self, logits: &mut [f32], _history: &[u32]) {
        logits[self.0] += self.1;
    }
}

/// Writes one value over all logits.
#[derive(Debug)]
struct Flat(f32);

impl SamplerStep for Flat {
    fn name(&self) -> &'static str {
        "flat"
    }

    fn adjust(&mut self, logits: &mut [f32], _history: &[u32]) {
        logits.fill(self.0);
    }
}

#[test]
fn a_large_bias_leaves_log_probs_at_or_below_zero() {
    let mut sampler = sampler(plain());
    sampler.push_step(Box::new(Bias(1, 100.0)));
    let log_probs = sampler.top_log_probs(&[3.0, 2.0, 1.0], &[], 3).unwrap();
    assert_eq!(
        log_probs.iter().map(|&(id, _)| id).collect::<Vec<_>>(),
        [1, 0, 2]
    );
    assert!(
        log_probs.iter().all(|&(_, log_prob)| log_prob <= 0.0),
        "{log_probs:?}"
    );
    assert!(
        (log_probs[1].1 + 99.0).abs() < 1e-4,
        "far tokens keep theirs: {log_probs:?}"
    );
}

#[test]
fn a_pushed_step_runs_but_cannot_bring_masked_tokens_back() {
    for options in [SamplerOptions::default(), plain()] {
        let mut sampler = sampler(options);
        sampler.mask(&[0, 1]);
        sampler.push_step(Box::new(Flat(2.0)));
        for _ in 0..100 {
            let id = sampler.sample(&[9.0, 8.0, 7.0, -5.0], &[]).unwrap();
            assert!(id == 2 || id == 3, "token {id} is masked");
        }
        sampler.push_step(Box::new(Bias(3, 80.0)));
        for _ in 0..100 {
            assert_eq!(sampler.sample(&[9.0, 8.0, 7.0, -5.0], &[]), Ok(3));
        }
        assert_eq!(sampler.step_names().collect::<Vec<_>>(), ["flat", "bias"]);
        sampler.push_step(Box::new(Flat(NAN)));
        assert!(sampler.sample(&[9.0; 4], &[]).is_err());
    }
}

#[test]
fn only_steps_with_an_effect_are_in_the_chain() {
    let names = |options| sampler(options).step_names().collect::<Vec<_>>();
    let all = SamplerOptions {
        top_k: 2,
        top_p: 0.5,
        min_p: 0.1,
        repetition_penalty: 1.1,
        repetition_window: 64,
        ..plain()
    };
    assert_eq!(
        names(all),
        ["repetition_penalty", "top_k", "top_p", "min_p"]
    );
    assert_eq!(
        names(SamplerOptions {
            temperature: 0.0,
            ..all
        }),
        ["repetition_penalty"]
    );
    assert_eq!(
        names(SamplerOptions {
            repetition_window: 0,
            ..all
        }),
        ["top_k", "top_p", "min_p"]
    );
    assert_eq!(names(plain()), [""; 0]);
}
