//! Whole models on the device: against the CPU and an independent golden, and against themselves
//! with other amounts of memory.

use std::path::{Path, PathBuf};

use thalweg_runtime::{
    Backend, CpuBackend, CpuOptions, Engine, EngineOptions, Error, ReadAhead, Session, Silent,
};
use thalweg_testkit::SmallModel;
use thalweg_testkit::goldens::Small;
use thalweg_wgpu::{WgpuBackend, WgpuOptions};

/// The device, or `None` aloud where there is none and none is required.
fn device(options: &WgpuOptions) -> Option<WgpuBackend> {
    match WgpuBackend::new(options) {
        Ok(backend) => Some(backend),
        Err(thalweg_wgpu::Error::NoAdapter { .. })
            if std::env::var_os("THALWEG_GPU_REQUIRED").is_none() =>
        {
            eprintln!("SKIPPED: no GPU adapter, hardware or software, on this machine");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// Tokens of a prompt and of what follows it.
const LENGTHS: [usize; 2] = [45, 6];

fn small() -> (tempfile::TempDir, PathBuf, SmallModel) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("small.gguf");
    let model = SmallModel::default();
    model.write(&path).unwrap();
    (dir, path, model)
}

fn open<B: Backend>(path: &Path, backend: B, options: EngineOptions) -> Engine<B> {
    let options = EngineOptions {
        n_ctx: 128,
        budget_bytes: Some(1 << 30),
        ..options
    };
    Engine::open(path, backend, options).unwrap()
}

fn limited(memory_bytes: u64) -> WgpuOptions {
    let mut options = WgpuOptions::default();
    options.memory_bytes = Some(memory_bytes);
    options.passing_bytes = 1 << 17;
    options
}

/// Logits after a prompt and after each of the tokens that follow.
fn logits<B: Backend>(engine: &mut Engine<B>, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut session: Session<B> = engine.session().unwrap();
    let (prompt, rest) = tokens.split_at(LENGTHS[0]);
    engine.prefill(&mut session, prompt, &mut Silent).unwrap();
    let mut all = vec![session.logits().to_vec()];
    for token in rest {
        engine.decode(&mut session, *token).unwrap();
        all.push(session.logits().to_vec());
    }
    all
}

fn tokens(n_vocab: usize) -> Vec<u32> {
    let n = LENGTHS.iter().sum::<usize>();
    let id = |i: usize| ((i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33) % n_vocab as u64;
    (0..n).map(|i| u32::try_from(id(i)).unwrap()).collect()
}

fn bits(logits: &[Vec<f32>]) -> Vec<Vec<u32>> {
    let row = |row: &Vec<f32>| row.iter().map(|z| z.to_bits()).collect();
    logits.iter().map(row).collect()
}

#[test]
fn a_model_says_what_the_cpu_and_the_golden_say() {
    let Some(backend) = device(&WgpuOptions::default()) else {
        return;
    };
    let (_dir, path, model) = small();
    let golden = Small::read().unwrap();
    let mut engine = open(&path, backend, EngineOptions::default());
    let mut session = engine.session().unwrap();
    for (i, token) in golden.tokens.iter().enumerate() {
        engine.decode(&mut session, *token).unwrap();
        let expected = golden.logits(i).unwrap();
        for (found, expected) in session.logits().iter().zip(expected) {
            let tolerance = 2e-4 * expected.abs().max(1.0);
            assert!(
                (found - expected).abs() < tolerance,
                "token {i}: {found} {expected}"
            );
        }
    }
    let tokens = tokens(model.n_vocab);
    let cpu = CpuBackend::new(CpuOptions { n_threads: 1 }).unwrap();
    let expected = logits(&mut open(&path, cpu, EngineOptions::default()), &tokens);
    let found = logits(&mut engine, &tokens);
    for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
        let tolerance = 2e-4 * expected.abs().max(1.0);
        assert!((found - expected).abs() < tolerance, "{found} {expected}");
    }
}

/// Experts all on the device, some, or none; few or all slots on the host; read ahead or not: the
/// same bits, and hits where there are copies.
#[test]
fn output_does_not_depend_on_what_the_device_holds() {
    let Some(plenty) = device(&WgpuOptions::default()) else {
        return;
    };
    let (_dir, path, model) = small();
    let tokens = tokens(model.n_vocab);
    let chunked = EngineOptions {
        chunk_tokens: Some(16),
        ..EngineOptions::default()
    };
    let mut engine = open(&path, plenty, chunked.clone());
    let expected = bits(&logits(&mut engine, &tokens));
    let plan = engine.plan().device.clone().unwrap();
    assert_eq!(plan.slots, vec![model.n_expert; model.n_layer]);
    let stats = engine.stats();
    assert!(stats.device_hits > stats.misses, "{stats:?}");
    // A second sequence finds everything it needs on the device.
    let again = bits(&logits(&mut engine, &tokens));
    assert_eq!(again, expected);
    let since = engine.stats().since(&stats);
    assert_eq!((since.hits, since.misses), (0, 0), "{since:?}");
    assert!(since.device_hits > 0);

    // What the model takes there with 128 KiB for experts in passing, without a copy that stays.
    let passing = 1 << 17;
    let one = plan.expert_bytes / (model.n_layer * model.n_expert) as u64;
    let least = plan.total_bytes() - plan.expert_bytes - (64 << 20) + passing;
    for copies in [0, 1, model.n_layer as u64 * 2 + 1, 1000] {
        // Slots are counted as the host's are, with a page besides.
        let memory = least + 4096 + copies * one;
        for (slots_per_layer, next) in [(model.n_expert_used, 2), (model.n_expert, 0)] {
            let options = EngineOptions {
                slots_per_layer: Some(slots_per_layer),
                read_ahead: ReadAhead {
                    next,
                    ..ReadAhead::default()
                },
                ..chunked.clone()
            };
            let backend = device(&limited(memory)).unwrap();
            let mut engine = open(&path, backend, options);
            let plan = engine.plan().device.clone().unwrap();
            assert!(plan.total_bytes() <= memory, "{plan:?}");
            let found = bits(&logits(&mut engine, &tokens));
            assert_eq!(found, expected, "{copies} copies, {slots_per_layer} slots");
            let hits = engine.stats().device_hits;
            assert_eq!(hits > 0, copies > 0, "{hits} hits with {copies} copies");
        }
    }
}

#[test]
fn device_memory_that_is_too_small_is_refused_with_the_figures() {
    let Some(backend) = device(&limited(1 << 20)) else {
        return;
    };
    let (_dir, path, _) = small();
    let error = Engine::open(&path, backend, EngineOptions::default()).unwrap_err();
    assert!(
        matches!(error, Error::DeviceBudget { budget_bytes, needed_bytes, .. }
            if budget_bytes == 1 << 20 && needed_bytes > budget_bytes),
        "{error}"
    );
    assert!(error.to_string().contains("1048576 are allowed"), "{error}");
}

#[test]
fn a_device_that_goes_during_a_sequence_is_an_error_of_the_step() {
    let Some(backend) = device(&WgpuOptions::default()) else {
        return;
    };
    let (_dir, path, model) = small();
    let same: WgpuBackend = backend.clone();
    let mut engine = open(&path, backend, EngineOptions::default());
    let tokens = tokens(model.n_vocab);
    let mut session = engine.session().unwrap();
    engine.prefill(&mut session, &tokens, &mut Silent).unwrap();
    same.lose();
    for _ in 0..2 {
        let error = engine.decode(&mut session, tokens[0]).unwrap_err();
        let mut source: Option<&dyn std::error::Error> = Some(&error);
        let mut words = vec![];
        while let Some(e) = source {
            words.push(e.to_string());
            source = e.source();
        }
        assert!(words.iter().any(|w| w.contains("lost")), "{words:?}");
        assert_eq!(session.tokens(), tokens);
    }
}
