//! Bad input and bad luck: a clear error, and nothing lost.

mod common;

use std::fs::{self, OpenOptions};
use std::path::Path;

use common::{N_CTX, bits, chunked, cpu, engine, one_by_one, slotted, small, tokens};
use thalweg_gguf::Gguf;
use thalweg_runtime::{Engine, EngineOptions, Error, ReadAhead, Silent};
use thalweg_store::PreadBackend;
use thalweg_store::io::fault::{Fault, FaultBackend, FaultPlan};
use thalweg_testkit::SmallModel;

/// The error and all its causes on one line.
fn chain(e: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(e.source(), |e| e.source());
    causes.fold(e.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[test]
fn unusable_prompts_are_refused_and_change_nothing() {
    let (_dir, path, model) = small();
    let expected = one_by_one(&path, &[1, 2]);
    let mut engine = engine(&path, chunked(8), 1);
    let mut session = engine.session().unwrap();
    engine.prefill(&mut session, &[1], &mut Silent).unwrap();

    let empty = engine.prefill(&mut session, &[], &mut Silent).unwrap_err();
    assert_eq!(empty.to_string(), "the prompt is empty");

    let n_vocab = u32::try_from(model.n_vocab).unwrap();
    for id in [n_vocab, u32::MAX] {
        let e = engine
            .prefill(&mut session, &[1, 2, id], &mut Silent)
            .unwrap_err();
        assert_eq!(
            e.to_string(),
            format!("token id {id} is outside the vocabulary of {n_vocab}")
        );
    }

    let long = vec![1; N_CTX];
    match engine
        .prefill(&mut session, &long, &mut Silent)
        .unwrap_err()
    {
        Error::Context { wanted, n_ctx, .. } => assert_eq!((wanted, n_ctx), (N_CTX + 1, N_CTX)),
        other => panic!("{other}"),
    }

    assert_eq!(session.tokens(), [1]);
    engine.decode(&mut session, 2).unwrap();
    assert_eq!(bits(session.logits()), expected[1]);
}

#[test]
fn contexts_of_nothing_or_beyond_the_model_are_refused() {
    let (_dir, path, model) = small();
    for n_ctx in [0, model.n_ctx + 1] {
        let options = EngineOptions {
            n_ctx,
            ..EngineOptions::default()
        };
        let e = Engine::open(&path, cpu(1), options).unwrap_err();
        assert!(
            matches!(
                e,
                Error::Option {
                    option: "context",
                    ..
                }
            ),
            "{e}"
        );
    }
    let e = Engine::open(&path, cpu(1), chunked(0)).unwrap_err();
    assert!(
        matches!(
            e,
            Error::Option {
                option: "chunk",
                ..
            }
        ),
        "{e}"
    );
}

#[test]
fn a_session_of_another_engine_is_refused() {
    let (_dir, path, _) = small();
    let (mut a, b) = (engine(&path, chunked(8), 1), engine(&path, chunked(8), 1));
    let mut session = b.session().unwrap();
    assert!(matches!(
        a.decode(&mut session, 1),
        Err(Error::ForeignSession)
    ));
    assert!(matches!(a.reset(&mut session), Err(Error::ForeignSession)));
}

#[test]
fn exactly_k_slots_work_and_fewer_are_refused_with_the_figures() {
    let (_dir, path, model) = small();
    let k = model.n_expert_used;
    let mut engine = engine(&path, slotted(8, k), 1);
    let mut session = engine.session().unwrap();
    engine
        .prefill(&mut session, &[1, 2, 3], &mut Silent)
        .unwrap();
    assert_eq!(engine.plan().slots, vec![k; model.n_layer]);

    let e = Engine::open(&path, cpu(1), slotted(8, k - 1)).unwrap_err();
    assert_eq!(
        e.to_string(),
        format!(
            "slots must be at least the {k} experts that a token uses, found {}",
            k - 1
        )
    );
}

#[test]
fn a_budget_is_kept_to_the_byte_or_refused_with_the_figures() {
    let (_dir, path, model) = small();
    let open = |budget: u64| {
        let options = EngineOptions {
            budget_bytes: Some(budget),
            n_ctx: 64,
            ..Default::default()
        };
        Engine::open(&path, cpu(1), options)
    };
    let needed = match open(1000).unwrap_err() {
        Error::Budget {
            budget_bytes,
            needed_bytes,
            min_slots,
            ..
        } => {
            assert_eq!((budget_bytes, min_slots), (1000, model.n_expert_used));
            needed_bytes
        }
        other => panic!("{other}"),
    };
    assert!(open(needed - 1).is_err());
    for budget in [needed, needed + needed / 7, 2 * needed, 1 << 30] {
        let engine = open(budget).unwrap();
        let plan = engine.plan();
        assert!(plan.total_bytes() <= budget, "{plan:?}");
        assert!(
            plan.slots
                .iter()
                .all(|s| (model.n_expert_used..=model.n_expert).contains(s))
        );
        assert!((1..=64).contains(&plan.chunk_tokens));
    }
    // With room for everything, everything gets it.
    let engine = open(1 << 30).unwrap();
    assert_eq!(engine.plan().slots, vec![model.n_expert; model.n_layer]);
    assert_eq!(engine.plan().chunk_tokens, 64);
}

#[test]
fn a_failed_read_leaves_the_session_as_it_was() {
    let (_dir, path, model) = small();
    let tokens = tokens(60, model.n_vocab);
    let expected = one_by_one(&path, &tokens);
    // Fail each of the first reads in turn, wherever in a prefill or a step that falls.
    let mut n_failed = 0;
    for n in (0..120).step_by(7) {
        let file = Gguf::open(&path).unwrap();
        let options = EngineOptions {
            n_ctx: N_CTX,
            budget_bytes: Some(1 << 30),
            // A guess that fails is read again and raises nothing.
            read_ahead: ReadAhead {
                prompt: false,
                ..ReadAhead::default()
            },
            ..slotted(16, model.n_expert_used)
        };
        let mut engine = Engine::with_reader(file, cpu(1), options, |files| {
            let plan = FaultPlan::new().with_fault(n, Fault::Fail(std::io::ErrorKind::Other));
            let reader = PreadBackend::new(files.clone());
            Ok(Box::new(FaultBackend::new(reader, files.clone(), plan)))
        })
        .unwrap();
        let mut session = engine.session().unwrap();
        while session.tokens().len() < 48 {
            let done = session.tokens().len();
            if let Err(e) = engine.prefill(&mut session, &tokens[done..48], &mut Silent) {
                n_failed += 1;
                assert!(chain(&e).contains("small.gguf"), "{}", chain(&e));
                // Whole chunks only.
                assert!(session.tokens().len().is_multiple_of(16));
                assert_eq!(session.tokens(), &tokens[..session.tokens().len()]);
            }
        }
        assert_eq!(bits(session.logits()), expected[47], "prefill, read {n}");
        for (i, token) in tokens.iter().enumerate().skip(48) {
            if engine.decode(&mut session, *token).is_err() {
                n_failed += 1;
                assert_eq!(session.tokens(), &tokens[..i]);
                engine.decode(&mut session, *token).unwrap();
            }
            assert_eq!(bits(session.logits()), expected[i], "step {i}, read {n}");
        }
    }
    assert!(n_failed >= 15, "only {n_failed} faults were met");
}

#[test]
fn weights_of_an_expert_that_are_not_finite_are_named_when_they_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let name = "blk.2.ffn_up_exps.weight";
    let model = SmallModel::default();
    // One bad value in every expert, so that whichever is chosen has one.
    let per_expert = model.n_embd * model.n_ff;
    model
        .write_with(&path, |d| {
            (0..model.n_expert).try_for_each(|e| d.tensor_mut(name)?.poison(e * per_expert + 5))
        })
        .unwrap();
    let mut engine = engine(&path, chunked(8), 1);
    let mut session = engine.session().unwrap();
    let e = engine
        .prefill(&mut session, &[1, 2], &mut Silent)
        .unwrap_err();
    let text = chain(&e);
    assert!(text.contains(name), "{text}");
    assert!(text.contains("not finite at element"), "{text}");
    assert!(session.tokens().is_empty());
}

/// An engine with few slots that has begun a sequence, and so must read on.
fn begun(path: &Path, model: &SmallModel) -> (Engine, thalweg_runtime::Session) {
    let mut engine = engine(path, slotted(8, model.n_expert_used), 1);
    let mut session = engine.session().unwrap();
    engine
        .prefill(&mut session, &[1, 2, 3, 4], &mut Silent)
        .unwrap();
    (engine, session)
}

/// Steps until one fails; every token is another, so that other experts are needed.
fn first_failure(engine: &mut Engine, session: &mut thalweg_runtime::Session) -> String {
    for token in 5..200 {
        if let Err(e) = engine.decode(session, token) {
            return chain(&e);
        }
    }
    panic!("nothing was noticed in 195 steps");
}

#[test]
fn a_file_that_is_cut_while_open_is_noticed() {
    let (_dir, path, model) = small();
    let (mut engine, mut session) = begun(&path, &model);
    OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(100_000)
        .unwrap();
    let text = first_failure(&mut engine, &mut session);
    assert!(text.contains("small.gguf"), "{text}");
}

#[test]
fn a_file_that_is_replaced_while_open_is_noticed() {
    let (dir, path, model) = small();
    let (mut engine, mut session) = begun(&path, &model);
    let other = dir.path().join("other.gguf");
    SmallModel {
        seed: 99,
        ..SmallModel::default()
    }
    .write(&other)
    .unwrap();
    fs::rename(&other, &path).unwrap();
    let text = first_failure(&mut engine, &mut session);
    assert!(text.contains("small.gguf"), "{text}");
}
