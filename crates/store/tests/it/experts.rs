//! Acquiring experts from healthy files.

use std::sync::{Arc, Mutex};

use thalweg_cache::PolicyKind;
use thalweg_store::{
    Error, ExpertAccess, ExpertLayout, ExpertPartLayout, ExpertStore, ExpertStoreConfig,
    PreadBackend,
};

use crate::fixture::{Fixture, K, LAYERS, chain};

#[test]
fn leased_parts_equal_the_files_bytes_in_every_layer() {
    let fixture = Fixture::new();
    let mut store = fixture.store(5);
    for (layer, (n_expert, _)) in LAYERS.iter().enumerate() {
        for first in 0..*n_expert as u16 - 2 {
            let picks = [first + 2, first, first + 1];
            let lease = store.acquire(0, layer, &picks).unwrap();
            fixture.check(&lease, layer, &picks);
        }
    }
    store.validate().unwrap();
    store.validate_contents().unwrap();
}

#[test]
fn exactly_k_slots_work_and_fewer_are_refused_with_the_figures() {
    let fixture = Fixture::new();
    let mut store = fixture.store(K);
    for picks in [[0, 1, 2], [3, 4, 5], [5, 1, 3], [8, 7, 6]] {
        let lease = store.acquire(0, 2, &picks).unwrap();
        fixture.check(&lease, 2, &picks);
    }
    let error = fixture.try_store(K - 1).unwrap_err();
    assert!(matches!(
        error,
        Error::SlotsBelowBatch {
            layer: 0,
            slots: 2,
            batch: 3
        }
    ));
    assert_eq!(
        error.to_string(),
        "layer 0 has 2 slots, but 3 experts must be resident together"
    );
}

#[test]
fn slots_for_every_expert_never_evict() {
    let fixture = Fixture::new();
    let mut store = fixture.store(12);
    for round in 0..3 {
        for (layer, (n_expert, _)) in LAYERS.iter().enumerate() {
            for expert in 0..*n_expert as u16 {
                let lease = store.acquire(round, layer, &[expert]).unwrap();
                assert_eq!(lease.was_miss(0), round == 0);
                fixture.check(&lease, layer, &[expert]);
            }
        }
    }
    let stats = store.stats();
    assert_eq!((stats.misses, stats.hits, stats.evictions), (45, 90, 0));
}

#[test]
fn a_repeated_id_is_refused_before_anything_happens() {
    let fixture = Fixture::new();
    let mut store = fixture.store(4);
    let error = store.acquire(0, 1, &[3, 3, 7]).unwrap_err();
    assert!(matches!(
        error,
        Error::DuplicateExpert {
            layer: 1,
            expert: 3
        }
    ));
    assert_eq!((store.stats().reads, store.stats().failures), (0, 1));
    assert!(!store.is_resident(1, 3));
    store.validate().unwrap();
    let lease = store.acquire(0, 1, &[3, 7]).unwrap();
    fixture.check(&lease, 1, &[3, 7]);
}

#[test]
fn ids_layers_and_batches_out_of_range_are_refused() {
    let fixture = Fixture::new();
    let mut store = fixture.store(4);
    let refused = |store: &mut ExpertStore, layer, picks: &[u16]| {
        let error = store.acquire(0, layer, picks).unwrap_err();
        store.validate().unwrap();
        error.to_string()
    };
    assert_eq!(refused(&mut store, 4, &[0]), "layer 4 of 4");
    assert_eq!(
        refused(&mut store, usize::MAX, &[0]),
        format!("layer {} of 4", usize::MAX)
    );
    assert_eq!(
        refused(&mut store, 2, &[8, 9]),
        "expert 9 of layer 2, which has 9"
    );
    assert_eq!(
        refused(&mut store, 2, &[u16::MAX]),
        "expert 65535 of layer 2, which has 9"
    );
    assert_eq!(
        refused(&mut store, 0, &[0, 1, 2, 3, 4]),
        "5 experts of layer 0 do not fit in its 4 slots at once"
    );
    assert_eq!(store.stats().reads, 0);
}

#[test]
fn an_empty_batch_is_an_empty_lease() {
    let fixture = Fixture::new();
    let mut store = fixture.store(4);
    let lease = store.acquire(0, 0, &[]).unwrap();
    assert_eq!(
        (lease.n(), lease.part(0, 0), lease.key(0), lease.was_miss(0)),
        (0, &[][..], None, false)
    );
}

