//! Which experts of each layer stay.
//!
//! Owns the choice by score, its file (JSON) and what a choice keeps of a measurement. Does not own
//! the measurement (`saliency`) nor the cut (`prune`). Memory: a word for each kept expert.
//! Invariants, which [`KeepMap::validate`] checks: 1. every layer has the same number of experts;
//! 2. ids ascend, so that the router's ties fall as before; 3. they are at least as many as a token
//! uses.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::file::{Kind, hex, read_json};
use crate::{Error, Result, Saliency, Score};

const KIND: Kind = Kind {
    format: "keep-map",
    version: 1,
    what: "a keep-map",
};

/// The experts that stay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct KeepMap {
    format: String,
    version: u32,
    /// `general.architecture` of the model.
    pub arch: String,
    /// Layers of the model.
    pub n_layer: usize,
    /// Experts of each layer before.
    pub n_expert: usize,
    /// Experts that a token uses.
    pub n_expert_used: usize,
    /// Experts of each layer after.
    pub k: usize,
    /// How they were chosen.
    pub method: Method,
    /// Which model they are of.
    pub source: Source,
    /// What was measured.
    pub calibration: Calibration,
    /// One entry a layer, in order.
    pub layers: Vec<Kept>,
    /// What the choice keeps.
    pub stats: Stats,
}

/// Name and constants of a score; a constant that the score does not have is absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Method {
    /// [`Score::name`].
    pub name: String,
    /// As of [`Score::ReapShrink`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kappa: Option<f64>,
    /// As of [`Score::ReapShrink`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub z: Option<f64>,
    /// As of [`Score::ReapHybrid`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alpha: Option<f64>,
}

/// A model file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Source {
    /// Its path.
    pub file: String,
    /// Its fingerprint in hexadecimal digits.
    pub fingerprint: String,
}

/// A calibration run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Calibration {
    /// Tokens.
    pub tokens: u64,
    /// SHA-256 of the saliency file's text, in hexadecimal digits.
    pub saliency_sha256: String,
    /// Tokens of each text, by its name.
    pub domains: Vec<(String, u64)>,
}

/// The kept experts of a layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Kept {
    /// The layer.
    pub layer: usize,
    /// Ids before, ascending; the place in the list is the id after.
    pub keep: Vec<u16>,
}

/// What a choice keeps of the measurement that it was made from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Stats {
    /// [`Retention::macro_mean`].
    pub retention_macro: f64,
    /// Kept experts that no token had chosen.
    pub zero_hit_kept: usize,
}

/// What a choice keeps of a measurement; measured on the data that the choice was made from, the sum
/// of gated norms is best for `reap_l2_sum` by construction.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Retention {
    /// Mean over layers of the kept share of `sum g n`.
    pub macro_mean: f64,
    /// Kept share of `sum g n` of all layers together.
    pub pooled: f64,
    /// Kept share of choices.
    pub picks: f64,
    /// Kept share of gates.
    pub gate_mass: f64,
}

