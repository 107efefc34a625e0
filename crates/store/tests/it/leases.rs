//! Leases that are used, waited for and given up before all of their experts are here.

use std::fs;
use std::io::ErrorKind;

use thalweg_cache::PolicyKind;
use thalweg_store::io::fault::{Fault, FaultBackend, FaultPlan};
use thalweg_store::{Error, ExpertAccess, ExpertStore, PreadBackend};

use crate::fixture::{Fixture, K, LAYERS, chain, residents, validate};
use crate::recorder::Handle;

/// Reads one expert a wait, with two transit slots.
fn store(fixture: &Fixture, slots: usize) -> ExpertStore {
    recorded(fixture, slots, &Handle::default())
}

fn recorded(fixture: &Fixture, slots: usize, handle: &Handle) -> ExpertStore {
    fixture
        .transit_store(slots, 2, PolicyKind::Lru, |files| handle.backend(files))
        .unwrap()
}

fn failing(fixture: &Fixture, plan: FaultPlan) -> ExpertStore {
    fixture
        .transit_store(6, 2, PolicyKind::Lru, |files| {
            let pread = PreadBackend::new(files.clone());
            Box::new(FaultBackend::new(pread, files, plan))
        })
        .unwrap()
}

#[test]
fn hits_can_be_used_at_once_and_misses_one_by_one_as_they_come() {
    let fixture = Fixture::new();
    let mut store = store(&fixture, 6);
    for (layer, _) in LAYERS.iter().enumerate() {
        drop(store.acquire(0, layer, &[0, 1]).unwrap());
        let picks = [6, 0, 5, 1];
        let access = ExpertAccess::new(1, layer, &picks);
        let mut lease = store.begin_acquire(&access).unwrap();
        let here = |lease: &thalweg_store::Lease<'_>| [0, 1, 2, 3].map(|i| lease.is_here(i));
        assert_eq!(here(&lease), [false, true, false, true]);
        assert_eq!(fixture.check_open(&lease, layer, &picks), 2);
        lease.wait().unwrap();
        // In the order of the file, not of the request.
        assert_eq!(here(&lease), [false, true, true, true]);
        assert_eq!(fixture.check_open(&lease, layer, &picks), 3);
        lease.wait().unwrap();
        assert_eq!(fixture.check_open(&lease, layer, &picks), 4);
        // Nothing is left to wait for.
        lease.wait().unwrap();
        assert!(!lease.is_here(4));
        lease.finish().unwrap();
        lease.finish().unwrap();
        fixture.check(&lease, layer, &picks);
        drop(lease);
        assert_eq!(residents(&store, layer), [0, 1, 5, 6]);
        validate(&store);
    }
    let stats = store.stats();
    assert_eq!((stats.hits, stats.misses, stats.failures), (8, 16, 0));
}

#[test]
fn an_open_lease_of_hits_alone_is_complete_and_reads_nothing() {
    let fixture = Fixture::new();
    let handle = Handle::default();
    let mut store = recorded(&fixture, 4, &handle);
    drop(store.acquire(0, 0, &[1, 2]).unwrap());
    let mut lease = store
        .begin_acquire(&ExpertAccess::new(1, 0, &[2, 1]))
        .unwrap();
    assert_eq!(fixture.check_open(&lease, 0, &[2, 1]), 2);
    lease.finish().unwrap();
    drop(lease);
    assert_eq!((handle.n_taken(), store.stats().hits), (2, 2));
}

