//! One sequence: its tokens, its state, the logits after its last token.
//!
//! Owned by the caller, changed only by the engine that made it. Memory: the state of `n_ctx`
//! tokens and one row of logits, both counted in the engine's budget.

use thalweg_backend::{Backend, CpuBackend};
use thalweg_cache::RangeMean;
use thalweg_model::SequenceState;

/// A sequence on an [`Engine`](crate::Engine).
#[derive(Debug)]
pub struct Session<B: Backend = CpuBackend> {
    pub(crate) engine_id: u64,
    pub(crate) tokens: Vec<u32>,
    pub(crate) state: SequenceState<B>,
    pub(crate) logits: Vec<f32>,
    /// Mean logit range of each layer's router, where a relative bias uses it.
    pub(crate) ranges: Vec<RangeMean>,
}

impl<B: Backend> Session<B> {
    /// Tokens that are part of the sequence.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Most tokens that the sequence can have.
    pub fn n_ctx(&self) -> usize {
        self.state.n_ctx()
    }

    /// Logits after the last token, `[n_vocab]`; zeros before the first.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }
}
