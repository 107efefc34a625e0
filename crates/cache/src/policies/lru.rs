//! LRU: evict the key whose last use is oldest.
//!
//! Owns one recency list. Invariant: the list holds exactly the inserted keys, oldest use first.
//! Memory: 10 bytes a key. Cost: O(1) an operation; `victim` also passes over the pinned keys at
//! the old end, which the batch contract keeps at the new end.

use crate::lists::Lists;
use crate::{Access, Error, Key, Policy, PolicyConfig};

const RECENCY: u16 = 0;

/// Least recently used, the baseline that is hard to beat.
#[derive(Debug)]
pub struct Lru {
    lists: Lists,
}

impl Lru {
    /// An empty policy.
    ///
    /// # Errors
    /// What [`PolicyConfig::check`] finds.
    pub fn new(config: &PolicyConfig<'_>) -> Result<Self, Error> {
        config.check()?;
        Ok(Self {
            lists: Lists::new(config.n_keys, 1),
        })
    }
}

impl Policy for Lru {
    /// Recency is written by `end`, in weight order, so that a batch's order does not depend on
    /// which of its keys were resident.
    fn on_hit(&mut self, _key: Key) {}

    fn victim(&mut self, evictable: &dyn Fn(Key) -> bool) -> Option<Key> {
        self.lists.oldest(RECENCY, evictable)
    }

    fn on_evict(&mut self, key: Key) {
        self.lists.remove(key);
    }

    fn on_insert(&mut self, key: Key) {
        self.lists.push_back(RECENCY, key);
    }

    fn end(&mut self, access: &Access<'_>) {
        for key in access.ascending() {
            if self.lists.contains(RECENCY, key) {
                self.lists.push_back(RECENCY, key);
            }
        }
    }

    fn validate(&self) -> Result<(), Error> {
        self.lists.validate("lru")
    }
}
