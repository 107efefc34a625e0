//! `TraceRecorder`: writes the routes of a run to a trace file.
//!
//! Owns the file writer and the routes of one chunk; does not own token ids (the caller says what
//! it feeds) nor the session. The engine reports layer by layer for a whole chunk, a trace is
//! written token by token, hence the buffer: `n_layer (6 k + 4 n_expert)` bytes a token of a chunk,
//! the second term only if logits are kept.
//! Invariants: 1. a token enters the file only when the chunk it belongs to has succeeded; 2. tokens
//! enter in the order of their positions, each once.
//! Cost: a copy of the routes, and that of `RecordBuf`.

use std::ops::ControlFlow;
use std::path::PathBuf;

use thalweg_backend::Routing;
use thalweg_model::ModelSpec;
use thalweg_trace::{Error, FileWriter, LayerChoice, Logits, RecordBuf, Shape};

use crate::Observer;

/// Records which experts a run chose, as an [`Observer`] of the engine.
///
/// ```no_run
/// use thalweg_runtime::{CpuBackend, CpuOptions, Engine, EngineOptions};
/// use thalweg_runtime::{FingerprintDepth, TraceLogits, TraceRecorder, fingerprint};
///
/// let backend = CpuBackend::new(CpuOptions { n_threads: 2 })?;
/// let mut engine = Engine::open("models/demo.gguf", backend, EngineOptions::default())?;
/// let mut session = engine.session()?;
/// let mark = fingerprint(engine.file(), FingerprintDepth::Ends)?;
/// let mut recorder =
///     TraceRecorder::create("demo.motr", engine.spec(), TraceLogits::FullF16, mark)?;
///
/// let prompt = [17, 4, 99];
/// recorder.start_document(0, prompt.len());
/// recorder.feed(&prompt);
/// engine.prefill(&mut session, &prompt, &mut recorder)?;
/// recorder.feed(&[5]);
/// engine.decode_observed(&mut session, 5, &mut recorder)?;
/// recorder.end_document(session.tokens().len())?;
/// recorder.finish()?; // only now does the file appear
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TraceRecorder {
    writer: FileWriter,
    record: RecordBuf,
    shape: Shape,
    /// Ids of the document's tokens, by position, as far as they are known.
    ids: Vec<u32>,
    /// Position of the first token that is not in the file yet.
    position: usize,
    chunk: Chunk,
    /// The first failure inside a callback, which cannot return it.
    failed: Option<Error>,
}

/// Routes of the chunk being run, `[n_layer][n_tokens]` each.
#[derive(Debug, Default)]
struct Chunk {
    n_tokens: usize,
    n_layers: usize,
    experts: Vec<u16>,
    weights: Vec<f32>,
    logits: Vec<f32>,
}

impl TraceRecorder {
    /// Starts a trace of the model `spec` at `target`, where nothing changes before
    /// [`finish`](Self::finish).
    ///
    /// Mixture weights are always kept; `logits` says what else.
    ///
    /// # Errors
    /// [`Error::WrongCount`] for a model whose layers differ in experts (a trace has one shape);
    /// [`Error::OutOfRange`] for a list of top logits that is shorter than a choice;
    /// [`Error::Io`].
    pub fn create(
        target: impl Into<PathBuf>,
        spec: &ModelSpec,
        logits: Logits,
        fingerprint: [u8; 32],
    ) -> Result<Self, Error> {
        let (n_expert, k) = spec.experts.first().map_or((0, 0), |e| (e.n_expert, e.k));
        for layer in &spec.experts {
            same("experts of a layer", n_expert, layer.n_expert)?;
            same("experts chosen in a layer", k, layer.k)?;
        }
        let shape = Shape::new(
            u32::try_from(spec.n_layer).unwrap_or(u32::MAX),
            u32::try_from(n_expert).unwrap_or(u32::MAX),
            u16::try_from(k).unwrap_or(u16::MAX),
        );
        let shape = shape.with_weights().with_logits(logits);
        Ok(Self {
            writer: FileWriter::create(target, &shape, fingerprint)?,
            record: RecordBuf::new(&shape)?,
            shape,
            ids: Vec::new(),
            position: 0,
            chunk: Chunk::default(),
            failed: None,
        })
    }

    /// Says what the trace was made from: by convention a JSON object with the names of the
    /// domains.
    pub fn set_provenance(&mut self, json: impl Into<String>) {
        self.writer.set_provenance(json);
    }

