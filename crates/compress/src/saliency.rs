//! How much each routed expert matters, measured while the model runs.
//!
//! Owns the sums over tokens (an observer of the engine), the scores made of them, and their file
//! (JSON). Does not own the run nor the choice (`keep_map`). Memory: six numbers for each expert and
//! `8 * n_embd` bytes a layer; during a run the engine adds a copy of a chunk's expert outputs.
//! Invariants: 1. sums are in f64 and in the order of tokens, so that chunks, threads and what is
//! resident do not change a bit; 2. an expert that was never chosen has score 0.
//! Source of the mean score: REAP (arXiv 2510.13999), with gates as the model uses them.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::json;
use thalweg_runtime::{ExpertOutputs, Observer};

use crate::file::{Kind, read_json};
use crate::{Error, InputMoments, Result};

pub(crate) const KIND: Kind = Kind {
    format: "saliency",
    version: 1,
    what: "saliency sums",
};

/// Sums over the tokens of a calibration run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Saliency {
    format: String,
    version: u32,
    /// The model file that was run.
    pub source: String,
    /// Its fingerprint in hexadecimal digits.
    pub fingerprint: String,
    /// Experts that a token uses.
    pub n_expert_used: usize,
    /// Tokens of all texts.
    pub n_tokens: u64,
    /// SHA-256 of the token ids, in hexadecimal digits.
    pub tokens_sha256: String,
    /// Tokens of each text, by its name.
    pub domains: Vec<(String, u64)>,
    /// One entry a layer.
    pub layers: Vec<ExpertSums>,
}

/// Sums over the tokens that chose each expert of a layer, `[n_expert]` each. `g` is the gate: the
/// weight that the model gives the expert; `n` the Euclidean norm of the expert's output before it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExpertSums {
    /// Tokens.
    pub count: Vec<u64>,
    /// `sum g`.
    pub gate: Vec<f64>,
    /// `sum n`.
    pub norm: Vec<f64>,
    /// `sum g n`.
    pub gated_norm: Vec<f64>,
    /// `sum (g n)^2`.
    pub gated_norm_squared: Vec<f64>,
    /// Largest magnitude of an output's element.
    pub max: Vec<f64>,
}

/// By what experts are ranked.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Score {
    /// Mean of `g n` over the tokens that chose the expert.
    Reap,
    /// Sum of `g n`.
    ReapL2Sum,
    /// Lower bound of the mean, damped: with `kappa` further tokens of value 0, `z` standard errors
    /// below.
    ReapShrink {
        /// Tokens of value 0; 16 by default.
        kappa: f64,
        /// Standard errors; 1 by default.
        z: f64,
    },
    /// Geometric mean of the shares of `ReapL2Sum` and `ReapShrink`.
    ReapHybrid {
        /// As of `ReapShrink`.
        kappa: f64,
        /// As of `ReapShrink`.
        z: f64,
        /// Power of the sum's share, 0 to 1; the other's is the rest. 0.5 by default.
        alpha: f64,
    },
    /// Tokens that chose it.
    Frequency,
    /// Sum of `n`.
    EanSum,
    /// Mean of `n`.
    EanMean,
    /// Sum of `g`.
    GateMass,
}

impl Score {
    /// All of them, with default constants.
    pub const ALL: [Self; 8] = [
        Self::Reap,
        Self::ReapL2Sum,
        Self::ReapShrink {
            kappa: 16.0,
            z: 1.0,
        },
        Self::ReapHybrid {
            kappa: 16.0,
            z: 1.0,
            alpha: 0.5,
        },
        Self::Frequency,
        Self::EanSum,
        Self::EanMean,
        Self::GateMass,
    ];

