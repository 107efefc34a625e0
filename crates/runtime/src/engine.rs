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
use std::time::{Duration, Instant};

use thalweg_backend::{Backend, CpuBackend};
use thalweg_cache::{PolicyKind, RangeMean};
use thalweg_gguf::Gguf;
use thalweg_model::{Architecture, ModelSpec, Staging, Workspace};
use thalweg_quant::QuantType;
use thalweg_store::io::{self, ReaderKind};
use thalweg_store::{
    ExpertStore, ExpertStoreConfig, FileSet, LayerStats, Profile, ReadBackend, RowTable, WarmFill,
};

use crate::ahead::Ahead;
use crate::audit::Audit;
use crate::bias::RoutingBias;
use crate::budget::MemoryPlan;
use crate::chunk::{ChunkScratch, Phase};
use crate::keep::KeptExperts;
use crate::{
    EngineOptions, Error, Note, Observer, Result, Session, Silent, Stats, SystemMemory, Watchdog,
    lock, planning,
};

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
    pub(crate) kept: Option<KeptExperts>,
    pub(crate) audits: Audits,
    pub(crate) ahead: Ahead,
    pub(crate) switches: Switches,
    pub(crate) watchdog: Option<Watchdog>,
    notes: Vec<Note>,
    prewarm_time: Option<Duration>,
    /// Counts steps of the expert store, so that policies see time pass.
    pub(crate) clock: u64,
    /// Experts that each layer needed and the device held.
    pub(crate) device_hits: Vec<u64>,
    stats: Stats,
}

/// The account of routers in other precisions, and what it is of.
#[derive(Debug, Default)]
pub(crate) struct Audits {
    pub(crate) account: Audit,
    /// Whether choices are compared.
    pub(crate) choices: bool,
    /// Whether guesses are.
    pub(crate) guesses: bool,
}

