//! `SlicePlanner`: which bytes of a file the next measurement reads.
//!
//! Owns one number: where the part begins that nobody has been given. Invariants: 1. fresh slices
//! are disjoint and lie within the file; 2. every slice begins at a multiple of
//! [`ALIGNMENT_BYTES`]. Cost: none.

use std::num::NonZeroUsize;

use crate::{ALIGNMENT_BYTES, Error, Result};

/// Hands out the bytes of a file from its beginning, each at most once.
///
/// ```
/// use std::num::NonZeroUsize;
/// use thalweg_store::probe::SlicePlanner;
/// let block = NonZeroUsize::new(4096).ok_or("zero")?;
/// let mut plan = SlicePlanner::new(3 * 4096);
/// assert_eq!(plan.take(block, 2 * 4096)?.n_blocks(), 2);
/// assert!(plan.take(block, 2 * 4096).is_err()); // one block is left
/// plan.start_over();
/// assert!(!plan.take(block, 2 * 4096)?.is_fresh());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SlicePlanner {
    len_bytes: u64,
    next_bytes: u64,
    fresh: bool,
}

/// A range of whole blocks, to be read once. It cannot be copied.
#[derive(PartialEq, Eq, Debug)]
pub struct Slice {
    offset_bytes: u64,
    block_bytes: NonZeroUsize,
    n_blocks: u64,
    fresh: bool,
}

impl SlicePlanner {
    /// A plan for a file of this length.
    #[must_use]
    pub const fn new(len_bytes: u64) -> Self {
        Self {
            len_bytes,
            next_bytes: 0,
            fresh: true,
        }
    }

    /// The next bytes: as many blocks as fit into `len_bytes`, but at least one.
    ///
    /// # Errors
    /// [`Error::UsedUp`] when the file has fewer bytes left; the plan is as before.
    /// [`Error::BadSize`] for a block that is not a multiple of [`ALIGNMENT_BYTES`].
    pub fn take(&mut self, block_bytes: NonZeroUsize, len_bytes: u64) -> Result<Slice> {
        let block = block_bytes.get() as u64;
        if !block.is_multiple_of(ALIGNMENT_BYTES as u64) {
            return Err(Error::BadSize {
                what: "a block",
                found_bytes: block,
            });
        }
        let n_blocks = (len_bytes / block).max(1);
        // At most the larger of `len_bytes` and `block`.
        let wanted_bytes = n_blocks * block;
        if wanted_bytes > self.left_bytes() {
            return Err(Error::UsedUp {
                wanted_bytes,
                left_bytes: self.left_bytes(),
            });
        }
        let slice = Slice {
            offset_bytes: self.next_bytes,
            block_bytes,
            n_blocks,
            fresh: self.fresh,
        };
        self.next_bytes += wanted_bytes;
        Ok(slice)
    }

    /// Bytes that nobody has been given since the plan began, or began again.
    #[must_use]
    pub const fn left_bytes(&self) -> u64 {
        // `next_bytes` never passes `len_bytes`.
        self.len_bytes - self.next_bytes
    }

    /// Begins again at the start of the file. Slices from now on are not fresh.
    pub const fn start_over(&mut self) {
        self.next_bytes = 0;
        self.fresh = false;
    }
}

impl Slice {
    /// Where it begins.
    #[must_use]
    pub const fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    /// Bytes of a block.
    #[must_use]
    pub const fn block_bytes(&self) -> NonZeroUsize {
        self.block_bytes
    }

    /// Its blocks.
    #[must_use]
    pub const fn n_blocks(&self) -> u64 {
        self.n_blocks
    }

    /// Whether its bytes had not been given to anybody before.
    #[must_use]
    pub const fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Where a block begins; `None` beyond the last.
    #[must_use]
    pub const fn block_offset_bytes(&self, block: u64) -> Option<u64> {
        if block >= self.n_blocks {
            return None;
        }
        // Within the file, so within u64.
        Some(self.offset_bytes + block * self.block_bytes.get() as u64)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pages(n: usize) -> NonZeroUsize {
        NonZeroUsize::new(n * ALIGNMENT_BYTES).expect("not zero")
    }

    proptest! {
        #[test]
        fn no_byte_is_handed_out_twice(
            file_pages in 0..400_u64,
            wishes in prop::collection::vec((1..9_usize, 0..60_u64), 0..40),
        ) {
            let page = ALIGNMENT_BYTES as u64;
            let mut plan = SlicePlanner::new(file_pages * page + 17);
            let mut seen = vec![0_u32; file_pages as usize];
            for (block_pages, len_pages) in wishes {
                let left = plan.left_bytes();
                match plan.take(pages(block_pages), len_pages * page) {
                    Ok(slice) => {
                        prop_assert!(slice.is_fresh() && slice.n_blocks() > 0);
                        for block in 0..slice.n_blocks() {
                            let start = slice.block_offset_bytes(block).expect("a block");
                            prop_assert!(start.is_multiple_of(page));
                            for p in 0..block_pages {
                                seen[(start / page) as usize + p] += 1;
                            }
                        }
                        prop_assert_eq!(slice.block_offset_bytes(slice.n_blocks()), None);
                    }
                    Err(Error::UsedUp { wanted_bytes, left_bytes }) => {
                        prop_assert!(wanted_bytes > left_bytes);
                        prop_assert_eq!(left_bytes, left);
                        prop_assert_eq!(plan.left_bytes(), left);
                    }
                    Err(e) => return Err(TestCaseError::fail(e.to_string())),
                }
            }
            prop_assert!(seen.iter().all(|n| *n <= 1));
            let given = seen.iter().map(|n| u64::from(*n)).sum::<u64>() * page;
            prop_assert_eq!(given + plan.left_bytes(), file_pages * page + 17);
        }
    }

    #[test]
    fn a_used_up_file_says_so_until_the_plan_starts_over() {
        let mut plan = SlicePlanner::new(12 << 30);
        let gib = 1_u64 << 30;
        for i in 0..12 {
            let slice = plan.take(pages(256), gib).expect("12 slices of 1 GiB");
            assert_eq!(slice.offset_bytes(), i * gib);
        }
        assert!(matches!(
            plan.take(pages(1), 1),
            Err(Error::UsedUp {
                wanted_bytes: 4096,
                left_bytes: 0
            })
        ));
        plan.start_over();
        let again = plan.take(pages(1), 1).expect("from the start");
        assert_eq!((again.offset_bytes(), again.is_fresh()), (0, false));
    }

    #[test]
    fn blocks_are_whole_pages() {
        let block = NonZeroUsize::new(5000).expect("not zero");
        let error = SlicePlanner::new(1 << 20).take(block, 10_000);
        assert!(matches!(
            error,
            Err(Error::BadSize {
                found_bytes: 5000,
                ..
            })
        ));
    }
}
