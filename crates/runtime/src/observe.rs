//! Windows into a run: progress, routes, residuals and logits, for those who ask.

use std::ops::ControlFlow;

use thalweg_backend::Routing;

/// Called by the engine while it runs a chunk. Every method has a default that does nothing, and
/// nothing is copied for an observer that does not want it.
pub trait Observer {
    /// `done` of `total` prompt tokens are part of the session. `Break` ends the prefill there with
    /// [`Error::Stopped`](crate::Error::Stopped).
    fn on_progress(&mut self, done: usize, total: usize) -> ControlFlow<()> {
        let _ = (done, total);
        ControlFlow::Continue(())
    }

    /// The router of `layer` chose for a chunk whose first token is at `first_position`.
    fn on_routes(&mut self, layer: usize, first_position: usize, routing: &Routing) {
        let _ = (layer, first_position, routing);
    }

    /// Whether [`on_residual`](Self::on_residual) is wanted.
    fn wants_residual(&self) -> bool {
        false
    }

    /// The residual after `layer`, `[n_tokens, residual_len]`.
    fn on_residual(&mut self, layer: usize, first_position: usize, residual: &[f32]) {
        let _ = (layer, first_position, residual);
    }

    /// Whether [`on_logits`](Self::on_logits) is wanted for the token at `position`.
    fn wants_logits(&self, position: usize) -> bool {
        let _ = position;
        false
    }

    /// Logits after the token at `position`, `[n_vocab]`.
    fn on_logits(&mut self, position: usize, logits: &[f32]) {
        let _ = (position, logits);
    }
}

/// An observer that looks at nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Observer for Silent {}
