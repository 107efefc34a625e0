//! Recorded results of independent programs. Owns: reading `goldens/small` (of the default
//! [`SmallModel`](crate::SmallModel), by `tools/make_small_golden.py`) and `goldens/demo` (of
//! `models/demo.gguf`, by a numpy forward pass in float32). Does not own: tolerances.
//! Memory: a golden as a whole, below 1 MB.
//!
//! Invariants: 1. decisions of `small` (routes, greedy tokens, attention blocks) are all clearer
//! than [`Small::smallest_gap`], so that another rounding must not change any.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::Error;

/// What the default small model computes, in float64.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Small {
    /// FNV-1a over the bytes of all tensors in file order: the weights that this golden is of.
    pub weights_fnv1a: u64,
    /// Tokens in the vocabulary.
    pub n_vocab: usize,
    /// Layers.
    pub n_layer: usize,
    /// Length of the residual of a token: streams times width.
    pub residual_len: usize,
    /// The prompt.
    pub tokens: Vec<u32>,
    /// The likeliest next token after each token of the prompt.
    pub greedy: Vec<u32>,
    /// Expert ids by layer, token and rank.
    pub routes: Vec<Vec<Vec<u16>>>,
    /// Positions whose residuals are stored.
    pub residual_positions: Vec<usize>,
    /// The closest of all decisions: the difference of two logits or block scores.
    pub smallest_gap: f64,
    logits: Vec<f32>,
    residuals: Vec<f32>,
}

impl Small {
    /// Reads `goldens/small`.
    ///
    /// # Errors
    /// [`Error::Golden`], [`Error::Manifest`] or [`Error::GoldenLength`] for a damaged checkout.
    pub fn read() -> Result<Self, Error> {
        let folder = goldens().join("small");
        let manifest: SmallManifest = read_json(&folder.join("manifest.json"))?;
        let n_logits = manifest.tokens.len() * manifest.n_vocab;
        let n_residual =
            manifest.n_layer * manifest.residual_positions.len() * manifest.residual_len;
        Ok(Self {
            weights_fnv1a: manifest.weights_fnv1a,
            n_vocab: manifest.n_vocab,
            n_layer: manifest.n_layer,
            residual_len: manifest.residual_len,
            tokens: manifest.tokens,
            greedy: manifest.greedy,
            routes: manifest.routes,
            residual_positions: manifest.residual_positions,
            smallest_gap: manifest
                .smallest_gaps
                .into_values()
                .fold(f64::INFINITY, f64::min),
            logits: read_floats(&folder.join("logits.f32"), n_logits)?,
            residuals: read_floats(&folder.join("residual.f32"), n_residual)?,
        })
    }

    /// Logits after the token at `position`, `[n_vocab]`; `None` beyond the prompt.
    #[must_use]
    pub fn logits(&self, position: usize) -> Option<&[f32]> {
        self.logits.chunks_exact(self.n_vocab).nth(position)
    }

    /// The residual after `layer` at `position`, `[residual_len]`, streams one after the other;
    /// `None` if it is not stored.
    #[must_use]
    pub fn residual(&self, layer: usize, position: usize) -> Option<&[f32]> {
        let at = self
            .residual_positions
            .iter()
            .position(|p| *p == position)?;
        let row = layer * self.residual_positions.len() + at;
        self.residuals.chunks_exact(self.residual_len).nth(row)
    }
}

/// What the embedded demo model computes for one prompt.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Demo {
    /// Short name.
    pub name: String,
    /// The prompt as text.
    pub text: String,
    /// The prompt as token ids.
    pub tokens: Vec<u32>,
    /// Negative log-likelihood of each token but the first.
    pub nll: Vec<f64>,
    /// The greedy continuation.
    pub greedy: Vec<u32>,
    /// By how much each greedy token was ahead of the second best.
    pub greedy_gaps: Vec<f64>,
    /// Expert ids by token, layer and rank, for the first tokens.
    pub routes: Vec<Vec<Vec<u16>>>,
    /// Positions whose logits are stored.
    pub logits_positions: Vec<usize>,
    n_vocab: usize,
    logits: Vec<f32>,
}

