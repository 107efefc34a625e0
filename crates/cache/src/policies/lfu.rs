//! LFU: evict the key with the fewest uses ever, ties by least recent use.
//!
//! Owns a count and a recency stamp for every key; counts survive eviction ("perfect" LFU).
//! Invariant: the heap holds exactly the inserted keys, ranked by (count, stamp). Memory: 20 bytes
//! a key, 8 a slot. Cost: O(log C) a key of an access and a victim.

use crate::heap::KeyHeap;
use crate::{Access, Error, Key, Policy, PolicyConfig};

/// Least frequently used. Slow to forget: a key that was popular long ago stays.
#[derive(Debug)]
pub struct Lfu {
    /// (uses, stamp of the last use)
    heap: KeyHeap<(u64, u64)>,
    stamp: u64,
}

impl Lfu {
    /// An empty policy.
    ///
    /// # Errors
    /// What [`PolicyConfig::check`] finds.
    pub fn new(config: &PolicyConfig<'_>) -> Result<Self, Error> {
        config.check()?;
        Ok(Self {
            heap: KeyHeap::new(config.n_keys, config.capacity, (0, 0)),
            stamp: 0,
        })
    }

    fn touch(&mut self, key: Key) {
        self.stamp += 1;
        let stamp = self.stamp;
        self.heap.update(key, |rank| rank.1 = stamp);
    }
}

impl Policy for Lfu {
    fn begin(&mut self, access: &Access<'_>) {
        for &key in access.keys {
            self.heap.update(key, |rank| rank.0 += 1);
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
        self.heap.validate("lfu")
    }
}
