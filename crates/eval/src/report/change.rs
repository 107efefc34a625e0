//! Whether one test model is nearer to the reference than another: two reports over the same windows.
//!
//! Owns the comparison, window by window. Memory: a few numbers a window. Invariants: 1. reports of
//! other windows or another reference are refused; 2. a difference is this report's minus the
//! other's, so below zero is an improvement.

use serde::{Deserialize, Serialize};

use super::Report;
use crate::metrics::WindowSums;
use crate::statistics::{
    Bootstrap, Interval, Sum, ZTest, macro_paired_z, paired_z, pooled_mean, relative_change,
};
use crate::{Error, Result};

/// How a report differs from an earlier one.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Change {
    /// The earlier report's test model.
    pub against: String,
    /// All tokens alike.
    pub pooled: ScopeChange,
    /// The mean of the domains' means. Its test takes the domains as independent.
    #[serde(rename = "macro")]
    pub macro_mean: ScopeChange,
    /// By domain.
    pub domains: Vec<DomainChange>,
    /// Windows with a smaller divergence than before.
    pub n_better: usize,
    /// Windows with a larger one.
    pub n_worse: usize,
}

/// How one figure differs.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ScopeChange {
    /// Mean divergence before.
    pub before: f64,
    /// Mean divergence now.
    pub after: f64,
    /// `after / before - 1`; none where nothing diverged before.
    pub relative: Option<f64>,
    /// Its interval: windows drawn again, both models' together. None for a single window, and
    /// where a draw has no divergence before.
    pub interval: Option<Interval>,
    /// Test of the differences of windows' means, windows weighing alike; none for fewer than two
    /// windows and where all differ by the same.
    pub z: Option<ZTest>,
}

/// How a domain differs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DomainChange {
    /// Its name.
    pub name: String,
    /// Its figures.
    #[serde(flatten)]
    pub change: ScopeChange,
}

impl Report {
    /// Compares this report's test model with an `earlier` one's.
    ///
    /// # Errors
    /// [`Error::Incomparable`] for reports of other windows or with another reference.
    pub fn change_from(&self, earlier: &Self, bootstrap: &Bootstrap) -> Result<Change> {
        for (what, is_same) in [
            (
                "other windows (texts, --window, --context or tokenizer)",
                self.windows_sha256 == earlier.windows_sha256,
            ),
            (
                "another reference",
                self.reference.sha256 == earlier.reference.sha256
                    && self.reference.activations == earlier.reference.activations,
            ),
            // What follows from the windows, unless somebody wrote into the file.
            (
                "other counts of tokens",
                self.windows.len() == earlier.windows.len()
                    && self.windows.iter().zip(&earlier.windows).all(is_alike),
            ),
            (
                "other domains",
                self.summary.domains.len() == earlier.summary.domains.len(),
            ),
        ] {
            if !is_same {
                return Err(Error::Incomparable {
                    first: self.label(),
                    second: earlier.label(),
                    what,
                });
            }
        }
        let pairs: Vec<Pair> = self
            .windows
            .iter()
            .zip(&earlier.windows)
            .map(pair)
            .collect();
        let mut by_domain: Vec<Vec<Pair>> = vec![Vec::new(); self.summary.domains.len()];
        for (window, pair) in self.windows.iter().zip(&pairs) {
            by_domain[window.domain].push(*pair);
        }
        let named = self.summary.domains.iter().zip(&by_domain);
        let domains = named.map(|(domain, pairs)| {
            Ok(DomainChange {
                name: domain.name.clone(),
                change: pooled(pairs, bootstrap)?,
            })
        });
        Ok(Change {
            against: earlier.label(),
            pooled: pooled(&pairs, bootstrap)?,
            macro_mean: macro_mean(&by_domain, bootstrap)?,
            domains: domains.collect::<Result<_>>()?,
            n_better: pairs.iter().filter(|p| p.after.0 < p.before.0).count(),
            n_worse: pairs.iter().filter(|p| p.after.0 > p.before.0).count(),
        })
    }
}

fn is_alike((now, before): (&WindowSums, &WindowSums)) -> bool {
    now.n_tokens == before.n_tokens && now.domain == before.domain
}

/// Divergences of one window under two test models.
#[derive(Clone, Copy)]
struct Pair {
    before: Sum,
    after: Sum,
}

impl Pair {
    fn difference(&self) -> f64 {
        (self.after.0 - self.before.0) / self.after.1 as f64
    }
}

fn pair((now, before): (&WindowSums, &WindowSums)) -> Pair {
    Pair {
        before: (before.kld, before.n_tokens),
        after: (now.kld, now.n_tokens),
    }
}

fn pooled(pairs: &[Pair], bootstrap: &Bootstrap) -> Result<ScopeChange> {
    let before: Vec<Sum> = pairs.iter().map(|p| p.before).collect();
    let after: Vec<Sum> = pairs.iter().map(|p| p.after).collect();
    let all: Vec<usize> = (0..pairs.len()).collect();
    let interval = interval(bootstrap, &[pairs.len()], |drawn| {
        relative_change(&before, &after, drawn)
    })?;
    let differences: Vec<f64> = pairs.iter().map(Pair::difference).collect();
    let (before, after) = (pooled_mean(&before, &all), pooled_mean(&after, &all));
    Ok(ScopeChange {
        before,
        after,
        relative: finite(after / before - 1.0),
        interval,
        z: paired_z(&differences),
    })
}

fn macro_mean(domains: &[Vec<Pair>], bootstrap: &Bootstrap) -> Result<ScopeChange> {
    let strata: Vec<usize> = domains.iter().map(Vec::len).collect();
    let all = domains.concat();
    let before: Vec<Sum> = all.iter().map(|p| p.before).collect();
    let after: Vec<Sum> = all.iter().map(|p| p.after).collect();
    let mean = |sums: &[Sum], drawn: &[usize]| {
        let (mut total, mut first) = (0.0, 0);
        for &n in &strata {
            total += pooled_mean(sums, &drawn[first..first + n]);
            first += n;
        }
        total / strata.len() as f64
    };
    let interval = interval(bootstrap, &strata, |drawn| {
        mean(&after, drawn) / mean(&before, drawn) - 1.0
    })?;
    let whole: Vec<usize> = (0..all.len()).collect();
    let (before, after) = (mean(&before, &whole), mean(&after, &whole));
    let differences = domains
        .iter()
        .map(|pairs| pairs.iter().map(Pair::difference).collect());
    let z = macro_paired_z(&differences.collect::<Vec<Vec<f64>>>());
    Ok(ScopeChange {
        before,
        after,
        relative: finite(after / before - 1.0),
        interval,
        z,
    })
}

/// The interval of a relative change, if every draw has one.
fn interval(
    bootstrap: &Bootstrap,
    strata: &[usize],
    mut change: impl FnMut(&[usize]) -> f64,
) -> Result<Option<Interval>> {
    let mut is_defined = true;
    let found = bootstrap.intervals(strata, |drawn| {
        let value = change(drawn);
        is_defined &= value.is_finite();
        [finite(value).unwrap_or(0.0)]
    })?;
    Ok(found.filter(|_| is_defined).map(|[interval]| interval))
}

fn finite(value: f64) -> Option<f64> {
    Some(value).filter(|v| v.is_finite())
}
