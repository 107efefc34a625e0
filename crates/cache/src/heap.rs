//! An indexed binary heap over dense keys: the least-ranked member, ranks that may change.
//!
//! Owns a rank for every key (member or not, so that a rank survives eviction) and the heap of
//! the members. Ties go to the lower key. Memory: a rank and 4 bytes a key, 8 bytes a member,
//! allocated by `new`. Invariants: 1. `at` and `heap` mirror each other; 2. no member ranks before
//! its parent. Cost: O(log members) to insert, remove or re-rank; `first` adds that for every
//! member it has to pass over. Ranks must not be NaN.

use alloc::vec;
use alloc::vec::Vec;

use crate::{Error, Key};

const OUT: u32 = u32::MAX;

#[derive(Clone, Debug)]
pub(crate) struct KeyHeap<R> {
    ranks: Vec<R>,
    heap: Vec<u32>,
    /// Position in `heap`, `OUT` for keys that are no members.
    at: Vec<u32>,
    /// Scratch of `first`.
    aside: Vec<u32>,
}

impl<R: Copy + PartialOrd> KeyHeap<R> {
    pub(crate) fn new(n_keys: u32, capacity: u32, rank: R) -> Self {
        let n_members = n_keys.min(capacity) as usize;
        Self {
            ranks: vec![rank; n_keys as usize],
            heap: Vec::with_capacity(n_members),
            at: vec![OUT; n_keys as usize],
            aside: Vec::with_capacity(n_members),
        }
    }

    pub(crate) fn contains(&self, key: Key) -> bool {
        self.at.get(key.index()).is_some_and(|&at| at != OUT)
    }

    #[cfg(test)]
    pub(crate) fn rank(&self, key: Key) -> Option<R> {
        self.ranks.get(key.index()).copied()
    }

    /// Changes the rank of a key, member or not.
    pub(crate) fn update(&mut self, key: Key, change: impl FnOnce(&mut R)) {
        let Some(rank) = self.ranks.get_mut(key.index()) else {
            return;
        };
        change(rank);
        let at = self.at[key.index()];
        if at != OUT {
            self.settle(at as usize);
        }
    }

    /// Changes all ranks in a way that may disturb their order. O(keys).
    pub(crate) fn update_all(&mut self, mut change: impl FnMut(&mut R)) {
        self.ranks.iter_mut().for_each(&mut change);
        for at in (0..self.heap.len() / 2).rev() {
            self.sift_down(at);
        }
    }

    pub(crate) fn insert(&mut self, key: Key) {
        if key.index() >= self.at.len() || self.contains(key) {
            return;
        }
        // A heap never has more members than there are keys, which are counted by u32.
        self.at[key.index()] = self.heap.len() as u32;
        self.heap.push(key.id());
        self.sift_up(self.heap.len() - 1);
    }

    /// Takes the key out; whether it was a member.
    pub(crate) fn remove(&mut self, key: Key) -> bool {
        if !self.contains(key) {
            return false;
        }
        let at = self.at[key.index()] as usize;
        self.at[key.index()] = OUT;
        self.heap.swap_remove(at);
        if let Some(&moved) = self.heap.get(at) {
            self.at[moved as usize] = at as u32;
            self.settle(at);
        }
        true
    }

    /// The least-ranked member that satisfies `wanted`.
    pub(crate) fn first(&mut self, wanted: &dyn Fn(Key) -> bool) -> Option<Key> {
        let found = loop {
            let Some(&id) = self.heap.first() else {
                break None;
            };
            let key = Key::new(id);
            if wanted(key) {
                break Some(key);
            }
            self.remove(key);
            self.aside.push(id);
        };
        while let Some(id) = self.aside.pop() {
            self.insert(Key::new(id));
        }
        found
    }

    /// Checks invariants 1 and 2, reported as numbers 201 and 202 of `owner`. O(keys).
    pub(crate) fn validate(&self, owner: &'static str) -> Result<(), Error> {
        let broken = |invariant, id| {
            Err(Error::Broken {
                owner,
                invariant,
                key: Some(Key::new(id)),
            })
        };
        for (at, &id) in self.heap.iter().enumerate() {
            if self.at.get(id as usize).map(|&a| a as usize) != Some(at) {
                return broken(201, id);
            }
            if at > 0 && self.before(id, self.heap[(at - 1) / 2]) {
                return broken(202, id);
            }
        }
        let n_members = self.at.iter().filter(|&&at| at != OUT).count();
        if n_members != self.heap.len() {
            return Err(Error::Broken {
                owner,
                invariant: 201,
                key: None,
            });
        }
        Ok(())
    }

    fn before(&self, a: u32, b: u32) -> bool {
        let (rank_a, rank_b) = (&self.ranks[a as usize], &self.ranks[b as usize]);
        rank_a < rank_b || (rank_a == rank_b && a < b)
    }

    fn settle(&mut self, at: usize) {
        let at = self.sift_up(at);
        self.sift_down(at);
    }

    fn sift_up(&mut self, mut at: usize) -> usize {
        while at > 0 {
            let parent = (at - 1) / 2;
            if !self.before(self.heap[at], self.heap[parent]) {
                break;
            }
            self.swap(at, parent);
            at = parent;
        }
        at
    }

    fn sift_down(&mut self, mut at: usize) {
        loop {
            let left = 2 * at + 1;
            if left >= self.heap.len() {
                return;
            }
            let right = left + 1;
            let right_is_less =
                right < self.heap.len() && self.before(self.heap[right], self.heap[left]);
            let child = if right_is_less { right } else { left };
            if !self.before(self.heap[child], self.heap[at]) {
                return;
            }
            self.swap(at, child);
            at = child;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.at[self.heap[a] as usize] = a as u32;
        self.at[self.heap[b] as usize] = b as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SplitMix64;
    use alloc::collections::BTreeSet;

    #[test]
    fn the_least_rank_comes_first_whatever_was_done_before() {
        let mut rng = SplitMix64::new(5);
        let mut heap = KeyHeap::new(40, 40, 0u64);
        let mut members = BTreeSet::new();
        for _ in 0..5000 {
            let id = rng.below(40) as u32;
            let key = Key::new(id);
            match rng.below(4) {
                0 => {
                    heap.insert(key);
                    members.insert(id);
                }
                1 => assert_eq!(heap.remove(key), members.remove(&id)),
                _ => {
                    let rank = rng.below(10);
                    heap.update(key, |r| *r = rank);
                }
            }
            heap.validate("heap").expect("sound");
            let limit = rng.below(40) as u32;
            let found = heap.first(&|k: Key| k.id() >= limit);
            let expected = members
                .iter()
                .filter(|&&m| m >= limit)
                .min_by_key(|&&m| (heap.rank(Key::new(m)), m));
            assert_eq!(found.map(Key::id), expected.copied());
        }
    }

    #[test]
    fn keys_out_of_range_are_ignored() {
        let mut heap = KeyHeap::new(2, 2, 0u64);
        heap.insert(Key::new(2));
        heap.update(Key::new(2), |r| *r = 1);
        assert!(!heap.remove(Key::new(2)));
        assert_eq!(heap.rank(Key::new(2)), None);
        assert_eq!(heap.first(&|_| true), None);
    }
}
