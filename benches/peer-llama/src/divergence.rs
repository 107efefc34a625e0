//! How far an engine's distributions are from a reference's.
//!
//! Owns the arithmetic, in f64 whatever the logits are in; not where logits come from. Values that
//! are not finite are errors: no figure hides them. Cost: a few passes over two rows of logits.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::work::likeliest;

/// Distances added up over positions.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Distance {
    kld_sum: f64,
    max_kld: f64,
    n_same_top1: usize,
    max_abs_diff: f64,
    n_positions: usize,
}

impl Distance {
    /// Adds a position: two rows of logits.
    pub(crate) fn add(&mut self, reference: &[f32], test: &[f32]) -> Result<()> {
        ensure!(
            reference.len() == test.len(),
            "{} reference logits and {} of the engine",
            reference.len(),
            test.len()
        );
        // Both refuse what is not finite.
        let is_same = likeliest(reference)? == likeliest(test)?;
        let kld = kld(reference, test);
        self.kld_sum += kld;
        self.max_kld = self.max_kld.max(kld);
        self.n_same_top1 += usize::from(is_same);
        let pairs = reference.iter().zip(test);
        let diffs = pairs.map(|(r, t)| (f64::from(*r) - f64::from(*t)).abs());
        self.max_abs_diff = diffs.fold(self.max_abs_diff, f64::max);
        self.n_positions += 1;
        Ok(())
    }

    /// Adds the positions of another distance.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.kld_sum += other.kld_sum;
        self.max_kld = self.max_kld.max(other.max_kld);
        self.n_same_top1 += other.n_same_top1;
        self.max_abs_diff = self.max_abs_diff.max(other.max_abs_diff);
        self.n_positions += other.n_positions;
    }

    pub(crate) fn n_positions(&self) -> usize {
        self.n_positions
    }

    /// Mean divergence of a position in nats; `None` without positions.
    pub(crate) fn mean_kld(&self) -> Option<f64> {
        (self.n_positions > 0).then(|| self.kld_sum / self.n_positions as f64)
    }

    /// Share of positions whose likeliest token is the reference's.
    pub(crate) fn top1_agreement(&self) -> Option<f64> {
        (self.n_positions > 0).then(|| self.n_same_top1 as f64 / self.n_positions as f64)
    }

    pub(crate) fn max_abs_diff(&self) -> f64 {
        self.max_abs_diff
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "positions": self.n_positions,
            "mean_kld": self.mean_kld(),
            "max_kld": self.max_kld,
            "top1_agreement": self.top1_agreement(),
            "max_abs_diff": self.max_abs_diff,
        })
    }
}

/// `KL(reference || test) = sum of p * (ln p - ln q)` in nats, of the distributions that two rows
/// of logits stand for.
fn kld(reference: &[f32], test: &[f32]) -> f64 {
    let (ln_p_total, ln_q_total) = (ln_total(reference), ln_total(test));
    let terms = reference.iter().zip(test).map(|(r, t)| {
        let ln_p = f64::from(*r) - ln_p_total;
        let ln_q = f64::from(*t) - ln_q_total;
        ln_p.exp() * (ln_p - ln_q)
    });
    terms.sum()
}

/// The logarithm of the sum of exponentials, which what is subtracted cannot overflow.
fn ln_total(logits: &[f32]) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let max = f64::from(max);
    let exponentials = logits.iter().map(|z| (f64::from(*z) - max).exp());
    max + exponentials.sum::<f64>().ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logits of the distribution, off by a constant.
    fn logits<const N: usize>(p: [f64; N], offset: f64) -> [f32; N] {
        p.map(|p| (p.ln() + offset) as f32)
    }

    #[test]
    fn divergence_is_that_of_worked_numbers() {
        // 1/2 ln(1/2 / 1/4) + 1/2 ln(1/2 / 3/4) = (ln 2 - ln 3/2) / 2 = ln(4/3) / 2.
        let even = logits([0.5, 0.5], 0.0);
        let uneven = logits([0.25, 0.75], 3.0);
        assert!((kld(&even, &uneven) - 0.143_841_036_225_890_42).abs() < 1e-7);
        // The other way round: 1/4 ln(1/2) + 3/4 ln(3/2).
        assert!((kld(&uneven, &even) - 0.130_812_035_941_137_1).abs() < 1e-7);
        // (0.7, 0.2, 0.1) against (0.6, 0.3, 0.1): 0.7 ln(7/6) + 0.2 ln(2/3).
        let p = logits([0.7, 0.2, 0.1], -4.0);
        let q = logits([0.6, 0.3, 0.1], 9.0);
        assert!((kld(&p, &q) - 0.026_812_454_257_447_95).abs() < 1e-6);
    }

    #[test]
    fn nothing_diverges_from_itself_and_large_logits_do_not_overflow() {
        let row = [1000.0, -3.5, 999.0, 0.0];
        assert_eq!(kld(&row, &row).to_bits(), 0.0_f64.to_bits());
        assert!((kld(&[1000.0, 0.0], &[0.0, 0.0]) - 2.0_f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn positions_add_up_and_the_worst_is_kept() {
        let mut first = Distance::default();
        first.add(&[0.0, 1.0], &[0.0, 1.0]).expect("finite");
        let mut rest = Distance::default();
        rest.add(&[0.0, 1.0], &[2.5, 1.0]).expect("finite");
        let worst = kld(&[0.0, 1.0], &[2.5, 1.0]);
        first.merge(&rest);
        assert_eq!(first.n_positions(), 2);
        assert_eq!(first.mean_kld(), Some(worst / 2.0));
        assert_eq!(first.top1_agreement(), Some(0.5));
        assert_eq!(first.json()["max_kld"], worst);
        assert_eq!(first.json()["max_abs_diff"], 2.5);
        assert_eq!(Distance::default().mean_kld(), None);
    }

    #[test]
    fn rows_of_other_lengths_and_values_that_are_not_finite_are_errors() {
        let mut distance = Distance::default();
        assert!(distance.add(&[0.0, 1.0], &[0.0]).is_err());
        assert!(distance.add(&[0.0, 1.0], &[f32::NAN, 0.0]).is_err());
        assert!(distance.add(&[0.0, f32::INFINITY], &[0.0, 0.0]).is_err());
        assert_eq!(distance.n_positions(), 0);
    }
}
