//! Operation sequences on a table and a policy, checked against a naive model.
//!
//! Owns the operations, their reading from bytes (for a fuzzer), and the model: a map from key to
//! slot, pins and state. Panics on a difference, as tests do.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::Build;
use crate::{
    Access, AccessLog, Key, Policy, PolicyConfig, PolicyKind, Residency, SlotId, SlotState,
    SplitMix64, serve,
};

/// One step of an operation sequence on a [`Residency`] and a policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Op {
    /// Reserve a slot for a key and leave it loading.
    Reserve(u32),
    /// Complete the load of a key, if it is loading.
    Complete(u32),
    /// Abort the load of a key, if it is loading.
    Abort(u32),
    /// Pin a key.
    Pin(u32),
    /// Unpin a key.
    Unpin(u32),
    /// Evict a key.
    Evict(u32),
    /// Serve a batch of up to three neighboring keys.
    Serve(u32, u8),
    /// Serve a batch whose first load fails.
    FailedServe(u32, u8),
}

impl Op {
    /// Reads an operation from two bytes, every pair being one.
    #[must_use]
    pub fn from_bytes(code: u8, key: u8) -> Self {
        let key_id = u32::from(key);
        match code % 16 {
            0..=2 => Self::Reserve(key_id),
            3..=5 => Self::Complete(key_id),
            6 => Self::Abort(key_id),
            7 => Self::Pin(key_id),
            8 | 9 => Self::Unpin(key_id),
            10 => Self::Evict(key_id),
            11..=14 => Self::Serve(key_id, code / 16),
            _ => Self::FailedServe(key_id, code / 16),
        }
    }
}

/// Keys, slots and batch of the operation sequences. Some keys of the operations are out of range.
pub const OPS_N_KEYS: u32 = 12;
/// Slots of the operation sequences.
pub const OPS_N_SLOTS: u32 = 5;

/// Runs an operation sequence against a naive model, checking everything after every step.
///
/// # Panics
/// When table, policy and model disagree, or an invariant is broken.
pub fn check_ops(policy: &mut dyn Policy, ops: &[Op]) {
    let mut table = Residency::new(OPS_N_KEYS, OPS_N_SLOTS).expect("small");
    let mut model = Model::default();
    for (step, &op) in ops.iter().enumerate() {
        model.apply(&mut table, policy, step as u64, op);
        table.validate().expect("sound table");
        policy.validate().expect("sound policy");
        model.compare(&table);
    }
}

/// Runs operations read from bytes against every policy: the body of a fuzz target.
///
/// # Panics
/// As [`check_ops`].
pub fn fuzz_ops(data: &[u8]) {
    let ops: Vec<Op> = data
        .chunks_exact(2)
        .map(|pair| Op::from_bytes(pair[0], pair[1] % (OPS_N_KEYS as u8 + 1)))
        .collect();
    for &kind in PolicyKind::ALL {
        let mut policy = kind.build(&ops_config(&ops_future())).expect("valid");
        check_ops(&mut *policy, &ops);
    }
}

/// The configuration for [`check_ops`]; `future` stands in for a log that nobody follows.
#[must_use]
pub fn ops_config(future: &AccessLog) -> PolicyConfig<'_> {
    PolicyConfig::new(OPS_N_KEYS, OPS_N_SLOTS, 3)
        .with_layers(3)
        .with_future(future)
}

/// A log for [`ops_config`].
#[must_use]
pub fn ops_future() -> AccessLog {
    AccessLog::new()
}

/// Runs seeded operation sequences through [`check_ops`].
///
/// # Panics
/// As [`check_ops`].
pub fn check_random_ops(build: Build<'_>) {
    let future = ops_future();
    for seed in 0..40 {
        let mut rng = SplitMix64::new(seed);
        let ops: Vec<Op> = (0..150)
            .map(|_| {
                let key = rng.below(u64::from(OPS_N_KEYS) + 1) as u8;
                Op::from_bytes(rng.below(256) as u8, key)
            })
            .collect();
        let mut policy = build(&ops_config(&future)).expect("valid");
        check_ops(&mut *policy, &ops);
    }
}

/// What the table should hold: by key id.
#[derive(Default)]
struct Model {
    entries: BTreeMap<u32, Entry>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    slot: SlotId,
    pins: u32,
    loading: bool,
}

