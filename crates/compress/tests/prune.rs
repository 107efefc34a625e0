//! Experts measured in a running model, and a model without some of them.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use thalweg_compress::{
    Collector, Error, ExpertSums, KeepMap, Saliency, Score, model_fingerprint, prune, verify,
};
use thalweg_gguf::Gguf;
use thalweg_quant::QuantType;
use thalweg_runtime::{
    CpuBackend, CpuOptions, Engine, EngineOptions, ExpertOutputs, Observer, Silent,
};
use thalweg_testkit::SmallModel;

const N_TOKENS: usize = 90;

fn tokens(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * i * 7 + 13 * i) % 500).collect()
}

fn write(model: &SmallModel) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    model.write(&path).unwrap();
    (folder, path)
}

fn engine(path: &Path, options: EngineOptions, n_threads: usize) -> Engine {
    let backend = CpuBackend::new(CpuOptions { n_threads }).unwrap();
    let options = EngineOptions {
        budget_bytes: Some(256 << 20),
        n_ctx: 128,
        watchdog: None,
        ..options
    };
    Engine::open(path, backend, options).unwrap()
}

fn chunked(chunk: usize, slots: Option<usize>) -> EngineOptions {
    EngineOptions {
        chunk_tokens: Some(chunk),
        slots_per_layer: slots,
        ..EngineOptions::default()
    }
}

fn collect(path: &Path, options: EngineOptions, n_threads: usize) -> (Saliency, Collector) {
    let mut engine = engine(path, options, n_threads);
    let mut collector = Collector::new(engine.spec().n_layer);
    let mut session = engine.session().unwrap();
    engine
        .prefill(&mut session, &tokens(N_TOKENS), &mut collector)
        .unwrap();
    let fingerprint = model_fingerprint(engine.file()).unwrap();
    let k = engine.spec().experts[0].k;
    let saliency = collector.saliency("m.gguf", &fingerprint, k, "00", Vec::new());
    (saliency.unwrap(), collector)
}

fn logits(path: &Path, options: EngineOptions) -> Vec<Vec<u32>> {
    let mut engine = engine(path, options, 2);
    let mut session = engine.session().unwrap();
    let steps = tokens(40).into_iter().enumerate().map(|(i, token)| {
        match i {
            0 => engine.prefill(&mut session, &[token], &mut Silent),
            _ => engine.decode(&mut session, token),
        }
        .unwrap();
        session.logits().iter().map(|z| z.to_bits()).collect()
    });
    steps.collect()
}

