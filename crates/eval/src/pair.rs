//! Two models within one budget, and what is told of a model.
//!
//! Owns the division of the budget, the check that both models mean the same by a token, and the facts
//! of a report that a file's header holds. Does not open engines. Memory: none beyond the headers.
//! Invariants: 1. both parts and the logits together are at most the budget; 2. each model gets at
//! least what it needs, and the rest goes where it is of use.

use std::path::Path;

use thalweg_gguf::Gguf;
use thalweg_runtime::{
    EngineOptions, Error as RuntimeError, FingerprintDepth, ModelSpec, available_memory_bytes,
    fingerprint, plan_model,
};

use crate::report::{ModelFacts, hex};
use crate::{Error, Result};

/// Budget where the system does not say how much memory is available.
const FALLBACK_BUDGET_BYTES: u64 = 4 << 30;
/// Logits take at most one part in so many of the budget.
const LOGITS_SHARE: u64 = 32;
/// More logits at a time gain nothing.
const MAX_LOGITS_BYTES: u64 = 64 << 20;

/// A budget in three parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Division {
    /// For the reference's engine.
    pub reference_bytes: u64,
    /// For the test's engine.
    pub test_bytes: u64,
    /// For logits that wait, as [`SideBySide::new`](crate::side_by_side::SideBySide::new) takes them.
    pub logits_bytes: usize,
}

impl Division {
    /// Divides `budget_bytes`, or three quarters of what is available, between a reference and a test
    /// that are opened with these options and this overhead of the backend.
    ///
    /// # Errors
    /// [`Error::Budget`] with the figures if the smallest division does not fit; [`Error::Runtime`] for
    /// a model or options that cannot be used.
    pub fn new(
        budget_bytes: Option<u64>,
        overhead_bytes: u64,
        files: [&Gguf; 2],
        options: [&EngineOptions; 2],
    ) -> Result<Self> {
        let total = budget_bytes.unwrap_or_else(|| {
            available_memory_bytes().map_or(FALLBACK_BUDGET_BYTES, |bytes| bytes / 4 * 3)
        });
        let mut needs = [Need::default(); 2];
        let mut n_vocab = 0;
        for ((need, options), file) in needs.iter_mut().zip(options).zip(files) {
            let (least, spec) = least(file, overhead_bytes, options)?;
            let generous = EngineOptions {
                budget_bytes: Some(total.max(least)),
                ..options.clone()
            };
            let (plan, _) = plan_model(file, overhead_bytes, &generous)?;
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
        let [reference_bytes, test_bytes] = parts.ok_or(Error::Budget {
            needed_bytes: models.saturating_add(logits),
            budget_bytes: total,
            reference_bytes: reference.least,
            test_bytes: test.least,
            logits_bytes: logits,
        })?;
        Ok(Self {
            reference_bytes,
            test_bytes,
            logits_bytes: usize::try_from(logits)
                .map_err(|_| Error::TooLarge { what: "the budget" })?,
        })
    }
}

/// Refuses models whose token ids mean different things.
///
/// # Errors
/// [`Error::Vocabulary`], [`Error::OtherToken`], [`Error::Runtime`] for a file without a vocabulary.
pub fn same_vocabulary(reference: &Gguf, test: &Gguf) -> Result<()> {
    let tokens = |file: &Gguf| -> Result<Vec<String>> {
        let tokens = file.metadata().str_array("tokenizer.ggml.tokens");
        Ok(tokens.map_err(Error::Model)?.to_vec())
    };
    let (reference, test) = (tokens(reference)?, tokens(test)?);
    if reference.len() != test.len() {
        return Err(Error::Vocabulary {
            reference: reference.len(),
            test: test.len(),
        });
    }
    let mut pairs = reference.into_iter().zip(test).enumerate();
    match pairs.find(|(_, (reference, test))| reference != test) {
        Some((id, (reference, test))) => Err(Error::OtherToken {
            id,
            reference,
            test,
        }),
        None => Ok(()),
    }
}

impl ModelFacts {
    /// Facts of a file that is opened with these options; `activations` names the precision.
    ///
    /// # Errors
    /// [`Error::Runtime`], [`Error::Model`].
    pub fn of(file: &Gguf, options: &EngineOptions, activations: &str) -> Result<Self> {
        let (_, spec) = least(file, 0, options)?;
        let layers = spec.experts.iter().map(|e| {
            let one: u64 = e.parts.iter().map(|p| p.len_bytes).sum();
            one * e.n_expert as u64
        });
        let path = file.path(0).unwrap_or_else(|| Path::new(""));
        let hash = fingerprint(file, FingerprintDepth::Ends).map_err(Error::Model)?;
        Ok(Self {
            file: path.to_string_lossy().into_owned(),
            sha256: hex(&hash),
            bytes: file.tensors().iter().map(|t| t.size_bytes).sum(),
            expert_bytes: layers.sum(),
            n_expert: spec.experts.iter().map(|e| e.n_expert).max().unwrap_or(0),
            n_expert_used: spec.experts.iter().map(|e| e.k).max().unwrap_or(0),
            activations: activations.to_owned(),
            moce: options.moce.bias.to_string(),
        })
    }
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
fn least(file: &Gguf, overhead_bytes: u64, options: &EngineOptions) -> Result<(u64, ModelSpec)> {
    let mut budget = 0;
    loop {
        let options = EngineOptions {
            budget_bytes: Some(budget),
            ..options.clone()
        };
        match plan_model(file, overhead_bytes, &options) {
            Ok((_, spec)) => return Ok((budget, spec)),
            // A larger budget may have more readers, which need more again; never less.
            Err(RuntimeError::Budget { needed_bytes, .. }) if needed_bytes > budget => {
                budget = needed_bytes;
            }
            Err(other) => return Err(other.into()),
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
