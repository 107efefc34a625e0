//! A model that is ready to run, and the steps that callers take on it.
//!
//! Owns the dense weights, the expert arena, the row cache, one workspace and one staging; not
//! sequences (sessions are the caller's). Memory is taken when the engine is opened, as its
//! [`MemoryPlan`] says, and again for each session.
//!
//! Invariants
//! 1. A session changes only when a whole chunk has succeeded.
//! 2. Output depends on the model and the tokens alone: not on the budget, the chunk, the policy,
//!    the thread count or what other sessions did.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use thalweg_backend::{Backend, CpuBackend};
use thalweg_cache::{Moce, PolicyKind, RangeMean};
use thalweg_gguf::Gguf;
use thalweg_model::{Architecture, ModelSpec, Staging, Workspace};
use thalweg_store::{
    ExpertLayout, ExpertPartLayout, ExpertStore, ExpertStoreConfig, FileSet, PreadBackend,
    ReadBackend, RowTable,
};

use crate::bias::RoutingBias;
use crate::budget::{self, MemoryPlan, Needs, Wishes};
use crate::chunk::{ChunkScratch, Phase};
use crate::{Error, Observer, Result, Session, Silent, Stats, available_memory_bytes};

/// Budget where the system does not say how much memory is available.
const FALLBACK_BUDGET_BYTES: u64 = 4 << 30;

/// How to open an engine. The default asks for three quarters of the available memory.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Bytes for everything together; `None` is three quarters of what is available.
    pub budget_bytes: Option<u64>,
    /// Tokens of the longest sequence; prompts and replies must fit it.
    pub n_ctx: usize,
    /// Tokens that prefill takes in at once; `None` chooses by the budget.
    pub chunk_tokens: Option<usize>,
    /// Expert slots in each layer; `None` is as many as the budget holds.
    pub slots_per_layer: Option<usize>,
    /// Which expert makes room for another.
    pub policy: PolicyKind,
    /// Seed for policies that draw lots.
    pub policy_seed: u64,
    /// Cache-aware routing. Lossy unless its bias is off, which is the default: with it on, output
    /// depends on what is resident, hence on history.
    pub moce: Moce,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            budget_bytes: None,
            n_ctx: 4096,
            chunk_tokens: None,
            slots_per_layer: None,
            policy: PolicyKind::Lru,
            policy_seed: 1,
            moce: Moce::default(),
        }
    }
}

/// A model on backend `B` with its experts behind a bounded arena.
#[derive(Debug)]
pub struct Engine<B: Backend = CpuBackend> {
    id: u64,
    pub(crate) backend: B,
    file: Gguf,
    pub(crate) model: Box<dyn Architecture<B>>,
    plan: MemoryPlan,
    pub(crate) store: ExpertStore,
    pub(crate) rows: Option<RowTable>,
    pub(crate) ws: Workspace<B>,
    pub(crate) staging: Staging<B>,
    pub(crate) scratch: ChunkScratch,
    pub(crate) policy: PolicyKind,
    pub(crate) bias: Option<RoutingBias>,
    /// Counts steps of the expert store, so that policies see time pass.
    pub(crate) clock: u64,
    stats: Stats,
}

impl<B: Backend> Engine<B> {
    /// Opens a model file (any shard of a split one) for running on `backend`.
    ///
    /// # Errors
    /// [`Error::Gguf`] or [`Error::Model`] for an unusable file, with every problem of its header;
    /// [`Error::Budget`] when it cannot run within the budget; [`Error::Option`].
    ///
    /// # Cost
    /// Reads the dense weights; routed experts are read when they are needed.
    pub fn open(path: impl AsRef<Path>, backend: B, options: EngineOptions) -> Result<Self> {
        Self::from_file(Gguf::open(path)?, backend, options)
    }

