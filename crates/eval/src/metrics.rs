//! How far a distribution of next tokens is from a reference's: divergence, likelihood, agreement.
//!
//! Owns the arithmetic of rows of logits and the sums over a window. Runs no model. All logarithms
//! are natural, all sums f64 over the whole vocabulary; a vocabulary may come in chunks, so that no
//! row has to be held a second time. Memory: a few numbers. Invariants: 1. equal rows diverge by
//! exactly 0; 2. what is not finite is an error that names its place, never a figure.

use crate::{Error, Result};

/// Logarithm of a sum of exponentials that arrive in chunks.
#[derive(Clone, Copy, Debug)]
pub struct LogSumExp {
    max: f64,
    /// Of exponentials relative to `max`.
    sum: f64,
}

impl Default for LogSumExp {
    fn default() -> Self {
        Self {
            max: f64::NEG_INFINITY,
            sum: 0.0,
        }
    }
}

impl LogSumExp {
    /// Adds logits; those that are minus infinity add nothing.
    pub fn push(&mut self, logits: &[f32]) {
        self.raise(largest(logits));
        if self.max > f64::NEG_INFINITY {
            let terms = logits.iter().map(|z| (f64::from(*z) - self.max).exp());
            self.sum += terms.sum::<f64>();
        }
    }

    /// The logarithm; minus infinity if nothing was added.
    #[must_use]
    pub fn value(&self) -> f64 {
        self.max + self.sum.ln()
    }

    /// Makes sums relative to a maximum that is at least `to`; says by which factor others shrink.
    fn raise(&mut self, to: f64) -> f64 {
        if to <= self.max || to == f64::NEG_INFINITY {
            return 1.0;
        }
        let factor = (self.max - to).exp();
        self.max = to;
        self.sum *= factor;
        factor
    }
}

/// How one token was predicted by two models.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct TokenScore {
    /// `KL(reference || test)` in nats: what the reference's distribution loses when the test's is
    /// taken for it. Rounding leaves about 1e-15 of either sign.
    pub kld: f64,
    /// Negative log-likelihood of the token under the reference, in nats.
    pub reference_nll: f64,
    /// The same under the test.
    pub test_nll: f64,
    /// Whether both have the same likeliest token, the lower id of equals.
    pub same_top1: bool,
}

/// The score of a token, from logits that arrive in chunks of the vocabulary.
///
/// ```
/// use thalweg_eval::metrics::PairScorer;
/// let mut scorer = PairScorer::new(0);
/// scorer.push(&[2.0], &[1.0])?;
/// scorer.push(&[1.0, 0.0], &[2.0, 0.0])?;
/// let score = scorer.finish()?;
/// assert_eq!(format!("{:.9}", score.kld), "0.420512485");
/// # Ok::<(), thalweg_eval::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PairScorer {
    actual: usize,
    n_seen: usize,
    reference: LogSumExp,
    test: LogSumExp,
    /// Sum of `exp(r - max) (r - t)`.
    weighted: f64,
    reference_best: (f32, usize),
    test_best: (f32, usize),
    actual_logits: Option<(f32, f32)>,
}

impl PairScorer {
    /// Nothing seen of the vocabulary yet; `actual` is the token that came.
    #[must_use]
    pub fn new(actual: u32) -> Self {
        Self {
            // No vocabulary has as many tokens where this does not fit.
            actual: usize::try_from(actual).unwrap_or(usize::MAX),
            n_seen: 0,
            reference: LogSumExp::default(),
            test: LogSumExp::default(),
            weighted: 0.0,
            reference_best: (f32::NEG_INFINITY, 0),
            test_best: (f32::NEG_INFINITY, 0),
            actual_logits: None,
        }
    }