#[test]
fn places_beyond_a_lease_are_empty() {
    let fixture = Fixture::new();
    let mut store = fixture.store(4);
    let lease = store.acquire(0, 2, &[4]).unwrap();
    assert!(!lease.part(0, 1).is_empty());
    assert!(lease.part(0, 2).is_empty() && lease.part(1, 0).is_empty());
    assert_eq!(lease.parts(1).map(<[u8]>::len).collect::<Vec<_>>(), [0, 0]);
}

#[test]
fn the_heaviest_expert_is_the_most_recent() {
    let fixture = Fixture::new();
    let mut store = fixture.store(4);
    drop(store.acquire(0, 0, &[1, 2, 3]).unwrap()); // 1 weighs most
    drop(store.acquire(1, 0, &[4]).unwrap());
    drop(store.acquire(2, 0, &[5]).unwrap()); // evicts 3, the lightest
    let resident: Vec<u16> = (0..12).filter(|e| store.is_resident(0, *e)).collect();
    assert_eq!(resident, [1, 2, 4, 5]);
}

#[test]
fn a_leased_hit_is_never_the_victim() {
    let fixture = Fixture::new();
    let mut store = fixture.store(3);
    drop(store.acquire(0, 0, &[0, 1, 2]).unwrap());
    // 2 is the oldest by recency; it is needed, so 1 must go.
    let picks = [9, 2];
    let lease = store.acquire(1, 0, &picks).unwrap();
    fixture.check(&lease, 0, &picks);
    assert_eq!((lease.was_miss(0), lease.was_miss(1)), (true, false));
    drop(lease);
    assert!(!store.is_resident(0, 1) && store.is_resident(0, 0));
}

#[test]
fn a_forgotten_lease_is_released_by_the_next_acquire() {
    let fixture = Fixture::new();
    let mut store = fixture.store(K);
    std::mem::forget(store.acquire(0, 0, &[0, 1, 2]).unwrap());
    store.validate().unwrap();
    // Every slot of layer 0 would still be pinned.
    let picks = [3, 4, 5];
    let lease = store.acquire(1, 0, &picks).unwrap();
    fixture.check(&lease, 0, &picks);
    std::mem::forget(lease);
    assert!(store.acquire(1, 3, &[99]).is_err());
    store.validate().unwrap();
    drop(store.acquire(2, 0, &[6, 7, 8]).unwrap());
    assert_eq!(store.residency(0).unwrap().n_pinned(), 0);
}

#[test]
fn sets_larger_than_the_slots_are_served_in_passes() {
    let fixture = Fixture::new();
    for policy in online_policies() {
        let mut store = fixture
            .store_with(5, policy, |files| Box::new(PreadBackend::new(files)))
            .unwrap();
        let needed: Vec<u16> = (0..12).collect();
        for chunk in 0..3 {
            for pass in needed.chunks(store.max_batch(1)) {
                let lease = store.acquire(chunk, 1, pass).unwrap();
                fixture.check(&lease, 1, pass);
            }
        }
        store.validate().unwrap();
        let stats = store.stats();
        assert_eq!(stats.hits + stats.misses, 36, "{policy}");
    }
}

#[test]
fn near_picks_and_probabilities_reach_the_policy() {
    let fixture = Fixture::new();
    let new = |policy| {
        fixture
            .store_with(4, policy, |files| Box::new(PreadBackend::new(files)))
            .unwrap()
    };
    // Equal accesses; the hint decides which of the four residents goes.
    let mut near = new(PolicyKind::NearPickEma);
    let mut probs = new(PolicyKind::InverseRouterEma);
    for kept in 0..4_u16 {
        near = new(PolicyKind::NearPickEma);
        probs = new(PolicyKind::InverseRouterEma);
        let mut p = [0.01_f32; 12];
        p[usize::from(kept)] = 0.8;
        for clock in 0..20 {
            let picks = [(clock % 4) as u16];
            let access = ExpertAccess::new(clock, 0, &picks);
            let hint = [kept];
            drop(near.acquire_with(&access.with_near(&hint)).unwrap());
            drop(probs.acquire_with(&access.with_probs(&p)).unwrap());
        }
        for newcomer in 4..7 {
            let access = ExpertAccess::new(30, 0, std::slice::from_ref(&newcomer));
            drop(near.acquire_with(&access).unwrap());
            drop(probs.acquire_with(&access.with_probs(&p)).unwrap());
        }
        assert!(near.is_resident(0, kept), "{kept}");
        assert!(probs.is_resident(0, kept), "{kept}");
    }
    near.validate().unwrap();
    probs.validate().unwrap();
}