    /// The next token fed starts a document, at position 0 of a session.
    ///
    /// Call [`end_document`](Self::end_document) for the one before first, also if it failed: its
    /// last step may not be in the file yet.
    pub fn start_document(&mut self, domain: u32, n_prompt_tokens: usize) {
        self.ids.clear();
        self.position = 0;
        self.chunk.clear();
        let n_prompt_tokens = u32::try_from(n_prompt_tokens).unwrap_or(u32::MAX);
        self.writer.start_document(n_prompt_tokens, domain);
    }

    /// Says which tokens are about to be run.
    pub fn feed(&mut self, ids: &[u32]) {
        self.ids.extend_from_slice(ids);
    }

    /// Ends a document of `n_tokens` tokens, the length of its session.
    ///
    /// # Errors
    /// What failed since the document started; [`Error::WrongCount`] when the engine did not report
    /// as many tokens or was fed others than [`feed`](Self::feed) was told.
    pub fn end_document(&mut self, n_tokens: usize) -> Result<(), Error> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if self.position < n_tokens {
            self.commit()?;
        }
        self.chunk.clear();
        same("tokens of a document", n_tokens, self.position)
    }

    /// Tokens in the file so far.
    pub fn n_tokens(&self) -> u64 {
        self.writer.n_tokens()
    }

    /// Writes the file and moves it to its place; returns its size.
    ///
    /// # Errors
    /// What failed since the last document ended; those of [`FileWriter::finish`].
    pub fn finish(self) -> Result<u64, Error> {
        match self.failed {
            Some(error) => Err(error),
            None => self.writer.finish(),
        }
    }

    /// Takes one layer's routes into the chunk.
    fn take(
        &mut self,
        layer: usize,
        first_position: usize,
        routing: &Routing,
    ) -> Result<(), Error> {
        if layer == 0 {
            // The engine moves on only when a chunk has succeeded; else it starts over.
            if first_position > self.position {
                self.commit()?;
            }
            self.chunk.clear();
            self.chunk.n_tokens = routing.n_tokens();
            same("position of a chunk", self.position, first_position)?;
        }
        same("layer reported", self.chunk.n_layers, layer)?;
        same("tokens of a chunk", self.chunk.n_tokens, routing.n_tokens())?;
        same(
            "experts chosen in a layer",
            self.shape.k.into(),
            routing.k(),
        )?;
        let keeps_logits = self.shape.logits != Logits::None;
        for token in 0..routing.n_tokens() {
            self.chunk.experts.extend_from_slice(routing.ids(token));
            self.chunk.weights.extend_from_slice(routing.weights(token));
            if keeps_logits {
                self.chunk.logits.extend_from_slice(routing.logits(token));
            }
        }
        self.chunk.n_layers += 1;
        Ok(())
    }

    /// Writes the chunk, token by token.
    fn commit(&mut self) -> Result<(), Error> {
        let (k, n_expert) = (usize::from(self.shape.k), self.shape.n_expert as usize);
        let chunk = &self.chunk;
        for token in 0..chunk.n_tokens {
            let id = self.ids.get(self.position).copied();
            let known = self.ids.len();
            let id = id.ok_or_else(|| count("token ids fed", self.position + 1, known))?;
            self.record.start(id);
            for layer in 0..chunk.n_layers {
                let row = layer * chunk.n_tokens + token;
                let choice = LayerChoice::new(&chunk.experts[row * k..(row + 1) * k])
                    .with_weights(&chunk.weights[row * k..(row + 1) * k]);
                let logits = chunk.logits.get(row * n_expert..(row + 1) * n_expert);
                self.record
                    .push_layer(&choice.with_logits(logits.unwrap_or(&[])))?;
            }
            self.writer.push(&self.record)?;
            self.position += 1;
        }
        self.chunk.clear();
        Ok(())
    }
}

