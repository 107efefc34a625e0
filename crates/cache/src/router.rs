//! `Router`: the choice of `k` experts from a row of logits, biased toward what is resident.
//!
//! Owns the choice, its weights and what it cost in agreement. Does not own residency (the caller
//! tells) nor the size of the bias (`Moce` does). Memory: 24 bytes an expert, allocated by `new`.
//! Invariants: 1. a route names `k` distinct experts in range, whatever the logits; 2. equal logits
//! go to the lower id; 3. the protected top is always chosen; 4. weights are finite and sum to one.
//! Cost: O(n_expert) a row, plus sorting 2k; no allocation.

use alloc::vec;
use alloc::vec::Vec;

use crate::math::{exp, ln};
use crate::{Error, Weights};

/// One decision; borrowed from the [`Router`] that made it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Route<'a> {
    /// The `k` experts chosen, in descending order of their own logits.
    pub experts: &'a [u16],
    /// Their mixture weights, in the same order; they sum to one.
    pub weights: &'a [f32],
    /// What would have been chosen without bias, in the same order.
    pub unbiased: &'a [u16],
    /// The next best without bias, ranks `k+1..=2k` as far as there are so many.
    pub near: &'a [u16],
    /// Experts of `unbiased` that are in `experts`.
    pub n_agree: u16,
    /// Chosen experts that are not resident.
    pub n_missing: u16,
    /// ln(P(unbiased) / P(experts)), P the sum of full-softmax probabilities: at least 0.
    pub routing_kl: f64,
    /// Logits that are NaN or plus infinity: a fault upstream. They rank below all finite ones.
    pub n_invalid: u16,
    /// Chosen experts without a finite logit, taken because there were too few others; weight 0,
    /// or all weights equal if there was no finite logit at all.
    pub n_filled: u16,
}

impl Route<'_> {
    /// Whether the bias changed the set of experts.
    #[must_use]
    pub const fn is_exact(&self) -> bool {
        self.n_agree as usize == self.unbiased.len()
    }
}

/// Chooses `k` of `n_expert` experts.
///
/// ```
/// use thalweg_cache::Router;
/// let mut router = Router::new(6, 3)?;
/// let logits = [3.0, 2.5, 2.0, 1.8, 0.5, -1.0];
/// let resident = |expert| expert == 3 || expert == 4;
/// let route = router.route(&logits, 0.36, 1, Default::default(), resident)?;
/// assert_eq!(route.experts, [0, 1, 3]);
/// assert_eq!((route.n_agree, route.n_missing), (2, 2));
/// # Ok::<(), thalweg_cache::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Router {
    k: usize,
    /// Cleaned logits: every one that is not finite is minus infinity.
    logits: Vec<f64>,
    /// Ranks to be sorted, see `rank`.
    ranks: Vec<u128>,
    /// The best by logit, up to 2 k.
    best: Vec<u16>,
    chosen: Vec<u16>,
    weights: Vec<f32>,
}

impl Router {
    /// A router with its scratch memory.
    ///
    /// # Errors
    /// [`Error::BadShape`] unless `1 <= k <= n_expert`.
    pub fn new(n_expert: u16, k: u16) -> Result<Self, Error> {
        if k == 0 || k > n_expert {
            return Err(Error::BadShape {
                name: "experts chosen for a token",
                found: u32::from(k),
                min: 1,
                max: u32::from(n_expert),
            });
        }
        let n_expert = usize::from(n_expert);
        Ok(Self {
            k: usize::from(k),
            logits: vec![0.0; n_expert],
            ranks: Vec::with_capacity(n_expert),
            best: Vec::with_capacity(n_expert.min(2 * usize::from(k))),
            chosen: Vec::with_capacity(usize::from(k)),
            weights: vec![0.0; usize::from(k)],
        })
    }