fn go(_: u64, _: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Keeps the choices and the inputs of a run, to compute everything else again.
#[derive(Default)]
struct Raw(Vec<Pick>);

struct Pick {
    layer: usize,
    expert: usize,
    gate: f32,
    input: Vec<f32>,
}

impl Observer for Raw {
    fn wants_experts(&self) -> bool {
        true
    }

    fn on_experts(&mut self, layer: usize, _: usize, experts: &ExpertOutputs<'_>) {
        let routing = experts.routing();
        for token in 0..routing.n_tokens() {
            for (id, gate) in routing.ids(token).iter().zip(routing.weights(token)) {
                self.0.push(Pick {
                    layer,
                    expert: usize::from(*id),
                    gate: *gate,
                    input: experts.input(token).to_vec(),
                });
            }
        }
    }
}

/// `down(silu(gate x) * (up x))` in f64, from the F32 file.
fn output(file: &Gguf, pick: &Pick) -> Vec<f64> {
    let matrix = |kind: &str, x: &[f64]| -> Vec<f64> {
        let name = format!("blk.{}.ffn_{kind}_exps.weight", pick.layer);
        let tensor = file.tensor(&name).unwrap();
        let (n_in, n_out) = (tensor.ne[0] as usize, tensor.ne[1] as usize);
        let mut bytes = vec![0; 4 * n_in * n_out];
        let at = (pick.expert * bytes.len()) as u64;
        file.read_tensor_range(tensor, at, &mut bytes).unwrap();
        let mut weights = vec![0.0; n_in * n_out];
        QuantType::F32.decode_row(&bytes, &mut weights).unwrap();
        let rows = weights.chunks(n_in);
        rows.map(|row| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum())
            .collect()
    };
    let x: Vec<f64> = pick.input.iter().map(|x| f64::from(*x)).collect();
    let (gate, up) = (matrix("gate", &x), matrix("up", &x));
    let hidden = gate
        .iter()
        .zip(&up)
        .map(|(g, u)| g / (1.0 + (-g).exp()) * u);
    matrix("down", &hidden.collect::<Vec<_>>())
}

#[test]
fn sums_are_those_of_a_slow_recomputation() {
    let (_folder, path) = write(&SmallModel::default());
    let (saliency, collector) = collect(&path, chunked(32, None), 2);
    let mut engine = engine(&path, chunked(32, None), 2);
    let mut session = engine.session().unwrap();
    let mut raw = Raw::default();
    engine
        .prefill(&mut session, &tokens(N_TOKENS), &mut raw)
        .unwrap();
    let spec = engine.spec();
    let (n_expert, k) = (spec.experts[0].n_expert, spec.experts[0].k);
    assert_eq!(raw.0.len(), N_TOKENS * k * spec.n_layer);
    let mut expected = vec![ExpertSums::new(n_expert); spec.n_layer];
    let mut squares = vec![vec![0.0; spec.n_embd]; spec.n_layer];
    for (i, pick) in raw.0.iter().enumerate() {
        let output = output(engine.file(), pick);
        let norm = output.iter().map(|y| y * y).sum::<f64>().sqrt();
        let max = output.iter().map(|y| y.abs()).fold(0.0, f64::max);
        expected[pick.layer].add(pick.expert, f64::from(pick.gate), norm, max);
        if i % k == 0 {
            for (sum, x) in squares[pick.layer].iter_mut().zip(&pick.input) {
                *sum += f64::from(*x).powi(2) / N_TOKENS as f64;
            }
        }
    }
    let near = |found: &[f64], expected: &[f64], tolerance: f64| {
        for (found, expected) in found.iter().zip(expected) {
            let off = (found - expected).abs();
            assert!(off <= tolerance * expected.abs(), "{found} {expected}");
        }
    };
    for (found, expected) in saliency.layers.iter().zip(&expected) {
        assert_eq!(found.count, expected.count);
        near(&found.gate, &expected.gate, 1e-12);
        // The model computes outputs in f32.
        near(&found.norm, &expected.norm, 1e-5);
        near(&found.gated_norm, &expected.gated_norm, 1e-5);
        let squared = &expected.gated_norm_squared;
        near(&found.gated_norm_squared, squared, 1e-5);
        near(&found.max, &expected.max, 1e-5);
    }
    let moments = collector.moments("m.gguf", "00").unwrap();
    for (found, expected) in moments.layers.iter().zip(&squares) {
        near(found, expected, 1e-12);
    }
}

#[test]
fn chunks_threads_and_residency_do_not_change_a_bit() {
    let (_folder, path) = write(&SmallModel::default());
    let expected = collect(&path, chunked(64, None), 1).0;
    for (chunk, slots, n_threads) in [(1, None, 1), (7, Some(5), 2), (90, Some(4), 3)] {
        let found = collect(&path, chunked(chunk, slots), n_threads).0;
        assert_eq!(found, expected, "{chunk} {slots:?}");
    }
}

#[test]
fn an_expert_that_gives_nothing_has_no_score_and_goes_first() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let model = SmallModel::default();
    model
        .write_with(&path, |draft| {
            let down = draft.tensor_mut("blk.1.ffn_down_exps.weight")?;
            let size = down.bytes.len() / model.n_expert;
            down.bytes[6 * size..7 * size].fill(0);
            Ok(())
        })
        .unwrap();
    let saliency = collect(&path, chunked(64, None), 1).0;
    assert!(saliency.layers[1].count[6] > 0, "it was chosen");
    for score in Score::ALL {
        if matches!(score, Score::Frequency | Score::GateMass) {
            continue;
        }
        assert!(score.of(&saliency.layers[1])[6].abs() < 1e-30, "{score:?}");
        let map = KeepMap::choose(&saliency, "qwen4exp", score, model.n_expert - 1).unwrap();
        assert!(!map.layers[1].keep.contains(&6), "{score:?}");
    }
}

#[test]
fn a_pruned_file_gives_the_bits_of_the_whole_one_with_the_others_left_out() {
    for fused_gate_up in [false, true] {
        let model = SmallModel {
            fused_gate_up,
            ..SmallModel::default()
        };
        let (folder, path) = write(&model);
        let saliency = collect(&path, chunked(64, None), 1).0;
        let map = KeepMap::choose(&saliency, "qwen4exp", Score::ReapL2Sum, 6).unwrap();
        let file = Gguf::open(&path).unwrap();
        let out = folder.path().join("p.gguf");
        let written = prune(&file, &map, &out, &mut go).unwrap();
        verify(&out, &written, &mut go).unwrap();

        let pruned = Gguf::open(&out).unwrap();
        let keys = pruned.metadata();
        assert_eq!(keys.u32("qwen4exp.expert_count").unwrap(), 6);
        assert_eq!(keys.str("prune.method").unwrap(), "reap_l2_sum");
        for (old, new) in file.tensors().iter().zip(pruned.tensors()) {
            let (old_bytes, bytes) = (
                file.read_tensor(old).unwrap(),
                pruned.read_tensor(new).unwrap(),
            );
            if !old.name.contains("_exps.") && !old.name.ends_with("ffn_gate_inp.weight") {
                assert_eq!(old_bytes, bytes, "{}", old.name);
                continue;
            }
            let size = old_bytes.len() / model.n_expert;
            let layer: usize = old.name[4..5].parse().unwrap();
            for (slice, id) in bytes.chunks(size).zip(&map.layers[layer].keep) {
                let start = usize::from(*id) * size;
                assert_eq!(slice, &old_bytes[start..start + size], "{}", old.name);
            }
        }
        let masked = EngineOptions {
            keep_experts: Some(map.lists()),
            ..chunked(64, None)
        };
        let expected = logits(&path, masked);
        assert_eq!(logits(&out, chunked(64, None)), expected);
        assert_ne!(logits(&path, chunked(64, None)), expected);
    }
}

