//! `BlockCache`: recently read file blocks, CLOCK replacement.
//!
//! Owns the blocks' bytes and which block is where; does not read files. A block that is found
//! gets a mark; the hand passes marked blocks once, taking the mark, and replaces the first
//! without. New blocks come without a mark, so a sweep of blocks used once leaves marked ones in
//! place for a round. Memory: the capacity, allocated by `new` and touched as it fills, and about
//! 40 bytes a block for tables.
//! Invariants (checked by `validate`): 1. `slot_of` and `block_of` mirror each other; 2. at most
//! `capacity` blocks. Cost: O(1) a lookup; an insertion passes over at most all marks.

use std::collections::HashMap;

use crate::{ALIGNMENT_BYTES, AlignedBuf, Error, Result};

/// Bytes of a block: the unit that files are read in.
pub(crate) const BLOCK_BYTES: usize = ALIGNMENT_BYTES;

#[derive(Debug)]
pub(crate) struct BlockCache {
    bytes: AlignedBuf,
    capacity: usize,
    slot_of: HashMap<u64, usize>,
    block_of: Vec<u64>,
    marked: Vec<bool>,
    hand: usize,
}

impl BlockCache {
    /// A cache of as many whole blocks as `capacity_bytes` holds, perhaps none.
    pub(crate) fn new(capacity_bytes: usize) -> Result<Self> {
        let capacity = capacity_bytes / BLOCK_BYTES;
        Ok(Self {
            bytes: AlignedBuf::zeroed(capacity * BLOCK_BYTES)?,
            capacity,
            slot_of: HashMap::new(),
            block_of: Vec::new(),
            marked: Vec::new(),
            hand: 0,
        })
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// The bytes of a block, which gets a mark.
    pub(crate) fn get(&mut self, block: u64) -> Option<&[u8]> {
        let slot = *self.slot_of.get(&block)?;
        self.marked[slot] = true;
        Some(&self.bytes[slot * BLOCK_BYTES..][..BLOCK_BYTES])
    }

    /// Keeps a block that is not in the cache, replacing another if it is full. `bytes` is shorter
    /// than a block at the end of a file; what follows it is then not defined.
    pub(crate) fn insert(&mut self, block: u64, bytes: &[u8]) {
        if self.capacity == 0 || self.slot_of.contains_key(&block) {
            return;
        }
        let slot = if self.block_of.len() < self.capacity {
            self.block_of.push(block);
            self.marked.push(false);
            self.block_of.len() - 1
        } else {
            let slot = self.sweep();
            self.slot_of.remove(&self.block_of[slot]);
            self.block_of[slot] = block;
            slot
        };
        self.slot_of.insert(block, slot);
        let len = bytes.len().min(BLOCK_BYTES);
        self.bytes[slot * BLOCK_BYTES..][..len].copy_from_slice(&bytes[..len]);
    }

    pub(crate) fn validate(&self) -> Result<()> {
        let broken = |invariant, place| Error::Broken {
            owner: "block cache",
            invariant,
            place,
        };
        for (slot, block) in self.block_of.iter().enumerate() {
            if self.slot_of.get(block) != Some(&slot) {
                return Err(broken(1, *block));
            }
        }
        if self.slot_of.len() != self.block_of.len() || self.marked.len() != self.block_of.len() {
            return Err(broken(1, 0));
        }
        if self.block_of.len() > self.capacity {
            return Err(broken(2, 0));
        }
        Ok(())
    }

    /// The slot to replace; its mark is clear. The cache is full and has a slot.
    fn sweep(&mut self) -> usize {
        loop {
            let slot = self.hand;
            self.hand = (slot + 1) % self.capacity;
            if !std::mem::take(&mut self.marked[slot]) {
                return slot;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(n_blocks: usize) -> BlockCache {
        BlockCache::new(n_blocks * BLOCK_BYTES + 5).unwrap()
    }

    fn put(cache: &mut BlockCache, block: u64) {
        cache.insert(block, &[block as u8; BLOCK_BYTES]);
        cache.validate().unwrap();
    }

    fn has(cache: &BlockCache, block: u64) -> bool {
        cache.slot_of.contains_key(&block)
    }

    #[test]
    fn marked_blocks_survive_one_round() {
        let mut cache = cache(3);
        (0..3).for_each(|b| put(&mut cache, b));
        assert!(cache.get(0).unwrap().iter().all(|b| *b == 0));
        put(&mut cache, 3); // passes 0, takes its mark, replaces 1
        assert!(has(&cache, 0) && !has(&cache, 1));
        put(&mut cache, 4); // replaces 2
        put(&mut cache, 5); // replaces 0, whose mark is gone
        assert!(!has(&cache, 0) && has(&cache, 3) && has(&cache, 4) && has(&cache, 5));
        assert!(cache.get(5).unwrap().iter().all(|b| *b == 5));
    }

    #[test]
    fn a_cache_whose_blocks_are_all_marked_still_takes_one() {
        let mut cache = cache(4);
        for b in 0..4 {
            put(&mut cache, b);
            cache.get(b);
        }
        put(&mut cache, 9);
        assert!(has(&cache, 9) && !has(&cache, 0));
    }

    #[test]
    fn a_cache_of_no_blocks_keeps_nothing() {
        let mut cache = cache(0);
        put(&mut cache, 1);
        assert!(cache.get(1).is_none());
        assert_eq!(cache.capacity(), 0);
    }

    #[test]
    fn a_block_is_kept_once() {
        let mut cache = cache(2);
        put(&mut cache, 1);
        put(&mut cache, 1);
        put(&mut cache, 2);
        assert!(has(&cache, 1) && has(&cache, 2));
    }
}