impl Observer for TraceRecorder {
    /// Ends the prefill early when recording has failed.
    fn on_progress(&mut self, _done: usize, _total: usize) -> ControlFlow<()> {
        if self.failed.is_none() {
            self.failed = self.commit().err();
        }
        match self.failed {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    }

    fn on_routes(&mut self, layer: usize, first_position: usize, routing: &Routing) {
        if self.failed.is_none() {
            self.failed = self.take(layer, first_position, routing).err();
        }
    }
}

impl Chunk {
    fn clear(&mut self) {
        self.n_tokens = 0;
        self.n_layers = 0;
        self.experts.clear();
        self.weights.clear();
        self.logits.clear();
    }
}

fn same(what: &'static str, expected: usize, found: usize) -> Result<(), Error> {
    match expected == found {
        true => Ok(()),
        false => Err(count(what, expected, found)),
    }
}

fn count(what: &'static str, expected: usize, found: usize) -> Error {
    Error::WrongCount {
        what,
        expected: expected as u64,
        found: found as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CpuBackend, CpuOptions, Engine, EngineOptions, PolicyKind};
    use std::path::Path;
    use thalweg_cache::sim::{Scope, SimConfig, replay};
    use thalweg_cache::{Access, AccessLog, ExpertKey, Key, KeySpace};
    use thalweg_testkit::SmallModel;
    use thalweg_trace::TraceFile;

    const N_CTX: usize = 64;

    fn engine(path: &Path, chunk: usize, slots: usize, n_threads: usize) -> Engine {
        let backend = CpuBackend::new(CpuOptions { n_threads }).expect("threads");
        let options = EngineOptions {
            budget_bytes: Some(1 << 30),
            n_ctx: N_CTX,
            chunk_tokens: Some(chunk),
            slots_per_layer: Some(slots),
            policy: PolicyKind::Lru,
            ..EngineOptions::default()
        };
        Engine::open(path, backend, options).expect("a small model")
    }

    fn small() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("writable");
        let path = folder.path().join("small.gguf");
        SmallModel::default().write(&path).expect("written");
        (folder, path)
    }

    fn ids(n: usize, n_vocab: usize) -> Vec<u32> {
        let id = |i: usize| u32::try_from((i * 7919 + 13) % n_vocab).expect("small");
        (0..n).map(id).collect()
    }

    /// Prefills all but the last four tokens, decodes those; returns the trace and the misses.
    fn record(path: &Path, chunk: usize, slots: usize, n_threads: usize) -> (TraceFile, u64) {
        let mut engine = engine(path, chunk, slots, n_threads);
        let mut session = engine.session().expect("memory");
        let target = path.with_extension(format!("{chunk}-{slots}-{n_threads}.motr"));
        let spec = engine.spec().clone();
        let mut recorder = TraceRecorder::create(&target, &spec, Logits::FullF32, [7; 32])
            .expect("a uniform model");
        let tokens = ids(40, spec.n_vocab);
        for (domain, n) in [(1, 40), (0, 9)] {
            engine.reset(&mut session).expect("own session");
            let (prompt, reply) = tokens[..n].split_at(n - 4);
            recorder.start_document(domain, prompt.len());
            recorder.feed(prompt);
            engine
                .prefill(&mut session, prompt, &mut recorder)
                .expect("runs");
            for &token in reply {
                recorder.feed(&[token]);
                engine
                    .decode_observed(&mut session, token, &mut recorder)
                    .expect("runs");
            }
            recorder
                .end_document(session.tokens().len())
                .expect("recorded");
        }
        let misses = engine.stats().misses;
        recorder.finish().expect("written");
        (TraceFile::open(&target).expect("just written"), misses)
    }

    #[test]
    fn the_trace_does_not_depend_on_chunk_slots_or_threads_and_names_every_token() {
        let (_folder, path) = small();
        let (reference, _) = record(&path, 1, 16, 1);
        let trace = reference.trace();
        assert_eq!(trace.n_tokens(), 49);
        assert_eq!(trace.rank_conflicts(), 0);
        let documents: Vec<_> = trace.documents().collect();
        let facts = documents
            .iter()
            .map(|d| (d.first_token, d.n_prompt_tokens, d.domain));
        assert_eq!(facts.collect::<Vec<_>>(), [(0, 36, 1), (40, 5, 0)]);
        let n_vocab = engine(&path, 1, 16, 1).spec().n_vocab;
        let fed = ids(40, n_vocab);
        let found: Vec<u32> = trace.tokens().map(|t| t.id()).collect();
        assert_eq!(found[..40], fed[..]);
        assert_eq!(found[40..], fed[..9]);
        for (chunk, slots, n_threads) in [(7, 16, 1), (36, 4, 2), (64, 9, 2)] {
            let (other, _) = record(&path, chunk, slots, n_threads);
            for (position, (a, b)) in trace.tokens().zip(other.trace().tokens()).enumerate() {
                for (a, b) in a.layers().zip(b.layers()) {
                    assert!(a.experts().eq(b.experts()), "token {position}");
                    assert!(a.weights().eq(b.weights()), "token {position}");
                    assert!(a.logits().eq(b.logits()), "token {position}");
                }
            }
        }
    }