    /// Its name in files and flags.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reap => "reap",
            Self::ReapL2Sum => "reap_l2_sum",
            Self::ReapShrink { .. } => "reap_shrink",
            Self::ReapHybrid { .. } => "reap_hybrid",
            Self::Frequency => "frequency",
            Self::EanSum => "ean_sum",
            Self::EanMean => "ean_mean",
            Self::GateMass => "gate_mass",
        }
    }

    /// The score of this name, with default constants.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|score| score.name() == name)
    }

    /// Scores of a layer's experts, `[n_expert]`; larger is better.
    #[must_use]
    pub fn of(self, sums: &ExpertSums) -> Vec<f64> {
        let count = |e: usize| sums.count[e] as f64;
        let mean = |of: &[f64], e: usize| match sums.count[e] {
            0 => 0.0,
            _ => of[e] / count(e),
        };
        let experts = 0..sums.count.len();
        match self {
            Self::Reap => experts.map(|e| mean(&sums.gated_norm, e)).collect(),
            Self::ReapL2Sum => sums.gated_norm.clone(),
            Self::ReapShrink { kappa, z } => experts
                .map(|e| {
                    let (mu, se) = shrunk(sums, e, kappa);
                    (mu - z * se).max(0.0)
                })
                .collect(),
            Self::ReapHybrid { kappa, z, alpha } => {
                let shrink = Self::ReapShrink { kappa, z }.of(sums);
                let totals = [&sums.gated_norm, &shrink].map(|of| of.iter().sum::<f64>());
                let share = |value: f64, total: f64| match total > 0.0 {
                    true => value / total,
                    false => 0.0,
                };
                let both = sums.gated_norm.iter().zip(&shrink);
                both.map(|(sum, shrink)| {
                    let (a, b) = (share(*sum, totals[0]), share(*shrink, totals[1]));
                    match a > 0.0 && b > 0.0 {
                        true => a.powf(alpha) * b.powf(1.0 - alpha),
                        false => 0.0,
                    }
                })
                .collect()
            }
            Self::Frequency => experts.map(count).collect(),
            Self::EanSum => sums.norm.clone(),
            Self::EanMean => experts.map(|e| mean(&sums.norm, e)).collect(),
            Self::GateMass => sums.gate.clone(),
        }
    }
}

/// Mean of `g n` with `kappa` further tokens of value 0, and its standard error.
fn shrunk(sums: &ExpertSums, e: usize, kappa: f64) -> (f64, f64) {
    let n = sums.count[e] as f64 + kappa;
    if n <= 0.0 {
        return (0.0, 0.0);
    }
    let mu = sums.gated_norm[e] / n;
    let variance = (sums.gated_norm_squared[e] / n - mu * mu).max(0.0);
    (mu, (variance / n).sqrt())
}

impl ExpertSums {
    /// Of a layer with so many experts that no token has chosen from.
    #[must_use]
    pub fn new(n_expert: usize) -> Self {
        let zeros = vec![0.0; n_expert];
        Self {
            count: vec![0; n_expert],
            gate: zeros.clone(),
            norm: zeros.clone(),
            gated_norm: zeros.clone(),
            gated_norm_squared: zeros.clone(),
            max: zeros,
        }
    }

    /// Counts a token that chose expert `e` with gate `g` and got an output of norm `n`.
    ///
    /// # Panics
    /// If there is no such expert.
    pub fn add(&mut self, e: usize, g: f64, n: f64, max: f64) {
        let s = g * n;
        self.count[e] += 1;
        self.gate[e] += g;
        self.norm[e] += n;
        self.gated_norm[e] += s;
        self.gated_norm_squared[e] += s * s;
        self.max[e] = self.max[e].max(max);
    }

    /// `exp` of the entropy of the choices: how many experts, equally often chosen, would be as
    /// varied.
    #[must_use]
    pub fn effective_experts(&self) -> f64 {
        let total: u64 = self.count.iter().sum();
        let shares = self.count.iter().filter(|c| **c > 0);
        let shares = shares.map(|c| *c as f64 / total as f64);
        (-shares.map(|p| p * p.ln()).sum::<f64>()).exp()
    }
}

impl Saliency {
    /// Share of (layer, expert) pairs that were chosen at all.
    #[must_use]
    pub fn coverage(&self) -> f64 {
        let all: usize = self.layers.iter().map(|l| l.count.len()).sum();
        let hit = |l: &ExpertSums| l.count.iter().filter(|c| **c > 0).count();
        let hit: usize = self.layers.iter().map(hit).sum();
        hit as f64 / all.max(1) as f64
    }

    /// Reads a file that [`to_json`](Self::to_json) made.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Json`], [`Error::WrongFile`], [`Error::OutOfRange`].
    pub fn read(path: &Path) -> Result<Self> {
        let saliency: Self = read_json(path, KIND)?;
        saliency.validate()?;
        Ok(saliency)
    }

