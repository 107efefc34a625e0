//! Streamed equals resident, prefill equals decode, a failed step leaves no trace: bit for bit.

mod common;

use common::{N_CTX, bits, chunked, cpu, demo, engine, one_by_one, prompt, slotted, small, tokens};
use thalweg_runtime::{Activations, Engine, EngineOptions, PolicyKind, Silent};

#[test]
fn every_prompt_length_and_chunk_gives_the_bits_of_single_steps() {
    let (_dir, path, model) = small();
    let tokens = tokens(520, model.n_vocab);
    let expected = one_by_one(&path, &tokens);
    for chunk in [1, 7, 64, 512] {
        let mut engine = engine(&path, chunked(chunk), 2);
        let mut session = engine.session().unwrap();
        for n in (1..=130).chain([520]) {
            let got = prompt(&mut engine, &mut session, &tokens[..n]);
            assert_eq!(got, expected[n - 1], "prompt of {n}, chunk {chunk}");
        }
    }
}

#[test]
fn every_arena_from_k_slots_up_gives_the_bits_of_the_resident_model() {
    let (_dir, path, model) = small();
    let (k, all) = (model.n_expert_used, model.n_expert);
    let tokens = tokens(520, model.n_vocab);
    let expected = one_by_one(&path, &tokens);
    for slots in [k, k + 1, 2 * k, all] {
        for chunk in [1, 7, 64, 512] {
            let mut engine = engine(&path, slotted(chunk, slots), 2);
            let mut session = engine.session().unwrap();
            for n in [1, 2, 3, 5, 8, 34, 63, 64, 65, 128, 129, 130, 520] {
                let got = prompt(&mut engine, &mut session, &tokens[..n]);
                assert_eq!(
                    got,
                    expected[n - 1],
                    "prompt of {n}, chunk {chunk}, {slots} slots"
                );
            }
            let stats = engine.stats();
            match slots == all {
                true => assert!(stats.misses <= (model.n_layer * all) as u64),
                false => assert!(
                    stats.misses > (model.n_layer * all) as u64,
                    "nothing streamed"
                ),
            }
        }
    }
}

#[test]
fn every_policy_and_thread_count_gives_the_same_bits() {
    let (_dir, path, model) = small();
    let tokens = tokens(90, model.n_vocab);
    let expected = one_by_one(&path, &tokens);
    for policy in PolicyKind::ALL.iter().copied().filter(|p| !p.is_offline()) {
        for (n_threads, chunk) in [(1, 7), (2, 64), (3, 1)] {
            let options = slotted(chunk, model.n_expert_used + 1);
            let mut engine = engine(&path, EngineOptions { policy, ..options }, n_threads);
            let mut session = engine.session().unwrap();
            let got = prompt(&mut engine, &mut session, &tokens);
            assert_eq!(
                got, expected[89],
                "{policy:?}, {n_threads} threads, chunk {chunk}"
            );
        }
    }
}

#[test]
fn the_trained_model_gives_one_answer_for_every_chunk_and_arena() {
    let path = demo();
    let tokens = tokens(520, 8192);
    let expected = one_by_one(&path, &tokens[..131]);
    let mut resident = engine(&path, chunked(512), 2);
    let mut session = resident.session().unwrap();
    let long = prompt(&mut resident, &mut session, &tokens);
    let (k, all) = (6, 64);
    for (chunk, slots) in [
        (1, k),
        (7, all),
        (7, k + 1),
        (64, k),
        (64, 2 * k),
        (512, k + 1),
    ] {
        let mut engine = engine(&path, slotted(chunk, slots), 2);
        let mut session = engine.session().unwrap();
        for n in [1, 2, 64, 65, 130] {
            let got = prompt(&mut engine, &mut session, &tokens[..n]);
            assert_eq!(
                got,
                expected[n - 1],
                "prompt of {n}, chunk {chunk}, {slots} slots"
            );
        }
        // Decoding goes on from a streamed prefill as it does from a resident one.
        engine.decode(&mut session, tokens[130]).unwrap();
        assert_eq!(bits(session.logits()), expected[130]);
        if chunk >= 64 {
            assert_eq!(
                prompt(&mut engine, &mut session, &tokens),
                long,
                "chunk {chunk}"
            );
        }
    }
}