    /// As [`open`](Self::open), for a file whose header has been read already.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_file(file: Gguf, backend: B, options: EngineOptions) -> Result<Self> {
        Self::with_reader(file, backend, options, |files| {
            Ok(Box::new(PreadBackend::new(files.clone())))
        })
    }

    /// As [`from_file`](Self::from_file), with a read backend of the caller's for routed experts.
    ///
    /// # Errors
    /// As [`open`](Self::open), and whatever `reader` returns.
    pub fn with_reader(
        file: Gguf,
        backend: B,
        options: EngineOptions,
        reader: impl FnOnce(&FileSet) -> Result<Box<dyn ReadBackend>>,
    ) -> Result<Self> {
        let paths: Vec<_> = (0..file.n_shards()).filter_map(|s| file.path(s)).collect();
        let files = FileSet::open(&paths)?;
        let model = thalweg_model::bind(&backend, &file)?;
        // The header was read through one handle, experts will be through another.
        file.verify_unchanged().map_err(Error::Changed)?;

        let spec = model.spec();
        let layout = expert_layout(spec)?;
        let k: Vec<usize> = spec.experts.iter().map(|e| e.k).collect();
        let plan = plan(&backend, model.as_ref(), &layout, &k, &options)?;
        let config = ExpertStoreConfig {
            slots: plan.slots.clone(),
            batch: k,
            transit: 0,
            policy: options.policy,
            seed: options.policy_seed,
        };
        let read = reader(&files)?;
        let mut store = ExpertStore::new(files.clone(), read, layout, config)?;
        store.set_check(weight_check(spec));
        let rows = match &spec.rows {
            Some(rows) => Some(RowTable::new(
                files,
                rows.shard,
                rows.offset_bytes,
                rows.row_bytes,
                rows.n_rows,
                plan.row_cache_bytes
                    .saturating_sub(RowTable::STAGING_BYTES as u64),
            )?),
            None => None,
        };
        let bias = RoutingBias::new(options.moce, spec)?;
        let shape = model.workspace_shape();
        let ws = Workspace::new(&backend, shape, spec.n_vocab, plan.chunk_tokens)?;
        let staging = model.staging(&backend)?;
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Ok(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            backend,
            file,
            plan,
            store,
            rows,
            ws,
            staging,
            model,
            scratch: ChunkScratch::default(),
            policy: options.policy,
            bias,
            clock: 0,
            stats: Stats::default(),
        })
    }

    /// An empty sequence with room for the `n_ctx` tokens that the engine was opened for.
    ///
    /// The budget covers one; each further session takes as much again as the plan's `state_bytes`.
    ///
    /// # Errors
    /// [`Error::Model`] when memory cannot be had.
    pub fn session(&self) -> Result<Session<B>> {
        Ok(Session {
            engine_id: self.id,
            tokens: Vec::with_capacity(self.plan.n_ctx),
            state: self.model.state(&self.backend, self.plan.n_ctx)?,
            logits: vec![0.0; self.model.spec().n_vocab],
            ranges: vec![RangeMean::default(); self.model.spec().n_layer],
        })
    }

    /// Makes a session empty again, keeping its memory.
    ///
    /// # Errors
    /// [`Error::ForeignSession`], [`Error::Model`].
    pub fn reset(&mut self, session: &mut Session<B>) -> Result<()> {
        if session.engine_id != self.id {
            return Err(Error::ForeignSession);
        }
        session.state.reset(&self.backend, &mut self.ws.rec)?;
        session.tokens.clear();
        session.logits.fill(0.0);
        session.ranges.fill(RangeMean::default());
        Ok(())
    }

    /// Takes `tokens` into the session, chunk by chunk; the last token's logits are in
    /// [`Session::logits`] afterwards.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`]; [`Error::Context`] when they do not fit, with nothing taken in;
    /// any error of a chunk, with the chunks before it taken in ([`Session::tokens`] tells).
    pub fn prefill(
        &mut self,
        session: &mut Session<B>,
        tokens: &[u32],
        observer: &mut dyn Observer,
    ) -> Result<()> {
        self.check(session, tokens)?;
        let start = Instant::now();
        let mut done = 0;
        let result = tokens.chunks(self.plan.chunk_tokens).try_for_each(|chunk| {
            let is_last = done + chunk.len() == tokens.len();
            self.run_chunk(session, chunk, Phase::Prefill { is_last }, observer)?;
            done += chunk.len();
            let total = tokens.len();
            match observer.on_progress(done, total) {
                ControlFlow::Break(()) if done < total => Err(Error::Stopped { done, total }),
                _ => Ok(()),
            }
        });
        self.stats.prefill_tokens += done as u64;
        self.stats.prefill_time += start.elapsed();
        result
    }

    /// Takes one token into the session; its logits are in [`Session::logits`] afterwards.
    ///
    /// # Errors
    /// Any error of the step; the session is then as it was.
    pub fn decode(&mut self, session: &mut Session<B>, token: u32) -> Result<()> {
        self.decode_observed(session, token, &mut Silent)
    }

    /// As [`decode`](Self::decode), with a window into the step.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    pub fn decode_observed(
        &mut self,
        session: &mut Session<B>,
        token: u32,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        self.check(session, &[token])?;
        let start = Instant::now();
        self.run_chunk(session, &[token], Phase::Decode, observer)?;
        self.stats.decode_tokens += 1;
        self.stats.decode_time += start.elapsed();
        Ok(())
    }

    /// The split of the budget.
    pub fn plan(&self) -> &MemoryPlan {
        &self.plan
    }

    /// Sizes of the model.
    pub fn spec(&self) -> &ModelSpec {
        self.model.spec()
    }

    /// The model file: metadata and tensor directory.
    pub fn file(&self) -> &Gguf {
        &self.file
    }

    /// The backend that runs the model.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Counters since the engine was opened.
    pub fn stats(&self) -> Stats {
        let store = self.store.stats();
        Stats {
            hits: store.hits,
            misses: store.misses,
            expert_bytes: store.bytes_read,
            wait: store.wait,
            row_bytes: self.rows.as_ref().map_or(0, |r| r.stats().bytes_read),
            bad_router_rows: self.scratch.bad_router_rows,
            biased_picks: self.bias.as_ref().map_or(0, |b| b.picks),
            swapped_picks: self.bias.as_ref().map_or(0, |b| b.swapped),
            routing_kl_nats: self.bias.as_ref().map_or(0.0, |b| b.kl_nats),
            biased_choices: self.bias.as_ref().map_or(0, |b| b.choices),
            ..self.stats
        }
    }

    fn check(&self, session: &Session<B>, tokens: &[u32]) -> Result<()> {
        if session.engine_id != self.id {
            return Err(Error::ForeignSession);
        }
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        let spec = self.model.spec();
        let wanted = session.tokens.len().saturating_add(tokens.len());
        if wanted > session.n_ctx() {
            let (n_ctx, n_ctx_train) = (session.n_ctx(), spec.n_ctx_train);
            return Err(Error::Context {
                wanted,
                n_ctx,
                n_ctx_train,
            });
        }
        let n_vocab = spec.n_vocab;
        match tokens.iter().find(|id| **id as usize >= n_vocab) {
            Some(&id) => Err(thalweg_model::Error::Token { id, n_vocab }.into()),
            None => Ok(()),
        }
    }
}

