//! Warm fill: experts loaded before anybody asks for them.

use std::fs;
use std::io::ErrorKind;
use std::ops::ControlFlow;

use thalweg_cache::{
    Access, ExpertKey, Key, PolicyConfig, PolicyKind, Residency, SplitMix64, fill, serve,
};
use thalweg_store::io::fault::{Fault, FaultBackend, FaultPlan};
use thalweg_store::{
    Error, ExpertLayout, ExpertPartLayout, ExpertStore, ExpertStoreConfig, PreadBackend, WarmFill,
};

use crate::experts::online_policies;
use crate::fixture::{EXPERT_BYTES, Fixture, K, LAYERS, chain, residents, validate};
use crate::recorder::Handle;

fn store(fixture: &Fixture, slots: usize, handle: &Handle) -> ExpertStore {
    fixture
        .transit_store(slots, 2, PolicyKind::Lru, |files| handle.backend(files))
        .unwrap()
}

fn failing(fixture: &Fixture, plan: FaultPlan) -> ExpertStore {
    fixture
        .store_with(5, PolicyKind::Lru, |files| {
            let pread = PreadBackend::new(files.clone());
            Box::new(FaultBackend::new(pread, files, plan))
        })
        .unwrap()
}

fn fill_all(store: &mut ExpertStore, ranking: &[ExpertKey]) -> Result<WarmFill, Error> {
    store.warm_fill(ranking, |_, _| ControlFlow::Continue(()))
}

/// Experts of all layers, mixed.
fn ranking(seed: u64) -> Vec<ExpertKey> {
    let mut rng = SplitMix64::new(seed);
    let mut all = Vec::new();
    for (layer, (n_expert, _)) in (0..).zip(&LAYERS) {
        all.extend((0..*n_expert as u16).map(|e| ExpertKey::new(layer, e)));
    }
    for i in (1..all.len()).rev() {
        all.swap(i, rng.below(i as u64 + 1) as usize);
    }
    all
}

#[test]
fn a_fill_leaves_tables_and_policies_as_the_cache_s_own_does() {
    let fixture = Fixture::new();
    for policy in online_policies() {
        for seed in 0..4 {
            let slots = 4 + seed as usize;
            let mut store = fixture
                .store_with(slots, policy, |files| Box::new(PreadBackend::new(files)))
                .unwrap();
            let (n_keys, n_slots) = (LAYERS[0].0 as u32, slots as u32);
            let config = PolicyConfig::new(n_keys, n_slots, K as u32);
            let mut alone = policy.build(&config).unwrap();
            let mut table = Residency::new(n_keys, n_slots).unwrap();
            let load = |_, _| Ok::<(), Error>(());
            // Something is there already.
            let keys = [3, 8].map(Key::new);
            serve(&mut table, &mut *alone, &Access::new(0, &keys), load).unwrap();
            drop(store.acquire(0, 0, &[3, 8]).unwrap());

            let ranking = ranking(seed);
            let done = fill_all(&mut store, &ranking).unwrap();
            let of_layer = ranking.iter().filter(|e| e.layer == 0);
            let absent = of_layer.filter(|e| ![3, 8].contains(&e.expert));
            let hottest: Vec<Key> = absent
                .take(slots - 2)
                .map(|e| Key::new(u32::from(e.expert)))
                .collect();
            let coldest_first = hottest.into_iter().rev();
            let n = fill(&mut table, &mut *alone, coldest_first, load).unwrap();
            assert_eq!(n as usize, slots - 2);
            assert_eq!(done.experts, 4 * slots - 2, "{policy}");
            validate(&store);

            // The tables agree now, and the policies in all that follows.
            let mut rng = SplitMix64::new(seed + 100);
            for clock in 1..60 {
                for expert in 0..12_u16 {
                    let (key, here) = (Key::new(u32::from(expert)), store.residency(0).unwrap());
                    assert_eq!(here.slot(key), table.slot(key), "{policy}, step {clock}");
                }
                let first = rng.below(12) as u16;
                let picks = [first, (first + 1 + rng.below(11) as u16) % 12];
                let keys = picks.map(|e| Key::new(u32::from(e)));
                serve(&mut table, &mut *alone, &Access::new(clock, &keys), load).unwrap();
                drop(store.acquire(clock, 0, &picks).unwrap());
            }
        }
    }
}

#[test]
fn a_fill_reads_in_file_order_and_counts_what_it_reads() {
    let fixture = Fixture::new();
    let handle = Handle::default();
    let mut store = store(&fixture, 6, &handle);
    let mut told = Vec::new();
    let done = store
        .warm_fill(&ranking(2), |n, of| {
            told.push((n, of));
            ControlFlow::Continue(())
        })
        .unwrap();
    let places = handle.places();
    assert!(places.is_sorted(), "{places:?}");
    // One by one, since this backend reads one at a time.
    assert_eq!(told, (1..=24).map(|n| (n, 24)).collect::<Vec<_>>());
    assert_eq!((done.experts, places.len()), (24, 24));
    let bytes: u64 = EXPERT_BYTES.iter().map(|bytes| 6 * bytes).sum();
    assert_eq!(done.bytes, bytes);
    let stats = store.stats();
    // Layer 0: two segments in one file, one in the other; as many in the others, less in layer 2.
    assert_eq!(
        (stats.bytes_read, stats.reads),
        (bytes, 6 * (3 + 3 + 2 + 3))
    );
    assert_eq!((stats.hits, stats.misses, stats.evictions), (0, 0, 0));
    validate(&store);
    for (layer, _) in LAYERS.iter().enumerate() {
        let here = residents(&store, layer);
        let (first, rest) = here.split_at(3);
        for picks in [first, rest] {
            fixture.check(&store.acquire(0, layer, picks).unwrap(), layer, picks);
        }
    }
    assert_eq!((store.stats().hits, store.stats().misses), (24, 0));
}

