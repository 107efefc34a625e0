//! One chunk of tokens through all layers: the schedule.
//!
//! Owns the order of a chunk's stages and what happens when one fails; the routed experts of a layer
//! are `routed`. A decode step is a chunk of one token. Memory: working lists on the host, reused
//! from chunk to chunk. Invariant: a chunk that fails leaves no trace in its session.

use thalweg_backend::Backend;
use thalweg_cache::RangeMean;

use crate::observe::ExpertOutputs;
use crate::picks::{Hints, Picks};
use crate::{Engine, Error, Observer, Result, Session};

/// Host-side working lists, reused from chunk to chunk.
#[derive(Debug, Default)]
pub(crate) struct ChunkScratch {
    row_ids: Vec<u64>,
    row_bytes: Vec<u8>,
    pub(crate) picks: Picks,
    pub(crate) hints: Hints,
    residual: Vec<f32>,
    input: Vec<f32>,
    partial: Vec<f32>,
    logits: Vec<f32>,
    /// The session's range means as this chunk changes them.
    ranges: Vec<RangeMean>,
    pub(crate) bad_router_rows: u64,
}

/// What a chunk is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// A prompt; the last chunk of one leaves logits.
    Prefill {
        /// Whether it is the prompt's last.
        is_last: bool,
    },
    /// One token of a reply.
    Decode,
}

impl Phase {
    pub(crate) fn leaves_logits(self) -> bool {
        !matches!(self, Self::Prefill { is_last: false })
    }
}

impl<B: Backend> Engine<B> {
    /// Runs a chunk and, if all of it succeeds, makes it part of the session.
    pub(crate) fn run_chunk(
        &mut self,
        session: &mut Session<B>,
        tokens: &[u32],
        phase: Phase,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let before = session.tokens.len();
        session.tokens.extend_from_slice(tokens);
        self.scratch.ranges.clone_from(&session.ranges);
        let result = self.try_chunk(session, before, phase, observer);
        match result {
            Ok(()) => {
                session.state.commit(&mut self.staging, tokens.len());
                session.ranges.clone_from(&self.scratch.ranges);
            }
            Err(_) => session.tokens.truncate(before),
        }
        result
    }

    /// Everything that can fail; changes of the session are undone by the caller.
    fn try_chunk(
        &mut self,
        session: &mut Session<B>,
        before: usize,
        phase: Phase,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let tokens = &session.tokens[before..];
        session.state.check_room(tokens.len())?;
        self.fetch_rows(&session.tokens, before)?;
        self.model
            .embed(&self.backend, &mut self.ws, tokens, &self.scratch.row_bytes)?;
        for layer in 0..self.model.spec().n_layer {
            if let Some(reason) = self.watchdog.as_ref().and_then(|w| w.tripped()) {
                return Err(Error::Watchdog { reason });
            }
            let (state, staging) = (&mut session.state, &mut self.staging);
            self.model
                .route(&self.backend, &mut self.ws, state, staging, layer)?;
            self.scratch.bad_router_rows += self.ws.routing.bad_rows() as u64;
            if self.audits.choices {
                let account = &mut self.audits.account;
                account.choice(&self.backend, self.model.as_ref(), &mut self.ws, layer)?;
            }
            if let Some(kept) = &self.kept {
                kept.reroute(&mut self.ws.routing, layer)?;
            }
            if let Some(bias) = self.bias.as_mut().filter(|b| b.applies(phase)) {
                let range = &mut self.scratch.ranges[layer];
                let (store, rec) = (&self.store, &self.ws.rec);
                let backend = &self.backend;
                let is_resident = |e| store.is_resident(layer, e) || backend.holds(rec, layer, e);
                bias.reroute(&mut self.ws.routing, layer, range, is_resident)?;
            }
            observer.on_routes(layer, before, &self.ws.routing);
            self.run_experts(layer, phase)?;
            if observer.wants_experts() {
                self.show_experts(layer, before, observer)?;
            }
            self.model
                .combine(&self.backend, &mut self.ws, layer, &self.scratch.picks.rows)?;
            if observer.wants_residual() {
                let len = tokens.len() * self.model.spec().residual_len;
                let residual = &mut self.scratch.residual;
                residual.resize(len, 0.0);
                self.backend
                    .read(&mut self.ws.rec, &self.ws.residual, 0, residual)?;
                observer.on_residual(layer, before, residual);
            }
        }
        self.run_head(session, before, phase, observer)
    }

    /// Copies what a layer's experts were given and made to the host, for an observer.
    fn show_experts(
        &mut self,
        layer: usize,
        before: usize,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let Self {
            backend,
            ws,
            scratch,
            ..
        } = self;
        let n_embd = self.model.spec().n_embd;
        let ChunkScratch {
            input,
            partial,
            picks,
            ..
        } = scratch;
        input.resize(ws.n_tokens() * n_embd, 0.0);
        backend.read(&mut ws.rec, &ws.input, 0, input)?;
        partial.resize(picks.rows.len() * n_embd, 0.0);
        backend.read(&mut ws.rec, &ws.partial, 0, partial)?;
        let experts = ExpertOutputs {
            routing: &ws.routing,
            rows: &picks.rows,
            n_embd,
            input,
            partial,
        };
        observer.on_experts(layer, before, &experts);
        Ok(())
    }

    /// Reads the table rows of the tokens from `before` on.
    fn fetch_rows(&mut self, tokens: &[u32], before: usize) -> Result<()> {
        let ChunkScratch {
            row_ids, row_bytes, ..
        } = &mut self.scratch;
        row_bytes.clear();
        if let (Some(table), Some(spec)) = (&mut self.rows, &self.model.spec().rows) {
            row_ids.clear();
            spec.hash.rows(tokens, before, row_ids);
            row_bytes.resize(row_ids.len() * spec.row_bytes, 0);
            table.fetch(row_ids, row_bytes)?;
        }
        Ok(())
    }

    /// Logits of the rows that somebody wants.
    fn run_head(
        &mut self,
        session: &mut Session<B>,
        before: usize,
        phase: Phase,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let n_tokens = session.tokens.len() - before;
        let wanted = |row: usize| observer.wants_logits(before + row);
        let is_final = |row: usize| phase.leaves_logits() && row + 1 == n_tokens;
        if !phase.leaves_logits() && !(0..n_tokens).any(wanted) {
            return Ok(());
        }
        self.model.head(&self.backend, &mut self.ws)?;
        for row in 0..n_tokens {
            if observer.wants_logits(before + row) || is_final(row) {
                let logits = &mut self.scratch.logits;
                logits.resize(self.model.spec().n_vocab, 0.0);
                self.model
                    .logits(&self.backend, &mut self.ws, row, logits)?;
                if observer.wants_logits(before + row) {
                    observer.on_logits(before + row, logits);
                }
                if is_final(row) {
                    std::mem::swap(logits, &mut session.logits);
                }
            }
        }
        Ok(())
    }
}
