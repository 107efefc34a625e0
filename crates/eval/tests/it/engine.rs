//! Reads that an engine counts while it takes in a prompt, against the formulas.

use std::path::Path;

use thalweg_eval::latency::union::{
    LayerUse, UnionReads, count_unions, expected_bytes, pick_probs,
};
use thalweg_runtime::{
    CpuBackend, CpuOptions, Engine, EngineOptions, ReadAhead, Stats, TraceLogits, TraceRecorder,
};
use thalweg_testkit::SmallModel;
use thalweg_trace::TraceFile;

const N_TOKENS: u32 = 96;

struct Run {
    stats: Stats,
    unions: UnionReads,
    /// How often each expert was picked, by layer.
    counts: Vec<Vec<u64>>,
}

/// Takes in a prompt with so many slots a layer, and counts the reads of its recorded picks.
fn prefill(
    folder: &Path,
    model: &SmallModel,
    chunk: usize,
    slots: usize,
    read_ahead: ReadAhead,
) -> Run {
    let options = EngineOptions {
        n_ctx: 256,
        budget_bytes: Some(1 << 30),
        chunk_tokens: Some(chunk),
        slots_per_layer: Some(slots),
        read_ahead,
        ..EngineOptions::default()
    };
    let backend = CpuBackend::new(CpuOptions { n_threads: 1 }).expect("a processor");
    let path = folder.join("small.gguf");
    let mut engine = Engine::open(&path, backend, options).expect("fits");
    let mut session = engine.session().expect("fits");
    let trace_path = folder.join(format!("{chunk}-{slots}.motr"));
    let mut recorder =
        TraceRecorder::create(&trace_path, engine.spec(), TraceLogits::None, [0; 32])
            .expect("writable");
    let tokens: Vec<u32> = (0..N_TOKENS).map(|i| (i * i * 7 + 3 * i) % 100).collect();
    recorder.start_document(0, tokens.len());
    recorder.feed(&tokens);
    engine
        .prefill(&mut session, &tokens, &mut recorder)
        .expect("taken in");
    recorder.end_document(tokens.len()).expect("complete");
    recorder.finish().expect("writable");

    let file = TraceFile::open(&trace_path).expect("whole");
    let trace = file.trace();
    let n_tokens = u64::from(N_TOKENS);
    assert_eq!(trace.n_tokens(), n_tokens);
    let unions = count_unions(&trace, 0..n_tokens, chunk as u64, &[]).expect("in range");
    let mut counts = vec![vec![0; model.n_expert]; model.n_layer];
    for token in trace.tokens() {
        for (counts, layer) in counts.iter_mut().zip(token.layers()) {
            for expert in layer.experts() {
                counts[usize::from(expert)] += 1;
            }
        }
    }
    Run {
        stats: engine.stats(),
        unions,
        counts,
    }
}

#[test]
fn the_engine_acquires_the_union_of_each_chunk_and_reads_what_is_not_resident() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let model = SmallModel::default();
    model
        .write(folder.path().join("small.gguf"))
        .expect("writable");
    let few = model.n_expert_used;

    // What had been guessed is needed and read like anything else, only earlier.
    for prompt in [false, true] {
        reads_follow_the_unions(folder.path(), &model, few, prompt);
    }
}

fn reads_follow_the_unions(folder: &Path, model: &SmallModel, few: usize, prompt: bool) {
    let read_ahead = ReadAhead {
        prompt,
        ..ReadAhead::default()
    };
    let mut acquired = Vec::new();
    let mut n_guessed = 0;
    for chunk in [1, 8, 32, 96] {
        let run = prefill(folder, model, chunk, few, read_ahead);
        assert_eq!(
            run.stats.hits + run.stats.guessed_hits + run.stats.misses,
            run.unions.n_reads,
            "chunk {chunk}"
        );
        n_guessed += run.stats.guessed_hits;
        // With every expert resident once read, a prompt reads the union of all chunks.
        let resident = prefill(folder, model, chunk, model.n_expert, read_ahead);
        let whole = prefill(folder, model, 96, model.n_expert, read_ahead)
            .unions
            .n_reads;
        assert_eq!(resident.stats.misses, whole, "chunk {chunk}");
        assert_eq!(
            resident.stats.hits + whole,
            resident.unions.n_reads,
            "chunk {chunk}"
        );
        let n_read = run.stats.misses + run.stats.guessed_hits;
        let bytes_of_use = run.stats.expert_bytes - run.stats.wasted_bytes;
        acquired.push((run.unions.n_reads, n_read, bytes_of_use));
    }
    assert_eq!(n_guessed > 0, prompt, "{n_guessed} guesses were of use");
    // Larger chunks acquire and read less, and a read has the same bytes throughout.
    assert!(
        acquired.is_sorted_by(|a, b| a.0 > b.0 && a.1 >= b.1),
        "{acquired:?}"
    );
    let (_, misses, bytes) = acquired[0];
    assert!(
        acquired.iter().all(|run| run.2 * misses == run.1 * bytes),
        "{acquired:?}"
    );
}

#[test]
fn the_expected_reads_of_a_small_model_come_near_those_counted() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let model = SmallModel::default();
    model
        .write(folder.path().join("small.gguf"))
        .expect("writable");
    let n_tokens = u64::from(N_TOKENS);
    for chunk in [8, 32] {
        let read_ahead = ReadAhead::default();
        let run = prefill(
            folder.path(),
            &model,
            chunk,
            model.n_expert_used,
            read_ahead,
        );
        let probs: Vec<Vec<f64>> = run
            .counts
            .iter()
            .map(|counts| pick_probs(counts, n_tokens).expect("in range"))
            .collect();
        let layers: Vec<_> = probs
            .iter()
            .map(|probs| LayerUse {
                pick_probs: probs,
                resident: &[],
                expert_bytes: 1,
            })
            .collect();
        let expected = expected_bytes(&layers, n_tokens, chunk as u64).expect("in range");
        let ratio = run.unions.n_reads as f64 / expected;
        // The picks of a token's neighbors are not independent of its own, hence the tolerance.
        assert!((0.8..=1.1).contains(&ratio), "chunk {chunk}: {ratio}");
        println!("chunk {chunk}: counted over expected reads {ratio:.3}");
    }
}
