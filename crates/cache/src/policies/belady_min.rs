//! Belady's MIN for batches: evict the key whose next use lies farthest ahead. Offline.
//!
//! With keys of one size, "the whole batch must be resident" and no bypass, this makes the fewest
//! misses possible; with slots of several sizes it is only a good rule. Owns, for every pick of the
//! log, the access of the key's next use. Does not own the log. Invariants: the heap holds exactly
//! the inserted keys. Once the accesses depart from the log, ranks stay as they are. Memory: 12
//! bytes a key, 8 a slot; 16 a pick and 8 an access of the log. Cost: O(log C) a key of an access
//! and a victim.

use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::heap::KeyHeap;
use crate::{Access, Error, Key, Policy, PolicyConfig, PolicyKind};

const NEVER: u64 = u64::MAX;

/// The lower bound that every online policy is measured against.
#[derive(Debug)]
pub struct BeladyMin {
    /// Access of the next use.
    heap: KeyHeap<Reverse<u64>>,
    picks: Vec<Pick>,
    /// Where each access ends in `picks`.
    ends: Vec<usize>,
    n_accesses: usize,
    follows_log: bool,
}

#[derive(Clone, Copy, Debug)]
struct Pick {
    key: Key,
    next_use: u64,
}

impl BeladyMin {
    /// A policy for the accesses given by [`PolicyConfig::with_future`].
    ///
    /// # Errors
    /// What [`PolicyConfig::check`] finds; [`Error::FutureMissing`] without a log,
    /// [`Error::KeyOutOfRange`] for a key in it beyond `n_keys`.
    pub fn new(config: &PolicyConfig<'_>) -> Result<Self, Error> {
        config.check()?;
        let log = config.future.ok_or(Error::FutureMissing {
            policy: PolicyKind::BeladyMin,
        })?;
        let mut picks = Vec::with_capacity(log.n_picks());
        let mut ends = Vec::with_capacity(log.len());
        for access in log.iter() {
            picks.extend(access.keys.iter().map(|&key| Pick {
                key,
                next_use: NEVER,
            }));
            ends.push(picks.len());
        }
        // Backward, so that the use known for a key is the one after the current access.
        let mut next = vec![NEVER; config.n_keys as usize];
        let mut end = picks.len();
        for (t, start) in starts(&ends)
            .enumerate()
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
        {
            let batch = &mut picks[start..end];
            for pick in batch.iter_mut() {
                pick.next_use = *next.get(pick.key.index()).ok_or(Error::KeyOutOfRange {
                    key: pick.key,
                    n_keys: config.n_keys,
                })?;
            }
            for pick in batch {
                next[pick.key.index()] = t as u64;
            }
            end = start;
        }
        // A key loaded before its first use is ranked by that.
        let mut heap = KeyHeap::new(config.n_keys, config.capacity, Reverse(NEVER));
        for (id, next_use) in (0u32..).zip(next) {
            heap.update(Key::new(id), |rank| *rank = Reverse(next_use));
        }
        Ok(Self {
            heap,
            picks,
            ends,
            n_accesses: 0,
            follows_log: true,
        })
    }

    /// Whether every access so far was that of the log; if not, the misses are not the fewest.
    #[must_use]
    pub const fn follows_log(&self) -> bool {
        self.follows_log
    }
}

impl Policy for BeladyMin {
    fn begin(&mut self, access: &Access<'_>) {
        let t = self.n_accesses;
        self.n_accesses += 1;
        let start = t.checked_sub(1).and_then(|t| self.ends.get(t)).copied();
        let end = self.ends.get(t).copied();
        let batch = &self.picks[start.unwrap_or(0)..end.unwrap_or(self.picks.len())];
        self.follows_log &=
            end.is_some() && batch.iter().map(|p| p.key).eq(access.keys.iter().copied());
        if self.follows_log {
            for pick in batch {
                self.heap
                    .update(pick.key, |rank| *rank = Reverse(pick.next_use));
            }
        }
    }

    fn on_hit(&mut self, _key: Key) {}

    fn victim(&mut self, evictable: &dyn Fn(Key) -> bool) -> Option<Key> {
        self.heap.first(evictable)
    }

    fn on_evict(&mut self, key: Key) {
        self.heap.remove(key);
    }

    fn on_insert(&mut self, key: Key) {
        self.heap.insert(key);
    }

    fn validate(&self) -> Result<(), Error> {
        self.heap.validate("belady_min")
    }
}

/// Where each access starts, given where each ends.
fn starts(ends: &[usize]) -> impl Iterator<Item = usize> + '_ {
    core::iter::once(0)
        .chain(ends.iter().copied())
        .take(ends.len())
}