#[test]
fn a_lease_dropped_before_its_end_leaves_no_miss_resident_and_no_pin() {
    let fixture = Fixture::new();
    for n_waits in 0..=3 {
        for forget in [false, true] {
            let mut store = store(&fixture, 4);
            drop(store.acquire(0, 1, &[0, 1, 2]).unwrap());
            let picks = [7, 1, 8, 9];
            let mut lease = store
                .begin_acquire(&ExpertAccess::new(1, 1, &picks))
                .unwrap();
            for n in 0..n_waits {
                lease.wait().unwrap();
                assert_eq!(fixture.check_open(&lease, 1, &picks), 2 + n);
            }
            match forget {
                true => std::mem::forget(lease),
                false => drop(lease),
            }
            store.validate().unwrap();
            store.settle().unwrap();
            // The hit stays; what made room for the misses is away.
            assert_eq!(residents(&store, 1), [1]);
            assert_eq!(store.residency(1).unwrap().n_pinned(), 0);
            validate(&store);
            let stats = store.stats();
            assert_eq!((stats.hits, stats.misses, stats.failures), (0, 3, 0));
            // Reads that had not begun were given up.
            assert_eq!(stats.bytes_read, (3 + n_waits as u64) * 8500);
            fixture.check(&store.acquire(2, 1, &picks).unwrap(), 1, &picks);
        }
    }
}

#[test]
fn a_forgotten_open_lease_ends_with_the_next_call_whatever_it_is() {
    let fixture = Fixture::new();
    let calls: [&dyn Fn(&mut ExpertStore); 5] = [
        &|store| drop(store.acquire(1, 2, &[5]).unwrap()),
        &|store| drop(store.acquire(1, 9, &[5]).map(|_| ()).unwrap_err()),
        &|store| drop(store.stream(2, &[1]).unwrap()),
        &|store| store.settle().unwrap(),
        &|store| {
            let go_on = |_, _| std::ops::ControlFlow::Continue(());
            store.warm_fill(&[], go_on).unwrap();
        },
    ];
    for call in calls {
        let mut store = store(&fixture, 4);
        store.read_ahead(0, &[4]);
        let picks = [4, 5, 6];
        let mut lease = store
            .begin_acquire(&ExpertAccess::new(0, 0, &picks))
            .unwrap();
        lease.wait().unwrap();
        std::mem::forget(lease);
        // Guesses may be started meanwhile.
        assert_eq!(store.read_ahead(3, &[1]), 1);
        store.validate().unwrap();
        call(&mut store);
        assert_eq!(residents(&store, 0), [0_u16; 0]);
        assert_eq!(store.residency(0).unwrap().n_pinned(), 0);
        validate(&store);
        fixture.check(&store.acquire(2, 0, &picks).unwrap(), 0, &picks);
    }
}

#[test]
fn a_failed_read_is_told_by_wait_and_by_finish_alike() {
    let fixture = Fixture::new();
    for by_wait in [true, false] {
        let plan = FaultPlan::new().with_fault(1, Fault::Fail(ErrorKind::TimedOut));
        let mut store = failing(&fixture, plan);
        let picks = [2, 9, 4];
        let mut lease = store
            .begin_acquire(&ExpertAccess::new(0, 0, &picks))
            .unwrap();
        let error = match by_wait {
            true => loop {
                // What is here can be used until then.
                fixture.check_open(&lease, 0, &picks);
                if let Err(error) = lease.wait() {
                    break error;
                }
            },
            false => lease.finish().unwrap_err(),
        };
        let (offset, path) = (77 + 4 * 300, fixture.paths[0].display());
        assert_eq!(
            chain(&error),
            format!(
                "cannot load expert 4 of layer 0: reading 300 bytes at {offset} of {path} failed: \
                 timed out"
            )
        );
        // Over: empty, and nothing more to be told.
        assert_eq!((lease.n(), lease.part(0, 0).len()), (0, 0));
        lease.wait().unwrap();
        lease.finish().unwrap();
        drop(lease);
        assert_eq!(store.stats().failures, 1);
        assert_eq!(residents(&store, 0), [0_u16; 0]);
        validate(&store);
        fixture.check(&store.acquire(1, 0, &picks).unwrap(), 0, &picks);
    }
}