impl KeepMap {
    /// The `k` best experts of each layer by (score, sum of gated norms, lower id).
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a `k` below what a token uses or above the experts there are.
    pub fn choose(saliency: &Saliency, arch: &str, score: Score, k: usize) -> Result<Self> {
        saliency.validate()?;
        let mut zero_hit_kept = 0;
        let mut layers = Vec::new();
        for (layer, sums) in saliency.layers.iter().enumerate() {
            let scores = score.of(sums);
            let mut ids: Vec<u16> = (0..=u16::MAX).take(scores.len()).collect();
            // Stable: equal ones stay by rising id.
            ids.sort_by(|a, b| {
                let (a, b) = (usize::from(*a), usize::from(*b));
                let by_sum = sums.gated_norm[b].total_cmp(&sums.gated_norm[a]);
                scores[b].total_cmp(&scores[a]).then(by_sum)
            });
            ids.truncate(k);
            ids.sort_unstable();
            zero_hit_kept += ids
                .iter()
                .filter(|e| sums.count[usize::from(**e)] == 0)
                .count();
            layers.push(Kept { layer, keep: ids });
        }
        let (kappa, z, alpha) = match score {
            Score::ReapShrink { kappa, z } => (Some(kappa), Some(z), None),
            Score::ReapHybrid { kappa, z, alpha } => (Some(kappa), Some(z), Some(alpha)),
            _ => (None, None, None),
        };
        let mut map = Self {
            format: KIND.format.to_owned(),
            version: KIND.version,
            arch: arch.to_owned(),
            n_layer: saliency.layers.len(),
            n_expert: saliency.layers.first().map_or(0, |l| l.count.len()),
            n_expert_used: saliency.n_expert_used,
            k,
            method: Method {
                name: score.name().to_owned(),
                kappa,
                z,
                alpha,
            },
            source: Source {
                file: saliency.source.clone(),
                fingerprint: saliency.fingerprint.clone(),
            },
            calibration: Calibration {
                tokens: saliency.n_tokens,
                saliency_sha256: hex(&Sha256::digest(saliency.to_json())),
                domains: saliency.domains.clone(),
            },
            layers,
            stats: Stats {
                retention_macro: 0.0,
                zero_hit_kept,
            },
        };
        map.validate()?;
        map.stats.retention_macro = map.retention(saliency)?.macro_mean;
        Ok(map)
    }

    /// What this choice keeps of a measurement, its own or another one of the same model.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a measurement of another model's shape.
    pub fn retention(&self, saliency: &Saliency) -> Result<Retention> {
        let found = (
            saliency.layers.len(),
            saliency.layers.first().map_or(0, |l| l.count.len()),
        );
        let text = |(layers, experts): (usize, usize)| format!("{layers} layers of {experts}");
        if found != (self.n_layer, self.n_expert) {
            let expected = text((self.n_layer, self.n_expert));
            return Err(Error::out_of_range(
                "shape of the saliency",
                text(found),
                expected,
            ));
        }
        // [kept, all] of gated norms, picks, gates.
        let mut sums = [[0.0; 2]; 3];
        let mut shares = Vec::with_capacity(self.n_layer);
        for (kept, layer) in self.layers.iter().zip(&saliency.layers) {
            let picks: Vec<f64> = layer.count.iter().map(|c| *c as f64).collect();
            let lists = [&layer.gated_norm, &picks, &layer.gate];
            let both = lists.map(|list| {
                let of_kept = kept.keep.iter().map(|e| list[usize::from(*e)]);
                [of_kept.sum::<f64>(), list.iter().sum()]
            });
            shares.push(share(both[0]));
            for (sum, both) in sums.iter_mut().zip(both) {
                sum[0] += both[0];
                sum[1] += both[1];
            }
        }
        Ok(Retention {
            macro_mean: shares.iter().sum::<f64>() / shares.len().max(1) as f64,
            pooled: share(sums[0]),
            picks: share(sums[1]),
            gate_mass: share(sums[2]),
        })
    }

    /// Ids by layer, as `EngineOptions::keep_experts` takes them.
    #[must_use]
    pub fn lists(&self) -> Vec<Vec<u16>> {
        self.layers.iter().map(|l| l.keep.clone()).collect()
    }

    /// Reads a file that [`to_json`](Self::to_json) made.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Json`], [`Error::WrongFile`]; [`Error::OutOfRange`] as
    /// [`validate`](Self::validate).
    pub fn read(path: &Path) -> Result<Self> {
        let map: Self = read_json(path, KIND)?;
        map.validate()?;
        Ok(map)
    }

    /// The file's text.
    #[must_use]
    pub fn to_json(&self) -> String {
        json!(self).to_string()
    }

