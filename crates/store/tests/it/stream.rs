//! Streams: experts that pass through without becoming resident.

use std::fs;
use std::io::ErrorKind;
use std::num::NonZeroUsize;

use thalweg_cache::{PolicyKind, SplitMix64};
use thalweg_store::io::fault::{Fault, FaultBackend, FaultPlan};
use thalweg_store::io::{PoolBackend, ReaderKind};
use thalweg_store::{Error, ExpertStore, FileSet, PreadBackend, ReadBackend};

use crate::experts::online_policies;
use crate::fixture::{EXPERT_BYTES, Fixture, LAYERS, chain, residents, validate};
use crate::recorder::Handle;

fn store(fixture: &Fixture, transit: usize, handle: &Handle) -> ExpertStore {
    fixture
        .transit_store(4, transit, PolicyKind::Lru, |files| handle.backend(files))
        .unwrap()
}

fn failing(fixture: &Fixture, transit: usize, plan: FaultPlan) -> ExpertStore {
    fixture
        .transit_store(4, transit, PolicyKind::Lru, |files| {
            let pread = PreadBackend::new(files.clone());
            Box::new(FaultBackend::new(pread, files, plan))
        })
        .unwrap()
}

/// Every backend there is here, and one whose reads come back in any order.
pub(crate) fn backend(which: usize, files: FileSet) -> Box<dyn ReadBackend> {
    let three = NonZeroUsize::new(3).expect("not zero");
    match which {
        0 => Box::new(PreadBackend::new(files)),
        1 => Box::new(PoolBackend::new(files, three).unwrap()),
        2 => match thalweg_store::io::open(ReaderKind::Uring, files.clone(), three) {
            Err(Error::RingUnsupported { .. }) => Box::new(PreadBackend::new(files)),
            ring => ring.unwrap(),
        },
        _ => {
            let pread = PreadBackend::new(files.clone());
            let plan = FaultPlan::new().with_reordering(5);
            Box::new(FaultBackend::new(pread, files, plan))
        }
    }
}

#[test]
fn every_expert_is_handed_out_once_whatever_reads_and_however_few_slots_there_are() {
    let fixture = Fixture::new();
    let mut rng = SplitMix64::new(9);
    for which in 0..4 {
        for transit in 1..=5 {
            let mut store = fixture
                .transit_store(4, transit, PolicyKind::Lru, |files| backend(which, files))
                .unwrap();
            for (layer, (n_expert, _)) in LAYERS.iter().enumerate() {
                drop(store.acquire(0, layer, &[4, 1]).unwrap());
                let before = store.stats();
                let mut list: Vec<u16> = (0..*n_expert as u16).collect();
                for i in (1..list.len()).rev() {
                    list.swap(i, rng.below(i as u64 + 1) as usize);
                }
                let mut stream = store.stream(layer, &list).unwrap();
                assert_eq!(stream.n(), 0);
                let mut seen = fixture.drain(&mut stream, layer);
                // Residents come first, in the order of the list.
                let mut first = [4, 1];
                first.sort_by_key(|e| list.iter().position(|l| l == e));
                assert_eq!(seen[..2], first);
                assert!(!stream.next_batch().unwrap());
                drop(stream);
                seen.sort_unstable();
                assert_eq!(seen, (0..*n_expert as u16).collect::<Vec<_>>());
                assert_eq!(residents(&store, layer), [1, 4]);
                let stats = store.stats();
                let n_read = *n_expert as u64 - 2;
                assert_eq!(stats.hits - before.hits, 2);
                assert_eq!(stats.misses - before.misses, n_read);
                let n_bytes = stats.bytes_read - before.bytes_read;
                assert_eq!(n_bytes, n_read * EXPERT_BYTES[layer]);
                assert_eq!(
                    store.layer_stats(layer).unwrap().misses,
                    2 + n_read,
                    "layer {layer}"
                );
                validate(&store);
            }
            assert_eq!(store.stats().wasted_bytes, 0);
        }
    }
}

