//! Thalweg as one of the two engines.
//!
//! Owns the translation of the common work into calls of `thalweg-runtime`. Where experts are
//! streamed the budget is the group's limit less a margin for what the engine doesn't count: the
//! program itself, page tables, the allocator's leftovers. Where they are not there is no limit,
//! and a model that doesn't fit is refused.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use thalweg_runtime::{
    Activations, CpuBackend, CpuOptions, Engine, EngineOptions, Observer, PolicyKind, Profile,
    ReadAhead, ReaderKind, Session, Silent, Stats,
};

use crate::work::{Peer, Work};

/// What can be chosen about Thalweg's side; all of it leaves the result as it is.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Thalweg: which resident expert makes room for another
    #[arg(long, value_name = "NAME", default_value = "lru", value_parser = policy)]
    policy: PolicyKind,

    /// Thalweg: how experts are read (pread, pool, uring)
    #[arg(long, value_name = "NAME", default_value = "pool", value_parser = reader)]
    reader: ReaderKind,

    /// Thalweg: experts of the next layer, and after a comma of the layer behind it, that are read
    /// before they are asked for
    #[arg(long, value_name = "N[,M]", default_value = "0", value_parser = read_ahead)]
    readahead: [usize; 2],

    /// Thalweg: read experts from a file that was packed from the model (see `examples/pack`)
    #[arg(long, value_name = "FILE")]
    pub(crate) sidecar: Option<PathBuf>,
}

impl Options {
    /// Flags that give a child these options.
    pub(crate) fn flags(&self) -> Vec<std::ffi::OsString> {
        let [next, second] = self.readahead;
        let mut flags: Vec<std::ffi::OsString> = vec![
            "--policy".into(),
            self.policy.name().into(),
            "--reader".into(),
            self.reader.name().into(),
            "--readahead".into(),
            format!("{next},{second}").into(),
        ];
        if let Some(path) = &self.sidecar {
            flags.extend(["--sidecar".into(), path.clone().into_os_string()]);
        }
        flags
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "policy": self.policy.name(),
            "reader": self.reader.name(),
            "readahead": self.readahead,
            "sidecar": self.sidecar.as_ref().map(|p| p.to_string_lossy()),
        })
    }
}

fn policy(text: &str) -> Result<PolicyKind, String> {
    text.parse::<PolicyKind>().map_err(|e| e.to_string())
}

fn reader(text: &str) -> Result<ReaderKind, String> {
    text.parse::<ReaderKind>().map_err(|e| e.to_string())
}

fn read_ahead(text: &str) -> Result<[usize; 2], String> {
    let (next, second) = text.split_once(',').unwrap_or((text, "0"));
    let count = |text: &str| {
        let n = text.trim().parse::<usize>();
        n.map_err(|_| format!("{text:?} is no count; N or N,M is expected"))
    };
    Ok([count(next)?, count(second)?])
}

/// An engine and its sequence.
pub(crate) struct Ours {
    engine: Engine,
    session: Session,
    /// Counters at the end of the prompt.
    before_decode: Stats,
}

impl Ours {
    pub(crate) fn open(work: &Work, options: &Options, budget_bytes: u64) -> Result<Self> {
        let n_threads = work.n_threads;
        let backend = CpuBackend::new(CpuOptions { n_threads })?;
        let [next, second] = options.readahead;
        let options = EngineOptions {
            budget_bytes: Some(budget_bytes),
            n_ctx: work.n_ctx,
            policy: options.policy,
            reader: options.reader,
            read_ahead: ReadAhead {
                next,
                second,
                ..ReadAhead::default()
            },
            sidecar: options.sidecar.clone(),
            ..EngineOptions::default()
        };
        let engine = Engine::open(&work.model, backend, options)?;
        Self::of(engine)
    }

