//! Random operation sequences against a naive model.

use std::io::ErrorKind;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, subsequence};
use thalweg_cache::{Access, Key, PolicyConfig, PolicyKind, Probs, Residency, serve};
use thalweg_store::io::fault::{Fault, FaultBackend, FaultPlan, FaultReader};
use thalweg_store::{Error, ExpertAccess, ExpertStore, PreadBackend};

use crate::experts::online_policies;
use crate::fixture::{Fixture, K, LAYERS};

#[derive(Clone, Debug)]
enum Op {
    /// Acquire these experts, taken modulo what the layer has, and drop or forget the lease.
    Acquire {
        layer: usize,
        picks: Vec<u16>,
        forget: bool,
    },
    /// Acquire with one id repeated.
    Repeat {
        layer: usize,
        picks: Vec<u16>,
        which: Index,
    },
    /// Acquire more than there are slots.
    TooMany { layer: usize },
}

fn operation() -> impl Strategy<Value = Op> {
    let layer = 0..LAYERS.len();
    let picks = || subsequence((0..9_u16).collect::<Vec<_>>(), 1..=6).prop_shuffle();
    prop_oneof![
        12 => (layer.clone(), picks(), any::<bool>())
            .prop_map(|(layer, picks, forget)| Op::Acquire { layer, picks, forget }),
        1 => (layer.clone(), picks(), any::<Index>())
            .prop_map(|(layer, picks, which)| Op::Repeat { layer, picks, which }),
        1 => layer.prop_map(|layer| Op::TooMany { layer }),
    ]
}

/// What an LRU arena of one layer holds, oldest first.
#[derive(Clone, Default)]
struct NaiveLru {
    resident: Vec<u16>,
}

impl NaiveLru {
    fn serve(&mut self, picks: &[u16], slots: usize, ok: bool) {
        let before = self.resident.clone();
        for pick in picks.iter().rev().filter(|p| !before.contains(p)) {
            if self.resident.len() == slots {
                let at = self.resident.iter().position(|e| !picks.contains(e));
                self.resident
                    .remove(at.expect("a batch of at most the slots"));
            }
            self.resident.push(*pick);
        }
        if ok {
            self.resident.retain(|e| !picks.contains(e));
            self.resident.extend(picks.iter().rev());
        } else {
            self.resident.retain(|e| before.contains(e));
        }
    }
}

/// Applies operations and checks everything after each.
fn run(fixture: &Fixture, store: &mut ExpertStore, ops: &[Op], is_lru: bool) {
    let mut model = vec![NaiveLru::default(); LAYERS.len()];
    let (mut n_hit, mut n_miss) = (0, 0);
    for (clock, op) in (0..).zip(ops) {
        match op {
            Op::Acquire {
                layer,
                picks,
                forget,
            } => {
                let slots = store.max_batch(*layer);
                let picks = &picks[..picks.len().min(slots)];
                let was: Vec<_> = picks
                    .iter()
                    .map(|e| store.is_resident(*layer, *e))
                    .collect();
                let failure = match store.acquire(clock, *layer, picks) {
                    Ok(lease) => {
                        fixture.check(&lease, *layer, picks);
                        for (i, was) in was.iter().enumerate() {
                            assert_eq!(lease.was_miss(i), !was);
                            n_hit += u64::from(*was);
                            n_miss += u64::from(!was);
                        }
                        if *forget {
                            std::mem::forget(lease);
                        }
                        None
                    }
                    Err(error) => Some(error),
                };
                if let Some(error) = &failure {
                    check_failure(error, *layer, picks, &was);
                    for (e, was) in picks.iter().zip(&was) {
                        assert_eq!(store.is_resident(*layer, *e), *was);
                    }
                }
                model[*layer].serve(picks, slots, failure.is_none());
            }
            Op::Repeat {
                layer,
                picks,
                which,
            } => {
                let mut picks = picks[..picks.len().min(store.max_batch(*layer) - 1)].to_vec();
                picks.push(picks[which.index(picks.len())]);
                let error = store.acquire(clock, *layer, &picks).unwrap_err();
                assert!(matches!(error, Error::DuplicateExpert { .. }), "{error}");
            }
            Op::TooMany { layer } => {
                let picks: Vec<u16> = (0..=store.max_batch(*layer) as u16).collect();
                let error = store.acquire(clock, *layer, &picks).unwrap_err();
                assert!(matches!(error, Error::BatchTooLarge { .. }), "{error}");
            }
        }
        store.validate().unwrap();
        store.validate_contents().unwrap();
        if is_lru {
            for (layer, naive) in model.iter().enumerate() {
                for expert in 0..LAYERS[layer].0 as u16 {
                    let expected = naive.resident.contains(&expert);
                    assert_eq!(
                        store.is_resident(layer, expert),
                        expected,
                        "{layer}:{expert}"
                    );
                }
            }
        }
    }
    let stats = store.stats();
    assert_eq!((stats.hits, stats.misses), (n_hit, n_miss));
}

