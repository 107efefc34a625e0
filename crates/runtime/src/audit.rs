//! What routers of another precision would have done with the file's own.
//!
//! Owns the comparison and its counts; the copies are the model's (`RouterOptions`). Costs one more
//! product with each router that is compared. Memory: one row of logits a token of the chunk.
//! Invariant: an audit counts and changes nothing.

use thalweg_backend::{Backend, Routing};
use thalweg_model::{Architecture, Workspace};

use crate::Result;
use crate::ahead::rank;

/// Counts of one engine.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    own: Routing,
    ranked: Vec<u16>,
    /// Experts that a copy's guess named, and those that the stored router would have named too.
    pub(crate) guesses: u64,
    pub(crate) kept_guesses: u64,
    /// Experts that rounded routers chose, and those that the stored ones would have chosen too.
    pub(crate) picks: u64,
    pub(crate) kept_picks: u64,
}

impl Audit {
    /// Compares the choice in `ws.routing` with the one that layer `layer`'s stored router makes of
    /// the same input. A stored router that cannot choose is not counted.
    pub(crate) fn choice<B: Backend>(
        &mut self,
        backend: &B,
        model: &dyn Architecture<B>,
        ws: &mut Workspace<B>,
        layer: usize,
    ) -> Result<()> {
        let (n_tokens, n_expert, k) = shape(&ws.routing);
        self.own.reset(n_tokens, n_expert, k);
        model.stored_router(backend, ws, layer, self.own.logits_mut())?;
        if self.own.choose().is_err() {
            return Ok(());
        }
        for token in 0..n_tokens {
            let own = self.own.ids(token);
            let kept = ws.routing.ids(token).iter().filter(|e| own.contains(e));
            self.kept_picks += kept.count() as u64;
            self.picks += k as u64;
        }
        Ok(())
    }

    /// Compares the experts that a guess for layer `layer` named with as many that its stored router
    /// would have named, residents excepted.
    pub(crate) fn guess<B: Backend>(
        &mut self,
        backend: &B,
        model: &dyn Architecture<B>,
        ws: &mut Workspace<B>,
        layer: usize,
        guessed: &[u16],
        is_resident: impl Fn(u16) -> bool,
    ) -> Result<()> {
        let experts = &model.spec().experts[layer];
        self.own.reset(1, experts.n_expert, experts.k);
        model.stored_router(backend, ws, layer, self.own.logits_mut())?;
        let logits = self.own.logits(0);
        rank(logits, guessed.len(), is_resident, &mut self.ranked);
        let kept = guessed.iter().filter(|e| self.ranked.contains(e));
        self.kept_guesses += kept.count() as u64;
        self.guesses += guessed.len() as u64;
        Ok(())
    }
}

fn shape(routing: &Routing) -> (usize, usize, usize) {
    (routing.n_tokens(), routing.n_expert(), routing.k())
}