fn plan<B: Backend>(
    backend: &B,
    model: &dyn Architecture<B>,
    layout: &ExpertLayout,
    k: &[usize],
    options: &EngineOptions,
) -> Result<MemoryPlan> {
    const F32: u64 = size_of::<f32>() as u64;
    let spec = model.spec();
    let n_ctx = options.n_ctx;
    if n_ctx == 0 || n_ctx > spec.n_ctx_train {
        let expected = format!("1..={} (the model's context)", spec.n_ctx_train);
        return Err(Error::Option {
            option: "context",
            expected,
            found: n_ctx.to_string(),
        });
    }
    // Logits of the session, of the step and of the head, and a sampler's candidates.
    let vocabulary_rows = 6 * spec.n_vocab;
    let state = model.state_len(n_ctx) + model.staging_len() + vocabulary_rows;
    let rows_per_token = spec
        .rows
        .as_ref()
        .map_or(0, |r| r.row_bytes * r.hash.rows_per_token());
    let needs = Needs {
        dense_bytes: spec.dense_bytes,
        overhead_bytes: backend.overhead_bytes(),
        state_bytes: state as u64 * F32 + n_ctx as u64 * F32,
        workspace_bytes_per_token: model.workspace_shape().len_per_token() as u64 * F32
            + rows_per_token as u64,
        row_table_bytes: spec.rows.as_ref().map(|r| r.n_rows * r.row_bytes as u64),
        layout,
        k,
        n_ctx,
    };
    let budget_bytes = options.budget_bytes.unwrap_or_else(|| {
        available_memory_bytes().map_or(FALLBACK_BUDGET_BYTES, |bytes| bytes / 4 * 3)
    });
    let wishes = Wishes {
        budget_bytes,
        chunk_tokens: options.chunk_tokens,
        slots_per_layer: options.slots_per_layer,
    };
    budget::plan(&needs, wishes)
}

/// Where the store finds each part of each expert.
fn expert_layout(spec: &ModelSpec) -> Result<ExpertLayout> {
    let mut layout = ExpertLayout::new();
    for experts in &spec.experts {
        let parts: Vec<_> = experts
            .parts
            .iter()
            .map(|p| ExpertPartLayout {
                file: p.shard,
                offset_bytes: p.offset_bytes,
                stride_bytes: p.stride_bytes,
                len_bytes: p.len_bytes,
            })
            .collect();
        layout.push_layer(experts.n_expert, &parts)?;
    }
    Ok(layout)
}

/// Refuses freshly read experts that hold values which are not finite.
fn weight_check(spec: &ModelSpec) -> thalweg_store::ContentCheck {
    let parts: Vec<_> = spec.experts.iter().map(|e| e.parts.clone()).collect();
    Box::new(move |layer, expert, part, bytes| {
        let part = &parts[layer][part];
        match part.ty.first_non_finite(bytes)? {
            None => Ok(()),
            Some(index) => {
                let index = (expert * part.n_in * part.n_out + index) as u64;
                let tensor = part.tensor.clone();
                Err(thalweg_model::Error::NotFinite { tensor, index }.into())
            }
        }
    })
}
