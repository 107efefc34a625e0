//! `Arena`: one allocation cut into slots of a few sizes.
//!
//! Owns the bytes of all slots, except while a slot's buffer is away in a read. Does not own which
//! key is in a slot (a `Residency` per region does) nor eviction. Memory: taken as a whole by
//! `new`; in debug builds written at once, else page by page as slots fill.
//! Invariants (checked by `validate`): 1. a slot's buffer has its class's stride, and no two slots
//! share bytes; 2. regions of one stride lie next to each other and form one size class. Which
//! range of the allocation a slot has may change: `swap` exchanges two slots' contents by
//! exchanging their buffers.
//! Cost: moving a buffer in or out, or exchanging two, is a move of a few words.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::{ALIGNMENT_BYTES, AlignedBuf, Error, Result, SlotBuf};

/// What a slot holds while its content is not valid, in debug builds: NaN, read as any float.
pub(crate) const POISON: u8 = 0xFF;

/// Slots from here on begin at multiples of [`LARGE_ALIGNMENT_BYTES`]: little beside their size.
const LARGE_SLOT_BYTES: usize = 1 << 20;
/// The largest page of common systems (macOS on ARM), so that whole slots can be given to a device.
const LARGE_ALIGNMENT_BYTES: usize = 16 << 10;

/// Slots of one size that are wanted together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Bytes of a slot; rounded up to [`ALIGNMENT_BYTES`], from 1 MiB on to 16 KiB.
    pub slot_bytes: usize,
    /// Number of slots.
    pub n_slots: usize,
}

/// All slots of one size.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SizeClass {
    /// Bytes of a slot, a multiple of [`ALIGNMENT_BYTES`].
    pub stride_bytes: usize,
    /// The slots, numbered over the whole arena.
    pub slots: Range<usize>,
}

/// Slots, numbered over the whole arena, class by class.
///
/// ```
/// use thalweg_store::{Arena, Region};
/// let regions = [(5000, 2), (100, 1), (8192, 1)];
/// let regions = regions.map(|(slot_bytes, n_slots)| Region { slot_bytes, n_slots });
/// let mut arena = Arena::new(&regions)?;
/// assert_eq!(arena.classes().len(), 2); // 4096 and 8192
/// assert_eq!(arena.slot(2, 0), Some(3)); // after the slots of region 0, which are as large
/// let buf = arena.take(3).unwrap();
/// assert_eq!(buf.len(), 8192);
/// assert!(arena.get(3).is_none()); // away, until it is put back
/// assert!(arena.put(3, buf).is_ok());
/// # Ok::<(), thalweg_store::Error>(())
/// ```
#[derive(Debug)]
pub struct Arena {
    slots: Vec<Option<SlotBuf>>,
    /// The slots of each region.
    regions: Vec<Range<usize>>,
    classes: Vec<SizeClass>,
    allocated_bytes: usize,
}

impl Arena {
    /// Allocates the slots of all regions.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::OutOfMemory`].
    ///
    /// # Cost
    /// One allocation, whose pages are touched in debug builds only.
    pub fn new(regions: &[Region]) -> Result<Self> {
        let too_large = || Error::TooLarge { what: "the arena" };
        let mut by_stride: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (i, region) in regions.iter().enumerate() {
            let stride = stride_bytes(region.slot_bytes).ok_or_else(too_large)?;
            by_stride.entry(stride).or_default().push(i);
        }
        let mut ranges = vec![0..0; regions.len()];
        let mut classes = Vec::new();
        let (mut n_slots, mut bytes) = (0_usize, 0_usize);
        for (stride, members) in by_stride {
            let first = n_slots;
            for i in members {
                let n = regions[i].n_slots;
                let end = n_slots.checked_add(n).ok_or_else(too_large)?;
                let more = n.checked_mul(stride).ok_or_else(too_large)?;
                bytes = bytes.checked_add(more).ok_or_else(too_large)?;
                ranges[i] = n_slots..end;
                n_slots = end;
            }
            if n_slots > first {
                classes.push(SizeClass {
                    stride_bytes: stride,
                    slots: first..n_slots,
                });
            }
        }
        let mut buf = AlignedBuf::zeroed(bytes)?;
        if cfg!(debug_assertions) {
            buf.fill(POISON);
        }
        let lens = classes
            .iter()
            .flat_map(|c| c.slots.clone().map(|_| c.stride_bytes));
        Ok(Self {
            slots: buf.carve(lens)?.into_iter().map(Some).collect(),
            regions: ranges,
            classes,
            allocated_bytes: AlignedBuf::allocated_bytes(bytes),
        })
    }

