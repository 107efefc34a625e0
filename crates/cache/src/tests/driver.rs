//! The driver and the simulator: order of calls, failures, filters, warm fills, documents.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use alloc::{format, vec};
use core::convert::Infallible;

use crate::sim::{Document, KeyBytes, Report, Scope, SimConfig, Simulator, replay};
use crate::testing::{Synth, random_log};
use crate::{
    Access, AccessLog, Error, Key, KeySpace, Policy, PolicyConfig, PolicyKind, Residency,
    SecondMiss, ServeError, SlotId, SlotState, fill, serve, serve_admitting,
};

fn keys(ids: &[u32]) -> Vec<Key> {
    ids.iter().copied().map(Key::new).collect()
}

fn lru(n_keys: u32, capacity: u32, batch: u32) -> (Residency, alloc::boxed::Box<dyn Policy>) {
    let config = PolicyConfig::new(n_keys, capacity, batch);
    (
        Residency::new(n_keys, capacity).expect("small"),
        PolicyKind::Lru.build(&config).expect("valid"),
    )
}

fn residents(table: &Residency) -> Vec<u32> {
    let mut ids: Vec<u32> = table.residents().map(|(key, _)| key.id()).collect();
    ids.sort_unstable();
    ids
}

/// Writes down every call; evicts the lowest evictable key.
#[derive(Default)]
struct Recorder {
    calls: Vec<String>,
    present: Vec<Key>,
}

impl Policy for Recorder {
    fn begin(&mut self, access: &Access<'_>) {
        self.calls.push(format!("begin {}", access.clock));
    }

    fn on_hit(&mut self, key: Key) {
        self.calls.push(format!("hit {key}"));
    }

    fn on_miss(&mut self, key: Key) {
        self.calls.push(format!("miss {key}"));
    }

    fn victim(&mut self, evictable: &dyn Fn(Key) -> bool) -> Option<Key> {
        self.calls.push("victim".to_string());
        self.present
            .iter()
            .copied()
            .filter(|&key| evictable(key))
            .min()
    }

    fn on_evict(&mut self, key: Key) {
        self.calls.push(format!("evict {key}"));
        self.present.retain(|&k| k != key);
    }

    fn on_insert(&mut self, key: Key) {
        self.calls.push(format!("insert {key}"));
        self.present.push(key);
    }

    fn end(&mut self, access: &Access<'_>) {
        self.calls.push(format!("end {}", access.clock));
    }
}

#[test]
fn calls_come_in_the_documented_order() {
    let mut table = Residency::new(9, 4).expect("small");
    let mut policy = Recorder::default();
    let load = |_, _| Ok::<(), Infallible>(());
    serve(
        &mut table,
        &mut policy,
        &Access::new(0, &keys(&[5, 1, 7])),
        load,
    )
    .expect("fits");
    policy.calls.clear();
    serve(
        &mut table,
        &mut policy,
        &Access::new(1, &keys(&[2, 7, 3, 5])),
        load,
    )
    .expect("fits");
    let expected = [
        "begin 1", "hit 5", "hit 7", "miss 3", "insert 3", "miss 2", "victim", "evict 1",
        "insert 2", "end 1",
    ];
    assert_eq!(policy.calls, expected);
    assert_eq!(residents(&table), [2, 3, 5, 7]);
}

#[test]
fn exactly_as_many_slots_as_the_batch_has_keys_suffice() {
    let (mut table, mut policy) = lru(20, 10, 10);
    for round in 0..6 {
        let batch: Vec<Key> = (0..10).map(|i| Key::new((round * 7 + i) % 20)).collect();
        let access = Access::new(u64::from(round), &batch);
        serve(&mut table, &mut *policy, &access, |_, _| {
            Ok::<(), Infallible>(())
        })
        .expect("fits");
        assert!(batch.iter().all(|&key| table.is_resident(key)));
        table.validate().expect("sound");
    }
    let eleven: Vec<Key> = (0..11).map(Key::new).collect();
    let refused = serve(
        &mut table,
        &mut *policy,
        &Access::new(9, &eleven),
        |_, _| Ok::<(), Infallible>(()),
    );
    let expected = Error::BatchTooLarge {
        batch: 11,
        n_slots: 10,
    };
    assert_eq!(refused, Err(ServeError::Cache(expected)));
}

#[test]
fn a_repeated_or_unknown_key_is_refused_before_anything_happens() {
    let mut table = Residency::new(8, 4).expect("small");
    let mut policy = Recorder::default();
    for (ids, expected) in [
        ([3, 3, 7], Error::DuplicateKey { key: Key::new(3) }),
        (
            [3, 8, 7],
            Error::KeyOutOfRange {
                key: Key::new(8),
                n_keys: 8,
            },
        ),
    ] {
        let access = keys(&ids);
        let result = serve(&mut table, &mut policy, &Access::new(0, &access), |_, _| {
            Ok::<(), Infallible>(())
        });
        assert_eq!(result, Err(ServeError::Cache(expected)));
    }
    assert!(policy.calls.is_empty());
    assert_eq!(table.n_free(), 4);
}