    /// Chooses from one row of logits, `[n_expert]`.
    ///
    /// `beta` is added to the logits of the experts for which `resident` is true; the `top_j` best
    /// are chosen before the bias is looked at. With `beta` 0, nothing or everything resident, or
    /// `top_j >= k`, this is the plain choice of the `k` greatest.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for a row of another length; [`Error::BadTuning`] for a negative or
    /// infinite `beta`.
    pub fn route(
        &mut self,
        logits: &[f32],
        beta: f64,
        top_j: u8,
        weights: Weights,
        resident: impl Fn(u16) -> bool,
    ) -> Result<Route<'_>, Error> {
        let n_expert = self.logits.len();
        if logits.len() != n_expert {
            return Err(Error::ShapeMismatch {
                what: "logits in a row",
                expected: n_expert as u64,
                found: logits.len() as u64,
            });
        }
        if !(0.0..f64::INFINITY).contains(&beta) {
            return Err(Error::BadTuning {
                name: "beta",
                found: beta,
                min: 0.0,
                max: f64::MAX,
            });
        }
        let n_invalid = self.clean(logits);
        let k = self.k;
        let z = &self.logits;

        let n_ranked = (2 * k).min(n_expert);
        self.ranks.clear();
        self.ranks
            .extend((0..=u16::MAX).zip(z).map(|(expert, &z)| rank(z, expert)));
        sort_prefix(&mut self.ranks, n_ranked);
        self.best.clear();
        self.best
            .extend(self.ranks[..n_ranked].iter().map(|&rank| expert_of(rank)));

        self.chosen.clear();
        let n_protected = usize::from(top_j).min(k);
        if beta > 0.0 && n_protected < k {
            let open = &mut self.ranks[n_protected..];
            for entry in open.iter_mut() {
                let expert = expert_of(*entry);
                let bias = if resident(expert) { beta } else { 0.0 };
                *entry = rank(z[usize::from(expert)] + bias, expert);
            }
            sort_prefix(open, k - n_protected);
            self.chosen
                .extend(self.ranks[..k].iter().map(|&rank| expert_of(rank)));
            self.chosen
                .sort_unstable_by_key(|&expert| rank(z[usize::from(expert)], expert));
        } else {
            self.chosen.extend_from_slice(&self.best[..k]);
        }

        let n_filled = self.weigh(beta, weights, &resident);
        let unbiased = &self.best[..k];
        let in_unbiased = |e: &&u16| unbiased.contains(e);
        Ok(Route {
            experts: &self.chosen,
            weights: &self.weights,
            unbiased,
            near: &self.best[k..],
            // All four are counts of at most `n_expert`, a u16.
            n_agree: self.chosen.iter().filter(in_unbiased).count() as u16,
            n_missing: self.chosen.iter().filter(|&&e| !resident(e)).count() as u16,
            routing_kl: self.kl(unbiased),
            n_invalid,
            n_filled,
        })
    }

    /// Copies the logits, with minus infinity for what is not finite; counts NaN and plus infinity.
    fn clean(&mut self, logits: &[f32]) -> u16 {
        let mut n_invalid = 0;
        for (clean, &z) in self.logits.iter_mut().zip(logits) {
            *clean = if z.is_finite() {
                f64::from(z)
            } else {
                f64::NEG_INFINITY
            };
            // Minus infinity is a legitimate mask.
            n_invalid += u16::from(z.is_nan() || z == f32::INFINITY);
        }
        n_invalid
    }

    /// Computes the weights of `chosen`; returns how many of them have no finite logit.
    fn weigh(&mut self, beta: f64, weights: Weights, resident: &impl Fn(u16) -> bool) -> u16 {
        let score = |expert: u16| {
            let z = self.logits[usize::from(expert)];
            match weights {
                Weights::Biased if resident(expert) => z + beta,
                _ => z,
            }
        };
        let greatest = self
            .chosen
            .iter()
            .map(|&e| score(e))
            .fold(f64::NEG_INFINITY, f64::max);
        let n_filled = self
            .chosen
            .iter()
            .filter(|&&e| self.logits[usize::from(e)].is_infinite())
            .count();
        if n_filled == self.k {
            // `k` is a u16.
            self.weights.fill(1.0 / self.k as f32);
        } else {
            let sum: f64 = self.chosen.iter().map(|&e| exp(score(e) - greatest)).sum();
            for (weight, &e) in self.weights.iter_mut().zip(&self.chosen) {
                *weight = (exp(score(e) - greatest) / sum) as f32;
            }
        }
        n_filled as u16
    }

    fn kl(&self, unbiased: &[u16]) -> f64 {
        let greatest = self.logits[usize::from(unbiased[0])];
        if greatest.is_infinite() {
            return 0.0;
        }
        let mass = |experts: &[u16]| -> f64 {
            experts
                .iter()
                .map(|&e| exp(self.logits[usize::from(e)] - greatest))
                .sum()
        };
        // The sums of equal sets are equal: both are taken in descending order.
        ln(mass(unbiased) / mass(&self.chosen))
    }
}