#[test]
fn what_is_not_resident_is_read_in_file_order() {
    let fixture = Fixture::new();
    let handle = Handle::default();
    let mut store = store(&fixture, 3, &handle);
    drop(store.acquire(0, 1, &[5]).unwrap());
    let list = [9, 2, 5, 11, 0, 7];
    let seen = fixture.drain(&mut store.stream(1, &list).unwrap(), 1);
    assert_eq!(seen, [5, 0, 2, 7, 9, 11]);
    let places = handle.places();
    assert_eq!(places.len(), 6);
    assert!(places[1..].is_sorted(), "{places:?}");
}

#[test]
fn half_of_the_slots_load_while_a_batch_is_used() {
    let fixture = Fixture::new();
    let handle = Handle::eager();
    let mut store = store(&fixture, 5, &handle);
    let list: Vec<u16> = (0..12).collect();
    let mut stream = store.stream(0, &list).unwrap();
    // Reads begin before anybody asks for a batch.
    assert_eq!(handle.n_taken(), 5);
    let mut sizes = Vec::new();
    let mut taken = Vec::new();
    while stream.next_batch().unwrap() {
        sizes.push(stream.n());
        taken.push(handle.n_taken());
        // What is used is not read over: looked at again at the end of its turn.
        fixture.check_batch(&stream, 0);
    }
    // At most half; what comes in while a batch is handed out belongs to the next.
    assert_eq!(sizes, [3, 2, 3, 2, 2]);
    // The slots of a batch are read into when the next one is asked for.
    assert_eq!(taken, [5, 8, 10, 12, 12]);
}

#[test]
fn a_stream_changes_neither_residency_nor_what_policies_know() {
    let fixture = Fixture::new();
    for policy in online_policies() {
        let new = |transit| {
            fixture
                .transit_store(4, transit, policy, |files| {
                    Box::new(PreadBackend::new(files))
                })
                .unwrap()
        };
        let (mut streaming, mut alone) = (new(2), new(0));
        let mut rng = SplitMix64::new(4);
        for clock in 0..60 {
            let first = rng.below(12) as u16;
            let picks = [first, (first + 5) % 12];
            for store in [&mut streaming, &mut alone] {
                drop(store.acquire(clock, 0, &picks).unwrap());
            }
            if clock % 3 == 0 {
                let list: Vec<u16> = (0..12).collect();
                let mut stream = streaming.stream(0, &list).unwrap();
                match clock % 2 {
                    0 => drop(fixture.drain(&mut stream, 0)),
                    _ => drop(stream.next_batch().unwrap()),
                }
            }
            assert_eq!(residents(&streaming, 0), residents(&alone, 0), "{policy}");
        }
    }
}

#[test]
fn a_stream_that_is_left_early_or_forgotten_leaves_no_pin_and_no_slot_in_use() {
    let fixture = Fixture::new();
    for handle in [Handle::default(), Handle::eager()] {
        for n_batches in 0..4 {
            for forget in [false, true] {
                let mut store = store(&fixture, 3, &handle);
                drop(store.acquire(0, 1, &[3, 7]).unwrap());
                let list: Vec<u16> = (0..12).collect();
                let mut stream = store.stream(1, &list).unwrap();
                let mut n_seen = 0;
                for _ in 0..n_batches {
                    assert!(stream.next_batch().unwrap());
                    n_seen += fixture.check_batch(&stream, 1).len() as u64;
                }
                match forget {
                    true => {
                        std::mem::forget(stream);
                        assert_eq!(store.residency(1).unwrap().n_pinned(), 2);
                        // Its slots are still taken, or will be.
                        store.read_ahead(0, &[1]);
                        store.validate().unwrap();
                    }
                    false => drop(stream),
                }
                validate(&store);
                store.settle().unwrap();
                validate(&store);
                assert_eq!(store.residency(1).unwrap().n_pinned(), 0);
                assert_eq!(residents(&store, 1), [3, 7]);
                let stats = store.stats();
                // The two of the acquire were missed.
                assert_eq!(stats.hits + stats.misses, 2 + n_seen);
                let n_used = stats.misses * EXPERT_BYTES[1];
                assert_eq!(stats.bytes_read, n_used + stats.wasted_bytes);
                assert_eq!(store.read_ahead(0, &[1, 2, 3, 4]), 3);
            }
        }
    }
}

