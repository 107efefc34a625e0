//! A set of dense keys that can be indexed: members in one array, positions in another.
//!
//! Memory: 4 bytes a key and 4 a member, allocated by `new`. Invariant: 1. `at` and `members`
//! mirror each other. Cost: O(1) an operation; the order of members is arbitrary but determined by
//! the calls.

use alloc::vec;
use alloc::vec::Vec;

use crate::{Error, Key};

const OUT: u32 = u32::MAX;

#[derive(Clone, Debug)]
pub(crate) struct KeySet {
    members: Vec<u32>,
    at: Vec<u32>,
}

impl KeySet {
    pub(crate) fn new(n_keys: u32, capacity: u32) -> Self {
        Self {
            members: Vec::with_capacity(n_keys.min(capacity) as usize),
            at: vec![OUT; n_keys as usize],
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn member(&self, index: usize) -> Option<Key> {
        self.members.get(index).copied().map(Key::new)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Key> + '_ {
        self.members.iter().copied().map(Key::new)
    }

    pub(crate) fn insert(&mut self, key: Key) {
        // Members are fewer than keys, which are counted by u32.
        let end = self.members.len() as u32;
        if let Some(at) = self.at.get_mut(key.index())
            && *at == OUT
        {
            *at = end;
            self.members.push(key.id());
        }
    }

    pub(crate) fn remove(&mut self, key: Key) {
        let Some(at) = self.at.get_mut(key.index()) else {
            return;
        };
        if *at == OUT {
            return;
        }
        let hole = core::mem::replace(at, OUT);
        self.members.swap_remove(hole as usize);
        if let Some(&moved) = self.members.get(hole as usize) {
            self.at[moved as usize] = hole;
        }
    }

    /// Checks invariant 1, reported as number 301 of `owner`. O(keys).
    pub(crate) fn validate(&self, owner: &'static str) -> Result<(), Error> {
        let mirrored =
            |(at, &id): (usize, &u32)| self.at.get(id as usize).map(|&a| a as usize) == Some(at);
        let n_members = self.at.iter().filter(|&&at| at != OUT).count();
        if n_members == self.members.len() && self.members.iter().enumerate().all(mirrored) {
            return Ok(());
        }
        Err(Error::Broken {
            owner,
            invariant: 301,
            key: None,
        })
    }
}
