//! The folder of goldens: manifest and logits.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use thalweg_examples_common::read_file;

/// Routes are stored for so many tokens, or all of a shorter prompt.
const ROUTED_TOKENS: usize = 32;

/// A folder of goldens.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    pub(crate) prompts: Vec<Prompt>,
}

/// What the reference computed for one prompt.
#[derive(Debug, Deserialize)]
pub(crate) struct Prompt {
    pub(crate) name: String,
    pub(crate) tokens: Vec<u32>,
    logits_file: String,
    /// Positions whose logits are stored, rising.
    pub(crate) logits_positions: Vec<usize>,
    n_vocab: usize,
    /// Negative log-likelihood of tokens 1.. of the prompt.
    pub(crate) nll: Vec<f64>,
    /// Greedy continuation.
    pub(crate) greedy: Vec<u32>,
    /// How far the best token was ahead of the second, for each greedy token.
    pub(crate) greedy_top1_minus_top2: Vec<f64>,
    /// Experts by token, layer and rank, for the first tokens.
    #[serde(rename = "routes_token0_to_31")]
    pub(crate) routes: Vec<Vec<Vec<u16>>>,
}

#[derive(Debug, Deserialize)]
struct Manifest {
    prompts: Vec<Prompt>,
}

impl Folder {
    /// Reads the manifest.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = path.join("manifest.json");
        let text = read_file(&file)?;
        let manifest: Manifest = serde_json::from_slice(&text)
            .with_context(|| format!("cannot understand {}", file.display()))?;
        manifest.prompts.iter().try_for_each(check)?;
        Ok(Self {
            path: path.to_owned(),
            prompts: manifest.prompts,
        })
    }

    /// Stored logits of a prompt, `[n_positions, n_vocab]`.
    pub(crate) fn logits(&self, prompt: &Prompt) -> Result<Vec<f32>> {
        let file = self.path.join(&prompt.logits_file);
        let bytes = read_file(&file)?;
        let expected = prompt.logits_positions.len() * prompt.n_vocab * size_of::<f32>();
        ensure!(
            bytes.len() == expected,
            "{} has {} bytes, {expected} expected",
            file.display(),
            bytes.len()
        );
        let words = bytes.as_chunks().0.iter();
        Ok(words.map(|b| f32::from_le_bytes(*b)).collect())
    }
}

/// Refuses a golden that would pass without comparing what it claims to hold.
fn check(p: &Prompt) -> Result<()> {
    let (name, n) = (&p.name, p.tokens.len());
    ensure!(n > 0, "prompt {name:?} has no tokens");
    ensure!(
        p.nll.len() + 1 == n,
        "prompt {name:?} has {n} tokens and {} likelihoods, one less expected",
        p.nll.len()
    );
    let (greedy, gaps) = (p.greedy.len(), p.greedy_top1_minus_top2.len());
    ensure!(
        greedy == gaps && greedy > 0,
        "prompt {name:?} has {greedy} greedy tokens and {gaps} gaps"
    );
    ensure!(
        p.greedy_top1_minus_top2.iter().all(|gap| *gap >= 0.0),
        "prompt {name:?} has a gap below 0"
    );
    ensure!(
        !p.logits_positions.is_empty()
            && p.logits_positions.is_sorted_by(|a, b| a < b)
            && p.logits_positions.iter().all(|at| *at < n),
        "prompt {name:?} stores logits at {:?}, rising positions below {n} expected",
        p.logits_positions
    );
    let routed = n.min(ROUTED_TOKENS);
    ensure!(
        p.routes.len() == routed,
        "prompt {name:?} has routes of {} tokens, {routed} expected",
        p.routes.len()
    );
    Ok(())
}
