//! Output of rounded operands: its distributions against those of the reference arithmetic.
//!
//! Owns the comparison of two engines over all positions of a prompt, since a golden stores logits
//! at a few positions only and one route that falls otherwise outweighs all others there. Does not
//! own the reference's own agreement with the golden: that is what the exact class checks.
//! Memory: the logits of [`STRIDE`] positions.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use thalweg::{Backend, Engine, Observer, Session};

use crate::judge::{argmax, log_total, worse};

/// Positions that each engine takes in turns; results do not depend on it.
const STRIDE: usize = 32;

/// How far distributions are from the reference's.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Distance {
    kld_sum: f64,
    max_kld: f64,
    n_same_top1: usize,
    n_positions: usize,
}

impl Distance {
    /// Mean divergence of a position, in nats.
    pub(crate) fn mean_kld(&self) -> f64 {
        self.kld_sum / self.n_positions.max(1) as f64
    }

    /// Share of positions whose likeliest token is the reference's.
    pub(crate) fn top1_agreement(&self) -> f64 {
        self.n_same_top1 as f64 / self.n_positions.max(1) as f64
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.kld_sum += other.kld_sum;
        self.max_kld = worse(self.max_kld, other.max_kld);
        self.n_same_top1 += other.n_same_top1;
        self.n_positions += other.n_positions;
    }

    fn compare(&mut self, reference: &[f32], test: &[f32]) {
        let kld = kld(reference, test);
        self.kld_sum += kld;
        self.max_kld = worse(self.max_kld, kld);
        self.n_same_top1 += usize::from(argmax(reference) == argmax(test));
        self.n_positions += 1;
    }

    /// As a line of output; `passed` where a judgment is due.
    pub(crate) fn json(&self, name: &str, passed: Option<bool>) -> Value {
        json!({
            "prompt": name,
            "passed": passed,
            "positions": self.n_positions,
            "mean_kld": self.mean_kld(),
            "max_kld": self.max_kld,
            "top1_agreement": self.top1_agreement(),
        })
    }
}

/// Runs `tokens` through both engines.
pub(crate) fn distance<B: Backend>(
    reference: (&mut Engine, &mut Session),
    test: (&mut Engine<B>, &mut Session<B>),
    tokens: &[u32],
) -> Result<Distance> {
    let mut distance = Distance::default();
    for part in tokens.chunks(STRIDE) {
        let (mut expected, mut found) = (Rows::default(), Rows::default());
        reference.0.prefill(reference.1, part, &mut expected)?;
        test.0.prefill(test.1, part, &mut found)?;
        ensure!(
            expected.0.len() == part.len() && found.0.len() == part.len(),
            "an engine gave no logits at some positions"
        );
        for (expected, found) in expected.0.iter().zip(&found.0) {
            distance.compare(expected, found);
        }
    }
    Ok(distance)
}

/// Every position's logits.
#[derive(Default)]
struct Rows(Vec<Vec<f32>>);

impl Observer for Rows {
    fn wants_logits(&self, _: usize) -> bool {
        true
    }

    fn on_logits(&mut self, _: usize, logits: &[f32]) {
        self.0.push(logits.to_vec());
    }
}

/// Divergence of the distribution of `test` from that of `reference`, `KL(reference || test)` in
/// nats; not a number if a logit is none.
fn kld(reference: &[f32], test: &[f32]) -> f64 {
    let (reference_total, test_total) = (log_total(reference), log_total(test));
    let terms = reference.iter().zip(test).map(|(r, t)| {
        let (log_p, log_q) = (f64::from(*r) - reference_total, f64::from(*t) - test_total);
        log_p.exp() * (log_p - log_q)
    });
    terms.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_is_that_of_the_definition() {
        // Probabilities 1/4, 3/4 against 1/2, 1/2, whatever is added to all logits.
        let reference = [1.0, 1.0 + 3.0_f32.ln()];
        let expected = 0.25 * 0.5_f64.ln() + 0.75 * 1.5_f64.ln();
        assert!((kld(&reference, &[7.0, 7.0]) - expected).abs() < 1e-7);
        assert_eq!(kld(&reference, &reference).to_bits(), 0);
        assert!(kld(&reference, &[f32::NAN, 0.0]).is_nan());
    }
}