    /// An engine with all experts in memory, read before this returns.
    pub(crate) fn resident(setup: Resident<'_>) -> Result<Self> {
        let n_threads = setup.n_threads;
        let backend = CpuBackend::new(CpuOptions { n_threads })?;
        let backend = backend.with_activations(setup.activations);
        let options = EngineOptions {
            n_ctx: setup.n_ctx,
            chunk_tokens: Some(setup.chunk_tokens),
            ..EngineOptions::default()
        };
        let mut engine = Engine::open(setup.model, backend, options)?;
        let counts: Vec<usize> = engine.spec().experts.iter().map(|e| e.n_expert).collect();
        let (n_experts, n_slots): (usize, usize) =
            (counts.iter().sum(), engine.plan().slots.iter().sum());
        ensure!(
            n_slots >= n_experts,
            "the model does not fit the memory: {n_slots} of its {n_experts} experts do, within \
             {} bytes, which are 3/4 of what is available",
            engine.plan().budget_bytes
        );
        let widest = counts.iter().copied().max().unwrap_or(0);
        // All alike: where there is room for all nothing need be ranked.
        let profile = Profile::from_counts(
            u32::try_from(counts.len())?,
            u32::try_from(widest)?,
            u32::try_from(widest)?,
            &vec![0; counts.len() * widest],
            1,
        )?;
        engine.warm(&profile, |_, _| ControlFlow::Continue(()))?;
        Self::of(engine)
    }

    fn of(engine: Engine) -> Result<Self> {
        let session = engine.session()?;
        let before_decode = engine.stats();
        Ok(Self {
            engine,
            session,
            before_decode,
        })
    }

    /// The name of the instruction set in use.
    pub(crate) fn instruction_set(&self) -> &'static str {
        self.engine.backend().kernels()
    }

    /// Bytes read for experts and for rows of the n-gram table since the engine was opened.
    pub(crate) fn bytes_read(&self) -> [u64; 2] {
        let stats = self.engine.stats();
        [stats.expert_bytes, stats.row_bytes]
    }

    /// Takes tokens into the sequence; the logits after each of them, `[n_tokens, n_vocab]`.
    pub(crate) fn logits_of_all(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let mut rows = Rows(Vec::with_capacity(tokens.len() * self.n_vocab()));
        self.engine.prefill(&mut self.session, tokens, &mut rows)?;
        let (found, expected) = (rows.0.len(), tokens.len() * self.n_vocab());
        ensure!(found == expected, "{found} logits, {expected} expected");
        Ok(rows.0)
    }
}

/// What [`Ours::resident`] opens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resident<'a> {
    pub model: &'a Path,
    /// Tokens of the longest sequence.
    pub n_ctx: usize,
    /// Tokens that are taken in at once.
    pub chunk_tokens: usize,
    pub n_threads: usize,
    pub activations: Activations,
}

/// The logits of every position, in order.
struct Rows(Vec<f32>);

impl Observer for Rows {
    fn wants_logits(&self, _: usize) -> bool {
        true
    }

    fn on_logits(&mut self, _: usize, logits: &[f32]) {
        self.0.extend_from_slice(logits);
    }
}

impl Peer for Ours {
    fn n_vocab(&self) -> usize {
        self.engine.spec().n_vocab
    }

    fn reset(&mut self) -> Result<()> {
        Ok(self.engine.reset(&mut self.session)?)
    }

    fn prefill(&mut self, tokens: &[u32]) -> Result<()> {
        self.engine
            .prefill(&mut self.session, tokens, &mut Silent)?;
        self.before_decode = self.engine.stats();
        Ok(())
    }

    fn decode(&mut self, token: u32) -> Result<()> {
        Ok(self.engine.decode(&mut self.session, token)?)
    }

    fn logits(&self) -> Result<&[f32]> {
        Ok(self.session.logits())
    }

    fn about(&self) -> Value {
        let plan = self.engine.plan();
        let stats = self.engine.stats().since(&self.before_decode);
        let notes = self.engine.notes();
        json!({
            "budget_bytes": plan.budget_bytes,
            "planned_bytes": plan.total_bytes(),
            "dense_bytes": plan.dense_bytes,
            "arena_bytes": plan.arena_bytes,
            "slots": plan.slots,
            "chunk_tokens": plan.chunk_tokens,
            "notes": notes.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "decode": {
                "hit_rate": stats.hit_rate(),
                "guessed_hits": stats.guessed_hits,
                "misses": stats.misses,
                "expert_bytes": stats.expert_bytes,
                "wasted_bytes": stats.wasted_bytes,
                "row_bytes": stats.row_bytes,
                "wait_s": stats.wait.as_secs_f64(),
                "io_busy_s": stats.io_busy.as_secs_f64(),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_read_ahead_are_one_or_two() {
        assert_eq!(read_ahead("6"), Ok([6, 0]));
        assert_eq!(read_ahead("6,2"), Ok([6, 2]));
        assert!(read_ahead("6,2,1").is_err());
        assert!(read_ahead("-1").is_err());
    }
}