    /// The file's text.
    #[must_use]
    pub fn to_json(&self) -> String {
        json!(self).to_string()
    }

    /// Checks that layers are alike and every sum is finite and not negative.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn validate(&self) -> Result<()> {
        let n_expert = self.layers.first().map_or(0, |l| l.count.len());
        if n_expert == 0 {
            return Err(Error::out_of_range("number of experts", 0, "at least 1"));
        }
        for (layer, sums) in self.layers.iter().enumerate() {
            let lists = [
                &sums.gate,
                &sums.norm,
                &sums.gated_norm,
                &sums.gated_norm_squared,
                &sums.max,
            ];
            let odd = lists.iter().map(|l| l.len()).chain([sums.count.len()]);
            if let Some(odd) = odd.into_iter().find(|n| *n != n_expert) {
                let what = format!("number of experts in layer {layer}");
                return Err(Error::out_of_range(what, odd, n_expert));
            }
            for list in lists {
                if let Some(e) = list.iter().position(|v| !(*v >= 0.0 && v.is_finite())) {
                    let what = format!("a sum of expert {e} of layer {layer}");
                    return Err(Error::out_of_range(what, list[e], "finite, not negative"));
                }
            }
        }
        Ok(())
    }
}

/// Collects [`Saliency`] and [`InputMoments`] while an engine takes texts in; it changes no result.
#[derive(Debug, Clone)]
pub struct Collector {
    layers: Vec<ExpertSums>,
    /// `sum x_d^2` by layer.
    squares: Vec<Vec<f64>>,
    n_tokens: u64,
}

impl Collector {
    /// For a model of `n_layer` layers.
    #[must_use]
    pub fn new(n_layer: usize) -> Self {
        Self {
            layers: vec![ExpertSums::default(); n_layer],
            squares: vec![Vec::new(); n_layer],
            n_tokens: 0,
        }
    }

    /// As after a run that gave these sums.
    #[cfg(test)]
    pub(crate) fn set_layers(&mut self, layers: Vec<ExpertSums>) {
        self.layers = layers;
    }

    /// Tokens seen by the first layer.
    #[must_use]
    pub fn n_tokens(&self) -> u64 {
        self.n_tokens
    }

    /// The sums, with what they are of.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for sums that are not finite, or if no token was seen.
    pub fn saliency(
        &self,
        source: &str,
        fingerprint: &str,
        n_expert_used: usize,
        tokens_sha256: &str,
        domains: Vec<(String, u64)>,
    ) -> Result<Saliency> {
        let saliency = Saliency {
            format: KIND.format.to_owned(),
            version: KIND.version,
            source: source.to_owned(),
            fingerprint: fingerprint.to_owned(),
            n_expert_used,
            n_tokens: self.n_tokens,
            tokens_sha256: tokens_sha256.to_owned(),
            domains,
            layers: self.layers.clone(),
        };
        saliency.validate()?;
        Ok(saliency)
    }

    /// Second moments of what the experts were given.
    ///
    /// # Errors
    /// As [`InputMoments::new`].
    pub fn moments(&self, source: &str, fingerprint: &str) -> Result<InputMoments> {
        let n = self.n_tokens.max(1) as f64;
        let layers = self.squares.iter();
        let layers = layers.map(|l| l.iter().map(|sum| sum / n).collect());
        InputMoments::new(source, fingerprint, self.n_tokens, layers.collect())
    }
}

impl Observer for Collector {
    fn wants_experts(&self) -> bool {
        true
    }

