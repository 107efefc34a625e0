//! Read-ahead: guesses that come true, that do not, and that fail.

use std::io::ErrorKind;

use thalweg_cache::PolicyKind;
use thalweg_store::io::fault::{Fault, FaultBackend, FaultPlan};
use thalweg_store::{Error, ExpertAccess, ExpertStore, Priority};

use crate::fixture::{EXPERT_BYTES, Fixture, chain, residents, validate};
use crate::recorder::Handle;

fn store(fixture: &Fixture, transit: usize, handle: &Handle) -> ExpertStore {
    fixture
        .transit_store(4, transit, PolicyKind::Lru, |files| handle.backend(files))
        .unwrap()
}

fn failing(fixture: &Fixture, handle: &Handle, plan: FaultPlan) -> ExpertStore {
    fixture
        .transit_store(4, 3, PolicyKind::Lru, |files| {
            let recorder = handle.recorder(files.clone());
            Box::new(FaultBackend::new(recorder, files, plan))
        })
        .unwrap()
}

fn fail(n: u64) -> FaultPlan {
    FaultPlan::new().with_fault(n, Fault::Fail(ErrorKind::Other))
}

#[test]
fn guesses_that_are_under_way_are_joined_and_not_read_twice() {
    let fixture = Fixture::new();
    for (layer, expert_bytes) in EXPERT_BYTES.into_iter().enumerate() {
        let handle = Handle::default();
        let mut store = store(&fixture, 2, &handle);
        // Best guess first, as many as there are transit slots.
        assert_eq!(store.read_ahead(layer, &[5, 3, 7]), 2);
        assert_eq!((store.n_transit(), store.stats().guesses), (2, 2));
        let picks = [3, 8, 5];
        fixture.check(&store.acquire(0, layer, &picks).unwrap(), layer, &picks);
        validate(&store);
        let stats = store.stats();
        assert_eq!(
            (stats.guessed_hits, stats.late_guesses, stats.misses),
            (2, 2, 1)
        );
        assert_eq!((stats.hits, stats.wasted_bytes), (0, 0));
        assert_eq!(stats.bytes_read, 3 * expert_bytes);
        let by_layer = store.layer_stats(layer).unwrap();
        assert_eq!((by_layer.guessed_hits, by_layer.misses), (2, 1));
        assert_eq!(handle.n_taken(), 3);
        // Somebody waits for them now.
        let mut promoted = handle.record().promoted.clone();
        promoted.sort_unstable();
        assert_eq!(promoted, [0, 1]);
        assert_eq!(residents(&store, layer), [3, 5, 8]);
        // The transit slots are free again.
        assert_eq!(store.read_ahead(layer, &[0, 1, 2]), 2);
    }
}

#[test]
fn guesses_that_are_here_are_taken_over_without_a_wait_in_layers_of_any_size() {
    let fixture = Fixture::new();
    for (layer, expert_bytes) in EXPERT_BYTES.into_iter().enumerate() {
        let handle = Handle::eager();
        let mut store = store(&fixture, 3, &handle);
        // Slots that held something before: what was there must not come back.
        drop(store.acquire(0, layer, &[0, 1, 2, 8]).unwrap());
        for round in 0..4_u16 {
            let picks = [3 + round, 4 + round];
            let n = picks
                .iter()
                .filter(|e| !store.is_resident(layer, **e))
                .count();
            assert_eq!(store.read_ahead(layer, &picks), n);
            validate(&store);
            // A guess is no resident.
            assert!(!store.is_resident(layer, picks[1]));
            let n_taken = handle.n_taken();
            let access = ExpertAccess::new(1 + u64::from(round), layer, &picks);
            let mut lease = store.begin_acquire(&access).unwrap();
            assert!(lease.is_complete() && lease.was_miss(1));
            lease.finish().unwrap();
            fixture.check(&lease, layer, &picks);
            drop(lease);
            assert_eq!(handle.n_taken(), n_taken);
            validate(&store);
        }
        let stats = store.stats();
        assert_eq!((stats.guessed_hits, stats.late_guesses), (5, 0));
        assert_eq!((stats.hits, stats.misses), (3, 4));
        assert_eq!(
            (stats.bytes_read, stats.wasted_bytes),
            (9 * expert_bytes, 0)
        );
    }
}