impl Model {
    fn apply(&mut self, table: &mut Residency, policy: &mut dyn Policy, clock: u64, op: Op) {
        match op {
            Op::Reserve(id) => self.reserve(table, policy, id),
            Op::Complete(id) => {
                if let Some(entry) = self.entries.get_mut(&id) {
                    assert_eq!(table.complete(entry.slot).is_ok(), entry.loading);
                    entry.loading = false;
                }
            }
            Op::Abort(id) => {
                if let Some(entry) = self.entries.get(&id) {
                    let aborted = table.abort(entry.slot, policy);
                    assert_eq!(aborted.ok(), entry.loading.then_some(Key::new(id)));
                    if entry.loading {
                        self.entries.remove(&id);
                    }
                }
            }
            Op::Pin(id) => {
                let pinned = table.pin(Key::new(id)).ok();
                let entry = self.entries.get_mut(&id);
                assert_eq!(pinned, entry.as_ref().map(|entry| entry.slot));
                if let Some(entry) = entry {
                    entry.pins += 1;
                }
            }
            Op::Unpin(id) => {
                let left = table.unpin(Key::new(id)).ok();
                let expected = self.entries.get_mut(&id).and_then(|entry| {
                    entry.pins = entry.pins.checked_sub(1)?;
                    if entry.loading && entry.pins == 0 {
                        entry.pins = 1;
                        return None;
                    }
                    Some(entry.pins)
                });
                assert_eq!(left, expected);
            }
            Op::Evict(id) => {
                let evicted = table.evict(Key::new(id), policy).ok();
                let entry = self.entries.get(&id).filter(|entry| entry.pins == 0);
                assert_eq!(evicted, entry.map(|entry| entry.slot));
                if evicted.is_some() {
                    self.entries.remove(&id);
                }
            }
            Op::Serve(id, n) => self.serve(table, policy, &batch(id, n, clock), usize::MAX),
            Op::FailedServe(id, n) => self.serve(table, policy, &batch(id, n, clock), 0),
        }
    }

    fn reserve(&mut self, table: &mut Residency, policy: &mut dyn Policy, id: u32) {
        let n_pinned = self.entries.values().filter(|entry| entry.pins > 0).count();
        let possible =
            id < OPS_N_KEYS && !self.entries.contains_key(&id) && n_pinned < OPS_N_SLOTS as usize;
        let before: Vec<Option<u32>> = (0..OPS_N_SLOTS)
            .map(|slot| table.generation(SlotId::new(slot)))
            .collect();
        let Ok(taken) = table.reserve(Key::new(id), policy) else {
            assert!(!possible, "key {id} could have been reserved");
            return;
        };
        assert!(possible);
        assert_eq!(
            Some(taken.generation),
            before[taken.slot.index()].map(|generation| generation + 1)
        );
        let full = self.entries.len() == OPS_N_SLOTS as usize;
        assert_eq!(taken.evicted.is_some(), full);
        if let Some(victim) = taken.evicted {
            let entry = self.entries.remove(&victim.id()).expect("was present");
            assert!(!entry.loading && entry.pins == 0 && entry.slot == taken.slot);
        }
        assert!(self.entries.values().all(|entry| entry.slot != taken.slot));
        self.entries.insert(
            id,
            Entry {
                slot: taken.slot,
                pins: 1,
                loading: true,
            },
        );
    }

    /// Serves a batch whose load number `fail_at` fails; takes over what the table then holds after
    /// checking that it may.
    fn serve(
        &mut self,
        table: &mut Residency,
        policy: &mut dyn Policy,
        (clock, keys): &(u64, Vec<Key>),
        fail_at: usize,
    ) {
        let mut n_loads = 0;
        let result = serve(table, policy, &Access::new(*clock, keys), |_, _| {
            n_loads += 1;
            if n_loads - 1 == fail_at {
                Err(())
            } else {
                Ok(())
            }
        });
        if result.is_ok() {
            assert!(keys.iter().all(|&key| table.is_resident(key)));
        }
        let before = core::mem::take(&mut self.entries);
        for id in 0..OPS_N_KEYS {
            let key = Key::new(id);
            let old = before.get(&id);
            let Some(slot) = table.slot(key) else {
                let kept = old.is_some_and(|entry| entry.pins > 0 || keys.contains(&key));
                assert!(!kept, "key {id} was pinned or in the batch, and is gone");
                continue;
            };
            match old {
                Some(entry) => assert_eq!(entry.slot, slot),
                None => assert!(keys.contains(&key), "key {id} came from nowhere"),
            }
            let entry = Entry {
                slot,
                pins: old.map_or(0, |entry| entry.pins),
                loading: old.is_some_and(|entry| entry.loading),
            };
            self.entries.insert(id, entry);
        }
    }

    fn compare(&self, table: &Residency) {
        let mut n_resident = 0;
        for id in 0..OPS_N_KEYS {
            let key = Key::new(id);
            let found = table.slot(key).map(|slot| Entry {
                slot,
                pins: table.pins(key),
                loading: table.state(slot) == Some(SlotState::Loading),
            });
            assert_eq!(found, self.entries.get(&id).copied(), "key {id}");
            assert_eq!(table.is_resident(key), found.is_some_and(|e| !e.loading));
            n_resident += u32::from(table.is_resident(key));
            if let Some(entry) = found {
                assert_eq!(table.key_of(entry.slot), Some(key));
            }
        }
        assert_eq!(table.n_resident(), n_resident);
        assert_eq!(table.residents().count(), n_resident as usize);
        assert_eq!(
            table.n_free() as usize,
            OPS_N_SLOTS as usize - self.entries.len()
        );
    }
}

/// A batch of one to three neighboring keys, some perhaps out of range, never repeated.
fn batch(id: u32, n: u8, clock: u64) -> (u64, Vec<Key>) {
    let keys = (0..=u32::from(n) % 3).map(|i| Key::new(id + i)).collect();
    (clock, keys)
}
