//! FIFO: evict the key that was loaded first, used since or not.
//!
//! Owns one queue. Invariant: the queue holds exactly the inserted keys, oldest first. Memory: 10
//! bytes a key. Cost: O(1), plus the pinned keys passed over.

use crate::lists::Lists;
use crate::{Error, Key, Policy, PolicyConfig};

const QUEUE: u16 = 0;

/// First in, first out: the baseline that ignores use.
#[derive(Debug)]
pub struct Fifo {
    lists: Lists,
}

impl Fifo {
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

impl Policy for Fifo {
    fn on_hit(&mut self, _key: Key) {}

    fn victim(&mut self, evictable: &dyn Fn(Key) -> bool) -> Option<Key> {
        self.lists.oldest(QUEUE, evictable)
    }

    fn on_evict(&mut self, key: Key) {
        self.lists.remove(key);
    }

    fn on_insert(&mut self, key: Key) {
        if !self.lists.contains(QUEUE, key) {
            self.lists.push_back(QUEUE, key);
        }
    }

    fn validate(&self) -> Result<(), Error> {
        self.lists.validate("fifo")
    }
}