#[test]
fn reads_that_have_not_begun_are_given_up_with_their_stream() {
    let fixture = Fixture::new();
    let handle = Handle::default();
    let mut store = store(&fixture, 3, &handle);
    let mut stream = store.stream(1, &[0, 1, 2, 3, 4]).unwrap();
    assert!(stream.next_batch().unwrap());
    drop(stream);
    assert_eq!(handle.record().cancelled, [1, 2]);
    store.settle().unwrap();
    assert_eq!(store.stats().bytes_read, EXPERT_BYTES[1]);
}

#[test]
fn a_stream_gives_up_guesses_that_are_not_on_its_list() {
    let fixture = Fixture::new();
    for handle in [Handle::default(), Handle::eager()] {
        let mut store = store(&fixture, 1, &handle);
        assert_eq!(store.read_ahead(0, &[3]), 1);
        let seen = fixture.drain(&mut store.stream(1, &[8, 6]).unwrap(), 1);
        assert_eq!(seen, [6, 8]);
        validate(&store);
        drop(store.acquire(0, 0, &[3]).unwrap());
        assert_eq!(store.stats().guessed_hits, 0);
    }
}

#[test]
fn a_stream_joins_guesses_on_its_list_and_reads_each_expert_once() {
    let fixture = Fixture::new();
    for handle in [Handle::default(), Handle::eager()] {
        let mut store = store(&fixture, 4, &handle);
        assert_eq!(store.read_ahead(1, &[6, 2, 9]), 3);
        let mut seen = fixture.drain(&mut store.stream(1, &[8, 6, 2]).unwrap(), 1);
        seen.sort_unstable();
        assert_eq!(seen, [2, 6, 8]);
        validate(&store);
        store.settle().unwrap();
        let stats = store.stats();
        assert_eq!((stats.guesses, stats.guessed_hits, stats.misses), (3, 2, 1));
        assert_eq!(store.layer_stats(1).unwrap().guessed_hits, 2);
        assert!(stats.late_guesses <= 2);
        // The guess at 9 was for nothing, whether it was read or given up.
        assert_eq!(stats.bytes_read, 3 * EXPERT_BYTES[1] + stats.wasted_bytes);
        assert!(stats.wasted_bytes <= EXPERT_BYTES[1]);
        assert_eq!(store.read_ahead(0, &[0, 1, 2, 3, 4]), 4);
    }
}

#[test]
fn without_transit_slots_only_residents_can_be_streamed() {
    let fixture = Fixture::new();
    let mut store = store(&fixture, 0, &Handle::default());
    drop(store.acquire(0, 2, &[3, 7]).unwrap());
    let seen = fixture.drain(&mut store.stream(2, &[7, 3]).unwrap(), 2);
    assert_eq!(seen, [7, 3]);
    assert!(!store.stream(2, &[]).unwrap().next_batch().unwrap());
    let error = store.stream(2, &[7, 1]).unwrap_err();
    assert!(matches!(error, Error::NoTransit { layer: 2 }), "{error}");
    assert_eq!(store.residency(2).unwrap().n_pinned(), 0);
    validate(&store);
}

#[test]
fn lists_that_make_no_sense_are_refused_before_anything_happens() {
    let fixture = Fixture::new();
    let handle = Handle::default();
    let mut store = store(&fixture, 2, &handle);
    drop(store.acquire(0, 2, &[3]).unwrap());
    let refused = |store: &mut ExpertStore, layer, list: &[u16]| {
        let error = store.stream(layer, list).unwrap_err();
        validate(store);
        error.to_string()
    };
    assert_eq!(refused(&mut store, 4, &[0]), "layer 4 of 4");
    assert_eq!(
        refused(&mut store, 2, &[3, 9]),
        "expert 9 of layer 2, which has 9"
    );
    assert_eq!(
        refused(&mut store, 2, &[3, 1, 3]),
        "expert 3 of layer 2 occurs twice in one batch"
    );
    assert_eq!(store.residency(2).unwrap().n_pinned(), 0);
    assert_eq!(handle.n_taken(), 1);
}