    /// The next logits of both.
    ///
    /// # Errors
    /// [`Error::Vocabulary`] for chunks that differ in length, [`Error::BadLogit`] for NaN and plus
    /// infinity. Minus infinity is a token that cannot come.
    ///
    /// # Cost
    /// Two exponentials a token of the vocabulary.
    pub fn push(&mut self, reference: &[f32], test: &[f32]) -> Result<()> {
        if reference.len() != test.len() {
            return Err(Error::Vocabulary {
                reference: self.n_seen + reference.len(),
                test: self.n_seen + test.len(),
            });
        }
        best(
            &mut self.reference_best,
            self.n_seen,
            reference,
            "reference",
        )?;
        best(&mut self.test_best, self.n_seen, test, "test")?;
        self.weighted *= self.reference.raise(largest(reference));
        self.test.raise(largest(test));
        let (mut p_sum, mut q_sum, mut weighted) = (0.0, 0.0, 0.0);
        for (r, t) in reference.iter().zip(test) {
            let (r, t) = (f64::from(*r), f64::from(*t));
            // What is impossible weighs nothing, also where all so far is.
            let p = weight(r, self.reference.max);
            p_sum += p;
            q_sum += weight(t, self.test.max);
            if p > 0.0 {
                weighted += p * (r - t);
            }
        }
        self.reference.sum += p_sum;
        self.test.sum += q_sum;
        self.weighted += weighted;
        let actual = self.actual.wrapping_sub(self.n_seen);
        if let (Some(r), Some(t)) = (reference.get(actual), test.get(actual)) {
            self.actual_logits = Some((*r, *t));
        }
        self.n_seen += reference.len();
        Ok(())
    }

    /// The score, when all of the vocabulary was seen. It can be plus infinity: a test model may
    /// exclude what the reference does not.
    ///
    /// # Errors
    /// [`Error::NoSuch`] for a token beyond the vocabulary, [`Error::EmptyRow`] for a row without
    /// a possible token.
    pub fn finish(&self) -> Result<TokenScore> {
        let (r, t) = self.actual_logits.ok_or(Error::NoSuch {
            what: "token",
            found: self.actual as u64,
            limit: self.n_seen as u64,
        })?;
        let rows = [("reference", self.reference), ("test", self.test)];
        if let Some((who, _)) = rows.iter().find(|(_, z)| z.max == f64::NEG_INFINITY) {
            return Err(Error::EmptyRow { who });
        }
        let (reference, test) = (self.reference.value(), self.test.value());
        // sum p (ln p - ln q) with ln p = r - reference and ln q = t - test.
        let kld = self.weighted / self.reference.sum + (test - reference);
        Ok(TokenScore {
            kld,
            reference_nll: reference - f64::from(r),
            test_nll: test - f64::from(t),
            same_top1: self.reference_best.1 == self.test_best.1,
        })
    }
}

/// The score of a token from whole rows, `[n_vocab]` each.
///
/// # Errors
/// Those of [`PairScorer`].
pub fn score(reference: &[f32], test: &[f32], actual: u32) -> Result<TokenScore> {
    let mut scorer = PairScorer::new(actual);
    scorer.push(reference, test)?;
    scorer.finish()
}

/// Keeps the likeliest token, the lower id of equals.
fn best(best: &mut (f32, usize), first: usize, logits: &[f32], who: &'static str) -> Result<()> {
    for (i, &value) in logits.iter().enumerate() {
        if value > best.0 {
            *best = (value, first + i);
        }
        if value.is_nan() || value == f32::INFINITY {
            let token = first + i;
            return Err(Error::BadLogit { who, token, value });
        }
    }
    Ok(())
}

fn largest(logits: &[f32]) -> f64 {
    f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max))
}

fn weight(logit: f64, max: f64) -> f64 {
    if logit == f64::NEG_INFINITY {
        0.0
    } else {
        (logit - max).exp()
    }
}

/// Sums over the scored tokens of one window.
#[derive(Clone, Copy, PartialEq, Debug, Default, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
#[serde(deny_unknown_fields)]
pub struct WindowSums {
    /// Number of the window's domain.
    pub domain: usize,
    /// Scored tokens.
    pub n_tokens: u64,
    /// Sum of divergences, in nats.
    pub kld: f64,
    /// Sum of their squares.
    pub kld_squares: f64,
    /// The largest of them.
    pub max_kld: f64,
    /// Position of the token that it belongs to; 0 if there is none.
    pub max_kld_position: usize,
    /// Sum of negative log-likelihoods under the reference.
    pub reference_nll: f64,
    /// The same under the test.
    pub test_nll: f64,
    /// Tokens at which both have the same likeliest.
    pub n_same_top1: u64,
}