#[test]
fn a_lost_operation_is_told_by_wait_and_by_finish_alike() {
    let fixture = Fixture::new();
    for by_wait in [true, false] {
        let handle = Handle::default();
        handle.record().swallow = 1;
        let mut store = recorded(&fixture, 4, &handle);
        let mut lease = store
            .begin_acquire(&ExpertAccess::new(0, 0, &[1, 2]))
            .unwrap();
        let error = match by_wait {
            true => {
                lease.wait().unwrap();
                lease.wait().unwrap_err()
            }
            false => lease.finish().unwrap_err(),
        };
        let lost = matches!(error, Error::OperationsLost { n_lost: 1 });
        assert!(lost, "{error}");
        drop(lease);
        assert_eq!(store.stats().failures, 1);
        // Other layers go on.
        fixture.check(&store.acquire(1, 1, &[3]).unwrap(), 1, &[3]);
    }
}

#[test]
fn another_buffer_than_went_in_is_an_error_not_a_panic() {
    let fixture = Fixture::new();
    let handle = Handle::default();
    let mut store = recorded(&fixture, 4, &handle);
    handle.record().exchange = 1;
    let error = store.acquire(0, 0, &[1, 2]).unwrap_err();
    let Error::Expert {
        expert: 1, source, ..
    } = &error
    else {
        panic!("{error}");
    };
    assert!(matches!(**source, Error::SlotLost { .. }), "{source}");
    let broken = store.validate().unwrap_err();
    assert!(
        matches!(broken, Error::Broken { invariant: 3, .. }),
        "{broken}"
    );
    assert!(residents(&store, 0).is_empty());
    fixture.check(&store.acquire(1, 1, &[3]).unwrap(), 1, &[3]);
}

#[test]
fn a_file_changed_while_the_lease_was_open_is_found_by_finish() {
    let fixture = Fixture::new();
    let mut store = store(&fixture, 4);
    let mut lease = store
        .begin_acquire(&ExpertAccess::new(0, 0, &[1, 2]))
        .unwrap();
    lease.wait().unwrap();
    lease.wait().unwrap();
    assert!(lease.is_complete());
    let mut longer = fixture.bytes[1].clone();
    longer.push(0);
    fs::write(&fixture.paths[1], longer).unwrap();
    let error = lease.finish().unwrap_err();
    assert!(matches!(error, Error::FileChanged { .. }), "{error}");
    assert_eq!(lease.n(), 0);
    drop(lease);
    assert!(residents(&store, 0).is_empty());
    store.validate().unwrap();
}

#[test]
fn a_part_is_not_seen_before_its_check() {
    let fixture = Fixture::new();
    let mut store = store(&fixture, 6);
    store.set_check(Box::new(|_, expert, part, _| match (expert, part) {
        (5, 2) => Err("not a number".into()),
        _ => Ok(()),
    }));
    let picks = [9, 5, 3];
    let mut lease = store
        .begin_acquire(&ExpertAccess::new(0, 3, &picks))
        .unwrap();
    lease.wait().unwrap();
    assert_eq!(fixture.check_open(&lease, 3, &picks), 1);
    assert!(lease.is_here(2));
    let error = lease.wait().unwrap_err();
    assert!(matches!(error, Error::Expert { expert: 5, .. }), "{error}");
    drop(lease);
    validate(&store);
    assert!(residents(&store, 3).is_empty());
}

#[test]
fn a_batch_that_cannot_be_opened_is_counted_and_changes_nothing() {
    let fixture = Fixture::new();
    let mut store = store(&fixture, K);
    drop(store.acquire(0, 0, &[0, 1]).unwrap());
    store.read_ahead(0, &[7]);
    for picks in [&[1, 1][..], &[12], &[2, 3, 4, 5]] {
        assert!(
            store
                .begin_acquire(&ExpertAccess::new(1, 0, picks))
                .is_err()
        );
        assert_eq!(residents(&store, 0), [0, 1]);
        validate(&store);
    }
    assert_eq!(store.stats().failures, 3);
    // Not even the guess is forgotten.
    drop(store.acquire(2, 0, &[7]).unwrap());
    assert_eq!(store.stats().guessed_hits, 1);
}