#[test]
fn what_does_not_fit_or_exist_or_is_there_is_passed_over() {
    let fixture = Fixture::new();
    let handle = Handle::default();
    let mut store = store(&fixture, 4, &handle);
    drop(store.acquire(0, 0, &[1, 2]).unwrap());
    drop(store.acquire(0, 1, &[0, 1, 2, 3]).unwrap());
    let ranking = [
        (0, 2),
        (4, 0),
        (u16::MAX, 1),
        (0, 7),
        (0, 12),
        (0, u16::MAX),
        (0, 7),
        (1, 9),
        (2, 8),
        (0, 7),
        (0, 1),
        (0, 5),
        (0, 6),
    ];
    let ranking = ranking.map(|(layer, expert)| ExpertKey::new(layer, expert));
    let mut totals = Vec::new();
    let done = store
        .warm_fill(&ranking, |_, of| {
            totals.push(of);
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!((done.experts, done.bytes), (3, 2 * 800 + 5001));
    assert_eq!(totals, [3; 3]);
    assert_eq!(residents(&store, 0), [1, 2, 5, 7]);
    assert_eq!(residents(&store, 1), [0, 1, 2, 3]);
    assert_eq!(residents(&store, 2), [8]);
    validate(&store);
    // All slots are taken where the ranking has more: nothing to do, nothing to tell.
    let never = |_, _| unreachable!("nothing was loaded");
    let done = store.warm_fill(&ranking, never).unwrap();
    assert_eq!((done.experts, done.bytes), (0, 0));
    assert_eq!(store.stats().evictions, 0);
    // What was filled is replaced like anything else; 7 is hotter than 5, but both are cold.
    drop(store.acquire(1, 0, &[1, 2]).unwrap());
    drop(store.acquire(2, 0, &[9]).unwrap());
    assert_eq!(residents(&store, 0), [1, 2, 7, 9]);
}

#[test]
fn a_fill_can_be_ended_between_reads_and_keeps_what_it_has() {
    let fixture = Fixture::new();
    for stop_after in 1..=5 {
        let handle = Handle::default();
        let mut store = store(&fixture, 6, &handle);
        let mut n_calls = 0;
        let done = store
            .warm_fill(&ranking(3), |n, _| {
                n_calls += 1;
                match n >= stop_after {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            })
            .unwrap();
        assert_eq!((done.experts, n_calls), (stop_after, stop_after));
        let n_resident: usize = (0..4).map(|l| residents(&store, l).len()).sum();
        assert_eq!(n_resident, stop_after);
        // The others were given up, each once.
        assert_eq!(handle.record().cancelled.len(), 24 - stop_after);
        validate(&store);
        let rest = fill_all(&mut store, &ranking(3)).unwrap();
        assert_eq!(rest.experts, 24 - stop_after);
        validate(&store);
    }
}

#[test]
fn a_failed_read_ends_the_fill_and_names_expert_and_file() {
    let fixture = Fixture::new();
    let plan = FaultPlan::new().with_fault(7, Fault::Fail(ErrorKind::PermissionDenied));
    let mut store = failing(&fixture, plan);
    let ranking: Vec<_> = [4, 3, 2, 1, 0]
        .into_iter()
        .flat_map(|e| [1, 0].map(|layer| ExpertKey::new(layer, e)))
        .collect();
    let error = fill_all(&mut store, &ranking).unwrap_err();
    // The eighth read of the file is that of layer 1's expert 2.
    let offset = 77 + 2 * 12 * 300 + 2 * 3000;
    let path = fixture.paths[0].display();
    assert_eq!(
        chain(&error),
        format!(
            "cannot load expert 2 of layer 1: reading 3000 bytes at {offset} of {path} failed: \
             permission denied"
        )
    );
    validate(&store);
    assert_eq!(store.residency(1).unwrap().n_pinned(), 0);
    // Known at once, before the reads that had been handed over: those were given up.
    assert!(!store.is_resident(1, 2) && !store.is_resident(1, 3));
    let stats = store.stats();
    let n_resident: usize = (0..2).map(|l| residents(&store, l).len()).sum();
    // A failed operation counts its reads and no bytes.
    assert_eq!(stats.reads, 3 * (n_resident as u64 + 1));
    let done = fill_all(&mut store, &ranking).unwrap();
    assert_eq!(done.experts + n_resident, 10);
    validate(&store);
    // The store is as good as before.
    fixture.check(&store.acquire(0, 1, &[3, 2]).unwrap(), 1, &[3, 2]);
    assert_eq!(store.stats().hits, 2);
}

#[test]
fn what_the_check_refuses_is_not_kept() {
    let fixture = Fixture::new();
    let mut store = store(&fixture, 6, &Handle::default());
    store.set_check(Box::new(|layer, expert, _, _| match (layer, expert) {
        (1, 3) => Err("not a number".into()),
        _ => Ok(()),
    }));
    let ranking: Vec<_> = (0..6).map(|e| ExpertKey::new(1, e)).collect();
    let error = fill_all(&mut store, &ranking).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Expert {
                layer: 1,
                expert: 3,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(residents(&store, 1), [0, 1, 2]);
    validate(&store);
}

#[test]
fn after_a_change_of_a_file_nothing_of_the_fill_is_resident() {
    let fixture = Fixture::new();
    let mut store = store(&fixture, 6, &Handle::default());
    drop(store.acquire(0, 0, &[1]).unwrap());
    let ranking = ranking(5);
    let error = store
        .warm_fill(&ranking, |n, _| {
            if n == 3 {
                let mut longer = fixture.bytes[1].clone();
                longer.push(0);
                fs::write(&fixture.paths[1], longer).unwrap();
            }
            ControlFlow::Continue(())
        })
        .unwrap_err();
    assert!(matches!(error, Error::FileChanged { .. }), "{error}");
    for layer in 0..4 {
        let expected = if layer == 0 { &[1_u16][..] } else { &[] };
        assert_eq!(residents(&store, layer), expected);
    }
    store.validate().unwrap();
}

#[test]
fn a_fill_gives_up_guesses_and_forgotten_leases_first() {
    let fixture = Fixture::new();
    for handle in [Handle::default(), Handle::eager()] {
        let mut store = store(&fixture, 4, &handle);
        std::mem::forget(store.acquire(0, 0, &[0, 1]).unwrap());
        assert_eq!(store.read_ahead(0, &[7, 8]), 2);
        let ranking = [7, 8, 9].map(|e| ExpertKey::new(0, e));
        assert_eq!(fill_all(&mut store, &ranking).unwrap().experts, 2);
        assert_eq!(residents(&store, 0), [0, 1, 7, 8]);
        assert_eq!(store.residency(0).unwrap().n_pinned(), 0);
        assert_eq!(store.read_ahead(1, &[7, 8, 9]), 2);
        validate(&store);
    }
}

#[test]
fn a_backend_that_loses_an_operation_fails_the_fill() {
    let fixture = Fixture::new();
    for exchange in [false, true] {
        let handle = Handle::default();
        match exchange {
            true => handle.record().exchange = 1,
            false => handle.record().swallow = 1,
        }
        let mut store = store(&fixture, 6, &handle);
        let ranking: Vec<_> = (0..6).map(|e| ExpertKey::new(0, e)).collect();
        let error = fill_all(&mut store, &ranking).unwrap_err();
        match exchange {
            true => assert!(matches!(error, Error::Expert { expert: 0, .. }), "{error}"),
            false => assert!(
                matches!(error, Error::OperationsLost { n_lost: 1 }),
                "{error}"
            ),
        }
        store.validate().unwrap_err();
        assert!(!store.is_resident(0, 0));
        // A slot without a buffer is told of, not filled; the reads before it are given up.
        let error = fill_all(&mut store, &ranking).unwrap_err();
        assert!(matches!(error, Error::SlotLost { .. }), "{error}");
        fixture.check(&store.acquire(0, 1, &[3]).unwrap(), 1, &[3]);
    }
}

/// Many small experts: three layers with `n` each, a byte a part.
fn many(fixture: &Fixture, n: usize, handle: &Handle) -> ExpertStore {
    let mut layout = ExpertLayout::new();
    for layer in 0..3 {
        let part = ExpertPartLayout {
            file: 0,
            offset_bytes: layer * 2 * n as u64,
            stride_bytes: 2,
            len_bytes: 1,
        };
        layout.push_layer(n, &[part]).unwrap();
    }
    let files = fixture.files();
    let config = ExpertStoreConfig::uniform(3, n, 2);
    ExpertStore::new(files.clone(), handle.backend(files), layout, config).unwrap()
}

#[test]
fn a_fill_of_many_experts_hands_them_over_bit_by_bit() {
    let fixture = Fixture::new();
    let handle = Handle::default();
    let n = 300;
    let mut store = many(&fixture, n, &handle);
    let ranking: Vec<_> = (0..n as u16)
        .rev()
        .flat_map(|e| [2, 0, 1].map(|layer| ExpertKey::new(layer, e)))
        .collect();
    let done = fill_all(&mut store, &ranking).unwrap();
    assert_eq!((done.experts, done.bytes), (3 * n, 3 * n as u64));
    let places = handle.places();
    let most = handle.record().most;
    // Enough for any backend, and far from all.
    assert!((257..800).contains(&most), "{most}");
    assert!(places.len() == 3 * n && places.is_sorted());
    validate(&store);
}