/// Softmax of a row of logits; NaN and infinities count as minus infinity.
///
/// Writes as many values as the shorter slice has; a row without a finite logit gives zeros.
pub fn softmax(logits: &[f32], probs: &mut [f32]) {
    let finite = |z: f32| {
        if z.is_finite() {
            f64::from(z)
        } else {
            f64::NEG_INFINITY
        }
    };
    let greatest = logits
        .iter()
        .fold(f64::NEG_INFINITY, |m, &z| m.max(finite(z)));
    if greatest.is_infinite() {
        probs.fill(0.0);
        return;
    }
    let sum: f64 = logits.iter().map(|&z| exp(finite(z) - greatest)).sum();
    for (p, &z) in probs.iter_mut().zip(logits) {
        *p = (exp(finite(z) - greatest) / sum) as f32;
    }
}

/// A number that sorts experts by descending score and then by ascending id.
///
/// Comparing numbers is several times faster than comparing scores through ids.
fn rank(score: f64, expert: u16) -> u128 {
    // Adding zero makes one zero of the two.
    let bits = (score + 0.0).to_bits();
    let negative = bits >> 63 == 1;
    let ascending = if negative { !bits } else { bits | 1 << 63 };
    u128::from(!ascending) << 16 | u128::from(expert)
}

/// The expert in a rank: its low 16 bits.
const fn expert_of(rank: u128) -> u16 {
    rank as u16
}

