//! The second kind of folder: every logit and every residual of one token sequence.
//!
//! `tokens.txt` holds token ids, `logits.npy` `[n_tokens, n_vocab]` and `hidden.npy`
//! `[n_layer, n_tokens, streams, n_embd]`, the residual after each layer; both little-endian f32
//! in C order.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use thalweg::{Backend, Engine, Observer, Session};
use thalweg_examples_common::{read_file, read_text};

use crate::judge::worse;

/// File that marks this kind of folder.
pub(crate) const TOKENS: &str = "tokens.txt";

/// What the reference computed.
#[derive(Debug)]
pub(crate) struct Rows {
    pub(crate) tokens: Vec<u32>,
    logits: Vec<f32>,
    residuals: Vec<f32>,
}

/// Differences from the golden.
#[derive(Debug, Default)]
pub(crate) struct RowsVerdict {
    pub(crate) max_abs: f64,
    pub(crate) mean_abs: f64,
    pub(crate) max_residual: f64,
    n_logits: usize,
    n_residuals: usize,
}

impl RowsVerdict {
    pub(crate) fn json(&self, passed: bool) -> Value {
        json!({
            "passed": passed,
            "max_abs": self.max_abs,
            "mean_abs": self.mean_abs,
            "max_residual": self.max_residual,
            "compared": { "logits": self.n_logits, "residuals": self.n_residuals },
        })
    }
}

impl Rows {
    /// Reads the folder.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = path.join(TOKENS);
        let text = read_text(&file)?;
        let tokens = text
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<Vec<u32>, _>>();
        let tokens = tokens.with_context(|| format!("{} is no list of ids", file.display()))?;
        ensure!(!tokens.is_empty(), "{} is empty", file.display());
        Ok(Self {
            tokens,
            logits: npy(&path.join("logits.npy"))?,
            residuals: npy(&path.join("hidden.npy"))?,
        })
    }

    /// Runs the tokens and compares everything.
    pub(crate) fn judge<B: Backend>(
        &self,
        engine: &mut Engine<B>,
        session: &mut Session<B>,
    ) -> Result<RowsVerdict> {
        let (n_tokens, spec) = (self.tokens.len(), engine.spec());
        let residual_len = spec.residual_len;
        for (what, found, expected) in [
            ("logits", self.logits.len(), n_tokens * spec.n_vocab),
            (
                "residuals",
                self.residuals.len(),
                spec.n_layer * n_tokens * residual_len,
            ),
        ] {
            ensure!(
                found == expected,
                "{found} {what} stored, the model gives {expected}"
            );
        }
        let verdict = RowsVerdict::default();
        let mut compare = Compare {
            rows: self,
            residual_len,
            verdict,
            sum: 0.0,
        };
        engine.prefill(session, &self.tokens, &mut compare)?;
        let Compare {
            mut verdict, sum, ..
        } = compare;
        verdict.mean_abs = sum / verdict.n_logits.max(1) as f64;
        Ok(verdict)
    }
}

struct Compare<'a> {
    rows: &'a Rows,
    residual_len: usize,
    verdict: RowsVerdict,
    sum: f64,
}

impl Observer for Compare<'_> {
    fn wants_residual(&self) -> bool {
        true
    }

    fn on_residual(&mut self, layer: usize, first_position: usize, residual: &[f32]) {
        let first_row = layer * self.rows.tokens.len() + first_position;
        let stored = &self.rows.residuals[first_row * self.residual_len..];
        for (ours, theirs) in residual.iter().zip(stored) {
            let difference = f64::from((ours - theirs).abs());
            self.verdict.max_residual = worse(self.verdict.max_residual, difference);
        }
        self.verdict.n_residuals += residual.len();
    }

    fn wants_logits(&self, _: usize) -> bool {
        true
    }

    fn on_logits(&mut self, position: usize, logits: &[f32]) {
        let stored = &self.rows.logits[position * logits.len()..];
        for (ours, theirs) in logits.iter().zip(stored) {
            let difference = f64::from((ours - theirs).abs());
            self.verdict.max_abs = worse(self.verdict.max_abs, difference);
            self.sum += difference;
        }
        self.verdict.n_logits += logits.len();
    }
}

/// Values of a `.npy` file of little-endian f32 in C order (NumPy's format, version 1).
fn npy(path: &Path) -> Result<Vec<f32>> {
    let bytes = read_file(path)?;
    let name = path.display();
    let Some(rest) = bytes.strip_prefix(b"\x93NUMPY\x01\x00") else {
        bail!("{name} is not a .npy file of version 1");
    };
    let (header_len, rest) = rest
        .split_first_chunk()
        .with_context(|| format!("{name} is cut"))?;
    let split = rest.split_at_checked(usize::from(u16::from_le_bytes(*header_len)));
    let (header, data) = split.with_context(|| format!("{name} is cut"))?;
    let header = String::from_utf8_lossy(header);
    ensure!(
        header.contains("'<f4'"),
        "{name} does not hold little-endian f32: {header}"
    );
    ensure!(
        header.contains("'fortran_order': False"),
        "{name} is not in C order: {header}"
    );
    let (words, rest) = data.as_chunks();
    ensure!(rest.is_empty(), "{name} ends within a value");
    Ok(words.iter().map(|b| f32::from_le_bytes(*b)).collect())
}
