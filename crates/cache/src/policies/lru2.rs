//! LRU-2: evict the key whose second-last use is oldest (O'Neil, O'Neil, Weikum, 1993, K = 2).
//!
//! Owns the last two use times of every key, kept for ever, and a recency stamp for ties. A key
//! used fewer than twice counts as oldest. No correlated-reference period. Invariant: the heap
//! holds exactly the inserted keys, ranked by (second-last use, stamp). Memory: 28 bytes a key, 8 a
//! slot. Cost: O(log C) a key of an access and a victim: the order has to be kept sorted.

use alloc::vec;
use alloc::vec::Vec;

use crate::heap::KeyHeap;
use crate::{Access, Error, Key, Policy, PolicyConfig};

/// Least recently used by the second-last use, which forgives a single stray use.
#[derive(Debug)]
pub struct Lru2 {
    /// (access of the second-last use, stamp of the last)
    heap: KeyHeap<(u64, u64)>,
    /// Access of the last use; 0 for none.
    last: Vec<u64>,
    n_accesses: u64,
    stamp: u64,
}

impl Lru2 {
    /// An empty policy.
    ///
    /// # Errors
    /// What [`PolicyConfig::check`] finds.
    pub fn new(config: &PolicyConfig<'_>) -> Result<Self, Error> {
        config.check()?;
        Ok(Self {
            heap: KeyHeap::new(config.n_keys, config.capacity, (0, 0)),
            last: vec![0; config.n_keys as usize],
            n_accesses: 0,
            stamp: 0,
        })
    }

    fn touch(&mut self, key: Key) {
        self.stamp += 1;
        let stamp = self.stamp;
        self.heap.update(key, |rank| rank.1 = stamp);
    }
}

impl Policy for Lru2 {
    fn begin(&mut self, access: &Access<'_>) {
        self.n_accesses += 1;
        for &key in access.keys {
            if let Some(last) = self.last.get_mut(key.index()) {
                let second_last = core::mem::replace(last, self.n_accesses);
                self.heap.update(key, |rank| rank.0 = second_last);
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
        self.touch(key);
        self.heap.insert(key);
    }

    fn end(&mut self, access: &Access<'_>) {
        for key in access.ascending() {
            self.touch(key);
        }
    }

    fn validate(&self) -> Result<(), Error> {
        self.heap.validate("lru2")
    }
}