    #[test]
    fn replaying_a_decoded_trace_misses_exactly_where_the_engine_did() {
        let (_folder, path) = small();
        for slots in [4, 6, 11, 16] {
            let (file, misses) = record(&path, 1, slots, 1);
            let trace = file.trace();
            let shape = *trace.shape();
            let n_expert = u16::try_from(shape.n_expert).expect("small");
            let space = KeySpace::new(u16::try_from(shape.n_layer).expect("small"), n_expert);
            let mut log = AccessLog::new();
            for (clock, token) in (0..).zip(trace.tokens()) {
                for (layer, choice) in (0u16..).zip(token.layers()) {
                    let key = |e| space.key(ExpertKey::new(layer, e)).expect("in range");
                    let keys: Vec<Key> = choice.experts().map(key).collect();
                    log.push(&Access::new(clock, &keys));
                }
            }
            let slots = u32::try_from(slots).expect("small");
            let config = SimConfig::new(PolicyKind::Lru, space, slots, shape.k.into())
                .with_scope(Scope::PerLayer);
            let report = replay(&log, &config).expect("valid");
            assert_eq!(report.total.n_misses, misses, "{slots} slots");
        }
    }

    /// A layer's arena by the definition: least recently used first.
    #[derive(Default, Clone)]
    struct Recency(Vec<u16>);

    impl Recency {
        /// Takes a batch in, most recent first, and returns how many of it were missing.
        fn access(&mut self, batch: &[u16], slots: usize) -> u64 {
            let missing: Vec<u16> = batch
                .iter()
                .copied()
                .filter(|e| !self.0.contains(e))
                .collect();
            while self.0.len() + missing.len() > slots {
                let oldest = self.0.iter().position(|r| !batch.contains(r));
                self.0.remove(oldest.expect("a batch fits the slots"));
            }
            self.0.retain(|r| !batch.contains(r));
            self.0.extend(batch.iter().rev());
            missing.len() as u64
        }
    }

    #[test]
    fn a_chunked_prompt_reads_the_union_of_each_chunk_minus_what_is_resident() {
        let (_folder, path) = small();
        let slots = 6;
        let (file, _) = record(&path, 1, 16, 1);
        let trace = file.trace();
        let mut reads = Vec::new();
        for chunk in [1, 5, 12, 36] {
            let mut engine = engine(&path, chunk, slots, 1);
            let mut session = engine.session().expect("memory");
            let prompt: Vec<u32> = trace.tokens().take(36).map(|t| t.id()).collect();
            engine
                .prefill(&mut session, &prompt, &mut crate::Silent)
                .expect("runs");

            let mut layers = vec![Recency::default(); trace.shape().n_layer as usize];
            let mut counted = 0;
            let rows: Vec<_> = trace.tokens().take(36).collect();
            let n_chunks = rows.len().div_ceil(chunk);
            for (i, tokens) in rows.chunks(chunk).enumerate() {
                for (layer, arena) in (0..).zip(&mut layers) {
                    let choices = tokens.iter().rev().filter_map(|t| t.layer(layer));
                    let mut union: Vec<u16> = Vec::new();
                    for e in choices.flat_map(|c| c.experts()) {
                        if !union.contains(&e) {
                            union.push(e);
                        }
                    }
                    if union.len() <= slots {
                        counted += arena.access(&union, slots);
                        continue;
                    }
                    let missing = |e: &&u16| !arena.0.contains(*e);
                    // The last chunk leaves its most recent choices, others fill what is free.
                    let kept: Vec<u16> = match i + 1 == n_chunks {
                        true => union[..slots].to_vec(),
                        false => union
                            .iter()
                            .filter(missing)
                            .take(slots - arena.0.len())
                            .copied()
                            .collect(),
                    };
                    let streamed = union.iter().filter(missing);
                    counted += streamed.filter(|e| !kept.contains(e)).count() as u64;
                    counted += arena.access(&kept, slots);
                }
            }
            let stats = engine.stats();
            assert_eq!(
                stats.misses + stats.guessed_hits,
                counted,
                "chunk of {chunk}"
            );
            for (l, arena) in layers.iter().enumerate() {
                for e in 0..16 {
                    assert_eq!(engine.store.is_resident(l, e), arena.0.contains(&e));
                }
            }
            reads.push(counted);
        }
        // The larger the chunk, the less is read twice.
        assert!(reads.is_sorted_by(|a, b| a > b), "{reads:?}");
    }

    /// Routes of `n` tokens in which token `t` of layer `l` chooses by its own logits.
    fn routes(layer: usize, first: usize, n: usize) -> Routing {
        let mut routing = Routing::default();
        routing.reset(n, 8, 2);
        for (i, z) in routing.logits_mut().iter_mut().enumerate() {
            let (token, expert) = (first + i / 8, i % 8);
            *z = ((expert * 5 + token * 3 + layer) % 8) as f32;
        }
        routing.choose().expect("finite");
        routing
    }