#[test]
fn activations_of_eight_bits_give_one_answer_for_every_chunk_arena_and_thread_count() {
    let path = demo();
    let tokens = tokens(150, 8192);
    let open = |options, n_threads| {
        let options = EngineOptions {
            n_ctx: N_CTX,
            budget_bytes: Some(1 << 30),
            ..options
        };
        let backend = cpu(n_threads).with_activations(Activations::Q8);
        Engine::open(&path, backend, options).unwrap()
    };
    let mut resident = open(chunked(1), 1);
    let mut session = resident.session().unwrap();
    let step = |t: &u32| {
        resident.decode(&mut session, *t).unwrap();
        bits(session.logits())
    };
    let expected: Vec<_> = tokens.iter().map(step).collect();
    let (k, all) = (6, 64);
    for (chunk, slots, n_threads) in [(150, k, 2), (150, all, 1), (64, k + 1, 3), (7, 2 * k, 2)] {
        let mut engine = open(slotted(chunk, slots), n_threads);
        let mut session = engine.session().unwrap();
        for n in [1, 5, 65, 150] {
            let got = prompt(&mut engine, &mut session, &tokens[..n]);
            let setting = format!("prompt of {n}, chunk {chunk}, {slots} slots");
            assert_eq!(got, expected[n - 1], "{setting}, {n_threads} threads");
        }
    }
    // They are another function than the reference, or this test would say nothing.
    let mut reference = engine(&path, chunked(150), 1);
    let mut session = reference.session().unwrap();
    assert_ne!(prompt(&mut reference, &mut session, &tokens), expected[149]);
}

#[test]
fn sessions_that_take_turns_do_not_see_each_other() {
    let (_dir, path, model) = small();
    let a = tokens(70, model.n_vocab);
    let b: Vec<u32> = a.iter().rev().copied().collect();
    let expected = [one_by_one(&path, &a), one_by_one(&path, &b)];
    let mut engine = engine(&path, slotted(16, model.n_expert_used), 2);
    let mut sessions = [engine.session().unwrap(), engine.session().unwrap()];
    engine
        .prefill(&mut sessions[0], &a[..33], &mut Silent)
        .unwrap();
    engine
        .prefill(&mut sessions[1], &b[..20], &mut Silent)
        .unwrap();
    for i in 0..37 {
        engine.decode(&mut sessions[0], a[33 + i]).unwrap();
        assert_eq!(
            bits(sessions[0].logits()),
            expected[0][33 + i],
            "first, step {i}"
        );
        engine.decode(&mut sessions[1], b[20 + i]).unwrap();
        assert_eq!(
            bits(sessions[1].logits()),
            expected[1][20 + i],
            "second, step {i}"
        );
    }
}

#[test]
fn a_context_can_be_filled_to_the_last_token() {
    let (_dir, path, model) = small();
    let tokens = tokens(N_CTX, model.n_vocab);
    let expected = one_by_one(&path, &tokens);
    let mut engine = engine(&path, chunked(64), 1);
    let mut session = engine.session().unwrap();
    assert_eq!(
        prompt(&mut engine, &mut session, &tokens),
        expected[N_CTX - 1]
    );
    let full = engine.decode(&mut session, 1).unwrap_err();
    assert!(
        full.to_string()
            .contains("541 tokens do not fit the context of 540"),
        "{full}"
    );
    // A context of one token works, and is full at once.
    let options = EngineOptions {
        n_ctx: 1,
        ..EngineOptions::default()
    };
    let backend = cpu(1);
    let mut engine = Engine::open(&path, backend, options).unwrap();
    let mut session = engine.session().unwrap();
    engine
        .prefill(&mut session, &tokens[..1], &mut Silent)
        .unwrap();
    assert_eq!(bits(session.logits()), expected[0]);
    engine.decode(&mut session, 1).unwrap_err();
}
