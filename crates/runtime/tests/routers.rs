//! Routers in other precisions, the audit of them, and the run before the first token.

mod common;

use std::path::Path;

use common::{N_CTX, bits, cpu, one_by_one, slotted, small, tokens};
use thalweg_gguf::{Gguf, TensorType};
use thalweg_runtime::{Engine, EngineOptions, Note, ReadAhead, Silent, Stats, plan_model};
use thalweg_testkit::SmallModel;

/// Few slots, read-ahead of two.
fn options() -> EngineOptions {
    EngineOptions {
        n_ctx: N_CTX,
        budget_bytes: Some(1 << 30),
        read_ahead: ReadAhead {
            next: 2,
            may_pause: false,
            ..ReadAhead::default()
        },
        ..slotted(8, 6)
    }
}

fn bf16(audited: bool) -> EngineOptions {
    EngineOptions {
        bf16_routers: true,
        audit_routers: audited,
        ..options()
    }
}

fn q8(audited: bool) -> EngineOptions {
    let mut options = options();
    options.read_ahead.q8_routers = true;
    options.audit_routers = audited;
    options
}

/// Bits after a prompt of all tokens but eight, and after each of these.
fn run(path: &Path, options: EngineOptions, tokens: &[u32]) -> (Vec<Vec<u32>>, Stats, Vec<Note>) {
    let mut engine = Engine::open(path, cpu(1), options).unwrap();
    let mut session = engine.session().unwrap();
    let (prompt, steps) = tokens.split_at(tokens.len() - 8);
    engine.prefill(&mut session, prompt, &mut Silent).unwrap();
    let mut found = vec![bits(session.logits())];
    for token in steps {
        engine.decode(&mut session, *token).unwrap();
        found.push(bits(session.logits()));
    }
    (found, engine.stats(), engine.notes())
}

/// A small model that stores its routers as bf16.
fn small_bf16() -> (tempfile::TempDir, std::path::PathBuf, SmallModel) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bf16.gguf");
    let model = SmallModel::default();
    let mut draft = model.draft().unwrap();
    for layer in 0..model.n_layer {
        let router = format!("blk.{layer}.ffn_gate_inp.weight");
        let router = draft.tensor_mut(&router).unwrap();
        router.convert(TensorType::BF16).unwrap();
    }
    draft.write(&path).unwrap();
    (dir, path, model)
}

#[test]
fn bf16_routers_change_the_result_alike_however_experts_stream() {
    let (_dir, path, shape) = small();
    let tokens = tokens(40, shape.n_vocab);
    let (exact, ..) = run(&path, options(), &tokens);
    let (rounded, stats, notes) = run(&path, bf16(true), &tokens);
    assert!(rounded != exact, "rounding shows in the mixture's weights");
    assert_eq!(notes, []);
    let n_picks = 40 * shape.n_layer * shape.n_expert_used;
    assert_eq!(stats.audited_picks, n_picks as u64);
    let agreement = stats.router_agreement().unwrap();
    assert!((0.9..=1.0).contains(&agreement), "{agreement}");

    let resident = EngineOptions {
        slots_per_layer: Some(shape.n_expert),
        chunk_tokens: Some(64),
        ..bf16(false)
    };
    assert!(run(&path, resident, &tokens).0 == rounded);
}

#[test]
fn rounding_what_is_stored_as_bf16_changes_nothing_and_says_so() {
    let (_dir, path, shape) = small_bf16();
    let tokens = tokens(24, shape.n_vocab);
    let (exact, ..) = run(&path, options(), &tokens);
    let (rounded, stats, notes) = run(&path, bf16(true), &tokens);
    assert!(rounded == exact);
    assert_eq!(notes, [Note::RoutersAreBf16]);
    assert_eq!(stats.router_agreement(), Some(1.0));
}

#[test]
fn guesses_by_copies_are_counted_against_the_stored_routers() {
    let (_dir, path, shape) = small();
    let tokens = tokens(40, shape.n_vocab);
    let expected = one_by_one(&path, &tokens)[31..].to_vec();
    let (found, stats, notes) = run(&path, q8(true), &tokens);
    assert!(found == expected);
    assert_eq!(notes, []);
    // Eight steps, two guesses a layer but the last.
    let most = 8 * 2 * (shape.n_layer as u64 - 1);
    assert!((1..=most).contains(&stats.audited_guesses), "{stats:?}");
    let recall = stats.guess_recall().unwrap();
    assert!((0.5..=1.0).contains(&recall), "{recall}");
    assert_eq!(stats.router_agreement(), None);

    // A copy that is the stored router would have guessed everything.
    let (found, stats, notes) = run(&path, q8(false), &tokens);
    assert!(found == expected);
    assert_eq!(stats.guess_recall(), None);
    assert_eq!(notes, []);
}

#[test]
fn what_has_no_effect_is_said() {
    let (_dir, path, shape) = small();
    let notes = |options| Engine::open(&path, cpu(1), options).unwrap().notes();
    let audit = EngineOptions {
        audit_routers: true,
        ..options()
    };
    assert_eq!(notes(audit), [Note::NothingToAudit]);
    let mut idle = q8(false);
    idle.read_ahead.next = 0;
    assert_eq!(notes(idle.clone()), [], "prompts read ahead");
    idle.read_ahead.prompt = false;
    assert_eq!(notes(idle), [Note::NoGuessByCopies]);
    let resident = EngineOptions {
        slots_per_layer: Some(shape.n_expert),
        ..q8(false)
    };
    let expected = [Note::NoGuessByCopies, Note::NothingToReadAhead];
    assert_eq!(notes(resident), expected);
}

#[test]
fn copies_are_dense_weights_of_the_plan() {
    let (_dir, path, shape) = small();
    let file = Gguf::open(&path).unwrap();
    let dense = |options: &EngineOptions| plan_model(&file, 0, options).unwrap().0.dense_bytes;
    let n_weights = (shape.n_layer * shape.n_expert * shape.n_embd) as u64;
    let stored = dense(&options());
    assert_eq!(dense(&q8(true)), stored + n_weights * 34 / 32);
    assert_eq!(dense(&bf16(false)), stored - 2 * n_weights);
    assert_eq!(dense(&bf16(true)), stored + 2 * n_weights);
}

#[test]
fn a_prewarmed_engine_has_done_nothing_yet() {
    let (_dir, path, shape) = small();
    let warm = EngineOptions {
        prewarm: true,
        ..options()
    };
    let tokens = tokens(20, shape.n_vocab);
    let engine = Engine::open(&path, cpu(1), warm.clone()).unwrap();
    assert!(engine.prewarm_time().unwrap() > std::time::Duration::ZERO);
    assert_eq!(engine.stats(), Stats::default());
    assert_eq!(
        run(&path, warm, &tokens).0,
        run(&path, options(), &tokens).0
    );
    let cold = Engine::open(&path, cpu(1), options()).unwrap();
    assert_eq!(cold.prewarm_time(), None);
}
