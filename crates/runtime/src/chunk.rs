//! One chunk of tokens through all layers: the schedule.
//!
//! Layer-major and expert-major: in each layer every needed expert is acquired once, in as many
//! passes as the arena needs, and run over all its tokens. A decode step is a chunk of one token.
//! The host decides the order of everything; results do not depend on it, because each choice of an
//! expert has its own row of partial results and these are summed in rank order.

use thalweg_backend::{Backend, ExpertJob, Routing};
use thalweg_cache::{PolicyKind, RangeMean};
use thalweg_model::ModelSpec;
use thalweg_store::ExpertAccess;

use crate::{Engine, Observer, Result, Session};

/// Host-side working lists, reused from chunk to chunk.
#[derive(Debug, Default)]
pub(crate) struct ChunkScratch {
    row_ids: Vec<u64>,
    row_bytes: Vec<u8>,
    picks: Picks,
    hints: Hints,
    residual: Vec<f32>,
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
    fn leaves_logits(self) -> bool {
        !matches!(self, Self::Prefill { is_last: false })
    }
}

/// A layer's choices, sorted by expert.
#[derive(Debug, Default)]
struct Picks {
    /// Experts that are needed; for one token in descending weight, else by rising id.
    needed: Vec<u16>,
    /// First row of each needed expert's tokens, and the end of the last.
    starts: Vec<usize>,
    /// Tokens of all needed experts, one row each.
    tokens: Vec<u32>,
    /// Row of each (token, rank).
    rows: Vec<u32>,
    /// By expert: how many tokens chose it, then the next free row.
    counts: Vec<u32>,
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
            let (state, staging) = (&mut session.state, &mut self.staging);
            self.model
                .route(&self.backend, &mut self.ws, state, staging, layer)?;
            self.scratch.bad_router_rows += self.ws.routing.bad_rows() as u64;
            if let Some(bias) = self.bias.as_mut().filter(|b| b.applies(phase)) {
                let range = &mut self.scratch.ranges[layer];
                bias.reroute(&mut self.ws.routing, layer, range, &self.store)?;
            }
            observer.on_routes(layer, before, &self.ws.routing);
            self.model.shared(&self.backend, &mut self.ws, layer)?;
            self.run_experts(layer)?;
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

    /// Acquires and runs the experts that the chunk's tokens chose in `layer`.
    fn run_experts(&mut self, layer: usize) -> Result<()> {
        let ChunkScratch { picks, hints, .. } = &mut self.scratch;
        picks.sort(&self.ws.routing);
        hints.set(&self.ws.routing, self.policy);
        let spec: &ModelSpec = self.model.spec();
        let experts = &spec.experts[layer];
        let mut first = 0;
        while first < picks.needed.len() {
            let n = self.store.max_batch(layer).min(picks.needed.len() - first);
            let access = ExpertAccess::new(self.clock, layer, &picks.needed[first..first + n]);
            let lease = self.store.acquire_with(&hints.add(access))?;
            let jobs = (0..n).map(|i| {
                let (start, end) = (picks.starts[first + i], picks.starts[first + i + 1]);
                let parts = [lease.part(i, 0), lease.part(i, 1), lease.part(i, 2)];
                Ok(ExpertJob {
                    expert: experts.view(parts)?,
                    tokens: &picks.tokens[start..end],
                    first_row: start,
                })
            });
            let jobs = jobs.collect::<Result<Vec<_>>>()?;
            self.backend.experts(
                &mut self.ws.rec,
                &jobs,
                &self.ws.input,
                &mut self.ws.partial,
            )?;
            first += n;
        }
        self.clock += 1;
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

/// What some policies learn from besides a token's choices.
#[derive(Debug, Default)]
struct Hints {
    /// Experts ranked behind the chosen ones, as many as were chosen.
    near: Vec<u16>,
    /// Probability of every expert; empty where no policy asks.
    probs: Vec<f32>,
    ranked: Vec<u16>,
}

impl Hints {
    /// Prepares what `policy` asks for. Only single tokens give hints: a chunk's choices have no
    /// one ranking.
    fn set(&mut self, routing: &Routing, policy: PolicyKind) {
        self.near.clear();
        self.probs.clear();
        if routing.n_tokens() != 1 {
            return;
        }
        let logits = routing.logits(0);
        match policy {
            PolicyKind::NearPickEma => {
                let usable = |e: &u16| logits[usize::from(*e)].is_finite();
                let chosen = routing.ids(0);
                self.ranked.clear();
                self.ranked
                    .extend((0..routing.n_expert()).map(|e| e as u16));
                self.ranked.retain(|e| usable(e) && !chosen.contains(e));
                self.ranked.sort_by(|a, b| {
                    logits[usize::from(*b)]
                        .total_cmp(&logits[usize::from(*a)])
                        .then(a.cmp(b))
                });
                self.near.extend(self.ranked.iter().take(routing.k()));
            }
            PolicyKind::InverseRouterEma => {
                let finite = |z: f32| if z.is_finite() { z } else { f32::NEG_INFINITY };
                let max = logits
                    .iter()
                    .map(|z| finite(*z))
                    .fold(f32::NEG_INFINITY, f32::max);
                self.probs
                    .extend(logits.iter().map(|z| (finite(*z) - max).exp()));
                let total: f32 = self.probs.iter().sum();
                self.probs.iter_mut().for_each(|p| *p /= total);
            }
            _ => {}
        }
    }

    fn add<'a>(&'a self, access: ExpertAccess<'a>) -> ExpertAccess<'a> {
        let access = access.with_near(&self.near);
        match self.probs.is_empty() {
            true => access,
            false => access.with_probs(&self.probs),
        }
    }
}

impl Picks {
    /// Groups a chunk's choices by expert.
    fn sort(&mut self, routing: &Routing) {
        let Self {
            needed,
            starts,
            tokens,
            rows,
            counts,
        } = self;
        let k = routing.k();
        counts.clear();
        counts.resize(routing.n_expert(), 0);
        for t in 0..routing.n_tokens() {
            for id in routing.ids(t) {
                counts[usize::from(*id)] += 1;
            }
        }
        needed.clear();
        match routing.n_tokens() {
            // The order of one token's choices is what policies learn from.
            1 => needed.extend_from_slice(routing.ids(0)),
            _ => needed.extend(
                (0..routing.n_expert())
                    .filter(|e| counts[*e] > 0)
                    .map(|e| e as u16),
            ),
        }
        starts.clear();
        let mut row = 0;
        for id in needed.iter() {
            starts.push(row as usize);
            let count = &mut counts[usize::from(*id)];
            (row, *count) = (row + *count, row);
        }
        starts.push(row as usize);
        tokens.resize(row as usize, 0);
        rows.resize(routing.n_tokens() * k, 0);
        for t in 0..routing.n_tokens() {
            for (rank, id) in routing.ids(t).iter().enumerate() {
                let next = &mut counts[usize::from(*id)];
                tokens[*next as usize] = t as u32;
                rows[t * k + rank] = *next;
                *next += 1;
            }
        }
    }
}