#[test]
fn a_failed_load_leaves_its_slot_free_and_no_pin_behind() {
    let (mut table, mut policy) = lru(9, 3, 3);
    let batch = keys(&[4, 2, 0]);
    let access = Access::new(0, &batch);
    let result = serve(&mut table, &mut *policy, &access, |key, _| {
        if key == Key::new(2) {
            Err("short read")
        } else {
            Ok(())
        }
    });
    let error = result.expect_err("the second load fails");
    assert_eq!(error.to_string(), "loading key 2 failed: short read");
    assert_eq!(residents(&table), [0]);
    assert_eq!((table.n_pinned(), table.n_free()), (0, 2));
    table.validate().expect("sound");
    serve(&mut table, &mut *policy, &access, |_, _| {
        Ok::<(), Infallible>(())
    })
    .expect("retried");
    assert_eq!(residents(&table), [0, 2, 4]);
}

#[test]
fn loading_slot_is_never_a_victim() {
    let (mut table, mut policy) = lru(9, 2, 1);
    let first = table.reserve(Key::new(0), &mut *policy).expect("free");
    table.reserve(Key::new(1), &mut *policy).expect("free");
    let refused = table.reserve(Key::new(2), &mut *policy);
    let expected = Error::AllPinned {
        n_slots: 2,
        n_pinned: 2,
    };
    assert_eq!(refused, Err(expected));
    table.complete(first.slot).expect("loading");
    assert!(
        table.reserve(Key::new(2), &mut *policy).is_err(),
        "still pinned"
    );
    assert_eq!(table.unpin(Key::new(0)), Ok(0));
    let taken = table
        .reserve(Key::new(2), &mut *policy)
        .expect("one may leave");
    assert_eq!((taken.slot, taken.evicted), (first.slot, Some(Key::new(0))));
    assert_eq!(table.generation(taken.slot), Some(first.generation + 1));
}

#[test]
fn a_second_reserve_joins_the_load_in_flight() {
    let (mut table, mut policy) = lru(9, 2, 1);
    let key = Key::new(3);
    let taken = table.reserve(key, &mut *policy).expect("free");
    let slot = taken.slot;
    assert_eq!(
        table.reserve(key, &mut *policy),
        Err(Error::AlreadyPresent { key, slot })
    );
    assert_eq!(table.pin(key), Ok(slot));
    assert_eq!(table.unpin(key), Ok(1));
    // The last pin belongs to the load.
    assert_eq!(table.unpin(key), Err(Error::NotPinned { key }));
    assert_eq!(table.abort(slot, &mut *policy), Ok(key));
    assert_eq!(table.state(slot), Some(SlotState::Free));
    let wrong = Error::WrongState {
        slot,
        expected: SlotState::Loading,
        found: SlotState::Free,
    };
    assert_eq!(table.complete(slot), Err(wrong.clone()));
    assert_eq!(table.abort(slot, &mut *policy), Err(wrong));
    let far = SlotId::new(7);
    assert!(matches!(
        table.complete(far),
        Err(Error::SlotOutOfRange { .. })
    ));
    assert_eq!(table.key_of(far), None);
}

#[test]
fn a_policy_that_proposes_nonsense_is_found_out() {
    struct Bad(Option<Key>);
    impl Policy for Bad {
        fn on_hit(&mut self, _: Key) {}
        fn victim(&mut self, _: &dyn Fn(Key) -> bool) -> Option<Key> {
            self.0
        }
        fn on_evict(&mut self, _: Key) {}
        fn on_insert(&mut self, _: Key) {}
    }
    let mut table = Residency::new(9, 1).expect("small");
    fill(&mut table, &mut Bad(None), keys(&[4]), |_, _| {
        Ok::<(), Infallible>(())
    })
    .expect("free");
    let refused = table.reserve(Key::new(5), &mut Bad(Some(Key::new(8))));
    assert_eq!(refused, Err(Error::BadVictim { key: Key::new(8) }));
    let refused = table.reserve(Key::new(5), &mut Bad(None));
    assert!(matches!(
        refused,
        Err(Error::NoVictim {
            n_slots: 1,
            n_pinned: 0
        })
    ));
    assert_eq!(residents(&table), [4]);
    table.validate().expect("sound");
}

