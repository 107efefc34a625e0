//! What the runtime's tests share.
#![allow(dead_code)] // Each test binary uses a part.

use std::path::{Path, PathBuf};

use thalweg_runtime::{CpuBackend, CpuOptions, Engine, EngineOptions, Session, Silent};
use thalweg_testkit::SmallModel;

/// Context of the engines here: more than the longest prompt and its continuation.
pub(crate) const N_CTX: usize = 540;

pub(crate) fn cpu(n_threads: usize) -> CpuBackend {
    CpuBackend::new(CpuOptions { n_threads }).unwrap()
}

pub(crate) fn engine(path: &Path, options: EngineOptions, n_threads: usize) -> Engine {
    let options = EngineOptions {
        n_ctx: N_CTX,
        budget_bytes: Some(1 << 30),
        ..options
    };
    Engine::open(path, cpu(n_threads), options).unwrap()
}

pub(crate) fn chunked(chunk: usize) -> EngineOptions {
    EngineOptions {
        chunk_tokens: Some(chunk),
        ..EngineOptions::default()
    }
}

pub(crate) fn slotted(chunk: usize, slots: usize) -> EngineOptions {
    EngineOptions {
        slots_per_layer: Some(slots),
        ..chunked(chunk)
    }
}

/// Tokens that wander over the vocabulary.
pub(crate) fn tokens(n: usize, n_vocab: usize) -> Vec<u32> {
    let id = |i: usize| ((i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33) % n_vocab as u64;
    (0..n).map(|i| u32::try_from(id(i)).unwrap()).collect()
}

pub(crate) fn bits(logits: &[f32]) -> Vec<u32> {
    assert!(logits.iter().all(|z| z.is_finite()));
    logits.iter().map(|z| z.to_bits()).collect()
}

/// Logits after each token, taken in one at a time with every expert resident.
pub(crate) fn one_by_one(path: &Path, tokens: &[u32]) -> Vec<Vec<u32>> {
    let mut engine = engine(path, chunked(1), 1);
    let mut session = engine.session().unwrap();
    let step = |t: &u32| {
        engine.decode(&mut session, *t).unwrap();
        bits(session.logits())
    };
    tokens.iter().map(step).collect()
}

/// Runs a prompt from an empty session and returns its last logits.
pub(crate) fn prompt(engine: &mut Engine, session: &mut Session, tokens: &[u32]) -> Vec<u32> {
    engine.reset(session).unwrap();
    engine.prefill(session, tokens, &mut Silent).unwrap();
    bits(session.logits())
}

/// A small random model in a folder of its own.
pub(crate) fn small() -> (tempfile::TempDir, PathBuf, SmallModel) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("small.gguf");
    let model = SmallModel::default();
    model.write(&path).unwrap();
    (dir, path, model)
}

/// The embedded model.
pub(crate) fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo.gguf")
}