impl WindowSums {
    /// Nothing scored yet in a window of this domain.
    #[must_use]
    pub fn new(domain: usize) -> Self {
        Self {
            domain,
            ..Self::default()
        }
    }

    /// Adds the token at `position`.
    ///
    /// # Errors
    /// [`Error::Infinite`] for a divergence or a likelihood that is not finite; a mean over it would
    /// say nothing of the other tokens.
    pub fn push(&mut self, position: usize, score: TokenScore) -> Result<()> {
        for (what, value) in [
            ("divergence", score.kld),
            (
                "negative log-likelihood under the reference",
                score.reference_nll,
            ),
            ("negative log-likelihood under the test", score.test_nll),
        ] {
            if !value.is_finite() {
                return Err(Error::Infinite { what, value });
            }
        }
        if self.n_tokens == 0 || score.kld > self.max_kld {
            (self.max_kld, self.max_kld_position) = (score.kld, position);
        }
        self.n_tokens += 1;
        self.kld += score.kld;
        self.kld_squares += score.kld * score.kld;
        self.reference_nll += score.reference_nll;
        self.test_nll += score.test_nll;
        self.n_same_top1 += u64::from(score.same_top1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn near(found: f64, expected: f64, by: f64) {
        assert!((found - expected).abs() <= by, "{found} for {expected}");
    }

    /// The definition, with probabilities.
    fn naive(reference: &[f32], test: &[f32]) -> f64 {
        let probabilities = |z: &[f32]| -> Vec<f64> {
            let all: f64 = z.iter().map(|z| f64::from(*z).exp()).sum();
            z.iter().map(|z| f64::from(*z).exp() / all).collect()
        };
        let (p, q) = (probabilities(reference), probabilities(test));
        p.iter().zip(&q).map(|(p, q)| p * (p / q).ln()).sum()
    }

    #[test]
    fn a_worked_example_has_its_published_digits() {
        let (reference, test) = ([2.0, 1.0, 0.0], [1.0, 2.0, 0.0]);
        let found = score(&reference, &test, 0).unwrap();
        near(found.kld, 0.420_512_485, 5e-10);
        near(found.reference_nll, 0.407_605_964, 5e-10);
        near(found.test_nll, 1.407_605_964, 5e-10);
        assert!(!found.same_top1);
    }

    #[test]
    fn equal_rows_diverge_by_exactly_nothing() {
        let row: Vec<f32> = (0..5000u32)
            .map(|i| ((i.wrapping_mul(2_654_435_761) >> 9) as f32) * 1e-5 - 20.0)
            .collect();
        let found = score(&row, &row, 17).unwrap();
        assert_eq!(found.kld.to_bits(), 0);
        assert!(found.same_top1);
        assert_eq!(found.reference_nll.to_bits(), found.test_nll.to_bits());
        let masked = [1.0, f32::NEG_INFINITY, 0.5];
        assert_eq!(score(&masked, &masked, 0).unwrap().kld.to_bits(), 0);
    }

    #[test]
    fn what_is_added_to_all_logits_does_not_count() {
        let reference = [0.5, -1.0, 2.0, 0.0];
        let shifted = reference.map(|z| z + 96.0);
        near(score(&reference, &shifted, 1).unwrap().kld, 0.0, 1e-13);
    }

    #[test]
    fn a_token_that_only_the_test_excludes_is_infinitely_far() {
        let none = f32::NEG_INFINITY;
        let found = score(&[1.0, 0.0], &[1.0, none], 0).unwrap();
        assert!(found.kld.is_infinite() && found.kld > 0.0);
        let said = WindowSums::new(0).push(9, found).unwrap_err().to_string();
        assert!(said.contains("divergence is inf"), "{said}");
        // The other way round it costs what the reference leaves.
        let found = score(&[1.0, none], &[1.0, 1.0], 0).unwrap();
        near(found.kld, 2.0_f64.ln(), 1e-15);
        // Likelihood of what cannot come.
        let found = score(&[1.0, none], &[1.0, none], 1).unwrap();
        assert!(WindowSums::new(0).push(9, found).is_err());
    }

    #[test]
    fn rows_that_are_no_distributions_are_refused_with_the_place() {
        let message = |r: &[f32], t: &[f32], token| score(r, t, token).unwrap_err().to_string();
        let said = message(&[1.0, f32::NAN], &[1.0, 2.0], 0);
        assert!(
            said.contains("reference") && said.contains("token 1"),
            "{said}"
        );
        let said = message(&[1.0, 2.0], &[f32::INFINITY, 0.0], 0);
        assert!(said.contains("test") && said.contains("token 0"), "{said}");
        let none = [f32::NEG_INFINITY; 2];
        assert!(message(&none, &[0.0; 2], 0).contains("reference"));
        assert!(message(&[0.0; 2], &none, 0).contains("test"));
        let said = message(&[0.0; 3], &[0.0; 2], 0);
        assert!(said.contains('3') && said.contains('2'), "{said}");
        assert!(message(&[0.0; 3], &[0.0; 3], 3).contains("token 3 of 3"));
        assert!(message(&[], &[], 0).contains("token 0 of 0"));
    }

    #[test]
    fn equals_go_to_the_lower_id() {
        let same = |r: &[f32], t: &[f32]| score(r, t, 0).unwrap().same_top1;
        assert!(same(&[1.0, 1.0, 0.0], &[2.0, 2.0, 0.0]));
        assert!(!same(&[1.0, 1.0, 0.0], &[1.0, 2.0, 0.0]));
    }

    #[test]
    fn sums_keep_the_worst_token() {
        let mut sums = WindowSums::new(3);
        let with = |kld, same_top1| TokenScore {
            kld,
            reference_nll: 1.0,
            test_nll: 1.5,
            same_top1,
        };
        for (position, kld) in [(5, 0.25), (6, 0.5), (7, 0.125)] {
            sums.push(position, with(kld, position != 6)).unwrap();
        }
        assert_eq!((sums.domain, sums.n_tokens, sums.n_same_top1), (3, 3, 2));
        assert_eq!((sums.max_kld, sums.max_kld_position), (0.5, 6));
        near(sums.kld, 0.875, 0.0);
        near(sums.kld_squares, 0.328_125, 0.0);
        near(sums.test_nll, 4.5, 0.0);
    }

    proptest! {
        #[test]
        fn chunks_of_the_vocabulary_give_what_the_whole_gives(
            rows in prop::collection::vec((-30.0f32..30.0, -30.0f32..30.0), 1..200),
            size in 1usize..70,
            actual in any::<prop::sample::Index>(),
        ) {
            let (reference, test): (Vec<f32>, Vec<f32>) = rows.iter().copied().unzip();
            let actual = actual.index(rows.len());
            let whole = score(&reference, &test, u32::try_from(actual).unwrap()).unwrap();
            near(whole.kld, naive(&reference, &test), 1e-9);
            prop_assert!(whole.kld > -1e-13);

            let mut scorer = PairScorer::new(u32::try_from(actual).unwrap());
            let mut total = LogSumExp::default();
            for (r, t) in reference.chunks(size).zip(test.chunks(size)) {
                scorer.push(r, t).unwrap();
                total.push(r);
            }
            let parts = scorer.finish().unwrap();
            near(parts.kld, whole.kld, 1e-12);
            near(parts.reference_nll, whole.reference_nll, 1e-12);
            near(parts.test_nll, whole.test_nll, 1e-12);
            prop_assert_eq!(parts.same_top1, whole.same_top1);
            near(total.value() - f64::from(reference[actual]), whole.reference_nll, 1e-12);
        }
    }
}