/// Options that decide what runs while reads are under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Switches {
    pub(crate) expert_split: bool,
    pub(crate) shared_overlap: bool,
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
        let kind = options.reader;
        Self::open_with(file, backend, options, |files, n| {
            Ok(io::open(kind, files.clone(), n)?)
        })
    }

    /// As [`from_file`](Self::from_file), with a read backend of the caller's for routed experts,
    /// whose memory is the caller's as well.
    ///
    /// # Errors
    /// As [`open`](Self::open), and whatever `reader` returns.
    pub fn with_reader(
        file: Gguf,
        backend: B,
        options: EngineOptions,
        reader: impl FnOnce(&FileSet) -> Result<Box<dyn ReadBackend>>,
    ) -> Result<Self> {
        let options = EngineOptions {
            reader: ReaderKind::Pread,
            ..options
        };
        Self::open_with(file, backend, options, |files, _| reader(files))
    }

    fn open_with(
        file: Gguf,
        backend: B,
        options: EngineOptions,
        reader: impl FnOnce(&FileSet, std::num::NonZeroUsize) -> Result<Box<dyn ReadBackend>>,
    ) -> Result<Self> {
        let paths: Vec<_> = (0..file.n_shards()).filter_map(|s| file.path(s)).collect();
        let files = FileSet::open(&paths)?;
        // Everything that can be refused is, before anything large is read.
        let outline = thalweg_model::outline(&file, options.routers())?;
        let (expert_files, layout) =
            planning::expert_source(&file, &files, outline.spec(), &options)?;
        let plan = planning::plan(
            outline.as_ref(),
            &layout,
            backend.overhead_bytes(),
            backend.device_memory(),
            &options,
        )?;
        let bias = RoutingBias::new(options.moce, outline.spec())?;
        let kept = options.keep_experts.as_deref();
        let kept = kept.map(|lists| KeptExperts::new(lists, outline.spec()));
        let kept = kept.transpose()?;
        if kept.is_some() && bias.is_some() {
            return Err(Error::Option {
                option: "moce",
                expected: "off where keep_experts is given".to_owned(),
                found: options.moce.bias.to_string(),
            });
        }
        let model = thalweg_model::bind(&backend, &file, options.routers())?;
        // The header was read through one handle, experts will be through another.
        file.verify_unchanged().map_err(Error::Changed)?;

        let spec = model.spec();
        let config = ExpertStoreConfig {
            slots: plan.slots.clone(),
            batch: spec.experts.iter().map(|e| e.k).collect(),
            transit: plan.transit_slots,
            policy: options.policy,
            seed: options.policy_seed,
        };
        let n_reads = planning::reads_under_way(&options, plan.budget_bytes)?;
        let read = reader(&expert_files, n_reads)?;
        let mut notes: Vec<Note> = Vec::new();
        if options.reader != ReaderKind::Pread
            && let Some(path) = expert_files.first_buffered()
        {
            let path = path.to_owned();
            notes.push(Note::BufferedReads { path });
        }
        let mut store = ExpertStore::new(expert_files, read, layout, config)?;
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
        let shape = model.workspace_shape();
        let device_hits = vec![0; spec.n_layer];
        let mut ws = Workspace::new(&backend, shape, spec.n_vocab, plan.chunk_tokens)?;
        if let Some(device) = &plan.device {
            backend.keep_experts(&mut ws.rec, &planning::expert_rooms(spec, device))?;
        }
        let staging = model.staging(&backend)?;
        let watchdog = options
            .watchdog
            .map(|watch| Watchdog::start(watch, SystemMemory))
            .transpose()?;
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let mut engine = Self {
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
            kept,
            audits: Audits {
                account: Audit::default(),
                choices: options.audit_routers && options.bf16_routers,
                guesses: options.audit_routers && options.read_ahead.q8_routers,
            },
            ahead: Ahead::new(options.read_ahead),
            switches: Switches {
                expert_split: options.expert_split,
                shared_overlap: options.shared_overlap,
            },
            watchdog,
            notes,
            prewarm_time: None,
            clock: 0,
            device_hits,
            stats: Stats::default(),
        };
        engine.note_what_is_inert(&options);
        if options.prewarm {
            engine.prewarm_time = Some(engine.prewarm()?);
        }
        if options.lock_memory {
            engine.notes.extend(lock::lock_all());
        }
        Ok(engine)
    }

    /// Collects what was asked for and has no effect.
    fn note_what_is_inert(&mut self, options: &EngineOptions) {
        let has_all = self.plan.transit_slots == 0;
        let reads_ahead = options.read_ahead.is_on();
        let blind = |w: &Watchdog| {
            let watched = w.watches();
            watched.floor_bytes.is_none() && watched.swap_out_limit_bytes.is_none()
        };
        let stored = |ty| {
            let mut experts = self.model.spec().experts.iter();
            experts.all(|e| e.router == ty)
        };
        let guesses = reads_ahead || options.read_ahead.prompt;
        let found = [
            (
                options.bf16_routers && stored(QuantType::BF16),
                Note::RoutersAreBf16,
            ),
            (
                options.read_ahead.q8_routers && (has_all || !guesses || stored(QuantType::Q8_0)),
                Note::NoGuessByCopies,
            ),
            (
                options.audit_routers && !options.bf16_routers && !options.read_ahead.q8_routers,
                Note::NothingToAudit,
            ),
            (reads_ahead && has_all, Note::NothingToReadAhead),
            (
                reads_ahead && !has_all && options.reader == ReaderKind::Pread,
                Note::ReaderCannotReadAhead,
            ),
            (self.bias.is_some() && has_all, Note::BiasWithoutMisses),
            (
                self.watchdog.as_ref().is_some_and(blind),
                Note::WatchdogIsBlind,
            ),
        ];
        let found = found.into_iter().filter(|(is_so, _)| *is_so);
        self.notes.extend(found.map(|(_, note)| note));
    }

    /// Fills free expert slots from a profile, hottest experts first in line, read in file order.
    /// What was loaded is replaced like anything else. `progress` is told how many of how many are
    /// loaded, and may end the fill there.
    ///
    /// # Errors
    /// [`Error::Store`] for a profile of another model's shape, and for the first read that failed;
    /// what had been loaded stays.
    pub fn warm(
        &mut self,
        profile: &Profile,
        progress: impl FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<WarmFill> {
        let spec = self.model.spec();
        let widest = spec.experts.iter().map(|e| e.n_expert).max().unwrap_or(0);
        let shape = [spec.n_layer, widest].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        profile.expect_shape(shape[0], shape[1])?;
        Ok(self.store.warm_fill(profile.ranking(), progress)?)
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
        for file in 0..self.store.files().len() {
            self.store.files().verify_header(file)?;
        }
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
        self.ahead.begin_steps(&self.store.stats());
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
        self.ahead.end_step(&self.store.stats());
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
        let io = self.store.io_stats();
        Stats {
            device_hits: self.device_hits.iter().sum(),
            hits: store.hits,
            guessed_hits: store.guessed_hits,
            late_guesses: store.late_guesses,
            misses: store.misses,
            guesses: store.guesses,
            expert_bytes: store.bytes_read,
            wasted_bytes: store.wasted_bytes,
            wait: store.wait,
            io_bytes: io.bytes_requested,
            io_busy: io.busy,
            row_bytes: self.rows.as_ref().map_or(0, |r| r.stats().bytes_read),
            read_ahead_pauses: self.ahead.n_pauses,
            bad_router_rows: self.scratch.bad_router_rows,
            biased_picks: self.bias.as_ref().map_or(0, |b| b.picks),
            swapped_picks: self.bias.as_ref().map_or(0, |b| b.swapped),
            routing_kl_nats: self.bias.as_ref().map_or(0.0, |b| b.kl_nats),
            biased_choices: self.bias.as_ref().map_or(0, |b| b.choices),
            audited_guesses: self.audits.account.guesses,
            kept_guesses: self.audits.account.kept_guesses,
            audited_picks: self.audits.account.picks,
            kept_picks: self.audits.account.kept_picks,
            ..self.stats
        }
    }

    /// How long the arena's pages and a dummy token took while the engine was opened; `None` unless
    /// [`EngineOptions::prewarm`] was asked for.
    pub fn prewarm_time(&self) -> Option<Duration> {
        self.prewarm_time
    }

    /// Counters of each layer since the engine was opened; what a device held counts as hit.
    pub fn layer_stats(&self) -> Vec<LayerStats> {
        let layers = self.device_hits.iter().enumerate();
        let layers = layers.map(|(l, on_device)| {
            let mut stats = self.store.layer_stats(l).unwrap_or_default();
            stats.hits += on_device;
            stats
        });
        layers.collect()
    }

    /// Whether an expert is in the arena now, or on the device.
    pub fn is_resident(&self, layer: usize, expert: u16) -> bool {
        let on_device = self.backend.holds(&self.ws.rec, layer, expert);
        on_device || self.store.is_resident(layer, expert)
    }

    /// Whether routing depends on what is resident, hence results on history. Prompts keep the
    /// model's own routing unless more was asked for, so what the bias costs shows in decode steps.
    pub fn is_biased(&self) -> bool {
        self.bias.is_some()
    }

    /// What was asked for and has no effect, or less than one would think.
    pub fn notes(&self) -> Vec<Note> {
        let mut notes = self.notes.clone();
        if self.ahead.n_pauses > 0 {
            notes.push(Note::ReadAheadPaused {
                n_pauses: self.ahead.n_pauses,
                precision: self.ahead.last_precision,
            });
        }
        notes
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