#[test]
fn all_experts_are_the_model_itself_and_two_cuts_are_one() {
    let (folder, path) = write(&SmallModel::default());
    let file = Gguf::open(&path).unwrap();
    let saliency = collect(&path, chunked(64, None), 1).0;
    let choose = |s: &Saliency, k| KeepMap::choose(s, "qwen4exp", Score::ReapL2Sum, k).unwrap();
    let at = |name: &str| folder.path().join(name);
    let cut = |file: &Gguf, map: &KeepMap, name: &str| {
        prune(file, map, &at(name), &mut go).unwrap();
        Gguf::open(at(name)).unwrap()
    };
    let same = |a: &Gguf, b: &Gguf| {
        for (a_info, b_info) in a.tensors().iter().zip(b.tensors()) {
            assert_eq!(a_info.shape(), b_info.shape());
            assert_eq!(
                a.read_tensor(a_info).unwrap(),
                b.read_tensor(b_info).unwrap()
            );
        }
    };
    same(&cut(&file, &choose(&saliency, 16), "all.gguf"), &file);

    let first = choose(&saliency, 9);
    let once = cut(&file, &first, "nine.gguf");
    // The same measurement, of what is left.
    let mut left = saliency.clone();
    left.fingerprint = model_fingerprint(&once).unwrap();
    for (sums, kept) in left.layers.iter_mut().zip(&first.layers) {
        let old = sums.clone();
        *sums = ExpertSums::new(9);
        for (new, id) in kept.keep.iter().enumerate() {
            let id = usize::from(*id);
            sums.count[new] = old.count[id];
            sums.gated_norm[new] = old.gated_norm[id];
        }
    }
    let twice = cut(&once, &choose(&left, 5), "twice.gguf");
    same(&twice, &cut(&file, &choose(&saliency, 5), "five.gguf"));
}

#[test]
fn maps_of_another_model_or_with_too_few_experts_are_refused() {
    let (folder, path) = write(&SmallModel::default());
    let saliency = collect(&path, chunked(64, None), 1).0;
    let map = KeepMap::choose(&saliency, "qwen4exp", Score::Reap, 8).unwrap();
    let out = folder.path().join("p.gguf");
    let refused = |map: &KeepMap, path: &Path| {
        let error = prune(&Gguf::open(path).unwrap(), map, &out, &mut go).expect_err("refused");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        error
    };
    let (_other_folder, other) = write(&SmallModel {
        seed: 99,
        ..SmallModel::default()
    });
    assert!(matches!(refused(&map, &other), Error::WrongModel { .. }));

    // A map that claims fewer experts a token than the model uses.
    let mut few = saliency;
    few.n_expert_used = 1;
    let few = KeepMap::choose(&few, "qwen4exp", Score::Reap, 3).unwrap();
    let said = refused(&few, &path).to_string();
    assert!(said.contains("at least the 4"), "{said}");

    // A block for multi-token prediction has experts that nothing measured.
    let (_mtp_folder, mtp) = write(&SmallModel {
        mtp: true,
        ..SmallModel::default()
    });
    let saliency = collect(&mtp, chunked(64, None), 1).0;
    let map = KeepMap::choose(&saliency, "qwen4exp", Score::Reap, 8).unwrap();
    let said = refused(&map, &mtp).to_string();
    assert!(said.contains("blk.4") && said.contains("below 4"), "{said}");
}

#[test]
fn an_engine_refuses_lists_that_do_not_fit_its_model() {
    let (_folder, path) = write(&SmallModel::default());
    let all: Vec<u16> = (0..16).collect();
    for lists in [
        vec![all.clone(); 3],
        vec![all[..3].to_vec(); 4],
        vec![vec![0, 1, 2, 16]; 4],
        vec![vec![0, 1, 1, 2]; 4],
    ] {
        let options = EngineOptions {
            budget_bytes: Some(256 << 20),
            keep_experts: Some(lists),
            watchdog: None,
            ..EngineOptions::default()
        };
        let backend = CpuBackend::new(CpuOptions { n_threads: 1 }).unwrap();
        let said = Engine::open(&path, backend, options).expect_err("refused");
        assert!(said.to_string().contains("keep_experts"), "{said}");
    }
}