/// Puts the `n` least ranks first, sorted; the rest stays in any order.
fn sort_prefix(ranks: &mut [u128], n: usize) {
    if n < ranks.len() {
        ranks.select_nth_unstable(n);
    }
    let n = n.min(ranks.len());
    ranks[..n].sort_unstable();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bias, Moce, RangeMean, SplitMix64};

    const ROW: [f32; 6] = [3.0, 2.5, 2.0, 1.8, 0.5, -1.0];

    fn resident(expert: u16) -> bool {
        expert == 3 || expert == 4
    }

    /// Equality of figures given to six decimals.
    fn same(found: impl Into<f64>, expected: f64) {
        let found = found.into();
        assert!((found - expected).abs() < 6e-7, "{found} is not {expected}");
    }

    #[test]
    fn the_worked_example_comes_out_digit_by_digit() {
        let moce = Moce::new("rel:0.09".parse().expect("valid")).with_protected(1);
        let mut mean = RangeMean::default();
        let beta = moce.beta(&mut mean, &ROW);
        same(beta, 0.36);
        let mut router = Router::new(6, 3).expect("valid");
        let route = router
            .route(&ROW, beta, 1, Weights::Unbiased, resident)
            .expect("valid");
        assert_eq!(route.experts, [0, 1, 3]);
        assert_eq!(route.unbiased, [0, 1, 2]);
        assert_eq!(route.near, [3, 4, 5]);
        for (&w, expected) in route.weights.iter().zip([0.524185, 0.317934, 0.157881]) {
            same(w, expected);
        }
        same(route.routing_kl, 0.034358);
        assert_eq!((route.n_agree, route.n_missing), (2, 2));
        let route = router
            .route(&ROW, beta, 1, Weights::Biased, resident)
            .expect("valid");
        for (&w, expected) in route.weights.iter().zip([0.490619, 0.297576, 0.211805]) {
            same(w, expected);
        }
        let route = router
            .route(&ROW, 4.0, 1, Weights::Unbiased, resident)
            .expect("valid");
        assert_eq!(route.experts, [0, 3, 4]);
        same(route.routing_kl, 0.355813);
        assert_eq!(route.n_missing, 1);
        let route = router
            .route(&ROW, 4.0, 3, Weights::Unbiased, resident)
            .expect("valid");
        assert!(route.is_exact());
        same(route.routing_kl, 0.0);
    }

    #[test]
    fn a_regret_limit_bounds_every_exchange() {
        let mut rng = SplitMix64::new(9);
        let mut router = Router::new(24, 4).expect("valid");
        let moce = Moce::new(Bias::Absolute { nats: 3.0 }).with_max_regret(2.0);
        let mut swaps = 0;
        for _ in 0..500 {
            let row: Vec<f32> = (0..24).map(|_| (rng.unit() * 4.0) as f32).collect();
            let mask = rng.next_u64();
            let beta = moce.beta(&mut RangeMean::default(), &row);
            let route = router
                .route(&row, beta, 1, Weights::Unbiased, |e| mask >> e & 1 == 1)
                .expect("valid");
            let lost = route.unbiased.iter().filter(|e| !route.experts.contains(e));
            for &lost in lost {
                for &won in route.experts.iter().filter(|e| !route.unbiased.contains(e)) {
                    let factor = (row[usize::from(lost)] - row[usize::from(won)]).exp();
                    assert!(factor <= 2.0001, "gave up {factor}");
                    swaps += 1;
                }
            }
        }
        assert!(swaps > 100, "the bias had something to do");
    }

    #[test]
    fn bad_logits_still_give_distinct_experts_and_are_reported() {
        let mut router = Router::new(512, 10).expect("valid");
        let mut check = |row: &[f32], n_invalid: u16, n_filled: u16| {
            let route = router
                .route(row, 0.5, 3, Weights::Unbiased, |e| e % 2 == 0)
                .expect("valid");
            let mut ids = route.experts.to_vec();
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len(), 10);
            assert!(ids.iter().all(|&e| e < 512));
            assert!(route.weights.iter().all(|w| w.is_finite() && *w >= 0.0));
            let sum: f64 = route.weights.iter().map(|&w| f64::from(w)).sum();
            assert!((sum - 1.0).abs() < 1e-5);
            assert!(route.routing_kl.is_finite());
            assert_eq!((route.n_invalid, route.n_filled), (n_invalid, n_filled));
        };
        let ramp: Vec<f32> = (0..512u16).map(f32::from).collect();
        let mut one_nan = ramp.clone();
        one_nan[511] = f32::NAN;
        check(&one_nan, 1, 0);
        let mut one_inf = ramp.clone();
        one_inf[3] = f32::INFINITY;
        check(&one_inf, 1, 0);
        check(&[f32::NAN; 512], 512, 10);
        check(&[f32::NEG_INFINITY; 512], 0, 10);
        check(&[f32::INFINITY; 512], 512, 10);
        let mut nine = [f32::NAN; 512];
        nine[100..109].copy_from_slice(&ramp[100..109]);
        check(&nine, 503, 1);
        check(&ramp, 0, 0);
    }

    #[test]
    fn valid_experts_are_chosen_before_bad_ones() {
        let mut router = Router::new(4, 2).expect("valid");
        let row = [f32::NAN, -5.0, f32::INFINITY, -90.0];
        let route = router
            .route(&row, 0.0, 0, Weights::Unbiased, |_| false)
            .expect("valid");
        assert_eq!(route.experts, [1, 3]);
    }

    #[test]
    fn equal_logits_go_to_the_lower_id() {
        let mut router = Router::new(12, 10).expect("valid");
        let mut row = [1.0f32; 12];
        row[11] = 1.0 + f32::EPSILON;
        let route = router
            .route(&row, 0.0, 3, Weights::Unbiased, |_| false)
            .expect("valid");
        assert_eq!(route.experts, [11, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        let signed = [0.0, -0.0, 0.0];
        let mut router = Router::new(3, 1).expect("valid");
        let route = router
            .route(&signed, 0.0, 0, Weights::Unbiased, |_| false)
            .expect("valid");
        assert_eq!(route.experts, [0]);
    }

    #[test]
    fn a_bias_without_anything_to_prefer_changes_nothing() {
        let mut rng = SplitMix64::new(4);
        let mut router = Router::new(16, 4).expect("valid");
        for _ in 0..200 {
            let row: Vec<f32> = (0..16).map(|_| rng.unit() as f32).collect();
            let mask = rng.next_u64();
            let mut route = |beta, top_j, resident: &dyn Fn(u16) -> bool| {
                router
                    .route(&row, beta, top_j, Weights::Unbiased, resident)
                    .expect("valid")
                    .is_exact()
            };
            let some = |e: u16| mask >> e & 1 == 1;
            assert!(route(0.0, 0, &some));
            assert!(route(9.0, 0, &|_| false));
            assert!(route(9.0, 0, &|_| true));
            assert!(route(9.0, 4, &some));
        }
    }

    #[test]
    fn more_bias_never_means_more_missing_experts() {
        let mut rng = SplitMix64::new(8);
        let mut router = Router::new(16, 4).expect("valid");
        for _ in 0..200 {
            let row: Vec<f32> = (0..16).map(|_| (4.0 * rng.unit()) as f32).collect();
            let mask = rng.next_u64();
            let mut before = u16::MAX;
            for beta in [0.0, 0.1, 0.3, 1.0, 2.0, 8.0] {
                let route = router
                    .route(&row, beta, 1, Weights::Unbiased, |e| mask >> e & 1 == 1)
                    .expect("valid");
                assert!(route.n_missing <= before);
                assert!(route.experts.contains(&route.unbiased[0]));
                assert!(route.routing_kl >= -1e-15);
                before = route.n_missing;
            }
        }
    }

    #[test]
    fn shapes_and_settings_are_checked() {
        assert!(Router::new(4, 5).is_err());
        assert!(Router::new(4, 0).is_err());
        let mut router = Router::new(4, 2).expect("valid");
        let mut route = |row: &[f32], beta| {
            router
                .route(row, beta, 0, Weights::Unbiased, |_| false)
                .map(|_| ())
        };
        assert!(matches!(
            route(&[0.0; 3], 0.0),
            Err(Error::ShapeMismatch {
                expected: 4,
                found: 3,
                ..
            })
        ));
        assert!(route(&[0.0; 4], f64::NAN).is_err());
        assert!(route(&[0.0; 4], -1.0).is_err());
        assert!(Moce::default().with_max_regret(0.5).check().is_err());
    }

    #[test]
    fn softmax_sums_to_one_and_survives_bad_rows() {
        let mut probs = [0.0; 6];
        softmax(&ROW, &mut probs);
        same(probs.iter().map(|&p| f64::from(p)).sum::<f64>(), 1.0);
        assert!(probs.is_sorted_by(|a, b| a >= b));
        softmax(&[f32::NAN; 6], &mut probs);
        assert!(probs.iter().all(|&p| p.abs() < 1e-9));
    }
}
