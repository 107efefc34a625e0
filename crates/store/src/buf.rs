//! Page-aligned memory that is owned piece by piece.
//!
//! Owns unsafe code of this crate (the ring of `io` has the rest): one zeroed allocation (`AlignedBuf`) that can be cut
//! into pieces (`SlotBuf`), each of which owns its range alone and can move into a read operation
//! and back. Does not own what the bytes mean. Memory: the length plus one alignment unit; pages
//! are not touched before they are written, where the system's allocator maps zeroed pages lazily.
//! Invariants: 1. the ranges of live pieces are disjoint and lie within their allocation; 2. the
//! allocation outlives its pieces. Cost: no locks; a piece holds one reference count.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use crate::{Error, Result};

/// Alignment of allocations, slots and file blocks: what direct I/O needs on common devices.
pub const ALIGNMENT_BYTES: usize = 4096;

/// A zeroed allocation whose first byte is aligned to [`ALIGNMENT_BYTES`].
///
/// ```
/// use thalweg_store::{ALIGNMENT_BYTES, AlignedBuf};
/// let buf = AlignedBuf::zeroed(3 * ALIGNMENT_BYTES)?;
/// assert_eq!(buf.as_ptr().addr() % ALIGNMENT_BYTES, 0);
/// let mut slots = buf.carve([ALIGNMENT_BYTES, 2 * ALIGNMENT_BYTES])?;
/// slots[1][0] = 7; // each piece is exclusive and can move to another thread
/// assert_eq!((slots[0][0], slots[1][0]), (0, 7));
/// # Ok::<(), thalweg_store::Error>(())
/// ```
pub struct AlignedBuf {
    start: NonNull<u8>,
    len: usize,
    allocation: Allocation,
}

/// A range of an [`AlignedBuf`] that this value owns alone.
pub struct SlotBuf {
    start: NonNull<u8>,
    len: usize,
    offset: usize,
    allocation: Arc<Allocation>,
}

impl AlignedBuf {
    /// Allocates `len_bytes` zero bytes.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn zeroed(len_bytes: usize) -> Result<Self> {
        let allocation = Allocation::zeroed(len_bytes)?;
        let padding = allocation.base.addr().get().wrapping_neg() % ALIGNMENT_BYTES;
        // SAFETY: the allocation has `ALIGNMENT_BYTES` more bytes than `len_bytes`, and
        // `padding` is less than that.
        let start = unsafe { allocation.base.add(padding) };
        Ok(Self {
            start,
            len: len_bytes,
            allocation,
        })
    }

    /// Bytes that an allocation of `len_bytes` takes.
    #[must_use]
    pub const fn allocated_bytes(len_bytes: usize) -> usize {
        len_bytes.saturating_add(ALIGNMENT_BYTES)
    }

    /// Cuts the buffer into consecutive pieces of these lengths; bytes left over go unused.
    ///
    /// Pieces whose lengths are multiples of [`ALIGNMENT_BYTES`] are all aligned.
    ///
    /// # Errors
    /// [`Error::BadSegment`] when the lengths exceed the buffer.
    pub fn carve(self, lens_bytes: impl IntoIterator<Item = usize>) -> Result<Vec<SlotBuf>> {
        let allocation = Arc::new(self.allocation);
        let mut pieces = Vec::new();
        let mut offset = 0_usize;
        for len in lens_bytes {
            if len > self.len - offset {
                return Err(Error::BadSegment {
                    dst_bytes: offset,
                    len_bytes: len,
                    buf_bytes: self.len,
                });
            }
            // SAFETY: `offset + len <= self.len`, so this is within the allocation or one past it.
            let start = unsafe { self.start.add(offset) };
            pieces.push(SlotBuf {
                start,
                len,
                offset,
                allocation: Arc::clone(&allocation),
            });
            offset += len;
        }
        Ok(pieces)
    }
}

impl SlotBuf {
    /// Where in its allocation the range begins; tells the pieces of one allocation apart.
    #[must_use]
    pub fn offset_bytes(&self) -> usize {
        self.offset
    }

