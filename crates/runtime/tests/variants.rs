//! Other shapes and other files of the same model.

mod common;

use std::path::Path;

use common::{bits, engine, one_by_one, prompt, slotted, small, tokens};
use thalweg_gguf::TensorType;
use thalweg_runtime::{Bias, EngineOptions, Moce, Observer, Silent};
use thalweg_testkit::goldens::Small;
use thalweg_testkit::{SmallModel, SmallTypes};

/// Last logits of a prompt, with few slots and an odd chunk.
fn streamed(path: &Path, model: &SmallModel, tokens: &[u32]) -> Vec<u32> {
    let mut engine = engine(path, slotted(13, model.n_expert_used), 2);
    let mut session = engine.session().unwrap();
    prompt(&mut engine, &mut session, tokens)
}

/// Compares residuals with the golden's.
struct Residuals<'a> {
    golden: &'a Small,
    worst: f32,
    compared: usize,
}

impl Observer for Residuals<'_> {
    fn on_routes(&mut self, layer: usize, first: usize, routing: &thalweg_runtime::Routing) {
        for t in 0..routing.n_tokens() {
            let expected = &self.golden.routes[layer][first + t];
            assert_eq!(
                routing.ids(t),
                expected,
                "token {}, layer {layer}",
                first + t
            );
        }
    }

    fn wants_residual(&self) -> bool {
        true
    }

    fn on_residual(&mut self, layer: usize, first: usize, residual: &[f32]) {
        for (t, ours) in residual.chunks_exact(self.golden.residual_len).enumerate() {
            let Some(theirs) = self.golden.residual(layer, first + t) else {
                continue;
            };
            let differences = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs());
            self.worst = differences.fold(self.worst, f32::max);
            self.compared += 1;
        }
    }

    fn wants_logits(&self, position: usize) -> bool {
        self.golden.logits(position).is_some()
    }

    fn on_logits(&mut self, position: usize, logits: &[f32]) {
        let theirs = self.golden.logits(position).unwrap();
        let differences = logits.iter().zip(theirs).map(|(a, b)| (a - b).abs());
        let worst = differences.fold(0.0, f32::max);
        assert!(worst <= 5e-5, "logits at {position} differ by {worst}");
    }
}

#[test]
fn the_small_model_agrees_with_an_independent_reference_layer_by_layer() {
    let (_dir, path, model) = small();
    let golden = Small::read().unwrap();
    let mut engine = engine(&path, slotted(16, model.n_expert_used), 1);
    let mut session = engine.session().unwrap();
    let mut residuals = Residuals {
        golden: &golden,
        worst: 0.0,
        compared: 0,
    };
    engine
        .prefill(&mut session, &golden.tokens, &mut residuals)
        .unwrap();
    assert!(
        residuals.worst <= 1e-4,
        "residuals differ by {}",
        residuals.worst
    );
    assert_eq!(
        residuals.compared,
        golden.residual_positions.len() * golden.n_layer
    );
}

#[test]
fn a_split_model_gives_the_bits_of_the_single_file_from_any_shard() {
    let (dir, path, model) = small();
    let tokens = tokens(40, model.n_vocab);
    let expected = one_by_one(&path, &tokens).pop().unwrap();
    let shards = model
        .draft()
        .unwrap()
        .write_split(dir.path(), "m", 3)
        .unwrap();
    for shard in shards {
        assert_eq!(
            streamed(&shard, &model, &tokens),
            expected,
            "{}",
            shard.display()
        );
    }
}

#[test]
fn fused_gate_and_up_projections_give_the_bits_of_separate_ones() {
    let (dir, path, model) = small();
    let tokens = tokens(40, model.n_vocab);
    let expected = one_by_one(&path, &tokens).pop().unwrap();
    let mut draft = model.draft().unwrap();
    for l in 0..model.n_layer {
        let gate = draft
            .remove(&format!("blk.{l}.ffn_gate_exps.weight"))
            .unwrap();
        let name = format!("blk.{l}.ffn_up_exps.weight");
        let up = draft.tensor_mut(&name).unwrap();
        let n = gate.bytes.len() / model.n_expert;
        let pairs = gate.bytes.chunks_exact(n).zip(up.bytes.chunks_exact(n));
        up.bytes = pairs.flat_map(|(g, u)| [g, u].concat()).collect();
        up.shape[1] *= 2;
        up.name = format!("blk.{l}.ffn_gate_up_exps.weight");
    }
    let fused = dir.path().join("fused.gguf");
    draft.write(&fused).unwrap();
    assert_eq!(streamed(&fused, &model, &tokens), expected);
}