    fn recorder(folder: &Path) -> TraceRecorder {
        let (_model, path) = small();
        let mut spec = engine(&path, 1, 16, 1).spec().clone();
        spec.n_layer = 2;
        spec.experts.truncate(2);
        for layer in &mut spec.experts {
            (layer.n_expert, layer.k) = (8, 2);
        }
        TraceRecorder::create(folder.join("t.motr"), &spec, Logits::FullF16, [0; 32])
            .expect("uniform")
    }

    #[test]
    fn a_chunk_that_failed_leaves_nothing_and_is_recorded_when_it_is_run_again() {
        let folder = tempfile::tempdir().expect("writable");
        let mut recorder = recorder(folder.path());
        recorder.start_document(0, 3);
        recorder.feed(&[11, 12, 13, 14]);
        // A failure after the first layer, then after the last; then success.
        recorder.on_routes(0, 0, &routes(0, 0, 3));
        for _ in 0..2 {
            for layer in 0..2 {
                recorder.on_routes(layer, 0, &routes(layer, 0, 3));
            }
        }
        assert!(recorder.on_progress(3, 3).is_continue());
        assert_eq!(recorder.n_tokens(), 3);
        // A decode step that failed, so the session stays at three tokens.
        for layer in 0..2 {
            recorder.on_routes(layer, 3, &routes(layer, 3, 1));
        }
        recorder.end_document(3).expect("three tokens");
        recorder.finish().expect("written");
        let file = TraceFile::open(folder.path().join("t.motr")).expect("just written");
        let found: Vec<u32> = file.trace().tokens().map(|t| t.id()).collect();
        assert_eq!(found, [11, 12, 13]);
        for (position, token) in file.trace().tokens().enumerate() {
            for (layer, choice) in token.layers().enumerate() {
                let expected = routes(layer, position, 1);
                assert!(choice.experts().eq(expected.ids(0).iter().copied()));
            }
        }
    }

    #[test]
    fn what_cannot_be_recorded_is_an_error_and_leaves_no_file() {
        let wrong = |what: &str, run: &dyn Fn(&mut TraceRecorder) -> Result<(), Error>| {
            let folder = tempfile::tempdir().expect("writable");
            let mut recorder = recorder(folder.path());
            recorder.start_document(0, 1);
            let error = run(&mut recorder).expect_err(what).to_string();
            assert!(error.contains(what), "{error} does not say {what}");
            drop(recorder);
            let left = std::fs::read_dir(folder.path()).expect("readable").count();
            assert_eq!(left, 0, "{what}");
        };
        let whole = |recorder: &mut TraceRecorder, n: usize| {
            for layer in 0..2 {
                recorder.on_routes(layer, 0, &routes(layer, 0, n));
            }
        };
        wrong("token ids fed", &|recorder| {
            recorder.feed(&[1]);
            whole(recorder, 2);
            assert!(recorder.on_progress(2, 4).is_break());
            recorder.end_document(2)
        });
        wrong("tokens of a document", &|recorder| {
            recorder.feed(&[1, 2]);
            whole(recorder, 2);
            recorder.end_document(3)
        });
        wrong("layer reported", &|recorder| {
            recorder.feed(&[1]);
            recorder.on_routes(1, 0, &routes(1, 0, 1));
            recorder.end_document(1)
        });
        wrong("position of a chunk", &|recorder| {
            recorder.feed(&[1, 2]);
            recorder.on_routes(0, 1, &routes(0, 1, 1));
            recorder.end_document(1)
        });
        wrong("logit", &|recorder| {
            recorder.feed(&[1]);
            let mut odd = routes(0, 0, 1);
            odd.logits_mut()[3] = f32::NAN;
            recorder.on_routes(0, 0, &odd);
            recorder.on_routes(1, 0, &routes(1, 0, 1));
            recorder.end_document(1)
        });
    }

    #[test]
    fn a_model_whose_layers_differ_is_refused() {
        let (folder, path) = small();
        let mut spec = engine(&path, 1, 16, 1).spec().clone();
        spec.experts[1].n_expert -= 1;
        let target = folder.path().join("t.motr");
        let error = TraceRecorder::create(target, &spec, Logits::None, [0; 32]);
        let error = error.expect_err("no one shape").to_string();
        assert!(error.contains("experts of a layer"), "{error}");
    }
}
