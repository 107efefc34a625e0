//! `AccessLog`: a recorded sequence of accesses, for replay and for offline policies.
//!
//! Owns copies of the keys, near keys and probabilities in flat arrays. Does not own their
//! meaning: (layer, expert) pairs are dense keys here. Memory: 4 bytes a key and a probability, 40
//! an access. Invariants: the ends in `marks` never decrease and bound the arrays. Cost: `push`
//! copies its access, `get` is O(1) and copies nothing.

use alloc::vec::Vec;

use crate::{Access, Key, Probs};

/// Accesses in the order in which they were served.
///
/// ```
/// use thalweg_cache::{Access, AccessLog, Key};
/// let mut log = AccessLog::new();
/// log.push(&Access::new(0, &[Key::new(3), Key::new(1)]));
/// assert_eq!(log.get(0).unwrap().keys, [Key::new(3), Key::new(1)]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct AccessLog {
    keys: Vec<Key>,
    near: Vec<Key>,
    probs: Vec<f32>,
    marks: Vec<Mark>,
}

#[derive(Clone, Copy, Debug)]
struct Mark {
    clock: u64,
    keys_end: usize,
    near_end: usize,
    probs_end: usize,
    probs_first: Option<Key>,
}

impl AccessLog {
    /// A log without accesses.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            keys: Vec::new(),
            near: Vec::new(),
            probs: Vec::new(),
            marks: Vec::new(),
        }
    }

    /// Appends a copy of an access.
    pub fn push(&mut self, access: &Access<'_>) {
        self.keys.extend_from_slice(access.keys);
        self.near.extend_from_slice(access.near);
        if let Some(probs) = access.probs {
            self.probs.extend_from_slice(probs.values);
        }
        self.marks.push(Mark {
            clock: access.clock,
            keys_end: self.keys.len(),
            near_end: self.near.len(),
            probs_end: self.probs.len(),
            probs_first: access.probs.map(|p| p.first),
        });
    }

    /// Number of accesses.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.marks.len()
    }

    /// Whether there is no access.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// Keys asked for, summed over all accesses.
    #[must_use]
    pub const fn n_picks(&self) -> usize {
        self.keys.len()
    }

    /// The access at a position.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<Access<'_>> {
        let mark = *self.marks.get(index)?;
        let (keys, near, probs) = match index.checked_sub(1).and_then(|i| self.marks.get(i)) {
            Some(before) => (before.keys_end, before.near_end, before.probs_end),
            None => (0, 0, 0),
        };
        let mut access = Access::new(mark.clock, &self.keys[keys..mark.keys_end])
            .with_near(&self.near[near..mark.near_end]);
        access.probs = mark
            .probs_first
            .map(|first| Probs::new(first, &self.probs[probs..mark.probs_end]));
        Some(access)
    }

    /// The accesses in order.
    pub fn iter(&self) -> impl Iterator<Item = Access<'_>> + '_ {
        (0..self.len()).filter_map(|i| self.get(i))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_come_back_as_they_went_in() {
        let keys = [5, 2, 9].map(Key::new);
        let near = [1, 3].map(Key::new);
        let values = [0.25, 0.75];
        let mut log = AccessLog::new();
        log.push(&Access::new(7, &keys).with_near(&near));
        log.push(&Access::new(8, &[]));
        log.push(&Access::new(8, &keys[1..]).with_probs(Probs::new(Key::new(4), &values)));

        assert_eq!((log.len(), log.n_picks()), (3, 5));
        let first = log.get(0).expect("pushed");
        assert_eq!(
            (first.clock, first.keys, first.near),
            (7, &keys[..], &near[..])
        );
        assert!(first.probs.is_none());
        assert!(log.get(1).expect("pushed").keys.is_empty());
        let last = log.get(2).expect("pushed");
        assert_eq!((last.keys, last.near), (&keys[1..], &[][..]));
        let probs = last.probs.expect("pushed with probabilities");
        assert_eq!((probs.first, probs.values), (Key::new(4), &values[..]));
        assert!(log.get(3).is_none());
        assert_eq!(log.iter().count(), 3);
    }
}
