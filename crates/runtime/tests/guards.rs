//! What guards a run, and what says that something asked for has no effect.

mod common;

use common::{N_CTX, bits, cpu, one_by_one, slotted, small, tokens};
use thalweg_runtime::{
    Engine, EngineOptions, Error, Note, ReadAhead, ReaderKind, Silent, WatchdogOptions,
};

fn options() -> EngineOptions {
    EngineOptions {
        n_ctx: N_CTX,
        budget_bytes: Some(1 << 30),
        ..slotted(8, 6)
    }
}

#[test]
fn a_tripped_watchdog_ends_the_step_and_leaves_the_session_as_it_was() {
    let (_dir, path, shape) = small();
    let tokens = tokens(12, shape.n_vocab);
    let expected = one_by_one(&path, &tokens);
    // No machine has as much, so that it trips with the first look.
    let watch = WatchdogOptions {
        floor_bytes: Some(u64::MAX),
        ..WatchdogOptions::default()
    };
    let watched = EngineOptions {
        watchdog: Some(watch),
        ..options()
    };
    let mut engine = Engine::open(&path, cpu(1), watched).unwrap();
    if engine.notes().contains(&Note::WatchdogIsBlind) {
        return println!("skipped: this system tells nothing about its memory");
    }
    let mut session = engine.session().unwrap();
    let error = engine
        .prefill(&mut session, &tokens, &mut Silent)
        .unwrap_err();
    assert!(matches!(error, Error::Watchdog { .. }), "{error}");
    assert!(
        error.to_string().contains("18446744073709551615"),
        "{error}"
    );
    assert!(session.tokens().is_empty());

    // One that has nothing to object to does not disturb.
    let watch = WatchdogOptions {
        floor_bytes: Some(1),
        swap_out_limit_bytes: 0,
        ..WatchdogOptions::default()
    };
    let calm = EngineOptions {
        watchdog: Some(watch),
        ..options()
    };
    let mut engine = Engine::open(&path, cpu(1), calm).unwrap();
    let mut session = engine.session().unwrap();
    engine.prefill(&mut session, &tokens, &mut Silent).unwrap();
    assert_eq!(bits(session.logits()), expected[11]);
}

#[test]
fn what_has_no_effect_is_said_and_what_has_is_not() {
    let (_dir, path, shape) = small();
    let ahead = ReadAhead {
        next: 2,
        ..ReadAhead::default()
    };
    let notes = |options: EngineOptions| {
        let engine = Engine::open(&path, cpu(1), options).unwrap();
        let notes = engine.notes().into_iter();
        // Whether direct reads work is a matter of where the test runs.
        let notes = notes.filter(|n| !matches!(n, Note::BufferedReads { .. }));
        notes.collect::<Vec<_>>()
    };
    assert_eq!(notes(options()), []);
    let read_ahead = EngineOptions {
        read_ahead: ahead,
        ..options()
    };
    assert_eq!(notes(read_ahead.clone()), []);
    let pread = EngineOptions {
        reader: ReaderKind::Pread,
        ..read_ahead.clone()
    };
    assert_eq!(notes(pread), [Note::ReaderCannotReadAhead]);
    let resident = EngineOptions {
        slots_per_layer: Some(shape.n_expert),
        ..read_ahead
    };
    assert_eq!(notes(resident), [Note::NothingToReadAhead]);
}

#[test]
fn no_reads_under_way_and_no_transit_slots_are_refused_by_name() {
    let (_dir, path, _) = small();
    let none = EngineOptions {
        reads_under_way: Some(0),
        ..options()
    };
    let error = Engine::open(&path, cpu(1), none).unwrap_err();
    assert_eq!(
        error.to_string(),
        "reads under way must be at least 1, found 0"
    );
    let none = EngineOptions {
        transit_slots: Some(0),
        ..options()
    };
    let error = Engine::open(&path, cpu(1), none).unwrap_err();
    assert_eq!(
        error.to_string(),
        "transit slots must be at least 1 where a layer has fewer slots than experts, found 0"
    );
}

#[test]
fn no_transit_slots_are_refused_as_well_where_the_budget_chooses_the_slots() {
    let (_dir, path, shape) = small();
    let by_budget = |arena_bytes| EngineOptions {
        slots_per_layer: None,
        transit_slots: Some(0),
        arena_bytes,
        ..options()
    };
    // Every expert has a slot, so that nothing is ever in transit.
    let engine = Engine::open(&path, cpu(1), by_budget(None)).unwrap();
    assert_eq!(engine.plan().transit_slots, 0);
    assert!(engine.plan().slots.iter().all(|n| *n == shape.n_expert));
    let error = Engine::open(&path, cpu(1), by_budget(Some(0))).unwrap_err();
    assert!(
        error.to_string().starts_with("transit slots must be"),
        "{error}"
    );
}

/// Locks the whole test process, which the other tests do not notice.
#[cfg(target_os = "linux")]
#[test]
fn locked_memory_shows_in_the_process_status_or_a_note_says_why_not() {
    let (_dir, path, _) = small();
    let locked = EngineOptions {
        lock_memory: true,
        ..options()
    };
    let engine = Engine::open(&path, cpu(1), locked).unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmLck:"));
    let kib = line.and_then(|l| l.trim().strip_suffix(" kB"));
    let locked: u64 = kib.unwrap().trim().parse().unwrap();
    let note = engine
        .notes()
        .into_iter()
        .find(|n| matches!(n, Note::NotLocked { .. }));
    match note {
        Some(note) => assert!(
            note.to_string().starts_with("memory is not locked: "),
            "{note}"
        ),
        None => assert!(locked * 1024 >= engine.plan().arena_bytes, "{locked} KiB"),
    }
}
