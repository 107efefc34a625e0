//! What a sequence carries from chunk to chunk.
//!
//! Owns key-value caches, recurrent states and convolution histories; not token ids (the session
//! has them). Memory is taken once, for the sequence's capacity.
//!
//! Invariant: [`SequenceState::n_tokens`] and the recurrent states change only in
//! [`SequenceState::commit`]. Cache rows beyond `n_tokens` are scratch, so a chunk that fails half
//! way leaves nothing behind.

use thalweg_backend::Backend;

use crate::{Error, Result};

/// State of one layer.
#[derive(Debug)]
#[non_exhaustive]
pub enum LayerState<B: Backend> {
    /// Gated delta net.
    Recurrent(RecurrentState<B>),
    /// Attention.
    Attention(AttentionState<B>),
}

/// State of a gated delta net layer.
#[derive(Debug)]
pub struct RecurrentState<B: Backend> {
    /// `[Hv, dk, dv]`, value heads in GGUF order.
    pub delta: B::Buffer,
    /// The last inputs of the convolution, `[taps - 1, channels]`, oldest first.
    pub conv: B::Buffer,
}

/// Caches of an attention layer, one row per token (or block) of capacity.
#[derive(Debug)]
pub struct AttentionState<B: Backend> {
    /// Keys, normed and rotated, `[n_ctx, n_head_kv, head_dim]`.
    pub k: B::Buffer,
    /// Values, `[n_ctx, n_head_kv, head_dim]`.
    pub v: B::Buffer,
    /// Raw indexer keys `[n_ctx, index_dim]` and pooled keys `[n_ctx / block, index_dim]`, where
    /// the layer selects blocks.
    pub index: Option<(B::Buffer, B::Buffer)>,
}

/// All state of one sequence.
#[derive(Debug)]
pub struct SequenceState<B: Backend> {
    pub(crate) n_tokens: usize,
    pub(crate) n_ctx: usize,
    pub(crate) layers: Vec<LayerState<B>>,
    /// Convolution history of the n-gram layer, `[(taps - 1) * dilation, residual_len]`.
    pub(crate) ngram: Option<B::Buffer>,
}

/// Where a chunk's new recurrent states are written before they count.
///
/// One per engine, whatever the number of sequences: [`SequenceState::commit`] swaps buffers.
#[derive(Debug)]
pub struct Staging<B: Backend> {
    /// By layer; `None` for attention.
    pub(crate) layers: Vec<Option<RecurrentState<B>>>,
    pub(crate) ngram: Option<B::Buffer>,
}

impl<B: Backend> SequenceState<B> {
    /// Tokens that the state has taken in.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Tokens that the state can hold.
    pub fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// Checks that `n` more tokens fit.
    ///
    /// # Errors
    /// [`Error::Capacity`].
    pub fn check_room(&self, n: usize) -> Result<()> {
        let wanted = self.n_tokens.saturating_add(n);
        if wanted > self.n_ctx {
            let available = self.n_ctx;
            return Err(Error::Capacity {
                what: "context",
                wanted,
                available,
            });
        }
        Ok(())
    }

    /// Makes the sequence empty, keeping its memory.
    ///
    /// # Errors
    /// [`Error::Backend`].
    pub fn reset(&mut self, backend: &B, rec: &mut B::Recorder) -> Result<()> {
        for layer in &mut self.layers {
            // Caches need no clearing: rows beyond `n_tokens` are never read.
            if let LayerState::Recurrent(RecurrentState { delta, conv }) = layer {
                backend.zero(rec, delta)?;
                backend.zero(rec, conv)?;
            }
        }
        if let Some(ngram) = &mut self.ngram {
            backend.zero(rec, ngram)?;
        }
        self.n_tokens = 0;
        Ok(())
    }

    /// Makes the chunk of `n_tokens` that was just run part of the sequence.
    ///
    /// Cost: pointer swaps.
    pub fn commit(&mut self, staging: &mut Staging<B>, n_tokens: usize) {
        for (layer, staged) in self.layers.iter_mut().zip(&mut staging.layers) {
            if let (LayerState::Recurrent(now), Some(next)) = (layer, staged) {
                std::mem::swap(now, next);
            }
        }
        std::mem::swap(&mut self.ngram, &mut staging.ngram);
        self.n_tokens += n_tokens;
    }
}
