//! Steps that drop unlikely candidates: top-k, top-p, min-p.
//!
//! The work is in [`Candidates`]; a step holds its parameter. All keep the best candidate.

use super::{Candidates, SamplerStep};

/// Keeps the `n` best.
#[derive(Debug)]
pub(super) struct TopK {
    n: usize,
}

impl TopK {
    pub(super) fn new(n: usize) -> Self {
        Self { n }
    }
}

impl SamplerStep for TopK {
    fn name(&self) -> &'static str {
        "top_k"
    }

    fn truncate(&mut self, candidates: &mut Candidates) {
        candidates.keep_best(self.n);
    }
}

/// Keeps the smallest set of best candidates that has the given share of the probability.
#[derive(Debug)]
pub(super) struct TopP {
    mass: f32,
}

impl TopP {
    pub(super) fn new(mass: f32) -> Self {
        Self { mass }
    }
}

impl SamplerStep for TopP {
    fn name(&self) -> &'static str {
        "top_p"
    }

    fn truncate(&mut self, candidates: &mut Candidates) {
        candidates.keep_mass(self.mass);
    }
}

/// Keeps candidates that are not too far below the best.
#[derive(Debug)]
pub(super) struct MinP {
    min_weight: f32,
}

impl MinP {
    pub(super) fn new(min_weight: f32) -> Self {
        Self { min_weight }
    }
}

impl SamplerStep for MinP {
    fn name(&self) -> &'static str {
        "min_p"
    }

    fn truncate(&mut self, candidates: &mut Candidates) {
        candidates.keep_weight(self.min_weight);
    }
}
