//! `Usage`: how often and how strongly each expert was chosen, and what follows from it.
//!
//! Owns two sums an expert. Knows only what a trace shows: choices and their weights, not the
//! experts' outputs. Memory: 16 bytes an expert. Cost: O(1) a pick; a ranking sorts one layer.

use alloc::vec;
use alloc::vec::Vec;

use super::KeepMap;
use crate::math::{exp, ln};
use crate::{Error, ExpertKey, Key, KeySpace};

/// What makes an expert worth keeping, as far as a trace tells.
///
/// In text: `frequency`, `gate_mass`, `mean_gate`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Score {
    /// How often it was chosen.
    Frequency,
    /// The sum of its mixture weights.
    GateMass,
    /// Its mean mixture weight where it was chosen; 0 if it never was.
    MeanGate,
}

impl Score {
    /// Every score.
    pub const ALL: &'static [Self] = &[Self::Frequency, Self::GateMass, Self::MeanGate];

    /// The name in command lines and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Frequency => "frequency",
            Self::GateMass => "gate_mass",
            Self::MeanGate => "mean_gate",
        }
    }
}

/// Counts of a trace, or of a part of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Usage {
    space: KeySpace,
    picks: Vec<u64>,
    gates: Vec<f64>,
}

impl Usage {
    /// Nothing counted.
    #[must_use]
    pub fn new(space: KeySpace) -> Self {
        let n_keys = space.n_keys() as usize;
        Self {
            space,
            picks: vec![0; n_keys],
            gates: vec![0.0; n_keys],
        }
    }

    /// Counts one choice of an expert with mixture weight `gate`. Keys out of range are ignored.
    pub fn add(&mut self, key: Key, gate: f32) {
        if let Some(picks) = self.picks.get_mut(key.index()) {
            *picks += 1;
            self.gates[key.index()] += f64::from(gate);
        }
    }

    /// How often an expert was chosen; 0 out of range.
    #[must_use]
    pub fn n_picks(&self, key: Key) -> u64 {
        self.picks.get(key.index()).copied().unwrap_or(0)
    }

    /// The score of an expert; 0 out of range.
    #[must_use]
    pub fn score(&self, key: Key, score: Score) -> f64 {
        let (picks, gates) = (self.picks.get(key.index()), self.gates.get(key.index()));
        let (Some(&picks), Some(&gates)) = (picks, gates) else {
            return 0.0;
        };
        match score {
            Score::Frequency => picks as f64,
            Score::GateMass => gates,
            Score::MeanGate => gates / picks.max(1) as f64,
        }
    }

    /// The `n_kept` experts of each layer with the greatest score; equal scores go to the greater
    /// sum of weights, then to the lower id.
    ///
    /// # Errors
    /// [`Error::BadShape`] unless `1 <= n_kept <= n_expert`.
    pub fn keep(&self, score: Score, n_kept: u16) -> Result<KeepMap, Error> {
        let n_expert = self.space.n_expert();
        if n_kept == 0 || n_kept > n_expert {
            return Err(Error::BadShape {
                name: "kept experts",
                found: n_kept.into(),
                min: 1,
                max: n_expert.into(),
            });
        }
        let layers: Vec<Vec<u16>> = (0..self.space.n_layer())
            .map(|layer| {
                let rank = |expert: u16| {
                    let key = self.space.key(ExpertKey::new(layer, expert));
                    key.map_or((0.0, 0.0), |key| {
                        (self.score(key, score), self.gates[key.index()])
                    })
                };
                let mut experts: Vec<u16> = (0..n_expert).collect();
                experts.sort_by(|&a, &b| {
                    let (a, b) = (rank(a), rank(b));
                    b.0.total_cmp(&a.0).then(b.1.total_cmp(&a.1))
                });
                experts.truncate(usize::from(n_kept));
                experts.sort_unstable();
                experts
            })
            .collect();
        KeepMap::new(self.space, &layers)
    }

    /// Share of all choices that fell on kept experts; `None` if nothing was counted.
    #[must_use]
    pub fn picks_kept(&self, keep: &KeepMap) -> Option<f64> {
        let part = self.sum(|key| self.picks[key.index()] as f64, keep);
        let whole: u64 = self.picks.iter().sum();
        (whole > 0).then(|| part / whole as f64)
    }

    /// Share of all mixture weight that fell on kept experts; `None` if nothing was counted.
    #[must_use]
    pub fn gate_mass_kept(&self, keep: &KeepMap) -> Option<f64> {
        let part = self.sum(|key| self.gates[key.index()], keep);
        let whole: f64 = self.gates.iter().sum();
        (whole > 0.0).then(|| part / whole)
    }

