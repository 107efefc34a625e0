//! The contract of a sampler step and the one place where the chain is built.
//!
//! Adding a step is one file with an implementation of [`SamplerStep`] and one line in [`chain`].

use super::penalty::RepetitionPenalty;
use super::truncate::{MinP, TopK, TopP};
use super::{Candidates, SamplerOptions};

/// One change to the distribution that a token is drawn from.
///
/// All `adjust` calls of a chain come before the temperature, all `truncate` calls after it, each
/// in the order of the chain. A step may keep scratch, but the outcome must depend on the
/// arguments alone: then a sequence continues alike whether its prompt was computed or restored.
pub trait SamplerStep: std::fmt::Debug + Send {
    /// Name for statistics and messages, in lower snake case.
    fn name(&self) -> &'static str;

    /// Changes logits, `[n_vocab]` by token id. Negative infinity forbids a token.
    ///
    /// `history` holds the tokens of the sequence, oldest first; ids may be outside of `logits`.
    fn adjust(&mut self, logits: &mut [f32], history: &[u32]) {
        let _ = (logits, history);
    }

    /// Drops candidates.
    fn truncate(&mut self, candidates: &mut Candidates) {
        let _ = candidates;
    }
}

/// The steps that the options switch on, in order.
pub(super) fn chain(options: &SamplerOptions) -> Vec<Box<dyn SamplerStep>> {
    let samples = !options.is_greedy();
    let steps: [(bool, Box<dyn SamplerStep>); 4] = [
        (
            RepetitionPenalty::is_on(options),
            Box::new(RepetitionPenalty::new(options)),
        ),
        (
            samples && options.top_k > 0,
            Box::new(TopK::new(options.top_k)),
        ),
        (
            samples && options.top_p < 1.0,
            Box::new(TopP::new(options.top_p)),
        ),
        (
            samples && options.min_p > 0.0,
            Box::new(MinP::new(options.min_p)),
        ),
    ];
    steps
        .into_iter()
        .filter_map(|(is_on, step)| is_on.then_some(step))
        .collect()
}