impl Demo {
    /// Reads `goldens/demo`.
    ///
    /// # Errors
    /// [`Error::Golden`], [`Error::Manifest`] or [`Error::GoldenLength`] for a damaged checkout.
    pub fn read_all() -> Result<Vec<Self>, Error> {
        let folder = goldens().join("demo");
        let manifest: DemoManifest = read_json(&folder.join("manifest.json"))?;
        let read = |prompt: DemoPrompt| {
            let n_logits = prompt.logits_positions.len() * prompt.n_vocab;
            Ok(Self {
                name: prompt.name,
                text: prompt.text,
                tokens: prompt.tokens,
                nll: prompt.nll,
                greedy: prompt.greedy,
                greedy_gaps: prompt.greedy_top1_minus_top2,
                routes: prompt.routes_token0_to_31,
                logits_positions: prompt.logits_positions,
                n_vocab: prompt.n_vocab,
                logits: read_floats(&folder.join(prompt.logits_file), n_logits)?,
            })
        };
        manifest.prompts.into_iter().map(read).collect()
    }

    /// Logits after the token at `position`, `[n_vocab]`; `None` if they are not stored.
    #[must_use]
    pub fn logits(&self, position: usize) -> Option<&[f32]> {
        let at = self.logits_positions.iter().position(|p| *p == position)?;
        self.logits.chunks_exact(self.n_vocab).nth(at)
    }
}

#[derive(Deserialize)]
struct SmallManifest {
    weights_fnv1a: u64,
    n_vocab: usize,
    n_layer: usize,
    residual_len: usize,
    smallest_gaps: BTreeMap<String, f64>,
    residual_positions: Vec<usize>,
    tokens: Vec<u32>,
    greedy: Vec<u32>,
    routes: Vec<Vec<Vec<u16>>>,
}

#[derive(Deserialize)]
struct DemoManifest {
    prompts: Vec<DemoPrompt>,
}

#[derive(Deserialize)]
struct DemoPrompt {
    name: String,
    text: String,
    tokens: Vec<u32>,
    nll: Vec<f64>,
    greedy: Vec<u32>,
    greedy_top1_minus_top2: Vec<f64>,
    routes_token0_to_31: Vec<Vec<Vec<u16>>>,
    logits_file: String,
    logits_positions: Vec<usize>,
    n_vocab: usize,
}

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens")
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, Error> {
    serde_json::from_slice(&read(path)?).map_err(|source| Error::Manifest {
        path: path.to_owned(),
        source,
    })
}

/// Reads little-endian f32 values of which there must be `len`.
fn read_floats(path: &Path, len: usize) -> Result<Vec<f32>, Error> {
    let bytes = read(path)?;
    let (expected_bytes, found_bytes) = (len * size_of::<f32>(), bytes.len());
    if found_bytes != expected_bytes {
        return Err(Error::GoldenLength {
            path: path.to_owned(),
            expected_bytes,
            found_bytes,
        });
    }
    let (words, _) = bytes.as_chunks();
    Ok(words.iter().map(|word| f32::from_le_bytes(*word)).collect())
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|source| Error::Golden {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_small_golden_is_complete_and_decides_clearly() {
        let golden = Small::read().unwrap();
        let n = golden.tokens.len();
        assert!(golden.smallest_gap > 1e-4, "{}", golden.smallest_gap);
        assert_eq!(golden.greedy.len(), n);
        assert_eq!(golden.routes.len(), golden.n_layer);
        assert!(golden.routes.iter().all(|layer| layer.len() == n));
        assert!(golden.logits(n - 1).is_some() && golden.logits(n).is_none());
        for position in 0..n {
            let logits = golden.logits(position).unwrap();
            let best = (0..golden.n_vocab).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
            assert_eq!(best, usize::try_from(golden.greedy[position]).ok());
        }
        for position in &golden.residual_positions {
            assert!(golden.residual(golden.n_layer - 1, *position).is_some());
            assert!(golden.residual(golden.n_layer, *position).is_none());
        }
    }

    #[test]
    fn the_demo_golden_is_complete() {
        let prompts = Demo::read_all().unwrap();
        assert_eq!(prompts.len(), 6);
        for prompt in prompts {
            let n = prompt.tokens.len();
            assert_eq!(prompt.nll.len(), n - 1, "{}", prompt.name);
            assert_eq!(
                prompt.greedy.len(),
                prompt.greedy_gaps.len(),
                "{}",
                prompt.name
            );
            assert_eq!(prompt.routes.len(), n.min(32), "{}", prompt.name);
            assert!(prompt.logits(n - 1).is_some(), "{}", prompt.name);
            assert!(prompt.logits(n).is_none(), "{}", prompt.name);
        }
    }

    #[test]
    fn a_golden_of_another_length_is_refused() {
        let path = goldens().join("small/residual.f32");
        let error = read_floats(&path, 7).unwrap_err();
        assert!(
            matches!(
                error,
                Error::GoldenLength {
                    expected_bytes: 28,
                    ..
                }
            ),
            "{error}"
        );
    }
}
