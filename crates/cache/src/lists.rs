//! Doubly linked lists over dense keys, several of them sharing one set of links.
//!
//! Owns the links; a key is in at most one of the lists, which is all that a policy needs (a key
//! is in the window or in the ghost list, never both). Keys out of range are ignored throughout.
//! Memory: 10 bytes a key, allocated by `new`. Invariants: 1. walking a list forward visits `len`
//! keys, each marked with that list, with mirrored links; 2. a key marked "none" is in no list.
//! Cost: every operation is O(1) unless stated.

use alloc::vec;
use alloc::vec::Vec;

use crate::{Error, Key};

const NIL: u32 = u32::MAX;
const NONE: u16 = u16::MAX;

/// `n_lists` queues over keys `0..n_keys`; the front is the oldest end.
#[derive(Clone, Debug)]
pub(crate) struct Lists {
    links: Vec<Link>,
    of: Vec<u16>,
    ends: Vec<Ends>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    prev: u32,
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    front: u32,
    back: u32,
    len: u32,
}

impl Lists {
    pub(crate) fn new(n_keys: u32, n_lists: u16) -> Self {
        let n_keys = n_keys as usize;
        Self {
            links: vec![
                Link {
                    prev: NIL,
                    next: NIL
                };
                n_keys
            ],
            of: vec![NONE; n_keys],
            ends: vec![
                Ends {
                    front: NIL,
                    back: NIL,
                    len: 0
                };
                usize::from(n_lists)
            ],
        }
    }

    /// The list that holds the key.
    pub(crate) fn list_of(&self, key: Key) -> Option<u16> {
        self.of.get(key.index()).copied().filter(|&l| l != NONE)
    }

    pub(crate) fn contains(&self, list: u16, key: Key) -> bool {
        self.list_of(key) == Some(list)
    }

    pub(crate) fn len(&self, list: u16) -> u32 {
        self.ends[usize::from(list)].len
    }

    pub(crate) fn front(&self, list: u16) -> Option<Key> {
        some(self.ends[usize::from(list)].front)
    }

    /// The neighbor on the newer side, `None` at the back.
    pub(crate) fn newer(&self, key: Key) -> Option<Key> {
        some(self.links.get(key.index())?.next)
    }

    /// Puts the key at the newest end, taking it out of wherever it was.
    pub(crate) fn push_back(&mut self, list: u16, key: Key) {
        let Some(&from) = self.of.get(key.index()) else {
            return;
        };
        // The common case, a key that moves within its list, keeps mark and length.
        if from == list {
            if self.ends[usize::from(list)].back == key.id() {
                return;
            }
            self.unlink(list, key);
        } else {
            self.remove(key);
            self.of[key.index()] = list;
            self.ends[usize::from(list)].len += 1;
        }
        let ends = &mut self.ends[usize::from(list)];
        let id = key.id();
        self.links[key.index()] = Link {
            prev: ends.back,
            next: NIL,
        };
        match some(ends.back) {
            Some(old) => self.links[old.index()].next = id,
            None => ends.front = id,
        }
        ends.back = id;
    }

    /// Takes the key out; returns the list it was in.
    pub(crate) fn remove(&mut self, key: Key) -> Option<u16> {
        let list = self.list_of(key)?;
        self.unlink(list, key);
        self.ends[usize::from(list)].len -= 1;
        self.of[key.index()] = NONE;
        Some(list)
    }

    /// Joins the neighbors of a key of `list`; its own link, its mark and the length stay.
    fn unlink(&mut self, list: u16, key: Key) {
        let Link { prev, next } = self.links[key.index()];
        let ends = &mut self.ends[usize::from(list)];
        match some(prev) {
            Some(prev) => self.links[prev.index()].next = next,
            None => ends.front = next,
        }
        match some(next) {
            Some(next) => self.links[next.index()].prev = prev,
            None => ends.back = prev,
        }
    }

    pub(crate) fn pop_front(&mut self, list: u16) -> Option<Key> {
        let key = self.front(list)?;
        self.remove(key);
        Some(key)
    }

    /// Oldest to newest.
    pub(crate) fn iter(&self, list: u16) -> impl Iterator<Item = Key> + '_ {
        core::iter::successors(self.front(list), |&key| self.newer(key))
    }

    /// The oldest key that satisfies `wanted`: O(1) plus the keys passed over.
    pub(crate) fn oldest(&self, list: u16, wanted: &dyn Fn(Key) -> bool) -> Option<Key> {
        self.iter(list).find(|&key| wanted(key))
    }

    /// Checks invariants 1 and 2, reported as numbers 101 and 102 of `owner`. O(keys).
    pub(crate) fn validate(&self, owner: &'static str) -> Result<(), Error> {
        let broken = |invariant, key| {
            Err(Error::Broken {
                owner,
                invariant,
                key,
            })
        };
        let mut linked = 0;
        for (list, ends) in (0u16..).zip(&self.ends) {
            let mut prev = NIL;
            let mut len = 0;
            for key in self.iter(list) {
                len += 1;
                let mirrored = self.links[key.index()].prev == prev;
                if len > ends.len || !mirrored || !self.contains(list, key) {
                    return broken(101, Some(key));
                }
                prev = key.id();
            }
            if len != ends.len || ends.back != prev {
                return broken(101, some(prev));
            }
            linked += len as usize;
        }
        if self.of.iter().filter(|&&l| l != NONE).count() != linked {
            return broken(102, None);
        }
        Ok(())
    }
}

fn some(id: u32) -> Option<Key> {
    (id != NIL).then_some(Key::new(id))
}