    /// Checks the invariants.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn validate(&self) -> Result<()> {
        if self.k < self.n_expert_used.max(1) || self.k > self.n_expert {
            let least = self.n_expert_used.max(1);
            let expected = format!("{least} (what a token uses) to {}", self.n_expert);
            return Err(Error::out_of_range("experts to keep", self.k, expected));
        }
        if self.layers.len() != self.n_layer {
            let what = "number of layers in the keep-map";
            return Err(Error::out_of_range(what, self.layers.len(), self.n_layer));
        }
        for (i, kept) in self.layers.iter().enumerate() {
            if kept.layer != i {
                let what = format!("layer of entry {i}");
                return Err(Error::out_of_range(what, kept.layer, i));
            }
            if kept.keep.len() != self.k {
                let what = format!("kept experts of layer {i}");
                return Err(Error::out_of_range(what, kept.keep.len(), self.k));
            }
            let ascends = kept.keep.windows(2).all(|pair| pair[0] < pair[1]);
            let last = kept.keep.last().copied().map_or(0, usize::from);
            if !ascends || last >= self.n_expert {
                let what = format!("ids of layer {i}");
                let expected = format!("ascending and below {}", self.n_expert);
                return Err(Error::out_of_range(
                    what,
                    format!("{:?}", kept.keep),
                    expected,
                ));
            }
        }
        Ok(())
    }
}

fn share([kept, all]: [f64; 2]) -> f64 {
    match all > 0.0 {
        true => kept / all,
        false => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Collector;
    use crate::saliency::tests::worked;

    fn saliency() -> Saliency {
        let mut collector = Collector::new(1);
        collector.set_layers(vec![worked()]);
        collector
            .saliency("m.gguf", "ab", 2, "00", vec![("en".to_owned(), 4)])
            .expect("finite")
    }

    #[test]
    fn the_worked_example_keeps_what_it_should() {
        let saliency = saliency();
        let (kappa, z, alpha) = (4.0, 1.0, 0.5);
        let hybrid = Score::ReapHybrid { kappa, z, alpha };
        let shrink = Score::ReapShrink { kappa, z };
        for (score, keep, retention) in [
            (Score::ReapL2Sum, [0, 1], 0.762446),
            (hybrid, [0, 2], 0.717654),
            (shrink, [0, 2], 0.717654),
            (Score::Reap, [0, 1], 0.762446),
        ] {
            let map = KeepMap::choose(&saliency, "qwen4exp", score, 2).expect("enough");
            assert_eq!(map.layers[0].keep, keep, "{score:?}");
            assert!((map.stats.retention_macro - retention).abs() < 1e-6);
            let kept = map.retention(&saliency).expect("its own");
            assert!((kept.picks - 5.0 / 8.0).abs() < 1e-12);
            let map = KeepMap::choose(&saliency, "qwen4exp", score, 3).expect("enough");
            assert_eq!(map.layers[0].keep, [0, 1, 2], "{score:?}");
            assert!((map.stats.retention_macro - 0.939025).abs() < 1e-6);
            assert_eq!(map.stats.zero_hit_kept, 0);
        }
        let all = KeepMap::choose(&saliency, "qwen4exp", Score::Reap, 5).expect("all");
        assert_eq!(all.stats.zero_hit_kept, 1);
        for k in [1, 6] {
            assert!(KeepMap::choose(&saliency, "qwen4exp", Score::Reap, k).is_err());
        }
    }

    #[test]
    fn files_come_back_and_broken_ones_are_refused() {
        let folder = tempfile::tempdir().expect("writable");
        let path = folder.path().join("k.json");
        let map = KeepMap::choose(&saliency(), "qwen4exp", Score::Reap, 3).expect("enough");
        let text = map.to_json();
        std::fs::write(&path, &text).expect("written");
        assert_eq!(KeepMap::read(&path).expect("readable"), map);
        for (from, to) in [
            ("[0,1,2]", "[1,0,2]"),
            ("[0,1,2]", "[0,1,5]"),
            ("[0,1,2]", "[0,1,1]"),
            ("[0,1,2]", "[0,1]"),
            ("\"layer\":0", "\"layer\":1"),
            ("\"k\":3", "\"k\":1"),
            ("keep-map", "kept-map"),
            ("\"n_layer\":1", "\"n_layer\":2"),
        ] {
            assert!(text.contains(from), "{from}");
            std::fs::write(&path, text.replace(from, to)).expect("written");
            assert!(KeepMap::read(&path).is_err(), "{to}");
        }
        let text = saliency().to_json();
        std::fs::write(&path, &text).expect("written");
        assert_eq!(Saliency::read(&path).expect("readable"), saliency());
        assert!(KeepMap::read(&path).is_err());
    }
}