/// The error of a read of one of the experts that had to be loaded.
fn check_failure(error: &Error, layer: usize, picks: &[u16], was_resident: &[bool]) {
    let Error::Expert {
        layer: found,
        expert,
        source,
    } = error
    else {
        panic!("{error}");
    };
    let at = picks
        .iter()
        .position(|e| e == expert)
        .expect("an expert of the batch");
    assert!(*found == layer && !was_resident[at]);
    assert!(
        matches!(**source, Error::Read { .. } | Error::UnexpectedEof { .. }),
        "{source}"
    );
}

/// A store whose reads fail, come back out of order, and are cut short and interrupted below.
fn faulty_store(
    fixture: &Fixture,
    slots: usize,
    policy: PolicyKind,
    plan: FaultPlan,
) -> ExpertStore {
    fixture
        .store_with(slots, policy, |files| {
            let reader = FaultReader::new(files.clone(), 2, 999);
            let pread = PreadBackend::with_reader(files.clone(), reader);
            Box::new(FaultBackend::new(pread, files, plan))
        })
        .unwrap()
}

fn faults() -> impl Strategy<Value = FaultPlan> {
    let fault = prop_oneof![
        Just(Fault::Fail(ErrorKind::Other)),
        Just(Fault::Fail(ErrorKind::TimedOut)),
        Just(Fault::Eof),
        Just(Fault::Busy),
    ];
    (any::<u64>(), 0.0..0.3, fault, any::<bool>()).prop_map(|(seed, share, fault, reorder)| {
        let plan = FaultPlan::new().with_random(seed, share, fault);
        if reorder {
            plan.with_reordering(seed)
        } else {
            plan
        }
    })
}

/// Residents of the store's first layer, and of a table and a policy served without a store.
fn compare_with_serve(policy: PolicyKind, slots: usize, batches: &[Vec<u16>]) {
    let fixture = Fixture::new();
    let mut store = fixture
        .store_with(slots, policy, |files| Box::new(PreadBackend::new(files)))
        .unwrap();
    let (n_keys, n_slots) = (LAYERS[0].0 as u32, slots as u32);
    let mut alone = policy
        .build(&PolicyConfig::new(n_keys, n_slots, K as u32))
        .unwrap();
    let mut residency = Residency::new(n_keys, n_slots).unwrap();
    for (clock, picks) in (0..).zip(batches) {
        let picks = &picks[..picks.len().min(slots)];
        let near: Vec<u16> = (0..12).filter(|e| !picks.contains(e)).take(K).collect();
        let keys_of = |ids: &[u16]| {
            ids.iter()
                .map(|e| Key::new(u32::from(*e)))
                .collect::<Vec<_>>()
        };
        let (keys, near_keys) = (keys_of(picks), keys_of(&near));
        let probs: Vec<f32> = (0..12_u16).map(|e| f32::from(e * 7 % 12) / 66.0).collect();
        let access = Access::new(clock, &keys)
            .with_near(&near_keys)
            .with_probs(Probs::new(Key::new(0), &probs));
        let served = serve(&mut residency, &mut *alone, &access, |_, _| {
            Ok::<(), Error>(())
        });
        let access = ExpertAccess::new(clock, 0, picks)
            .with_near(&near)
            .with_probs(&probs);
        drop(store.acquire_with(&access).unwrap());
        served.unwrap();
        for expert in 0..12 {
            let expected = residency.is_resident(Key::new(u32::from(expert)));
            assert_eq!(
                store.is_resident(0, expert),
                expected,
                "{policy}, step {clock}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases / 4,
        ..ProptestConfig::default()
    })]

    #[test]
    fn an_lru_store_follows_the_naive_model_through_faults(
        slots in K..=12_usize,
        plan in faults(),
        ops in vec(operation(), 1..40),
    ) {
        let fixture = Fixture::new();
        let mut store = faulty_store(&fixture, slots, PolicyKind::Lru, plan);
        run(&fixture, &mut store, &ops, true);
    }

    #[test]
    fn every_policy_keeps_the_invariants_through_faults(
        slots in K..=12_usize,
        plan in faults(),
        ops in vec(operation(), 1..20),
    ) {
        let fixture = Fixture::new();
        for policy in online_policies() {
            let mut store = faulty_store(&fixture, slots, policy, plan.clone());
            run(&fixture, &mut store, &ops, false);
        }
    }

    #[test]
    fn policies_see_the_same_calls_as_without_a_store(
        slots in K..=10_usize,
        batches in vec(subsequence((0..12_u16).collect::<Vec<_>>(), 1..=K + 1).prop_shuffle(), 60),
    ) {
        for policy in online_policies() {
            compare_with_serve(policy, slots, &batches);
        }
    }
}