    fn on_experts(&mut self, layer: usize, _: usize, experts: &ExpertOutputs<'_>) {
        let routing = experts.routing();
        let (Some(sums), Some(squares)) = (self.layers.get_mut(layer), self.squares.get_mut(layer))
        else {
            return;
        };
        if sums.count.is_empty() {
            *sums = ExpertSums::new(routing.n_expert());
        }
        for token in 0..routing.n_tokens() {
            let input = experts.input(token);
            squares.resize(input.len(), 0.0);
            for (sum, x) in squares.iter_mut().zip(input) {
                *sum += f64::from(*x) * f64::from(*x);
            }
            let choices = routing.ids(token).iter().zip(routing.weights(token));
            for (rank, (id, gate)) in choices.enumerate() {
                let output = experts.output(token, rank);
                let square = |y: &f32| f64::from(*y) * f64::from(*y);
                let norm = output.iter().map(square).sum::<f64>().sqrt();
                let max = output
                    .iter()
                    .map(|y| f64::from(y.abs()))
                    .fold(0.0, f64::max);
                sums.add(usize::from(*id), f64::from(*gate), norm, max);
            }
        }
        if layer == 0 {
            self.n_tokens += routing.n_tokens() as u64;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Five experts, two a token, four tokens: logits and output norms by expert.
    pub(crate) fn worked() -> ExpertSums {
        let logits: [[f64; 5]; 4] = [
            [2.0, 1.0, 0.0, -1.0, -5.0],
            [1.0, 2.0, 0.0, -1.0, -5.0],
            [0.0, 0.5, 3.0, 1.0, -5.0],
            [2.0, -1.0, 2.0, -3.0, -5.0],
        ];
        let norms = [
            [(0, 3.0), (1, 1.0)],
            [(1, 2.0), (0, 2.0)],
            [(2, 1.0), (3, 4.0)],
            [(0, 3.0), (2, 1.0)],
        ];
        let mut sums = ExpertSums::new(5);
        for (logits, chosen) in logits.iter().zip(&norms) {
            let total: f64 = chosen
                .iter()
                .map(|(e, _): &(usize, f64)| logits[*e].exp())
                .sum();
            for (e, n) in chosen {
                sums.add(*e, logits[*e].exp() / total, *n, *n);
            }
        }
        sums
    }

    #[track_caller]
    fn near(found: &[f64], expected: &[f64]) {
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        }
    }

    #[test]
    fn the_worked_example_comes_out() {
        let sums = worked();
        let (kappa, z, alpha) = (4.0, 1.0, 0.5);
        assert_eq!(sums.count, [3, 2, 2, 1, 0]);
        near(&sums.gate, &[1.5, 1.0, 1.380797, 0.119203, 0.0]);
        near(
            &sums.gated_norm,
            &[4.231059, 1.731059, 1.380797, 0.476812, 0.0],
        );
        let squared = [7.349338, 2.210116, 1.025803, 0.227349, 0.0];
        near(&sums.gated_norm_squared, &squared);
        let reap = [1.410353, 0.865529, 0.690399, 0.476812, 0.0];
        near(&Score::Reap.of(&sums), &reap);
        let (mu, se): (Vec<_>, Vec<_>) = (0..5).map(|e| shrunk(&sums, e, kappa)).unzip();
        near(&mu, &[0.604437, 0.288510, 0.230133, 0.095362, 0.0]);
        near(&se, &[0.312721, 0.217989, 0.140242, 0.085295, 0.0]);
        let shrink = [0.291716, 0.070521, 0.089891, 0.010068, 0.0];
        near(&Score::ReapShrink { kappa, z }.of(&sums), &shrink);
        let hybrid = [0.584381, 0.183783, 0.185317, 0.036444, 0.0];
        near(&Score::ReapHybrid { kappa, z, alpha }.of(&sums), &hybrid);
        near(&[sums.effective_experts()], &[3.746748]);
    }

    #[test]
    fn limits_of_the_shrunk_and_the_hybrid_score() {
        let mut sums = worked();
        let (kappa, z) = (4.0, 1.0);
        let order = |scores: Vec<f64>| {
            let mut ids: Vec<usize> = (0..5).collect();
            ids.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
            ids
        };
        for (alpha, part) in [
            (1.0, Score::ReapL2Sum),
            (0.0, Score::ReapShrink { kappa, z }),
        ] {
            let hybrid = Score::ReapHybrid { kappa, z, alpha };
            assert_eq!(order(hybrid.of(&sums)), order(part.of(&sums)));
        }
        // With ever more tokens the bound comes to the mean.
        let many = 1e12;
        sums.count[0] *= many as u64;
        for sum in [&mut sums.gated_norm, &mut sums.gated_norm_squared] {
            sum[0] *= many;
        }
        let shrunk = Score::ReapShrink { kappa, z }.of(&sums)[0];
        near(&[shrunk], &[1.410353]);
    }

    #[test]
    fn names_lead_back_to_scores() {
        for score in Score::ALL {
            assert_eq!(Score::from_name(score.name()), Some(score));
        }
        assert_eq!(Score::from_name("reap_l3"), None);
    }
}