#[test]
fn the_check_sees_every_part_once_a_load() {
    let fixture = Fixture::new();
    let mut store = fixture.store(4);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    store.set_check(Box::new(move |layer, expert, part, bytes| {
        log.lock()
            .unwrap()
            .push((layer, expert, part, bytes.to_vec()));
        Ok(())
    }));
    drop(store.acquire(0, 2, &[1, 6]).unwrap());
    drop(store.acquire(1, 2, &[6, 1]).unwrap());
    let mut seen = seen.lock().unwrap();
    seen.sort();
    let expected: Vec<_> = [(1, 0), (1, 1), (6, 0), (6, 1)]
        .into_iter()
        .map(|(e, p)| (2, usize::from(e), p, fixture.part(2, e, p).to_vec()))
        .collect();
    assert_eq!(*seen, expected);
}

#[test]
fn a_failing_check_fails_the_load_with_its_reason() {
    let fixture = Fixture::new();
    let mut store = fixture.store(K);
    drop(store.acquire(0, 0, &[7]).unwrap());
    store.set_check(Box::new(|_, expert, part, _| match (expert, part) {
        (5, 1) => Err("scale 3 is not a number".into()),
        _ => Ok(()),
    }));
    let error = store.acquire(1, 0, &[4, 7, 5]).unwrap_err();
    let offset = 77 + 12 * 300 + 5 * 300;
    let path = fixture.paths[0].display();
    assert_eq!(
        chain(&error),
        format!(
            "cannot load expert 5 of layer 0: part 1 at {offset} of {path} is not usable: scale 3 \
             is not a number"
        )
    );
    // The hit stays; neither miss does.
    let resident: Vec<u16> = (0..12).filter(|e| store.is_resident(0, *e)).collect();
    assert_eq!(resident, [7]);
    store.validate().unwrap();
    let lease = store.acquire(2, 0, &[4, 7, 6]).unwrap();
    fixture.check(&lease, 0, &[4, 7, 6]);
}

#[test]
fn counters_add_up() {
    let fixture = Fixture::new();
    let mut store = fixture.store(3);
    drop(store.acquire(0, 0, &[0, 1, 2]).unwrap());
    drop(store.acquire(1, 0, &[2, 3]).unwrap());
    let stats = store.take_stats();
    assert_eq!(
        (stats.hits, stats.misses, stats.evictions, stats.failures),
        (1, 4, 1, 0)
    );
    assert_eq!((stats.reads, stats.bytes_read), (4 * 3, 4 * 800));
    assert!(!stats.wait.is_zero());
    assert_eq!(store.stats(), Default::default());
}

#[test]
fn memory_is_what_the_layout_said() {
    let fixture = Fixture::new();
    let layout = fixture.layout();
    for slots in K..=12 {
        let list: Vec<_> = LAYERS.iter().map(|(n, _)| slots.min(*n)).collect();
        let store = fixture.store(slots);
        assert_eq!(store.arena().bytes() as u64, layout.bytes_for(&list));
        // Layers 0 and 3 share a class.
        let strides: Vec<_> = store
            .arena()
            .classes()
            .iter()
            .map(|c| c.stride_bytes)
            .collect();
        assert_eq!(strides, [4096, 8192, 12288]);
        assert_eq!(store.arena().classes()[0].slots.len(), 2 * slots);
    }
    assert_eq!(layout.min_bytes(&[K; 4]), layout.bytes_for(&[K; 4]));
    let slots = layout.slots_for_budget(layout.min_bytes(&[K; 4]));
    assert_eq!(slots, [K; 4]);
}