#[test]
fn what_is_resident_guessed_or_unknown_is_passed_over() {
    let fixture = Fixture::new();
    let handle = Handle::default();
    let mut store = store(&fixture, 5, &handle);
    drop(store.acquire(0, 0, &[1, 2]).unwrap());
    assert_eq!(store.read_ahead(0, &[1, 3, 3, 12, u16::MAX, 2, 4]), 2);
    assert_eq!(store.read_ahead(0, &[4, 3, 1]), 0);
    assert_eq!(store.read_ahead(4, &[0]), 0);
    // The same number in another layer is another expert.
    assert_eq!(store.read_ahead(3, &[3]), 1);
    assert_eq!((handle.n_taken(), store.stats().guesses), (5, 3));
    validate(&store);
    let mut without = self::store(&fixture, 0, &Handle::default());
    assert_eq!((without.n_transit(), without.read_ahead(0, &[1])), (0, 0));
    without.settle().unwrap();
}

#[test]
fn a_guess_is_forgotten_when_its_layer_is_acquired_without_it() {
    let fixture = Fixture::new();
    let handle = Handle::eager();
    let mut store = store(&fixture, 3, &handle);
    assert_eq!(store.read_ahead(0, &[6, 7]), 2);
    assert_eq!(store.read_ahead(1, &[6]), 1);
    drop(store.acquire(0, 0, &[6, 1]).unwrap());
    validate(&store);
    let stats = store.stats();
    assert_eq!((stats.guessed_hits, stats.misses), (1, 1));
    assert_eq!(stats.wasted_bytes, EXPERT_BYTES[0]);
    // Layer 1's guess is still there.
    drop(store.acquire(0, 1, &[6]).unwrap());
    assert_eq!(store.stats().guessed_hits, 2);
    // 7 has to be read again.
    drop(store.acquire(1, 0, &[7]).unwrap());
    let stats = store.stats();
    assert_eq!((stats.guessed_hits, stats.misses), (2, 2));
    assert_eq!(store.read_ahead(0, &[8, 9, 10, 11]), 3);
    validate(&store);
}

#[test]
fn a_guess_that_was_not_begun_is_given_up_unread() {
    let fixture = Fixture::new();
    let handle = Handle::default();
    let mut store = store(&fixture, 2, &handle);
    assert_eq!(store.read_ahead(0, &[6, 7]), 2);
    // A hit is enough to show that nobody wants them.
    drop(store.acquire(0, 0, &[]).unwrap());
    assert_eq!(handle.record().cancelled, [0, 1]);
    assert_eq!(store.read_ahead(0, &[6, 7]), 2);
    validate(&store);
    let stats = store.stats();
    assert_eq!(
        (stats.reads, stats.bytes_read, stats.wasted_bytes),
        (0, 0, 0)
    );
}

#[test]
fn a_layer_acquired_again_while_a_forgotten_guess_is_being_read_is_served() {
    let fixture = Fixture::new();
    let handle = Handle::default();
    // Held back by the wrapper, as a read that has begun.
    let mut store = failing(
        &fixture,
        &handle,
        FaultPlan::new()
            .with_reordering(3)
            .with_fault(0, Fault::Delay(std::time::Duration::from_millis(30))),
    );
    assert_eq!(store.read_ahead(1, &[6]), 1);
    // Brings the guess to the wrapper, where it cannot be given up any more.
    drop(store.acquire(0, 0, &[1]).unwrap());
    for (clock, picks) in (1..).zip([[2, 3], [6, 2], [6, 7]]) {
        fixture.check(&store.acquire(clock, 1, &picks).unwrap(), 1, &picks);
        store.validate().unwrap();
    }
    let stats = store.stats();
    assert_eq!((stats.guessed_hits, stats.misses, stats.hits), (0, 5, 2));
    store.settle().unwrap();
    validate(&store);
    let stats = store.stats();
    assert_eq!(stats.wasted_bytes, EXPERT_BYTES[1]);
    assert_eq!(
        stats.bytes_read,
        EXPERT_BYTES[0] + 4 * EXPERT_BYTES[1] + stats.wasted_bytes
    );
}

#[test]
fn a_joined_guess_that_fails_is_demanded_once_more() {
    let fixture = Fixture::new();
    for (layer, expert_bytes) in EXPERT_BYTES.into_iter().enumerate() {
        let handle = Handle::default();
        let mut store = failing(&fixture, &handle, fail(0));
        assert_eq!(store.read_ahead(layer, &[6]), 1);
        let picks = [6, 2];
        fixture.check(&store.acquire(0, layer, &picks).unwrap(), layer, &picks);
        validate(&store);
        // The failed one never reached the recorder.
        assert_eq!(handle.priorities(), [Priority::Demand; 2]);
        assert_eq!(store.stats().failures, 0);
        assert_eq!(store.stats().bytes_read, 2 * expert_bytes);
        assert_eq!(store.read_ahead(layer, &[0, 1, 3]), 3);
    }
}