    /// Slots of all regions.
    #[must_use]
    pub fn n_slots(&self) -> usize {
        self.slots.len()
    }

    /// Bytes of the allocation.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.allocated_bytes
    }

    /// The size classes, smallest first.
    #[must_use]
    pub fn classes(&self) -> &[SizeClass] {
        &self.classes
    }

    /// The number of a region's `i`-th slot; `None` out of range.
    #[must_use]
    pub fn slot(&self, region: usize, i: usize) -> Option<usize> {
        self.regions.get(region)?.clone().nth(i)
    }

    /// The buffer of a slot; `None` out of range or while it is away.
    #[must_use]
    pub fn get(&self, slot: usize) -> Option<&SlotBuf> {
        self.slots.get(slot)?.as_ref()
    }

    /// The buffer of a slot, to be written; `None` out of range or while it is away.
    #[must_use]
    pub fn get_mut(&mut self, slot: usize) -> Option<&mut SlotBuf> {
        self.slots.get_mut(slot)?.as_mut()
    }

    /// Moves a buffer out, as into a read; `None` out of range or while it is away.
    #[must_use]
    pub fn take(&mut self, slot: usize) -> Option<SlotBuf> {
        self.slots.get_mut(slot)?.take()
    }

    /// Puts a buffer into a slot that has none.
    ///
    /// # Errors
    /// Returns a buffer that is of another arena or another size, or whose slot has one.
    pub fn put(&mut self, slot: usize, buf: SlotBuf) -> std::result::Result<(), SlotBuf> {
        let is_own = self.slots.get(slot).is_some_and(Option::is_none)
            && self.stride_of(slot) == Some(buf.len())
            && self
                .slots
                .iter()
                .flatten()
                .next()
                .is_none_or(|other| other.is_sibling(&buf));
        match self.slots.get_mut(slot) {
            Some(home) if is_own => {
                *home = Some(buf);
                Ok(())
            }
            _ => Err(buf),
        }
    }

    /// Writes to every page of the slots that are here what is there already, so that the system
    /// gives it memory now and not at its first use.
    pub fn touch(&mut self) {
        for slot in self.slots.iter_mut().flatten() {
            for byte in slot.iter_mut().step_by(ALIGNMENT_BYTES) {
                // Otherwise the write of what was read is optimized away.
                *byte = std::hint::black_box(*byte);
            }
        }
    }

    /// Exchanges the contents of two slots of one size class, without copying. False, and nothing
    /// happens, if they differ in size or a buffer is away.
    pub fn swap(&mut self, a: usize, b: usize) -> bool {
        let home = |slot| self.slots.get(slot).is_some_and(Option::is_some);
        if !home(a) || !home(b) || self.stride_of(a) != self.stride_of(b) {
            return false;
        }
        self.slots.swap(a, b);
        true
    }

    /// Bytes of a slot; `None` out of range.
    #[must_use]
    pub fn stride_of(&self, slot: usize) -> Option<usize> {
        let class = self.classes.iter().find(|c| c.slots.contains(&slot))?;
        Some(class.stride_bytes)
    }

    /// Checks the invariants; for tests.
    ///
    /// # Errors
    /// [`Error::Broken`] names the first invariant found broken and its slot.
    pub fn validate(&self) -> Result<()> {
        let broken = |invariant, slot: usize| Error::Broken {
            owner: "arena",
            invariant,
            place: slot as u64,
        };
        let mut ranges = Vec::with_capacity(self.slots.len());
        for (slot, buf) in self.slots.iter().enumerate() {
            let Some(buf) = buf else { continue };
            if self.stride_of(slot) != Some(buf.len()) {
                return Err(broken(1, slot));
            }
            ranges.push((buf.offset_bytes(), buf.len(), slot));
        }
        ranges.sort_unstable();
        for pair in ranges.windows(2) {
            if pair[0].0 + pair[0].1 > pair[1].0 {
                return Err(broken(1, pair[1].2));
            }
        }
        let mut next = 0;
        for class in &self.classes {
            if class.slots.start != next || class.slots.is_empty() {
                return Err(broken(2, next));
            }
            next = class.slots.end;
        }
        if next != self.slots.len() {
            return Err(broken(2, next));
        }
        Ok(())
    }
}

