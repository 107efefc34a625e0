//! Architectures by name, and what each must offer a schedule.
//!
//! Adding one: a file here, assembled from `blocks`, and an arm in [`bind`].

mod qwen4exp;

use thalweg_backend::Backend;
use thalweg_gguf::Gguf;

use crate::{
    Error, ModelSpec, Result, RouterOptions, SequenceState, Staging, Workspace, WorkspaceShape,
};

/// Names of the built-in architectures, as in `general.architecture`.
pub const SUPPORTED: &str = "qwen4exp";

/// What a model is and how much memory it needs, as its header says: no weight is read for it.
pub trait Outline: std::fmt::Debug + Send + Sync {
    /// Sizes and the places of what is not resident.
    fn spec(&self) -> &ModelSpec;

    /// Intermediates per token of a chunk.
    fn workspace_shape(&self) -> WorkspaceShape;

    /// f32 elements of the state of a sequence of `n_ctx` tokens.
    fn state_len(&self, n_ctx: usize) -> usize;

    /// f32 elements of the staging.
    fn staging_len(&self) -> usize;
}

/// A bound model: resident weights and the stages of its forward pass.
///
/// Immutable; everything that changes is in the workspace, the sequence state and the staging.
pub trait Architecture<B: Backend>: Outline {
    /// The state of an empty sequence with room for `n_ctx` tokens.
    ///
    /// # Errors
    /// [`Error::Backend`] when memory cannot be had.
    fn state(&self, backend: &B, n_ctx: usize) -> Result<SequenceState<B>>;

    /// Where chunks write recurrent states before they count.
    ///
    /// # Errors
    /// [`Error::Backend`] when memory cannot be had.
    fn staging(&self, backend: &B) -> Result<Staging<B>>;

    /// Starts a chunk: token ids to the residual.
    ///
    /// `rows` holds the stored n-gram rows of every token,
    /// `[n_tokens, rows_per_token, row_bytes]`; empty where the model has no table.
    ///
    /// # Errors
    /// [`Error::Token`] for an id outside the vocabulary, [`Error::Capacity`] for a chunk larger
    /// than the workspace.
    fn embed(&self, backend: &B, ws: &mut Workspace<B>, tokens: &[u32], rows: &[u8]) -> Result<()>;

    /// Layer `layer` up to the router's choice, which is in `ws.routing` afterwards.
    ///
    /// # Errors
    /// [`Error::Backend`], with
    /// [`RouterNotFinite`](thalweg_backend::Error::RouterNotFinite) for a broken residual.
    fn route(
        &self,
        backend: &B,
        ws: &mut Workspace<B>,
        state: &mut SequenceState<B>,
        staging: &mut Staging<B>,
        layer: usize,
    ) -> Result<()>;

    /// The part of layer `layer` that needs no routed expert and may run while they are read.
    ///
    /// # Errors
    /// [`Error::Backend`].
    fn shared(&self, backend: &B, ws: &mut Workspace<B>, layer: usize) -> Result<()>;

    /// What layer `layer`'s router would say of the input that the layer in work gives its experts:
    /// logits of all of the chunk's tokens into `out`, `[n_tokens, n_expert]`. A guess at what that layer will
    /// choose, since the residual changes little from layer to layer. Changes no intermediate that
    /// the layer in work still needs.
    ///
    /// # Errors
    /// [`Error::Backend`].
    fn predict(
        &self,
        backend: &B,
        ws: &mut Workspace<B>,
        layer: usize,
        out: &mut [f32],
    ) -> Result<()>;

    /// As [`predict`](Self::predict), by the weights that the file stores: what to compare a guess
    /// or a rounded router with. Exactly those only where
    /// [`keep_stored`](crate::RouterOptions::keep_stored) was asked for; else those that decide.
    ///
    /// # Errors
    /// [`Error::Backend`].
    fn stored_router(
        &self,
        backend: &B,
        ws: &mut Workspace<B>,
        layer: usize,
        out: &mut [f32],
    ) -> Result<()>;

    /// Ends layer `layer`: `rows[t * k + r]` names the row of `ws.partial` that holds the output
    /// of token `t`'s choice of rank `r`.
    ///
    /// # Errors
    /// [`Error::Backend`].
    fn combine(&self, backend: &B, ws: &mut Workspace<B>, layer: usize, rows: &[u32])
    -> Result<()>;

    /// Prepares the head for the whole chunk; [`logits`](Self::logits) may follow.
    ///
    /// # Errors
    /// [`Error::Backend`].
    fn head(&self, backend: &B, ws: &mut Workspace<B>) -> Result<()>;

    /// Logits of chunk row `row` into `out`, `[n_vocab]`.
    ///
    /// # Errors
    /// [`Error::Backend`].
    fn logits(&self, backend: &B, ws: &mut Workspace<B>, row: usize, out: &mut [f32])
    -> Result<()>;
}

/// Checks a file against its architecture, from its header alone; `routers` are copies that a bound
/// model would keep.
///
/// # Errors
/// [`Error::Architecture`], [`Error::Invalid`] with every problem of the header, [`Error::Gguf`]
/// for a missing architecture key.
pub fn outline(file: &Gguf, routers: RouterOptions) -> Result<Box<dyn Outline>> {
    match file.metadata().str("general.architecture")? {
        qwen4exp::NAME => Ok(Box::new(qwen4exp::Outlined::read(file, routers)?)),
        other => Err(unknown(other)),
    }
}

/// Checks a file against its architecture and makes its dense weights resident on `backend`.
///
/// The whole header is checked before any tensor is read. Routed experts and the n-gram table are
/// not read; [`ModelSpec`] says where they are.
///
/// # Errors
/// [`Error::Architecture`], [`Error::Invalid`] with every problem of the header,
/// [`Error::NotFinite`] for a dense weight that is NaN or infinite, [`Error::Gguf`] on read errors.
///
/// # Cost
/// Reads the dense tensors once, one at a time.
pub fn bind<B: Backend>(
    backend: &B,
    file: &Gguf,
    routers: RouterOptions,
) -> Result<Box<dyn Architecture<B>>> {
    match file.metadata().str("general.architecture")? {
        qwen4exp::NAME => Ok(Box::new(qwen4exp::Qwen4Exp::bind(backend, file, routers)?)),
        other => Err(unknown(other)),
    }
}

fn unknown(name: &str) -> Error {
    Error::Architecture {
        found: name.to_owned(),
        supported: SUPPORTED,
    }
}