#[test]
fn a_guess_that_fails_before_it_is_asked_for_is_an_ordinary_miss() {
    let fixture = Fixture::new();
    let handle = Handle::eager();
    let mut store = failing(&fixture, &handle, fail(1));
    assert_eq!(store.read_ahead(0, &[5, 6]), 2);
    // Takes in what has come back.
    assert_eq!(store.read_ahead(0, &[]), 0);
    validate(&store);
    let picks = [6, 5];
    fixture.check(&store.acquire(0, 0, &picks).unwrap(), 0, &picks);
    let stats = store.stats();
    assert_eq!((stats.guessed_hits, stats.misses), (1, 1));
    validate(&store);
}

#[test]
fn a_demand_that_fails_after_its_guess_names_expert_and_file() {
    let fixture = Fixture::new();
    let handle = Handle::default();
    let plan = fail(0).with_fault(1, Fault::Fail(ErrorKind::PermissionDenied));
    let mut store = failing(&fixture, &handle, plan);
    store.read_ahead(0, &[6]);
    let error = store.acquire(0, 0, &[6]).unwrap_err();
    let (offset, path) = (77 + 6 * 300, fixture.paths[0].display());
    assert_eq!(
        chain(&error),
        format!(
            "cannot load expert 6 of layer 0: reading 300 bytes at {offset} of {path} failed: \
             permission denied"
        )
    );
    assert_eq!(store.stats().failures, 1);
    validate(&store);
    assert_eq!(store.read_ahead(0, &[1, 2, 3, 4]), 3);
    fixture.check(&store.acquire(1, 0, &[6]).unwrap(), 0, &[6]);
}

#[test]
fn the_check_sees_a_guess_when_it_is_asked_for() {
    let fixture = Fixture::new();
    let handle = Handle::eager();
    let mut store = store(&fixture, 3, &handle);
    store.set_check(Box::new(|_, expert, _, _| match expert {
        6 => Err("not a number".into()),
        _ => Ok(()),
    }));
    assert_eq!(store.read_ahead(0, &[6, 7]), 2);
    validate(&store);
    let error = store.acquire(0, 0, &[7, 6]).unwrap_err();
    assert!(matches!(error, Error::Expert { expert: 6, .. }), "{error}");
    validate(&store);
    assert!(residents(&store, 0).is_empty());
    assert_eq!(store.read_ahead(0, &[1, 2, 3]), 3);
}

#[test]
fn a_guess_that_the_check_refuses_is_not_here() {
    let fixture = Fixture::new();
    let mut store = store(&fixture, 2, &Handle::eager());
    store.set_check(Box::new(|_, _, _, _| Err("not a number".into())));
    assert_eq!(store.read_ahead(0, &[6]), 1);
    let access = ExpertAccess::new(0, 0, &[6]);
    let mut lease = store.begin_acquire(&access).unwrap();
    assert_eq!(fixture.check_open(&lease, 0, &[6]), 0);
    let error = lease.wait().unwrap_err();
    assert!(matches!(error, Error::Expert { expert: 6, .. }), "{error}");
}

#[test]
fn a_joined_guess_is_given_up_with_its_lease() {
    let fixture = Fixture::new();
    let handle = Handle::default();
    let mut store = store(&fixture, 2, &handle);
    assert_eq!(store.read_ahead(0, &[4]), 1);
    let access = ExpertAccess::new(0, 0, &[4, 5]);
    drop(store.begin_acquire(&access).unwrap());
    let mut cancelled = handle.record().cancelled.clone();
    cancelled.sort_unstable();
    assert_eq!((cancelled, store.stats().reads), (vec![0, 1], 0));
    validate(&store);
    assert_eq!(store.read_ahead(0, &[4, 5, 6]), 2);
}

#[test]
fn demands_overtake_guesses_that_the_backend_has_not_taken() {
    let fixture = Fixture::new();
    let handle = Handle::default();
    handle.record().limit = 1;
    let mut store = store(&fixture, 4, &handle);
    assert_eq!(store.read_ahead(1, &[3, 4, 5]), 3);
    assert_eq!(store.read_ahead(0, &[9]), 1);
    // One was taken; the others wait in the store's queue.
    assert_eq!(handle.n_taken(), 1);
    let picks = [2, 9];
    fixture.check(&store.acquire(0, 0, &picks).unwrap(), 0, &picks);
    let first = |expert: u64| 77 + expert * 300;
    let places: Vec<u64> = handle.places()[1..3].iter().map(|(_, at)| *at).collect();
    // The joined guess was in the queue and is now the first of the demands.
    assert_eq!(places, [first(9), first(2)]);
    assert_eq!(handle.priorities()[1..3], [Priority::Demand; 2]);
    // Of the others one may have been taken since, which is then given up by the backend; the last
    // goes no further than the queue.
    drop(store.acquire(0, 1, &[0]).unwrap());
    store.settle().unwrap();
    assert!(handle.n_taken() <= 5, "{}", handle.n_taken());
    assert_eq!(handle.record().most, 1);
    assert_eq!(store.read_ahead(1, &[3, 4, 5, 6]), 4);
    validate(&store);
}