    /// Share of all experts that were chosen at least once; `None` without experts.
    #[must_use]
    pub fn coverage(&self) -> Option<f64> {
        let used = self.picks.iter().filter(|&&n| n > 0).count();
        (!self.picks.is_empty()).then(|| used as f64 / self.picks.len() as f64)
    }

    /// Mean over the layers of exp(entropy of the choices): as many equally used experts would be
    /// as unpredictable. `None` if nothing was counted.
    #[must_use]
    pub fn effective_experts(&self) -> Option<f64> {
        let n_expert = usize::from(self.space.n_expert()).max(1);
        let (mut sum, mut n) = (0.0, 0u32);
        for picks in self.picks.chunks(n_expert) {
            let total: u64 = picks.iter().sum();
            if total == 0 {
                continue;
            }
            let entropy = |n: &u64| {
                let p = *n as f64 / total as f64;
                if *n > 0 { -p * ln(p) } else { 0.0 }
            };
            sum += exp(picks.iter().map(entropy).sum());
            n += 1;
        }
        (n > 0).then(|| sum / f64::from(n))
    }

    /// All experts, most chosen first (equal ones in the order of their keys): what to load into an
    /// empty cache.
    #[must_use]
    pub fn hottest(&self) -> Vec<Key> {
        let mut keys: Vec<Key> = (0..self.space.n_keys()).map(Key::new).collect();
        keys.sort_by_key(|key| core::cmp::Reverse(self.picks[key.index()]));
        keys
    }

    fn sum(&self, of: impl Fn(Key) -> f64, keep: &KeepMap) -> f64 {
        (0..self.space.n_layer())
            .flat_map(|layer| keep.layer(layer).iter().map(move |&e| (layer, e)))
            .filter_map(|(layer, e)| self.space.key(ExpertKey::new(layer, e)))
            .map(of)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Layer 0: expert 1 often and lightly, 2 seldom and heavily, 0 in between, 3 never.
    fn usage() -> Usage {
        let mut usage = Usage::new(KeySpace::new(2, 4));
        for (key, gate, n) in [(0, 0.5, 3), (1, 0.1, 6), (2, 0.9, 1), (4, 1.0, 1)] {
            for _ in 0..n {
                usage.add(Key::new(key), gate);
            }
        }
        usage.add(Key::new(8), 1.0); // out of range
        usage
    }

    #[test]
    fn each_score_keeps_its_own_favorites() {
        let usage = usage();
        let kept = |score, n| usage.keep(score, n).expect("valid").layer(0).to_vec();
        assert_eq!(kept(Score::Frequency, 1), [1]);
        assert_eq!(kept(Score::GateMass, 1), [0]);
        assert_eq!(kept(Score::MeanGate, 1), [2]);
        assert_eq!(kept(Score::MeanGate, 2), [0, 2]);
        // An expert never chosen comes last, and equal ones by id.
        assert_eq!(kept(Score::Frequency, 3), [0, 1, 2]);
        let other = usage.keep(Score::Frequency, 3).expect("valid");
        assert_eq!(other.layer(1), [0, 1, 2]);
        assert!(usage.keep(Score::Frequency, 0).is_err());
        assert!(usage.keep(Score::Frequency, 5).is_err());
    }

    #[test]
    fn shares_and_effective_experts_follow_their_formulas() {
        let usage = usage();
        let keep = usage.keep(Score::Frequency, 1).expect("valid");
        let is = |found: Option<f64>, expected: f64| {
            let found = found.expect("counted");
            assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
        };
        is(usage.picks_kept(&keep), 7.0 / 11.0);
        is(usage.gate_mass_kept(&keep), 1.6 / 4.0);
        is(usage.coverage(), 0.5);
        let entropy: f64 = [0.3f64, 0.6, 0.1].iter().map(|p| -p * p.ln()).sum();
        is(usage.effective_experts(), f64::midpoint(entropy.exp(), 1.0));
        let hottest: Vec<u32> = usage.hottest().into_iter().map(Key::id).collect();
        assert_eq!(hottest, [1, 0, 2, 4, 3, 5, 6, 7]);
        let empty = Usage::new(KeySpace::new(2, 4));
        assert_eq!(empty.picks_kept(&keep), None);
        assert_eq!(empty.effective_experts(), None);
    }
}
