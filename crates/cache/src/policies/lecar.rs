//! LeCaR: LRU and LFU as two experts, weighted by their mistakes (Vietri et al., 2018).
//!
//! Owns a recency list, a use-count heap, two ghost lists of C / 2 keys (one an expert), and the
//! weight of LRU. A miss on a ghost is a mistake of the expert that evicted it: its weight shrinks
//! by exp(-rate * 0.005^(age / C)). A lot drawn by weight decides whose proposal is taken; equal
//! proposals leave no ghost. Counts start again at each load. Invariants: list and heap hold
//! exactly the inserted keys; 1. the ghost lists keep their bound; 2. the weight is within 0 and 1.
//! Memory: 38 bytes a key, 8 a slot. Cost: O(log C) a key of an access and a victim.

use alloc::vec;
use alloc::vec::Vec;

use crate::heap::KeyHeap;
use crate::lists::Lists;
use crate::math::exp;
use crate::{Access, Error, Key, Policy, PolicyConfig, SplitMix64};

const RECENCY: u16 = 0;
const GHOST_OF_LRU: u16 = 1;
const GHOST_OF_LFU: u16 = 2;
/// ln 0.005: the regret for an eviction C steps ago is discounted to that factor.
const LN_DISCOUNT: f64 = -5.298_317_366_548_036;

/// Learning cache replacement. Repeatable by its seed.
#[derive(Debug)]
pub struct LeCar {
    lists: Lists,
    /// (uses since the load, stamp of the last use)
    heap: KeyHeap<(u64, u64)>,
    /// Time of eviction of the keys in the ghost lists.
    evicted_at: Vec<u64>,
    /// Hits and evictions so far.
    now: u64,
    stamp: u64,
    weight_of_lru: f64,
    learning_rate: f64,
    capacity: u32,
    n_ghost: u32,
    rng: SplitMix64,
    /// The victim last proposed, and the ghost list that it goes to.
    proposed: Option<(Key, Option<u16>)>,
}

impl LeCar {
    /// An empty policy.
    ///
    /// # Errors
    /// What [`PolicyConfig::check`] finds.
    pub fn new(config: &PolicyConfig<'_>) -> Result<Self, Error> {
        config.check()?;
        Ok(Self {
            lists: Lists::new(config.n_keys, 3),
            heap: KeyHeap::new(config.n_keys, config.capacity, (0, 0)),
            evicted_at: vec![0; config.n_keys as usize],
            now: 0,
            stamp: 0,
            weight_of_lru: 0.5,
            learning_rate: config.tuning.learning_rate,
            capacity: config.capacity,
            n_ghost: (config.capacity / 2).max(1),
            rng: SplitMix64::new(config.seed),
            proposed: None,
        })
    }

    /// The probability with which the LRU proposal is taken.
    #[must_use]
    pub const fn weight_of_lru(&self) -> f64 {
        self.weight_of_lru
    }

    /// Lowers the weight of the expert that evicted a key now asked for again.
    fn regret(&mut self, key: Key, ghost: u16) {
        // Ages stay far below 2^53.
        let age = (self.now - self.evicted_at[key.index()]) as f64;
        let regret = exp(LN_DISCOUNT * age / f64::from(self.capacity));
        let factor = exp(-self.learning_rate * regret);
        let (mut lru, mut lfu) = (self.weight_of_lru, 1.0 - self.weight_of_lru);
        if ghost == GHOST_OF_LRU {
            lru *= factor;
        } else {
            lfu *= factor;
        }
        self.weight_of_lru = lru / (lru + lfu);
    }

    fn touch(&mut self, key: Key) {
        self.stamp += 1;
        let stamp = self.stamp;
        self.heap.update(key, |rank| rank.1 = stamp);
        if self.lists.contains(RECENCY, key) {
            self.lists.push_back(RECENCY, key);
        }
    }
}

impl Policy for LeCar {
    /// All regret of an access is settled before anything is evicted for it.
    fn begin(&mut self, access: &Access<'_>) {
        for key in access.ascending() {
            if let Some(ghost @ (GHOST_OF_LRU | GHOST_OF_LFU)) = self.lists.list_of(key) {
                self.lists.remove(key);
                self.regret(key, ghost);
            }
        }
    }

    fn on_hit(&mut self, key: Key) {
        self.now += 1;
        self.heap.update(key, |rank| rank.0 += 1);
    }

    fn victim(&mut self, evictable: &dyn Fn(Key) -> bool) -> Option<Key> {
        self.now += 1;
        let oldest = self.lists.oldest(RECENCY, evictable)?;
        let rarest = self.heap.first(evictable)?;
        let (key, ghost) = if oldest == rarest {
            (oldest, None)
        } else if self.rng.unit() < self.weight_of_lru {
            (oldest, Some(GHOST_OF_LRU))
        } else {
            (rarest, Some(GHOST_OF_LFU))
        };
        self.proposed = Some((key, ghost));
        Some(key)
    }

    fn on_evict(&mut self, key: Key) {
        let proposed = self.proposed.take();
        if !self.heap.remove(key) {
            return;
        }
        self.lists.remove(key);
        if let Some((proposed_key, Some(ghost))) = proposed
            && proposed_key == key
        {
            self.evicted_at[key.index()] = self.now;
            self.lists.push_back(ghost, key);
            while self.lists.len(ghost) > self.n_ghost {
                self.lists.pop_front(ghost);
            }
        }
    }

    fn on_insert(&mut self, key: Key) {
        if !self.heap.contains(key) {
            self.heap.update(key, |rank| rank.0 = 1);
            self.heap.insert(key);
            self.lists.push_back(RECENCY, key);
        }
        self.touch(key);
    }

    fn end(&mut self, access: &Access<'_>) {
        for key in access.ascending() {
            self.touch(key);
        }
    }

    fn validate(&self) -> Result<(), Error> {
        let broken = |invariant, key| Error::Broken {
            owner: "lecar",
            invariant,
            key,
        };
        if [GHOST_OF_LRU, GHOST_OF_LFU]
            .iter()
            .any(|&ghost| self.lists.len(ghost) > self.n_ghost)
        {
            return Err(broken(1, None));
        }
        if !(0.0..=1.0).contains(&self.weight_of_lru) {
            return Err(broken(2, None));
        }
        if let Some(key) = self.lists.iter(RECENCY).find(|&k| !self.heap.contains(k)) {
            return Err(broken(3, Some(key)));
        }
        self.lists.validate("lecar")?;
        self.heap.validate("lecar")
    }
}
