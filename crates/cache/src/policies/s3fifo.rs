//! S3-FIFO: a small queue filters keys used once, a main queue keeps the rest (Yang et al., 2023).
//!
//! Owns three queues (small, main, ghosts of keys that left the small one) and a 2-bit use counter
//! a key. Eviction takes from the small queue while it holds at least its share, else from main; a
//! pinned key at the end of a queue is put back unchanged. Published implementations promote at
//! one or at two uses, so that is a setting. Invariants: small and main together hold exactly the
//! inserted keys; 1. at most C - share ghosts; 2. counters are at most 3. Memory: 11 bytes a key.
//! Cost: O(1) amortized, plus the pinned keys put back.

use alloc::vec;
use alloc::vec::Vec;

use crate::lists::Lists;
use crate::{Error, Key, Policy, PolicyConfig};

const SMALL: u16 = 0;
const MAIN: u16 = 1;
const GHOST: u16 = 2;
const MAX_USES: u8 = 3;

/// Simple, scan-resistant queues.
#[derive(Debug)]
pub struct S3Fifo {
    lists: Lists,
    uses: Vec<u8>,
    n_small: u32,
    n_ghost: u32,
    promote_at: u8,
    /// The victim last proposed; only such a key leaves a ghost.
    proposed: Option<Key>,
}

impl S3Fifo {
    /// An empty policy.
    ///
    /// # Errors
    /// What [`PolicyConfig::check`] finds.
    pub fn new(config: &PolicyConfig<'_>) -> Result<Self, Error> {
        config.check()?;
        // The share is at most 1, so the product fits; the cast rounds down.
        let n_small = (f64::from(config.capacity) * config.tuning.small_share) as u32;
        let n_small = n_small.clamp(1, config.capacity);
        Ok(Self {
            lists: Lists::new(config.n_keys, 3),
            uses: vec![0; config.n_keys as usize],
            n_small,
            n_ghost: config.capacity - n_small,
            promote_at: config.tuning.promote_at,
            proposed: None,
        })
    }

    fn is_resident(&self, key: Key) -> bool {
        matches!(self.lists.list_of(key), Some(SMALL | MAIN))
    }

    fn victim_from_small(&mut self, evictable: &dyn Fn(Key) -> bool) -> Option<Key> {
        let mut n_turned = 0;
        for _ in 0..self.lists.len(SMALL) {
            let key = self.lists.front(SMALL)?;
            let uses = &mut self.uses[key.index()];
            if !evictable(key) {
                self.lists.push_back(SMALL, key);
                n_turned += 1;
            } else if *uses >= self.promote_at {
                *uses = 0;
                self.lists.push_back(MAIN, key);
                n_turned = 0;
            } else {
                return Some(key);
            }
        }
        // Only pinned keys are left. The search should have ended at the last promotion: turn the
        // queue on to where it was then.
        for _ in n_turned..self.lists.len(SMALL) {
            let key = self.lists.front(SMALL)?;
            self.lists.push_back(SMALL, key);
        }
        None
    }

    fn victim_from_main(&mut self, evictable: &dyn Fn(Key) -> bool) -> Option<Key> {
        let mut n_turned = 0;
        while n_turned < self.lists.len(MAIN) {
            let key = self.lists.front(MAIN)?;
            let uses = &mut self.uses[key.index()];
            if !evictable(key) {
                n_turned += 1;
            } else if *uses > 0 {
                *uses -= 1;
                n_turned = 0;
            } else {
                return Some(key);
            }
            self.lists.push_back(MAIN, key);
        }
        None
    }
}

impl Policy for S3Fifo {
    fn on_hit(&mut self, key: Key) {
        if self.is_resident(key) {
            let uses = &mut self.uses[key.index()];
            *uses = MAX_USES.min(*uses + 1);
        }
    }

    fn victim(&mut self, evictable: &dyn Fn(Key) -> bool) -> Option<Key> {
        let small_is_full = self.lists.len(SMALL) >= self.n_small;
        self.proposed = if small_is_full {
            self.victim_from_small(evictable)
                .or_else(|| self.victim_from_main(evictable))
        } else {
            self.victim_from_main(evictable)
                .or_else(|| self.victim_from_small(evictable))
        };
        self.proposed
    }

    fn on_evict(&mut self, key: Key) {
        let was_proposed = self.proposed.take() == Some(key);
        if !self.is_resident(key) {
            return;
        }
        if self.lists.remove(key) == Some(SMALL) && was_proposed {
            self.lists.push_back(GHOST, key);
            while self.lists.len(GHOST) > self.n_ghost {
                self.lists.pop_front(GHOST);
            }
        }
    }

    fn on_insert(&mut self, key: Key) {
        if key.index() >= self.uses.len() || self.is_resident(key) {
            return;
        }
        self.uses[key.index()] = 0;
        let returns = self.lists.contains(GHOST, key);
        self.lists
            .push_back(if returns { MAIN } else { SMALL }, key);
    }

    fn validate(&self) -> Result<(), Error> {
        let broken = |invariant, key| Error::Broken {
            owner: "s3fifo",
            invariant,
            key,
        };
        if self.lists.len(GHOST) > self.n_ghost {
            return Err(broken(1, None));
        }
        for list in [SMALL, MAIN] {
            if let Some(key) = self
                .lists
                .iter(list)
                .find(|k| self.uses[k.index()] > MAX_USES)
            {
                return Err(broken(2, Some(key)));
            }
        }
        self.lists.validate("s3fifo")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_that_finds_only_pinned_keys_leaves_the_queue_as_it_was_at_the_last_promotion() {
        // 30 slots: the small queue's share is 3.
        let mut policy = S3Fifo::new(&PolicyConfig::new(40, 30, 2)).expect("valid");
        let [old, used, new, main] = [0, 1, 2, 3].map(Key::new);
        policy.on_insert(main);
        policy.on_hit(main);
        policy.on_hit(main);
        for key in [old, used, new] {
            policy.on_insert(key);
        }
        policy.on_hit(used);
        policy.on_hit(used);
        // `main` and `used` are promoted, `old` was put back before, `new` is not reached.
        let pinned = |key: Key| key != old && key != new;
        assert_eq!(policy.victim(&pinned), Some(main));
        let small: Vec<Key> = policy.lists.iter(SMALL).collect();
        assert_eq!(small, [new, old]);
        policy.validate().expect("sound");
    }

    #[test]
    fn a_key_dropped_by_the_caller_leaves_no_ghost() {
        let mut policy = S3Fifo::new(&PolicyConfig::new(10, 4, 1)).expect("valid");
        for id in 0..3 {
            policy.on_insert(Key::new(id));
        }
        let victim = policy.victim(&|_| true).expect("three are there");
        policy.on_evict(Key::new(2));
        assert_eq!(policy.lists.len(GHOST), 0);
        assert_eq!(policy.victim(&|_| true), Some(victim));
        policy.on_evict(victim);
        assert!(policy.lists.contains(GHOST, victim));
        policy.on_insert(victim);
        assert!(policy.lists.contains(MAIN, victim));
    }
}