#[test]
fn configurations_that_do_not_fit_the_layers_are_refused() {
    let fixture = Fixture::new();
    let refused = |slots: &[usize], batch: &[usize]| {
        let config = ExpertStoreConfig {
            slots: slots.to_vec(),
            batch: batch.to_vec(),
            ..ExpertStoreConfig::uniform(4, 0, 0)
        };
        let files = fixture.files();
        let backend = Box::new(PreadBackend::new(files.clone()));
        ExpertStore::new(files, backend, fixture.layout(), config).unwrap_err()
    };
    assert!(matches!(
        refused(&[3; 3], &[3; 4]),
        Error::LayerCount {
            what: "slots",
            expected: 4,
            found: 3
        }
    ));
    assert!(matches!(
        refused(&[3; 4], &[3; 5]),
        Error::LayerCount {
            what: "batch",
            expected: 4,
            found: 5
        }
    ));
    assert!(matches!(
        refused(&[3, 3, 3, 2], &[3; 4]),
        Error::SlotsBelowBatch {
            layer: 3,
            slots: 2,
            batch: 3
        }
    ));
    // Ten of nine experts.
    assert!(matches!(
        refused(&[10; 4], &[10; 4]),
        Error::AboveExperts {
            layer: 2,
            what: "batch",
            found: 10,
            n_expert: 9
        }
    ));
    assert!(matches!(
        refused(&[3, 3, 10, 3], &[3; 4]),
        Error::AboveExperts {
            layer: 2,
            what: "number of slots",
            found: 10,
            n_expert: 9
        }
    ));
}

#[test]
fn layouts_that_exceed_their_files_are_refused() {
    let fixture = Fixture::new();
    let len = fixture.bytes[1].len() as u64;
    let refused = |file, offset_bytes, n_expert| {
        let mut layout = ExpertLayout::new();
        let part = ExpertPartLayout {
            file,
            offset_bytes,
            stride_bytes: 10,
            len_bytes: 8,
        };
        layout.push_layer(n_expert, &[part]).unwrap();
        let files = fixture.files();
        let backend = Box::new(PreadBackend::new(files.clone()));
        let config = ExpertStoreConfig::uniform(1, 1, 1);
        ExpertStore::new(files, backend, layout, config)
            .map(|_| ())
            .map_err(|e| e.to_string())
    };
    // The last expert needs no bytes behind its own.
    assert_eq!(refused(1, len - 28, 3), Ok(()));
    assert_eq!(
        refused(1, len - 27, 3),
        Err(format!(
            "part 0 of layer 0 ends at {}, beyond the {len} bytes of {}",
            len + 1,
            fixture.paths[1].display()
        ))
    );
    assert_eq!(refused(2, 0, 1), Err("file 2 of a set of 2".to_owned()));
}

#[test]
fn an_offline_policy_is_refused() {
    let fixture = Fixture::new();
    let error = fixture
        .store_with(4, PolicyKind::BeladyMin, |files| {
            Box::new(PreadBackend::new(files))
        })
        .unwrap_err();
    assert!(matches!(error, Error::Cache { layer: 0, .. }), "{error}");
}

#[test]
fn a_model_without_routed_experts_has_an_empty_store() {
    let fixture = Fixture::new();
    let mut layout = ExpertLayout::new();
    layout.push_layer(0, &[]).unwrap();
    let files = fixture.files();
    let backend = Box::new(PreadBackend::new(files.clone()));
    let config = ExpertStoreConfig::uniform(1, 0, 0);
    let mut store = ExpertStore::new(files, backend, layout, config).unwrap();
    assert_eq!(store.max_batch(0), 0);
    assert_eq!(store.acquire(0, 0, &[]).unwrap().n(), 0);
    assert!(store.acquire(0, 0, &[0]).is_err());
    store.validate().unwrap();
}

#[test]
fn a_store_can_move_to_another_thread() {
    let fixture = Fixture::new();
    let mut store = fixture.store(4);
    drop(store.acquire(0, 0, &[1]).unwrap());
    let back = std::thread::spawn(move || {
        drop(store.acquire(1, 0, &[1, 2]).unwrap());
        store
    });
    let store = back.join().unwrap();
    assert_eq!(store.stats().hits, 1);
    store.validate_contents().unwrap();
}

pub(crate) fn online_policies() -> impl Iterator<Item = PolicyKind> {
    PolicyKind::ALL
        .iter()
        .copied()
        .filter(|policy| !policy.is_offline())
}
