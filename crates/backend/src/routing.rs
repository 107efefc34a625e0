//! The router's decision for a chunk of tokens, on the host.
//!
//! Owns the choice of experts and their weights, the same on every backend; does not compute
//! logits. Memory: `n_tokens * (n_expert + 2 k)` words, grown to the largest chunk seen and reused.
//! Invariants, after a successful [`Routing::choose`]: (1) a token's ids are distinct and below
//! `n_expert`; (2) its weights are finite, descend and sum to one.
//! Cost: `n_tokens * n_expert` exponentials and `n_tokens * n_expert * k` comparisons at worst.

use crate::contract::volume;
use crate::{Error, Result};

/// Experts chosen for each token of a chunk, in descending weight.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Routing {
    n_tokens: usize,
    n_expert: usize,
    k: usize,
    ids: Vec<u16>,
    weights: Vec<f32>,
    logits: Vec<f32>,
    bad_rows: usize,
}

impl Routing {
    /// Sets the shape, keeping the allocation; contents are unspecified until filled.
    ///
    /// # Panics
    /// If `n_tokens * n_expert` elements cannot be allocated, as [`Vec::resize`] does.
    pub fn reset(&mut self, n_tokens: usize, n_expert: usize, k: usize) {
        self.n_tokens = n_tokens;
        self.n_expert = n_expert;
        self.k = k;
        self.ids.resize(volume([n_tokens, k]), 0);
        self.weights.resize(volume([n_tokens, k]), 0.0);
        self.logits.resize(volume([n_tokens, n_expert]), 0.0);
        self.bad_rows = 0;
    }

    /// Tokens in the chunk.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Experts in the router.
    pub fn n_expert(&self) -> usize {
        self.n_expert
    }

    /// Experts chosen per token.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Chosen experts of a token, heaviest first.
    ///
    /// # Panics
    /// If `token` is not below [`n_tokens`](Self::n_tokens).
    pub fn ids(&self, token: usize) -> &[u16] {
        &self.ids[token * self.k..(token + 1) * self.k]
    }

    /// Mixture weights of a token, `[k]`, same order as [`ids`](Self::ids); they sum to one.
    ///
    /// # Panics
    /// As [`ids`](Self::ids).
    pub fn weights(&self, token: usize) -> &[f32] {
        &self.weights[token * self.k..(token + 1) * self.k]
    }

    /// Mixture weights of the whole chunk, `[n_tokens, k]`.
    pub fn all_weights(&self) -> &[f32] {
        &self.weights
    }

    /// Router logits of a token, `[n_expert]`.
    ///
    /// # Panics
    /// As [`ids`](Self::ids).
    pub fn logits(&self, token: usize) -> &[f32] {
        &self.logits[token * self.n_expert..(token + 1) * self.n_expert]
    }

    /// Replaces a token's choice, for a caller that routes by more than the logits.
    ///
    /// Nothing happens unless both slices have `k` entries and every id is in range.
    pub fn set_choice(&mut self, token: usize, ids: &[u16], weights: &[f32]) {
        let in_range = ids.iter().all(|id| usize::from(*id) < self.n_expert);
        if token < self.n_tokens && ids.len() == self.k && weights.len() == self.k && in_range {
            let row = token * self.k..(token + 1) * self.k;
            self.ids[row.clone()].copy_from_slice(ids);
            self.weights[row].copy_from_slice(weights);
        }
    }

    /// Tokens of which a logit was NaN or plus infinity and was passed over.
    ///
    /// Minus infinity is not counted: it is how experts are masked.
    pub fn bad_rows(&self) -> usize {
        self.bad_rows
    }

    /// Router logits of the whole chunk, for a backend to fill before [`choose`](Self::choose).
    pub fn logits_mut(&mut self) -> &mut [f32] {
        &mut self.logits
    }

    /// Chooses the `k` largest logits of every token and normalizes their softmax weights.
    ///
    /// The softmax runs over all experts and the chosen probabilities are divided by their sum, as
    /// the architecture defines it; equal logits go to the lower id. An infinite logit and one that
    /// is not a number is never chosen and has no part in the softmax.
    ///
    /// # Errors
    /// [`RouterNotFinite`](crate::Error::RouterNotFinite) when a token has fewer than `k` finite
    /// logits; [`Argument`](crate::Error::Argument) for `k = 0` and for more experts than ids.
    pub fn choose(&mut self) -> Result<()> {
        let (n_expert, k) = (self.n_expert, self.k);
        let argument = |what, found, rule| Error::Argument {
            op: "route",
            what,
            found,
            rule,
        };
        if k == 0 {
            return Err(argument("k", k, "at least 1"));
        }
        if n_expert > MAX_EXPERTS {
            return Err(argument("n_expert", n_expert, "at most 65536"));
        }
        self.bad_rows = 0;
        let ids = self.ids.chunks_exact_mut(k);
        for (token, (ids, weights)) in ids.zip(self.weights.chunks_exact_mut(k)).enumerate() {
            let logits = &self.logits[token * n_expert..(token + 1) * n_expert];
            if logits.iter().any(|z| z.is_nan() || *z == f32::INFINITY) {
                self.bad_rows += 1;
            }
            let finite = logits.iter().filter(|z| z.is_finite()).count();
            if finite < k {
                return Err(Error::RouterNotFinite {
                    token,
                    finite,
                    n_expert,
                    needed: k,
                });
            }
            top_k(logits, ids);
            // The largest finite logit is the first choice.
            let max = logits[usize::from(ids[0])];
            let finite = logits.iter().filter(|z| z.is_finite());
            let total: f32 = finite.map(|z| (z - max).exp()).sum();
            for (w, id) in weights.iter_mut().zip(ids.iter()) {
                *w = (logits[usize::from(*id)] - max).exp() / total;
            }
            let chosen: f32 = weights.iter().sum();
            for w in weights.iter_mut() {
                *w /= chosen;
            }
        }
        Ok(())
    }
}