    /// Cuts the range in two: `self` keeps the bytes before `at`, the rest is returned. Beyond the
    /// end there is nothing to return but an empty piece.
    ///
    /// ```
    /// use thalweg_store::AlignedBuf;
    /// let mut piece = AlignedBuf::zeroed(100)?.carve([100])?.remove(0);
    /// let mut rest = piece.split_off(60);
    /// rest[0] = 7; // on another thread, if need be
    /// assert_eq!((piece.len(), rest.len()), (60, 40));
    /// assert!(piece.join(rest).is_ok());
    /// assert_eq!((piece.len(), piece[60]), (100, 7));
    /// # Ok::<(), thalweg_store::Error>(())
    /// ```
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        let at = at.min(self.len);
        // SAFETY: `at <= self.len`, so this is within the range or one past it.
        let start = unsafe { self.start.add(at) };
        let rest = Self {
            start,
            len: self.len - at,
            offset: self.offset + at,
            allocation: Arc::clone(&self.allocation),
        };
        // From here on the two ranges are disjoint (invariant 1); no reference is live meanwhile.
        self.len = at;
        rest
    }

    /// Takes in the piece that begins where this one ends.
    ///
    /// # Errors
    /// Gives back a piece that is not the neighbor behind this one in the same allocation.
    pub fn join(&mut self, next: Self) -> std::result::Result<(), Self> {
        if !self.is_sibling(&next) || self.offset + self.len != next.offset {
            return Err(next);
        }
        // `next` owned its range alone and is dropped here, so `self` may own both.
        self.len += next.len;
        Ok(())
    }

    /// Where the range begins, for a system call that writes while no reference exists.
    #[cfg(all(target_os = "linux", feature = "io-uring"))]
    #[expect(
        clippy::needless_pass_by_ref_mut,
        reason = "whoever asks means to write, so nobody else may look"
    )]
    pub(crate) const fn start(&mut self) -> NonNull<u8> {
        self.start
    }

    /// Whether two pieces come from the same allocation.
    #[must_use]
    pub fn is_sibling(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.allocation, &other.allocation)
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes from `start` are allocated and were zeroed; only `self` reaches them.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes this the only reference.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Deref for SlotBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range was zeroed at allocation, lies within it (invariant 1), and no other
        // piece covers any of it; `self.allocation` keeps it alive (invariant 2).
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for SlotBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes this the only reference to the range.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

// SAFETY: an `AlignedBuf` owns its bytes like a `Box<[u8]>`; memory has no thread affinity.
unsafe impl Send for AlignedBuf {}
// SAFETY: a shared `AlignedBuf` gives out shared slices only.
unsafe impl Sync for AlignedBuf {}
// SAFETY: a `SlotBuf` is the only way to its range (invariant 1), so moving it moves the access.
unsafe impl Send for SlotBuf {}
// SAFETY: a shared `SlotBuf` gives out shared slices only.
unsafe impl Sync for SlotBuf {}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuf")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for SlotBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotBuf")
            .field("offset", &self.offset)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// The memory itself; never looked into, only freed.
struct Allocation {
    base: NonNull<u8>,
    layout: Layout,
}