#[test]
fn settling_gives_up_all_guesses_and_leaves_nothing_under_way() {
    let fixture = Fixture::new();
    for handle in [Handle::default(), Handle::eager()] {
        let mut store = store(&fixture, 3, &handle);
        assert_eq!(store.read_ahead(0, &[1, 2]), 2);
        assert_eq!(store.read_ahead(1, &[1]), 1);
        store.settle().unwrap();
        validate(&store);
        let eager = handle.record().eager;
        let wasted = if eager { 2 * 800 + 8500 } else { 0 };
        assert_eq!(store.stats().wasted_bytes, wasted);
        assert_eq!(store.read_ahead(0, &[1, 2, 3]), 3);
        store.settle().unwrap();
        drop(store.acquire(0, 0, &[1, 2]).unwrap());
        assert_eq!((store.stats().guessed_hits, store.stats().misses), (0, 2));
    }
}

#[test]
fn a_guess_that_the_backend_loses_costs_its_slot_and_nothing_else() {
    let fixture = Fixture::new();
    let handle = Handle::default();
    let mut store = store(&fixture, 2, &handle);
    handle.record().swallow = 1;
    assert_eq!(store.read_ahead(0, &[4, 5]), 2);
    let error = store.settle().unwrap_err();
    assert!(
        matches!(error, Error::OperationsLost { n_lost: 1 }),
        "{error}"
    );
    let broken = store.validate().unwrap_err();
    assert!(
        matches!(broken, Error::Broken { invariant: 2, .. }),
        "{broken}"
    );
    store.settle().unwrap();
    // The same guess again, in the slot that is left.
    assert_eq!(store.read_ahead(0, &[4, 5]), 1);
    fixture.check(&store.acquire(0, 0, &[4, 5]).unwrap(), 0, &[4, 5]);
    assert_eq!(store.stats().guessed_hits, 1);
}

#[test]
fn a_joined_guess_that_the_backend_loses_fails_its_batch_and_no_later_one() {
    let fixture = Fixture::new();
    let handle = Handle::default();
    let mut store = store(&fixture, 2, &handle);
    handle.record().swallow = 1;
    assert_eq!(store.read_ahead(1, &[4]), 1);
    let error = store.acquire(0, 1, &[4, 5]).unwrap_err();
    assert!(
        matches!(error, Error::OperationsLost { n_lost: 1 }),
        "{error}"
    );
    fixture.check(&store.acquire(1, 1, &[4, 5]).unwrap(), 1, &[4, 5]);
    assert_eq!(store.read_ahead(1, &[6, 7]), 1);
}

#[test]
fn a_guess_that_is_lost_with_others_is_nobody_s() {
    let fixture = Fixture::new();
    let handle = Handle::default();
    let mut store = store(&fixture, 2, &handle);
    handle.record().swallow = 2;
    assert_eq!(store.read_ahead(1, &[4]), 1);
    let error = store.acquire(0, 0, &[7]).unwrap_err();
    assert!(
        matches!(error, Error::OperationsLost { n_lost: 2 }),
        "{error}"
    );
    // Not joined: it will never come.
    fixture.check(&store.acquire(1, 1, &[4]).unwrap(), 1, &[4]);
    assert_eq!((store.stats().guessed_hits, store.stats().misses), (0, 1));
}

#[test]
fn a_guess_that_comes_back_in_another_buffer_is_read_again() {
    let fixture = Fixture::new();
    for late in [true, false] {
        let handle = if late {
            Handle::default()
        } else {
            Handle::eager()
        };
        let mut store = store(&fixture, 2, &handle);
        handle.record().exchange = 1;
        assert_eq!(store.read_ahead(0, &[4]), 1);
        fixture.check(&store.acquire(0, 0, &[4]).unwrap(), 0, &[4]);
        // Its slot is out of use, the other one is not.
        assert_eq!(store.read_ahead(0, &[6, 7]), 1);
        fixture.check(&store.acquire(0, 0, &[6, 7]).unwrap(), 0, &[6, 7]);
    }
}
