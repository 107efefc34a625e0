//! SIEVE: a queue, a "visited" bit, and a hand that spares visited keys once (Zhang et al., 2024).
//!
//! Owns the insertion queue; keys never move in it. The hand walks from old to new, clears the bits
//! it meets and stops at the first clear one; pinned keys are passed over untouched. Invariants:
//! the queue holds exactly the inserted keys; 1. the hand, if set, is in the queue. Memory: 11
//! bytes a key. Cost: O(1) amortized: every bit that `victim` clears was set by a hit.

use alloc::vec;
use alloc::vec::Vec;

use crate::lists::Lists;
use crate::{Error, Key, Policy, PolicyConfig};

const QUEUE: u16 = 0;

/// Lazy promotion and quick demotion with one bit a key.
#[derive(Debug)]
pub struct Sieve {
    lists: Lists,
    visited: Vec<bool>,
    /// Where the next search starts; `None` for the oldest key.
    hand: Option<Key>,
}

impl Sieve {
    /// An empty policy.
    ///
    /// # Errors
    /// What [`PolicyConfig::check`] finds.
    pub fn new(config: &PolicyConfig<'_>) -> Result<Self, Error> {
        config.check()?;
        Ok(Self {
            lists: Lists::new(config.n_keys, 1),
            visited: vec![false; config.n_keys as usize],
            hand: None,
        })
    }
}

impl Policy for Sieve {
    fn on_hit(&mut self, key: Key) {
        if self.lists.contains(QUEUE, key) {
            self.visited[key.index()] = true;
        }
    }

    fn victim(&mut self, evictable: &dyn Fn(Key) -> bool) -> Option<Key> {
        let oldest = self.lists.front(QUEUE)?;
        let mut key = self.hand.unwrap_or(oldest);
        // One round clears every bit that may be cleared, so two rounds find what there is.
        for _ in 0..2 * u64::from(self.lists.len(QUEUE)) {
            if evictable(key) {
                if !self.visited[key.index()] {
                    self.hand = Some(key);
                    return Some(key);
                }
                self.visited[key.index()] = false;
            }
            key = self.lists.newer(key).unwrap_or(oldest);
        }
        None
    }

    fn on_evict(&mut self, key: Key) {
        if self.hand == Some(key) {
            self.hand = self.lists.newer(key);
        }
        self.lists.remove(key);
    }

    fn on_insert(&mut self, key: Key) {
        if key.index() < self.visited.len() && !self.lists.contains(QUEUE, key) {
            self.lists.push_back(QUEUE, key);
            self.visited[key.index()] = false;
        }
    }

    fn validate(&self) -> Result<(), Error> {
        match self.hand {
            Some(key) if !self.lists.contains(QUEUE, key) => Err(Error::Broken {
                owner: "sieve",
                invariant: 1,
                key: Some(key),
            }),
            _ => self.lists.validate("sieve"),
        }
    }
}
