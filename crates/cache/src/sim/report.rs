//! Counters of a simulation and the figures drawn from them.
//!
//! Owns sums only. Invariants: 1. hits + misses = picks; 2. compulsory <= misses. A figure that
//! would divide by zero is `None`.

use alloc::vec;
use alloc::vec::Vec;

use super::SimConfig;
use crate::{Route, Served};

/// What happened, summed over some accesses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Distinct consecutive clock values.
    pub n_tokens: u64,
    /// Accesses.
    pub n_accesses: u64,
    /// Keys asked for.
    pub n_picks: u64,
    /// Keys found resident.
    pub n_hits: u64,
    /// Keys loaded.
    pub n_misses: u64,
    /// Misses of keys never asked for before: no policy could have avoided them.
    pub n_compulsory: u64,
    /// Keys evicted.
    pub n_evicted: u64,
    /// Misses that were not kept, by
    /// [`SimConfig::second_miss_window`](super::SimConfig::second_miss_window).
    pub n_bypassed: u64,
    /// Bytes of the keys loaded.
    pub missed_bytes: u64,
}

impl Counts {
    /// Misses a token; `None` without tokens.
    #[must_use]
    pub fn misses_per_token(&self) -> Option<f64> {
        ratio(self.n_misses, self.n_tokens)
    }

    /// Share of the picks found resident; `None` without picks.
    #[must_use]
    pub fn hit_rate(&self) -> Option<f64> {
        ratio(self.n_hits, self.n_picks)
    }

    /// Bytes loaded a token; `None` without tokens.
    #[must_use]
    pub fn bytes_per_token(&self) -> Option<f64> {
        ratio(self.missed_bytes, self.n_tokens)
    }

    /// Adds one access.
    pub(super) fn add(&mut self, served: &Served, first_uses: u64, bytes: u64, new_token: bool) {
        self.n_tokens += u64::from(new_token);
        self.n_accesses += 1;
        self.n_picks += u64::from(served.n_hit) + u64::from(served.n_miss);
        self.n_hits += u64::from(served.n_hit);
        self.n_misses += u64::from(served.n_miss);
        self.n_compulsory += first_uses;
        self.n_evicted += u64::from(served.n_evicted);
        self.n_bypassed += u64::from(served.n_bypassed);
        self.missed_bytes = self.missed_bytes.saturating_add(bytes);
    }
}

/// The outcome of a simulation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// Over everything counted.
    pub total: Counts,
    /// By layer, `[n_layer]`.
    pub layers: Vec<Counts>,
    /// By domain, `[greatest domain + 1]`; empty without documents. Tokens before the first
    /// document belong to no domain.
    pub domains: Vec<Counts>,
}

/// What biased decisions cost in agreement, summed over some decisions.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct RouteCounts {
    /// Decisions.
    pub n_decisions: u64,
    /// Decisions in which the bias changed no expert.
    pub n_exact: u64,
    /// Decisions whose row had a NaN or plus infinity.
    pub n_invalid_rows: u64,
    agree_sum: f64,
    kl_sum: f64,
}

impl RouteCounts {
    /// Mean share of the unbiased experts that were chosen; `None` without decisions.
    #[must_use]
    pub fn agreement(&self) -> Option<f64> {
        self.mean(self.agree_sum)
    }

    /// Mean of ln(P(unbiased) / P(chosen)), see [`Route::routing_kl`]; `None` without decisions.
    #[must_use]
    pub fn routing_kl(&self) -> Option<f64> {
        self.mean(self.kl_sum)
    }

    /// Share of decisions in which the bias changed no expert; `None` without decisions.
    #[must_use]
    pub fn exact_set_rate(&self) -> Option<f64> {
        ratio(self.n_exact, self.n_decisions)
    }

    fn add(&mut self, route: &Route<'_>) {
        self.n_decisions += 1;
        self.n_exact += u64::from(route.is_exact());
        self.n_invalid_rows += u64::from(route.n_invalid > 0);
        // A choice has at most 65535 experts.
        self.agree_sum += f64::from(route.n_agree) / route.unbiased.len() as f64;
        self.kl_sum += route.routing_kl;
    }

    fn mean(&self, sum: f64) -> Option<f64> {
        // Counts stay below 2^53.
        (self.n_decisions > 0).then(|| sum / self.n_decisions as f64)
    }
}

/// The outcome of a simulation that routes.
#[derive(Clone, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct RoutedReport {
    /// The caches.
    pub cache: Report,
    /// The decisions, over everything counted.
    pub total: RouteCounts,
    /// The decisions by domain, as in [`Report::domains`].
    pub domains: Vec<RouteCounts>,
}

impl RoutedReport {
    pub(super) fn new(config: &SimConfig<'_>) -> Self {
        Self {
            domains: vec![RouteCounts::default(); config.n_domain()],
            ..Self::default()
        }
    }

    pub(super) fn add(&mut self, route: &Route<'_>, domain: Option<usize>) {
        self.total.add(route);
        if let Some(counts) = domain.and_then(|domain| self.domains.get_mut(domain)) {
            counts.add(route);
        }
    }

    /// [`RouteCounts::agreement`] of the total.
    #[must_use]
    pub fn agreement(&self) -> Option<f64> {
        self.total.agreement()
    }

    /// [`RouteCounts::routing_kl`] of the total.
    #[must_use]
    pub fn routing_kl(&self) -> Option<f64> {
        self.total.routing_kl()
    }

    /// [`RouteCounts::exact_set_rate`] of the total.
    #[must_use]
    pub fn exact_set_rate(&self) -> Option<f64> {
        self.total.exact_set_rate()
    }
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    // Counts stay below 2^53.
    (whole > 0).then(|| part as f64 / whole as f64)
}