/// Bytes from one slot to the next; `None` when they cannot be addressed.
pub(crate) fn stride_bytes(slot_bytes: usize) -> Option<usize> {
    let alignment = match slot_bytes {
        LARGE_SLOT_BYTES.. => LARGE_ALIGNMENT_BYTES,
        _ => ALIGNMENT_BYTES,
    };
    slot_bytes.checked_next_multiple_of(alignment)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(regions: &[(usize, usize)]) -> Arena {
        let regions: Vec<_> = regions
            .iter()
            .map(|&(slot_bytes, n_slots)| Region {
                slot_bytes,
                n_slots,
            })
            .collect();
        Arena::new(&regions).unwrap()
    }

    #[test]
    fn regions_of_equal_stride_form_one_class() {
        let arena = arena(&[(9000, 2), (1, 3), (12288, 1), (4096, 0), (5000, 2)]);
        arena.validate().unwrap();
        let classes: Vec<_> = arena
            .classes()
            .iter()
            .map(|c| (c.stride_bytes, c.slots.clone()))
            .collect();
        assert_eq!(classes, [(4096, 0..3), (8192, 3..5), (12288, 5..8)]);
        assert_eq!(arena.bytes(), 3 * 4096 + 2 * 8192 + 3 * 12288 + 4096);
        assert_eq!(
            (arena.slot(0, 1), arena.slot(2, 0), arena.slot(4, 1)),
            (Some(6), Some(7), Some(4))
        );
        assert_eq!(
            (arena.slot(0, 2), arena.slot(3, 0), arena.slot(5, 0)),
            (None, None, None)
        );
    }

    #[test]
    fn large_slots_are_whole_pages_of_any_system() {
        let mib = 1 << 20;
        for (slot, stride) in [
            (0, 0),
            (1, 4096),
            (mib - 4096, mib - 4096),
            (mib - 1, mib),
            (mib, mib),
            (mib + 1, mib + 16_384),
            (1_382_400, 1_392_640),
        ] {
            assert_eq!(stride_bytes(slot), Some(stride));
            assert_eq!(
                stride_bytes(stride),
                Some(stride),
                "rounding again changes nothing"
            );
        }
        assert_eq!(stride_bytes(usize::MAX - 4096), None);
    }

    #[test]
    fn every_slot_is_aligned_and_holds_its_own_bytes() {
        let mut arena = arena(&[(4097, 3), (64, 5)]);
        for slot in 0..arena.n_slots() {
            arena.get_mut(slot).unwrap().fill(slot as u8);
        }
        for slot in 0..arena.n_slots() {
            let buf = arena.get(slot).unwrap();
            assert_eq!(buf.as_ptr().addr() % ALIGNMENT_BYTES, 0);
            assert!(buf.iter().all(|b| usize::from(*b) == slot));
        }
    }

    #[test]
    fn slots_of_one_size_exchange_their_contents_without_a_copy() {
        let mut arena = arena(&[(4096, 2), (8192, 1)]);
        for slot in 0..3 {
            arena.get_mut(slot).unwrap().fill(slot as u8);
        }
        let before = arena.get(0).unwrap().as_ptr();
        assert!(arena.swap(0, 1));
        assert_eq!(arena.get(1).unwrap().as_ptr(), before);
        assert_eq!((arena.get(0).unwrap()[0], arena.get(1).unwrap()[0]), (1, 0));
        assert!(!arena.swap(0, 2), "sizes differ");
        let away = arena.take(0).unwrap();
        assert!(!arena.swap(0, 1), "a buffer is away");
        arena.put(0, away).unwrap();
        arena.validate().unwrap();
    }

    #[test]
    fn only_a_buffer_of_its_size_and_arena_can_be_put_into_an_empty_slot() {
        let (mut a, mut b) = (arena(&[(1, 2), (8192, 1)]), arena(&[(1, 2)]));
        let (a0, large, b0) = (a.take(0).unwrap(), a.take(2).unwrap(), b.take(0).unwrap());
        assert!(a.take(0).is_none());
        let large = a.put(0, large).unwrap_err();
        let a0 = a.put(1, a0).unwrap_err();
        let b0 = a.put(0, b0).unwrap_err();
        a.put(0, a0).unwrap();
        a.put(2, large).unwrap();
        b.put(0, b0).unwrap();
        a.validate().unwrap();
        b.validate().unwrap();
    }

    #[test]
    fn sizes_beyond_the_address_space_are_errors() {
        for region in [(usize::MAX, 1), (4096, usize::MAX), (usize::MAX / 2, 3)] {
            let (slot_bytes, n_slots) = region;
            assert!(
                Arena::new(&[Region {
                    slot_bytes,
                    n_slots
                }])
                .is_err()
            );
        }
    }

    #[test]
    fn an_arena_without_slots_is_sound() {
        arena(&[]).validate().unwrap();
        arena(&[(4096, 0), (0, 3)]).validate().unwrap();
    }
}
