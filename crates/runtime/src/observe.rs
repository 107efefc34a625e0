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

    /// Whether [`on_experts`](Self::on_experts) is wanted.
    fn wants_experts(&self) -> bool {
        false
    }

    /// What the experts of `layer` were given and what each made of it, for a chunk whose first
    /// token is at `first_position`.
    fn on_experts(&mut self, layer: usize, first_position: usize, experts: &ExpertOutputs<'_>) {
        let _ = (layer, first_position, experts);
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

/// A layer's routed experts at work on a chunk.
#[derive(Debug, Clone, Copy)]
pub struct ExpertOutputs<'a> {
    pub(crate) routing: &'a Routing,
    /// Row of each (token, rank), `[n_tokens, k]`.
    pub(crate) rows: &'a [u32],
    pub(crate) n_embd: usize,
    /// `[n_tokens, n_embd]`.
    pub(crate) input: &'a [f32],
    /// `[n_tokens * k, n_embd]`.
    pub(crate) partial: &'a [f32],
}

impl<'a> ExpertOutputs<'a> {
    /// Which experts ran on which token, and their weights.
    pub fn routing(&self) -> &'a Routing {
        self.routing
    }

    /// What a token's experts were given, `[n_embd]`; empty for a token that the chunk does not have.
    pub fn input(&self, token: usize) -> &'a [f32] {
        row(self.input, token, self.n_embd)
    }

    /// What a token's expert of rank `rank` made of it, `[n_embd]`, before its weight is applied;
    /// empty where there is none.
    pub fn output(&self, token: usize, rank: usize) -> &'a [f32] {
        let k = self.routing.k();
        match self.rows.get(token * k + rank) {
            Some(at) if rank < k => row(self.partial, *at as usize, self.n_embd),
            _ => &[],
        }
    }
}

fn row(values: &[f32], row: usize, width: usize) -> &[f32] {
    values
        .get(row * width..(row + 1) * width)
        .unwrap_or_default()
}

/// An observer that looks at nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Observer for Silent {}
