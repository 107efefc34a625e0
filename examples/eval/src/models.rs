//! Two models within one budget.
//!
//! Owns the division of the budget, the check that both models mean the same by a token, and what is
//! told of them. Memory: the headers.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};
use thalweg::{Backend, Bias, EngineOptions, Gguf, plan_model};
use thalweg_eval::report::ModelFacts;
use thalweg_examples_common::{ModelArgs, note_budget};
use thalweg_runtime::{Error, FingerprintDepth, available_memory_bytes, fingerprint};

use crate::Args;

/// Budget where the system does not say how much memory is available.
const FALLBACK_BUDGET_BYTES: u64 = 4 << 30;
/// Logits take at most one part in so many of the budget.
const LOGITS_SHARE: u64 = 32;
/// More logits at a time gain nothing.
const MAX_LOGITS_BYTES: u64 = 64 << 20;

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
    let tokens = |file| -> Result<&[String]> {
        let metadata = Gguf::metadata(file);
        Ok(metadata.str_array("tokenizer.ggml.tokens")?)
    };
    let (reference, test) = (tokens(&files[0])?, tokens(&files[1])?);
    if reference.len() != test.len() {
        return Err(thalweg_eval::Error::Vocabulary {
            reference: reference.len(),
            test: test.len(),
        }
        .into());
    }
    let differs = reference.iter().zip(test).position(|(r, t)| r != t);
    if let Some(id) = differs {
        anyhow::bail!(
            "token {id} is {:?} to the reference and {:?} to the test: their distributions cannot \
             be compared",
            reference[id],
            test[id]
        );
    }
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
        let total = budget.unwrap_or_else(|| {
            available_memory_bytes().map_or(FALLBACK_BUDGET_BYTES, |bytes| bytes / 4 * 3)
        });
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
        let mut needs = [Need::default(); 2];
        let mut n_vocab = 0;
        for ((need, side), file) in needs.iter_mut().zip(&sides).zip(files) {
            let options = side.options(n_ctx);
            let (least, spec) = least(file, overhead, &options)?;
            let generous = EngineOptions {
                budget_bytes: Some(total.max(least)),
                ..options
            };
            let (plan, _) = plan_model(file, overhead, &generous)?;
            *need = Need {
                least,
                most: plan.total_bytes().max(least),
            };
            n_vocab = n_vocab.max(spec.n_vocab);
        }
        let row = n_vocab as u64 * size_of::<f32>() as u64;
        let [reference, test] = needs;
        let models = reference.least.saturating_add(test.least);
        // One row is enough where the models need the rest.
        let logits = (total / LOGITS_SHARE)
            .min(MAX_LOGITS_BYTES)
            .min(total.saturating_sub(models))
            .max(row);
        let parts = divide(total.saturating_sub(logits), needs);
        let parts = parts.with_context(|| {
            format!(
                "both models together need at least {} bytes but the budget is {total}: the \
                 reference {}, the test {}, logits {logits}; raise --budget, or lower what was asked \
                 for: --window, --chunk, --threads, --reads, --slots, --transit",
                models.saturating_add(logits),
                reference.least,
                test.least,
            )
        })?;
        for (side, part) in sides.iter_mut().zip(parts) {
            side.budget = Some(part);
        }
        let [reference, test] = sides;
        Ok(Self {
            reference,
            test,
            // Within the budget, which a machine of fewer bits could not have.
            logits_bytes: usize::try_from(logits).context("the budget exceeds this machine")?,
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
    let (_, spec) = least(file, 0, &args.options(1))?;
    let layers = spec.experts.iter().map(|e| {
        let one: u64 = e.parts.iter().map(|p| p.len_bytes).sum();
        one * e.n_expert as u64
    });
    let path = file.path(0).unwrap_or_else(|| Path::new(""));
    Ok(ModelFacts {
        file: path.to_string_lossy().into_owned(),
        sha256: hex(&fingerprint(file, FingerprintDepth::Ends)?),
        bytes: file.tensors().iter().map(|t| t.size_bytes).sum(),
        expert_bytes: layers.sum(),
        n_expert: spec.experts.iter().map(|e| e.n_expert).max().unwrap_or(0),
        n_expert_used: spec.experts.iter().map(|e| e.k).max().unwrap_or(0),
        activations: args.activations.name().to_owned(),
        moce: args.moce.to_string(),
    })
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

/// What one model can do with.
#[derive(Debug, Clone, Copy, Default)]
struct Need {
    /// The smallest budget that works.
    least: u64,
    /// What it would take of a generous one; at least `least`.
    most: u64,
}

/// Gives each its least and divides the rest by what each would still take. `None` if not even that
/// fits.
fn divide(total: u64, [a, b]: [Need; 2]) -> Option<[u64; 2]> {
    let rest = total.checked_sub(a.least.checked_add(b.least)?)?;
    let (more_a, more_b) = (a.most - a.least, b.most - b.least);
    let wanted = u128::from(more_a) + u128::from(more_b);
    // At most `rest`, so within u64.
    let part = (u128::from(rest) * u128::from(more_a))
        .checked_div(wanted)
        .map_or(rest / 2, |part| u64::try_from(part).unwrap_or(rest));
    Some([a.least + part, b.least + rest - part])
}

/// The smallest budget that works, by asking until nothing more is missing, and the model's sizes.
fn least(
    file: &Gguf,
    overhead: u64,
    options: &EngineOptions,
) -> Result<(u64, thalweg_runtime::ModelSpec)> {
    let mut budget = 0;
    loop {
        let options = EngineOptions {
            budget_bytes: Some(budget),
            ..options.clone()
        };
        match plan_model(file, overhead, &options) {
            Ok((_, spec)) => return Ok((budget, spec)),
            // A larger budget may have more readers, which need more again; never less.
            Err(Error::Budget { needed_bytes, .. }) if needed_bytes > budget => {
                budget = needed_bytes;
            }
            Err(other) => {
                ensure!(
                    !matches!(other, Error::Budget { .. }),
                    "no budget is enough: {other}"
                );
                return Err(other.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_goes_where_it_is_of_use() {
        let need = |least, most| Need { least, most };
        let needs = [need(10, 110), need(20, 70)];
        // 100 and 50 more would be taken.
        assert_eq!(divide(60, needs), Some([30, 30]));
        assert_eq!(divide(180, needs), Some([110, 70]));
        assert_eq!(divide(30, needs), Some([10, 20]));
        assert_eq!(divide(29, needs), None);
        assert_eq!(divide(31, [need(10, 10), need(20, 20)]), Some([10, 21]));
        let huge = need(u64::MAX, u64::MAX);
        assert_eq!(divide(u64::MAX, [huge, huge]), None);
        let all = [need(0, u64::MAX), need(0, u64::MAX)];
        assert_eq!(
            divide(u64::MAX, all).map(|p| p[0] / 2 + p[1] / 2),
            Some(u64::MAX / 2)
        );
    }
}