impl Allocation {
    /// Room for `len_bytes` behind an aligned start.
    ///
    /// The alignment is made by hand: for large alignments the standard allocator clears the
    /// memory itself, which would touch every page of an arena that may never fill.
    fn zeroed(len_bytes: usize) -> Result<Self> {
        let out_of_memory = || Error::OutOfMemory {
            wanted_bytes: len_bytes,
        };
        let size = len_bytes
            .checked_add(ALIGNMENT_BYTES)
            .ok_or_else(out_of_memory)?;
        let layout = Layout::from_size_align(size, 1).map_err(|_| out_of_memory())?;
        // SAFETY: the size is at least `ALIGNMENT_BYTES`, so not zero.
        let base = unsafe { alloc_zeroed(layout) };
        let base = NonNull::new(base).ok_or_else(out_of_memory)?;
        Ok(Self { base, layout })
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: `base` was allocated with this layout, and its owner is being dropped.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

// SAFETY: the allocation is memory only; access to it goes through the disjoint pieces.
unsafe impl Send for Allocation {}
// SAFETY: nothing can be done with a shared `Allocation` but compare its address.
unsafe impl Sync for Allocation {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_zeroed_and_writable_to_its_end() {
        for len in [
            0,
            1,
            ALIGNMENT_BYTES - 1,
            ALIGNMENT_BYTES,
            3 * ALIGNMENT_BYTES + 5,
        ] {
            let mut buf = AlignedBuf::zeroed(len).unwrap();
            assert_eq!(buf.as_ptr().addr() % ALIGNMENT_BYTES, 0);
            assert_eq!(buf.len(), len);
            assert!(buf.iter().all(|b| *b == 0));
            buf.fill(0xA5);
            assert!(buf.iter().all(|b| *b == 0xA5));
        }
    }

    #[test]
    fn pieces_are_disjoint_and_outlive_each_other() {
        let buf = AlignedBuf::zeroed(2 * ALIGNMENT_BYTES).unwrap();
        let mut pieces = buf.carve([ALIGNMENT_BYTES, 100, 0, 50]).unwrap();
        for (i, piece) in (1_u8..).zip(&mut pieces) {
            piece.fill(i);
        }
        let last = pieces.pop().unwrap();
        assert!(pieces[0].is_sibling(&last));
        assert_eq!(last.offset_bytes(), ALIGNMENT_BYTES + 100);
        assert!(pieces[0].iter().all(|b| *b == 1));
        assert!(pieces[1].iter().all(|b| *b == 2));
        drop(pieces);
        assert_eq!(last[..], [4; 50]);
    }

    #[test]
    fn a_piece_can_be_written_by_another_thread_and_come_back() {
        let buf = AlignedBuf::zeroed(2 * ALIGNMENT_BYTES).unwrap();
        let mut pieces = buf.carve([ALIGNMENT_BYTES, ALIGNMENT_BYTES]).unwrap();
        let mut away = pieces.pop().unwrap();
        let writer = std::thread::spawn(move || {
            away.fill(9);
            away
        });
        pieces[0].fill(8);
        let back = writer.join().unwrap();
        assert!(back.iter().all(|b| *b == 9));
        assert!(pieces[0].iter().all(|b| *b == 8));
    }

    #[test]
    fn halves_go_to_different_threads_and_join_only_as_neighbors() {
        let buf = AlignedBuf::zeroed(3 * ALIGNMENT_BYTES).unwrap();
        let mut pieces = buf.carve([2 * ALIGNMENT_BYTES, 100]).unwrap();
        let other = pieces.pop().unwrap();
        let mut first = pieces.pop().unwrap();
        let mut second = first.split_off(ALIGNMENT_BYTES + 1);
        let beyond = second.split_off(usize::MAX);
        assert_eq!((second.len(), beyond.len()), (ALIGNMENT_BYTES - 1, 0));
        std::thread::scope(|scope| {
            scope.spawn(|| first.fill(1));
            scope.spawn(|| second.fill(2));
        });
        // A gap, the wrong order, another allocation.
        let other = first.join(other).unwrap_err();
        let mut first = second.join(first).unwrap_err();
        let foreign = AlignedBuf::zeroed(1).unwrap().carve([1]).unwrap().remove(0);
        assert!(second.join(foreign).is_err());
        assert!(second.join(beyond).is_ok());
        first.join(second).unwrap();
        first.join(other).unwrap();
        assert_eq!(first.len(), 2 * ALIGNMENT_BYTES + 100);
        assert!(first[..=ALIGNMENT_BYTES].iter().all(|b| *b == 1));
        assert!(
            first[ALIGNMENT_BYTES + 1..2 * ALIGNMENT_BYTES]
                .iter()
                .all(|b| *b == 2)
        );
        assert!(first[2 * ALIGNMENT_BYTES..].iter().all(|b| *b == 0));
    }

    #[test]
    fn pieces_that_do_not_fit_are_refused() {
        let carve = |lens: &[usize]| AlignedBuf::zeroed(100).unwrap().carve(lens.iter().copied());
        assert!(carve(&[60, 40]).is_ok());
        assert!(matches!(
            carve(&[60, 41]),
            Err(Error::BadSegment {
                dst_bytes: 60,
                len_bytes: 41,
                buf_bytes: 100
            })
        ));
        assert!(carve(&[1, usize::MAX]).is_err());
    }

    #[test]
    fn an_allocation_beyond_the_address_space_is_an_error() {
        for len in [usize::MAX, isize::MAX as usize] {
            assert!(matches!(
                AlignedBuf::zeroed(len),
                Err(Error::OutOfMemory { wanted_bytes }) if wanted_bytes == len
            ));
        }
    }
}