#[test]
fn a_fill_takes_free_slots_only_and_leaves_the_last_key_most_recent() {
    let (mut table, mut policy) = lru(9, 3, 1);
    let load = |_, _| Ok::<(), Infallible>(());
    let n = fill(&mut table, &mut *policy, keys(&[6, 6, 2, 8, 1]), load).expect("in range");
    assert_eq!((n, table.n_pinned()), (3, 0));
    assert_eq!(residents(&table), [2, 6, 8]);
    serve(&mut table, &mut *policy, &Access::new(0, &keys(&[0])), load).expect("fits");
    assert_eq!(residents(&table), [0, 2, 8]);
}

#[test]
fn a_key_is_kept_on_its_second_miss() {
    let (mut table, mut policy) = lru(9, 2, 1);
    let mut filter = SecondMiss::new(9, 8);
    let mut places = vec![];
    let mut sequence = |ids: &[u32]| {
        for &id in ids {
            let access = keys(&[id]);
            serve_admitting(
                &mut table,
                &mut *policy,
                &Access::new(0, &access),
                |key| filter.admit(key),
                |key, slot| {
                    places.push((key.id(), slot.is_some()));
                    Ok::<(), Infallible>(())
                },
            )
            .expect("fits");
        }
        residents(&table)
    };
    // Free slots are filled at once; after that a first miss passes by.
    assert_eq!(sequence(&[0, 1, 5, 6]), [0, 1]);
    assert_eq!(sequence(&[5]), [1, 5]);
    assert_eq!(
        places,
        [(0, true), (1, true), (5, false), (6, false), (5, true)]
    );
}

#[test]
fn a_first_miss_outside_the_window_is_forgotten() {
    let mut filter = SecondMiss::new(4, 1);
    let admitted = [0, 1, 0, 0].map(|id| filter.admit(Key::new(id)));
    assert_eq!(admitted, [false, false, false, true]);
    assert!(!filter.admit(Key::new(4)), "out of range");
}

#[test]
fn misses_never_rise_with_capacity_for_policies_that_rank_alone() {
    let monotone = [
        "lru",
        "lfu",
        "ema",
        "near_pick_ema",
        "inverse_router_ema",
        "lru2",
        "belady_min",
    ];
    for seed in 0..60 {
        let log = Synth::new(seed, 60, 24).log(3);
        for name in monotone {
            let kind = name.parse().expect("a policy");
            let mut before = u64::MAX;
            for capacity in 3..=24 {
                let config = SimConfig::new(kind, KeySpace::new(1, 24), capacity, 3);
                let misses = replay(&log, &config).expect("valid").total.n_misses;
                assert!(misses <= before, "{name}, seed {seed}, capacity {capacity}");
                before = misses;
            }
        }
    }
}

#[test]
fn warm_keys_spare_misses_and_the_hottest_come_first() {
    let mut log = AccessLog::new();
    for clock in 0..4 {
        log.push(&Access::new(clock, &keys(&[3])));
    }
    let run = |warm: &[Key]| -> Report {
        let config = SimConfig::new(PolicyKind::Lru, KeySpace::new(1, 9), 2, 1).with_warm(warm);
        replay(&log, &config).expect("valid")
    };
    assert_eq!(run(&[]).total.n_misses, 1);
    assert_eq!(run(&keys(&[7, 3, 3, 1])).total.n_misses, 0);
    // Too cold to fit.
    assert_eq!(run(&keys(&[7, 1, 3])).total.n_misses, 1);
    // Of two warm keys the colder one gives way first.
    let mut log = AccessLog::new();
    log.push(&Access::new(0, &keys(&[5])));
    log.push(&Access::new(1, &keys(&[7])));
    let warm = keys(&[7, 1]);
    let config = SimConfig::new(PolicyKind::Lru, KeySpace::new(1, 9), 2, 1).with_warm(&warm);
    assert_eq!(replay(&log, &config).expect("valid").total.n_misses, 1);
    let bad = keys(&[9]);
    let config = SimConfig::new(PolicyKind::Lru, KeySpace::new(1, 9), 2, 1).with_warm(&bad);
    assert!(matches!(
        replay(&log, &config),
        Err(Error::KeyOutOfRange { .. })
    ));
}

#[test]
fn skipped_tokens_are_served_but_not_counted() {
    let log = random_log(5, 50, 12, 2);
    let mut config = SimConfig::new(PolicyKind::Sieve, KeySpace::new(1, 12), 4, 2);
    let all = replay(&log, &config).expect("valid").total;
    config.skip_tokens = 20;
    let late = replay(&log, &config).expect("valid").total;
    assert_eq!((all.n_tokens, late.n_tokens), (50, 30));
    assert_eq!(late.n_picks, 60);
    // The same run from an empty cache at token 20 would miss the first keys again.
    assert!(late.n_misses < all.n_misses);
    assert!(late.n_compulsory < 12);
}