#[test]
fn odd_models_run_and_stream_exactly() {
    let base = SmallModel::default();
    let types = |dense, gate, up, down| SmallTypes {
        dense,
        gate,
        up,
        down,
        ..base.types
    };
    let f = TensorType::F16;
    let cases = [
        (
            "tied head",
            SmallModel {
                tied: true,
                ..base.clone()
            },
        ),
        (
            "no n-gram layer",
            SmallModel {
                ngram: None,
                ..base.clone()
            },
        ),
        (
            "MTP block",
            SmallModel {
                mtp: true,
                ..base.clone()
            },
        ),
        (
            "dense attention",
            SmallModel {
                block_tokens: 0,
                ..base.clone()
            },
        ),
        (
            "irregular layers",
            SmallModel {
                recurrent_layers: Some(vec![true, true, false, false]),
                ..base.clone()
            },
        ),
        (
            "equal heads",
            SmallModel {
                n_head_delta_v: base.n_head_delta_k,
                n_head_kv: 1,
                ..base.clone()
            },
        ),
        (
            "every expert used",
            SmallModel {
                n_expert_used: base.n_expert,
                ..base.clone()
            },
        ),
        (
            "Q8_0",
            SmallModel {
                types: types(
                    TensorType::Q8_0,
                    TensorType::Q8_0,
                    TensorType::Q8_0,
                    TensorType::Q8_0,
                ),
                ..base.clone()
            },
        ),
        (
            "Q2_0 experts",
            SmallModel {
                types: types(
                    TensorType::Q8_0,
                    TensorType::Q2_0,
                    TensorType::Q2_0,
                    TensorType::Q2_0,
                ),
                ..base.clone()
            },
        ),
        (
            "mixed experts",
            SmallModel {
                types: types(f, TensorType::Q4_0, f, TensorType::Q8_0),
                ..base.clone()
            },
        ),
    ];
    for (name, model) in cases {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        model.write(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
        let tokens = tokens(80, model.n_vocab);
        let expected = one_by_one(&path, &tokens).pop().unwrap();
        assert_eq!(streamed(&path, &model, &tokens), expected, "{name}");
    }
}

fn biased(slots: usize, bias: Bias) -> EngineOptions {
    EngineOptions {
        moce: Moce::new(bias).with_protected(1),
        ..slotted(16, slots)
    }
}

#[test]
fn a_routing_bias_trades_misses_for_agreement_and_says_how_much() {
    let (_dir, path, model) = small();
    let tokens = tokens(200, model.n_vocab);
    let expected = one_by_one(&path, &tokens);
    let slots = model.n_expert_used + 2;
    let mut misses = Vec::new();
    for (bias, exact) in [
        ("off", true),
        ("rel:0", true),
        ("rel:0.1", false),
        ("rel:1", false),
    ] {
        let mut engine = engine(&path, biased(slots, bias.parse().unwrap()), 1);
        let mut session = engine.session().unwrap();
        // The prompt keeps the model's own routing.
        engine
            .prefill(&mut session, &tokens[..40], &mut Silent)
            .unwrap();
        assert_eq!(bits(session.logits()), expected[39], "{bias}");
        let before = engine.stats();
        for token in &tokens[40..] {
            engine.decode(&mut session, *token).unwrap();
        }
        let stats = engine.stats().since(&before);
        misses.push(stats.misses);
        assert_eq!(bits(session.logits()) == expected[199], exact, "{bias}");
        let agreement = stats.agreement();
        match bias {
            "off" => assert_eq!(agreement, None),
            "rel:0" => assert_eq!(agreement, Some(1.0)),
            _ => assert!(agreement.unwrap() < 1.0 && stats.mean_routing_kl().unwrap() > 0.0),
        }
    }
    assert_eq!(misses[0], misses[1]);
    assert!(misses[1] > misses[2] && misses[2] > misses[3], "{misses:?}");
}

#[test]
fn a_bias_changes_nothing_where_everything_is_resident() {
    let (_dir, path, model) = small();
    let tokens = tokens(60, model.n_vocab);
    let expected = one_by_one(&path, &tokens).pop().unwrap();
    let mut engine = engine(&path, biased(model.n_expert, "rel:1".parse().unwrap()), 1);
    let mut session = engine.session().unwrap();
    // A long prompt brings every expert in; the session then starts over.
    let filler: Vec<u32> = (0..520).map(|i| i * 7 % model.n_vocab as u32).collect();
    engine.prefill(&mut session, &filler, &mut Silent).unwrap();
    assert_eq!(
        engine.stats().misses,
        (model.n_layer * model.n_expert) as u64
    );
    engine.reset(&mut session).unwrap();
    engine
        .prefill(&mut session, &tokens[..1], &mut Silent)
        .unwrap();
    for token in &tokens[1..] {
        engine.decode(&mut session, *token).unwrap();
    }
    assert_eq!(bits(session.logits()), expected);
    assert_eq!(engine.stats().agreement(), Some(1.0));
    assert_eq!(engine.stats().biased_choices, (59 * model.n_layer) as u64);
}
