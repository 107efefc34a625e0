//! Two models within one budget, as the flags ask for them.
//!
//! Owns which flags are whose; the division of the budget and the check that both models mean the same
//! by a token are `thalweg_eval::pair`'s. Memory: the headers.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use sha2::{Digest, Sha256};
use thalweg::{Backend, Bias, Gguf};
use thalweg_eval::pair::{Division, same_vocabulary};
use thalweg_eval::report::ModelFacts;
use thalweg_examples_common::{ModelArgs, note_budget};

use crate::Args;

/// Opens both headers.
///
/// # Errors
/// For an unusable file and for models whose token ids mean different things.
pub(crate) fn open(paths: [&PathBuf; 2]) -> Result<[Gguf; 2]> {
    let open = |path: &PathBuf, role| {
        // The error names the file.
        Gguf::open(path).with_context(|| format!("cannot open the {role} model"))
    };
    let files = [open(paths[0], "reference")?, open(paths[1], "test")?];
    same_vocabulary(&files[0], &files[1])?;
    Ok(files)
}

/// How both models are to be opened.
pub(crate) struct Pair {
    /// Flags of the reference, with its part of the budget.
    pub(crate) reference: ModelArgs,
    /// Flags of the test, with its part of the budget.
    pub(crate) test: ModelArgs,
    /// The rest: logits that wait.
    pub(crate) logits_bytes: usize,
}

impl Pair {
    /// Divides the budget for windows of up to `n_ctx` tokens.
    ///
    /// # Errors
    /// With the figures, if the smallest division does not fit.
    pub(crate) fn new(
        args: &Args,
        reference: &Path,
        files: &[Gguf; 2],
        n_ctx: usize,
    ) -> Result<Self> {
        let budget = args.test.budget;
        note_budget(budget);
        let mut sides = [
            ModelArgs {
                model: Some(reference.to_owned()),
                activations: args.ref_activations,
                moce: Bias::Off,
                sidecar: None,
                profile: None,
                ..args.test.clone()
            },
            args.test.clone(),
        ];
        let overhead = args.test.backend()?.overhead_bytes();
        let options = [sides[0].options(n_ctx), sides[1].options(n_ctx)];
        let [a, b] = files;
        let division = Division::new(budget, overhead, [a, b], [&options[0], &options[1]]);
        let division = division.map_err(|e| match e {
            thalweg_eval::Error::Budget { .. } => anyhow!(
                "{e}; raise --budget, or lower what was asked for: --window, --chunk, --threads, \
                 --reads, --slots, --transit"
            ),
            other => other.into(),
        })?;
        sides[0].budget = Some(division.reference_bytes);
        sides[1].budget = Some(division.test_bytes);
        let [reference, test] = sides;
        Ok(Self {
            reference,
            test,
            logits_bytes: division.logits_bytes,
        })
    }

    /// The division in a line.
    pub(crate) fn division(&self) -> String {
        let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
        format!(
            "budget   reference {}, test {}, logits {}",
            mib(self.reference.budget.unwrap_or(0)),
            mib(self.test.budget.unwrap_or(0)),
            mib(self.logits_bytes as u64)
        )
    }
}

/// Facts of both for the report.
pub(crate) fn facts(files: &[Gguf; 2], pair: &Pair) -> Result<[ModelFacts; 2]> {
    Ok([
        facts_of(&files[0], &pair.reference)?,
        facts_of(&files[1], &pair.test)?,
    ])
}

/// Facts of one model for the report.
pub(crate) fn facts_of(file: &Gguf, args: &ModelArgs) -> Result<ModelFacts> {
    let facts = ModelFacts::of(file, &args.options(1), args.activations.name());
    Ok(facts?)
}

/// SHA-256 of a file in hexadecimal.
pub(crate) fn hash(path: &Path) -> Result<String> {
    let failed = || format!("cannot read {}", path.display());
    let mut file = File::open(path).with_context(failed)?;
    let mut hash = Sha256::new();
    let mut piece = vec![0; 1 << 16];
    loop {
        match file.read(&mut piece).with_context(failed)? {
            0 => return Ok(hex(&hash.finalize())),
            n => hash.update(&piece[..n]),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
