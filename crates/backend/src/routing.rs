//! The router's decision for a chunk of tokens, on the host.
//!
//! Memory: `n_tokens * (n_expert + 2 k)` words, grown to the largest chunk seen and reused.

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
    pub fn reset(&mut self, n_tokens: usize, n_expert: usize, k: usize) {
        self.n_tokens = n_tokens;
        self.n_expert = n_expert;
        self.k = k;
        self.ids.resize(n_tokens * k, 0);
        self.weights.resize(n_tokens * k, 0.0);
        self.logits.resize(n_tokens * n_expert, 0.0);
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
    pub fn ids(&self, token: usize) -> &[u16] {
        &self.ids[token * self.k..(token + 1) * self.k]
    }

    /// Mixture weights of a token, `[k]`, same order as [`ids`](Self::ids); they sum to one.
    pub fn weights(&self, token: usize) -> &[f32] {
        &self.weights[token * self.k..(token + 1) * self.k]
    }

    /// Mixture weights of the whole chunk, `[n_tokens, k]`.
    pub fn all_weights(&self) -> &[f32] {
        &self.weights
    }

    /// Router logits of a token, `[n_expert]`.
    pub fn logits(&self, token: usize) -> &[f32] {
        &self.logits[token * self.n_expert..(token + 1) * self.n_expert]
    }

    /// Rows of the chunk in which a logit was not a number and was passed over.
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
    /// the architecture defines it; equal logits go to the lower id. A logit that is not a number,
    /// or is minus infinity, is never chosen.
    ///
    /// # Errors
    /// [`RouterNotFinite`](crate::Error::RouterNotFinite) when a token has fewer than `k` usable
    /// logits.
    pub fn choose(&mut self) -> crate::Result<()> {
        for token in 0..self.n_tokens {
            let logits = &self.logits[token * self.n_expert..(token + 1) * self.n_expert];
            let ids = &mut self.ids[token * self.k..(token + 1) * self.k];
            let weights = &mut self.weights[token * self.k..(token + 1) * self.k];
            let usable = |v: f32| !v.is_nan() && v < f32::INFINITY && v > f32::NEG_INFINITY;
            let finite = logits.iter().filter(|v| usable(**v)).count();
            if logits.iter().any(|v| v.is_nan() || *v == f32::INFINITY) {
                self.bad_rows += 1;
            }
            if finite < self.k {
                return Err(crate::Error::RouterNotFinite {
                    token,
                    finite,
                    n_expert: self.n_expert,
                    needed: self.k,
                });
            }
            top_k(logits, usable, ids);
            // The largest usable logit is the first choice.
            let max = logits[usize::from(ids[0])];
            let total: f32 = logits.iter().filter(|v| usable(**v)).map(|v| (v - max).exp()).sum();
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

/// Ids of the `ids.len()` largest usable logits, descending, equal ones by rising id.
fn top_k(logits: &[f32], usable: impl Fn(f32) -> bool, ids: &mut [u16]) {
    let mut n = 0;
    for (id, &z) in logits.iter().enumerate() {
        if !usable(z) {
            continue;
        }
        // Insertion into a short sorted list: a new value goes behind its equals.
        let at = ids[..n].iter().position(|&o| logits[usize::from(o)] < z).unwrap_or(n);
        if at == ids.len() {
            continue;
        }
        n = (n + 1).min(ids.len());
        ids.copy_within(at..n - 1, at + 1);
        // Routers have at most 1024 experts (checked when a model is bound).
        ids[at] = u16::try_from(id).unwrap_or(u16::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(logits: &[f32], k: usize) -> crate::Result<Routing> {
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
}