#[test]
fn documents_divide_the_counts_and_may_empty_the_caches() {
    let mut log = AccessLog::new();
    for clock in 0..6 {
        log.push(&Access::new(clock, &keys(&[0, 1])));
    }
    let documents = [
        Document {
            first_token: 0,
            domain: 1,
        },
        Document {
            first_token: 2,
            domain: 0,
        },
        Document {
            first_token: 4,
            domain: 1,
        },
    ];
    for kind in [PolicyKind::Arc, PolicyKind::S3Fifo, PolicyKind::BeladyMin] {
        let mut config = SimConfig::new(kind, KeySpace::new(1, 4), 2, 2);
        config.documents = &documents;
        let kept = replay(&log, &config).expect("valid");
        assert_eq!(kept.total.n_misses, 2);
        config.clear_at_documents = true;
        let cleared = replay(&log, &config).expect("valid");
        assert_eq!(cleared.total.n_misses, 6);
        assert_eq!(cleared.total.n_compulsory, 2);
        let by_domain: Vec<_> = cleared
            .domains
            .iter()
            .map(|d| (d.n_tokens, d.n_misses))
            .collect();
        assert_eq!(by_domain, [(2, 2), (4, 4)]);
    }
    let mut config = SimConfig::new(PolicyKind::Lru, KeySpace::new(1, 4), 2, 2);
    let backward = [documents[1], documents[0]];
    config.documents = &backward;
    assert!(replay(&log, &config).is_err());
}

#[test]
fn bytes_follow_the_size_of_the_layer() {
    let space = KeySpace::new(2, 4);
    let mut log = AccessLog::new();
    log.push(&Access::new(0, &keys(&[0, 1])));
    log.push(&Access::new(0, &keys(&[4, 5])));
    log.push(&Access::new(1, &keys(&[0, 2])));
    for scope in [Scope::Global, Scope::PerLayer] {
        let mut config = SimConfig::new(PolicyKind::Lru, space, 4, 2).with_scope(scope);
        config.key_bytes = KeyBytes::PerLayer(&[100, 7]);
        let report = replay(&log, &config).expect("valid");
        let total = report.total;
        assert_eq!((total.n_misses, total.n_hits), (5, 1));
        assert_eq!(total.missed_bytes, 314);
        assert_eq!(total.bytes_per_token(), Some(157.0));
        assert_eq!(total.misses_per_token(), Some(2.5));
        assert_eq!(total.hit_rate(), Some(1.0 / 6.0));
        let layers: Vec<_> = report
            .layers
            .iter()
            .map(|l| (l.n_tokens, l.missed_bytes))
            .collect();
        assert_eq!(layers, [(2, 300), (1, 14)]);
        config.key_bytes = KeyBytes::PerLayer(&[100]);
        assert!(matches!(
            replay(&log, &config),
            Err(Error::ShapeMismatch { .. })
        ));
    }
    assert_eq!(Report::default().total.hit_rate(), None);
}

#[test]
fn a_filter_counts_what_passes_by() {
    let log = random_log(8, 300, 30, 2);
    let mut config = SimConfig::new(PolicyKind::Lru, KeySpace::new(1, 30), 8, 2);
    config.second_miss_window = Some(20);
    let mut simulator = Simulator::new(&config, None).expect("valid");
    for access in log.iter() {
        simulator.access(&access).expect("fits");
        simulator.validate().expect("sound");
    }
    let total = simulator.report().total;
    assert!(total.n_bypassed > 0 && total.n_bypassed < total.n_misses);
    assert_eq!(total.n_evicted + total.n_bypassed + 8, total.n_misses);
}

#[test]
fn a_batch_across_layers_needs_one_arena() {
    let space = KeySpace::new(2, 4);
    let mut log = AccessLog::new();
    log.push(&Access::new(0, &keys(&[3, 4])));
    log.push(&Access::new(0, &[]));
    let config = SimConfig::new(PolicyKind::Lru, space, 4, 2);
    assert_eq!(replay(&log, &config).expect("one arena").total.n_misses, 2);
    let refused = replay(&log, &config.with_scope(Scope::PerLayer));
    assert!(matches!(refused, Err(Error::ShapeMismatch { .. })));
    let outside = keys(&[8]);
    let mut simulator = Simulator::new(&config, None).expect("valid");
    assert!(simulator.access(&Access::new(0, &outside)).is_err());
}

#[test]
fn an_offline_policy_without_a_log_is_refused() {
    let config = PolicyConfig::new(9, 3, 2);
    let error = PolicyKind::BeladyMin.build(&config).err();
    let policy = PolicyKind::BeladyMin;
    assert_eq!(error, Some(Error::FutureMissing { policy }));
    for &kind in PolicyKind::ALL {
        assert_eq!(kind.build(&config).is_err(), kind.is_offline(), "{kind}");
    }
}