/// Experts that a `u16` can name.
const MAX_EXPERTS: usize = 1 << 16;

/// Ids of the `ids.len()` largest finite logits, descending, equal ones by rising id.
///
/// There must be so many finite logits, and no more logits than [`MAX_EXPERTS`].
fn top_k(logits: &[f32], ids: &mut [u16]) {
    let mut n = 0;
    for (id, &z) in (0..=u16::MAX).zip(logits) {
        if !z.is_finite() {
            continue;
        }
        // Insertion into a short sorted list: a new value goes behind its equals.
        let at = ids[..n]
            .iter()
            .position(|&o| logits[usize::from(o)] < z)
            .unwrap_or(n);
        if at == ids.len() {
            continue;
        }
        n = (n + 1).min(ids.len());
        ids.copy_within(at..n - 1, at + 1);
        ids[at] = id;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(logits: &[f32], k: usize) -> Result<Routing> {
        let mut r = Routing::default();
        r.reset(1, logits.len(), k);
        r.logits_mut().copy_from_slice(logits);
        r.choose()?;
        Ok(r)
    }

    #[test]
    fn equal_logits_go_to_the_lower_id() {
        let r = chosen(&[1.0, 3.0, 3.0, 3.0, 2.0], 2).unwrap();
        assert_eq!(r.ids(0), [1, 2]);
        assert_eq!(r.weights(0), [0.5, 0.5]);
    }

    #[test]
    fn one_ulp_decides() {
        let up = f32::from_bits(2.0f32.to_bits() + 1);
        let r = chosen(&[2.0, up, 0.0], 1).unwrap();
        assert_eq!(r.ids(0), [1]);
    }

    #[test]
    fn not_a_number_is_passed_over_and_counted() {
        let r = chosen(&[f32::NAN, 0.0, 5.0, f32::NEG_INFINITY, f32::INFINITY], 2).unwrap();
        assert_eq!(r.ids(0), [2, 1]);
        assert_eq!(r.bad_rows(), 1);
        assert!(r.weights(0).iter().all(|w| w.is_finite()));
    }

    #[test]
    fn too_few_finite_logits_are_an_error() {
        for bad in [f32::NAN, f32::NEG_INFINITY] {
            let e = chosen(&[bad, bad, 1.0, bad], 2).unwrap_err();
            assert_eq!(
                e.to_string(),
                "router of token 0 has 1 finite logits of 4, 2 needed"
            );
        }
    }

    #[test]
    fn weights_are_the_softmax_over_the_choice() {
        let r = chosen(&[0.0, 1.0, 2.0, -3.0], 3).unwrap();
        assert_eq!(r.ids(0), [2, 1, 0]);
        let e: Vec<f64> = [2.0f64, 1.0, 0.0].iter().map(|z| z.exp()).collect();
        let total: f64 = e.iter().sum();
        for (w, e) in r.weights(0).iter().zip(e) {
            assert!((f64::from(*w) - e / total).abs() < 1e-7);
        }
    }

    #[test]
    fn all_experts_can_be_chosen() {
        let r = chosen(&[0.5, -1.0, 0.25], 3).unwrap();
        assert_eq!(r.ids(0), [0, 2, 1]);
    }

    #[test]
    fn choosing_none_and_more_experts_than_ids_are_errors() {
        assert_eq!(
            chosen(&[1.0], 0).unwrap_err().to_string(),
            "route: k is 0, but must be at least 1"
        );
        assert_eq!(
            chosen(&vec![0.0; MAX_EXPERTS + 1], 1)
                .unwrap_err()
                .to_string(),
            "route: n_expert is 65537, but must be at most 65536"
        );
        let mut last = vec![0.0; MAX_EXPERTS];
        last[MAX_EXPERTS - 1] = 1.0;
        assert_eq!(chosen(&last, 1).unwrap().ids(0), [u16::MAX]);
    }

    #[test]
    fn choosing_again_counts_bad_rows_once() {
        let mut r = chosen(&[f32::NAN, 1.0], 1).unwrap();
        r.choose().unwrap();
        assert_eq!(r.bad_rows(), 1);
    }

    #[test]
    fn logits_far_apart_give_finite_weights() {
        let r = chosen(&[f32::MAX, -f32::MAX, f32::MIN_POSITIVE], 3).unwrap();
        assert_eq!(r.ids(0), [0, 2, 1]);
        assert_eq!(r.weights(0), [1.0, 0.0, 0.0]);
    }

    proptest::proptest! {
        #[test]
        fn the_choice_is_a_stable_sort_cut_short(
            // Few distinct values, so that ties are common.
            logits in proptest::collection::vec(-4i8..4, 1..40),
            k in 1..12usize,
        ) {
            let logits: Vec<f32> = logits.into_iter().map(f32::from).collect();
            let k = k.min(logits.len());
            let mut sorted: Vec<u16> = (0u16..).take(logits.len()).collect();
            sorted.sort_by(|a, b| logits[usize::from(*b)].total_cmp(&logits[usize::from(*a)]));
            let r = chosen(&logits, k).unwrap();
            proptest::prop_assert_eq!(r.ids(0), &sorted[..k]);
            let sum: f32 = r.weights(0).iter().sum();
            proptest::prop_assert!((sum - 1.0).abs() < 1e-6);
            proptest::prop_assert!(r.weights(0).is_sorted_by(|a, b| a >= b));
        }
    }
}