#[test]
fn a_failed_read_ends_the_stream_and_names_expert_and_file() {
    let fixture = Fixture::new();
    for transit in 1..=4 {
        let plan = FaultPlan::new().with_fault(3, Fault::Fail(ErrorKind::PermissionDenied));
        let mut store = failing(&fixture, transit, plan);
        drop(store.acquire(0, 0, &[5]).unwrap());
        let list = [0, 1, 5, 2, 6, 7];
        let mut stream = store.stream(0, &list).unwrap();
        let mut seen = Vec::new();
        let error = loop {
            match stream.next_batch() {
                Ok(more) => assert!(more),
                Err(error) => break error,
            }
            seen.extend(fixture.check_batch(&stream, 0));
        };
        let (offset, path) = (77 + 2 * 300, fixture.paths[0].display());
        assert_eq!(
            chain(&error),
            format!(
                "cannot load expert 2 of layer 0: reading 300 bytes at {offset} of {path} failed: \
                 permission denied"
            )
        );
        assert!(!seen.contains(&2), "{seen:?}");
        // Over.
        assert_eq!((stream.n(), stream.part(0, 0).len()), (0, 0));
        assert!(!stream.next_batch().unwrap());
        drop(stream);
        assert_eq!(store.stats().failures, 1);
        validate(&store);
        let mut seen = fixture.drain(&mut store.stream(0, &list).unwrap(), 0);
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 5, 6, 7]);
        validate(&store);
    }
}

#[test]
fn what_the_check_refuses_is_never_handed_out() {
    let fixture = Fixture::new();
    let mut store = store(&fixture, 2, &Handle::default());
    store.set_check(Box::new(|_, expert, part, _| match (expert, part) {
        (6, 1) => Err("not a number".into()),
        _ => Ok(()),
    }));
    let mut stream = store.stream(1, &[6, 3, 8]).unwrap();
    assert!(stream.next_batch().unwrap());
    assert_eq!(fixture.check_batch(&stream, 1), [3]);
    let error = stream.next_batch().unwrap_err();
    assert!(
        matches!(error, Error::Expert { expert: 6, ref source, .. }
            if matches!(**source, Error::Rejected { part: 1, .. })),
        "{error}"
    );
    drop(stream);
    validate(&store);
}

#[test]
fn a_file_changed_while_it_was_streamed_is_found_at_the_end() {
    let fixture = Fixture::new();
    let mut store = store(&fixture, 2, &Handle::default());
    drop(store.acquire(0, 0, &[2]).unwrap());
    let mut stream = store.stream(0, &[1, 2, 3]).unwrap();
    for expected in [2, 1, 3] {
        assert!(stream.next_batch().unwrap());
        assert_eq!(fixture.check_batch(&stream, 0), [expected]);
    }
    let mut longer = fixture.bytes[1].clone();
    longer.push(0);
    fs::write(&fixture.paths[1], longer).unwrap();
    let error = stream.next_batch().unwrap_err();
    assert!(matches!(error, Error::FileChanged { .. }), "{error}");
    drop(stream);
    store.validate().unwrap();
    // Residents alone are not read, and so not looked at.
    let seen = fixture.drain(&mut store.stream(0, &[2]).unwrap(), 0);
    assert_eq!(seen, [2]);
}

#[test]
fn a_stream_goes_on_in_the_slots_that_a_backend_has_not_lost() {
    let fixture = Fixture::new();
    let handle = Handle::default();
    let mut store = store(&fixture, 2, &handle);
    handle.record().swallow = 1;
    let mut stream = store.stream(0, &[1, 2]).unwrap();
    assert!(stream.next_batch().unwrap());
    assert_eq!(fixture.check_batch(&stream, 0), [2]);
    let error = stream.next_batch().unwrap_err();
    assert!(
        matches!(error, Error::OperationsLost { n_lost: 1 }),
        "{error}"
    );
    drop(stream);
    let seen = fixture.drain(&mut store.stream(0, &[4, 1, 2]).unwrap(), 0);
    assert_eq!(seen, [1, 2, 4]);
    // The last slot goes as well, by a buffer that is not the store's.
    handle.record().exchange = 1;
    let mut stream = store.stream(0, &[5]).unwrap();
    let error = stream.next_batch().unwrap_err();
    assert!(matches!(error, Error::Expert { expert: 5, .. }), "{error}");
    drop(stream);
    let error = store.stream(0, &[6]).unwrap().next_batch().unwrap_err();
    assert!(matches!(error, Error::SlotLost { .. }), "{error}");
    // Which is no reason not to serve.
    fixture.check(&store.acquire(0, 0, &[6]).unwrap(), 0, &[6]);
}
