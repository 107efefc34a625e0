//! Windows: which aligned range of a file brings the next bytes of a segment, and where it lands.
//!
//! Owns the arithmetic and the loop of blocking reads; not the system call (`ReadAt`, the ring).
//! A read goes straight into the destination where place and address are aligned, else through a
//! bounce buffer. Memory: none; the caller's bounce buffer of [`BOUNCE_BYTES`].
//! Invariants: 1. place, length and address of a window are multiples of the file's alignment;
//! 2. a straight window stays within its piece; 3. a read that brings nothing new is the end of the
//! file. After a short read the next window begins at the last aligned place, so that a straight
//! read goes on as one. Cost: one read a segment where it is straight, else one per bounce buffer.

use std::io;

use super::counters::IoCounters;
use super::{ReadAt, Segment};
use crate::{ALIGNMENT_BYTES, Error, FileSet, Result};

/// Length of a bounce buffer: large enough for full bandwidth, small beside an expert.
pub(super) const BOUNCE_BYTES: usize = 512 << 10;

/// Most bytes of one read: systems stop at 2 GiB.
const MAX_BYTES: usize = 1 << 30;

/// One read of the system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Window {
    pub(super) offset_bytes: u64,
    pub(super) len_bytes: usize,
    /// Bytes before the first that is wanted.
    pub(super) skip_bytes: usize,
    /// Whether it lands in the destination and not in a bounce buffer.
    pub(super) straight: bool,
}

impl Window {
    /// The read for what is left of a segment after `filled` bytes. The segment lies within a piece
    /// of `piece_bytes` bytes at address `piece_address`, and some of it is left.
    pub(super) fn next(
        segment: &Segment,
        filled: usize,
        piece_address: usize,
        piece_bytes: usize,
        alignment: usize,
    ) -> Self {
        let at = segment.offset_bytes.saturating_add(filled as u64);
        let rest = segment.len_bytes - filled;
        let dst = segment.dst_bytes + filled;
        let skip_bytes = over(at, alignment);
        if skip_bytes == 0 && piece_address.wrapping_add(dst).is_multiple_of(alignment) {
            // A whole last block where the piece has room for what comes after the segment.
            let len_bytes = match round_up(rest, alignment) {
                Some(up) if up <= piece_bytes - dst => up,
                _ => rest - rest % alignment,
            };
            let len_bytes = len_bytes.min(MAX_BYTES);
            if len_bytes > 0 {
                return Self {
                    offset_bytes: at,
                    len_bytes,
                    skip_bytes: 0,
                    straight: true,
                };
            }
        }
        let wanted = skip_bytes.saturating_add(rest);
        let len_bytes = round_up(wanted, alignment).map_or(BOUNCE_BYTES, |n| n.min(BOUNCE_BYTES));
        Self {
            offset_bytes: at - skip_bytes as u64,
            len_bytes,
            skip_bytes,
            straight: false,
        }
    }

    /// Bytes of the segment that `n_read` bytes of the window bring, of `rest` that are left. Zero
    /// at the end of the file.
    pub(super) fn gained(&self, n_read: usize, rest: usize, alignment: usize) -> usize {
        let n_read = n_read.min(self.len_bytes);
        let usable = n_read.saturating_sub(self.skip_bytes).min(rest);
        if usable == rest {
            return rest;
        }
        let end = self.skip_bytes + usable;
        match (end - end % alignment).saturating_sub(self.skip_bytes) {
            // Not a whole block: the tail of the file, or a system that reads bytes.
            0 => usable,
            whole => whole,
        }
    }
}

/// Bytes of a place beyond the last aligned one.
pub(super) fn over(at: u64, alignment: usize) -> usize {
    // Less than the alignment, which is a usize.
    usize::try_from(at % alignment as u64).unwrap_or_default()
}

fn round_up(n: usize, alignment: usize) -> Option<usize> {
    n.checked_next_multiple_of(alignment)
}

/// What reads of a file must be multiples of; never more than buffers are aligned to.
pub(super) fn alignment_of(reader: &impl ReadAt, file: usize) -> usize {
    reader.alignment_bytes(file).clamp(1, ALIGNMENT_BYTES)
}

/// Fills a segment of a piece with blocking reads.
pub(super) fn read_segment(
    reader: &mut impl ReadAt,
    files: &FileSet,
    counters: &IoCounters,
    segment: &Segment,
    piece: &mut [u8],
    bounce: &mut [u8],
) -> Result<()> {
    let alignment = alignment_of(reader, segment.file);
    let mut filled = 0;
    while filled < segment.len_bytes {
        let address = piece.as_ptr().addr();
        let window = Window::next(segment, filled, address, piece.len(), alignment);
        let dst = segment.dst_bytes + filled;
        let buffer = match window.straight {
            true => &mut piece[dst..dst + window.len_bytes],
            false => &mut bounce[..window.len_bytes],
        };
        let timed = counters.timed(window.len_bytes);
        let read = reader.read_at(segment.file, window.offset_bytes, buffer);
        drop(timed);
        match read {
            Ok(n) => {
                let gained = window.gained(n, segment.len_bytes - filled, alignment);
                if gained == 0 {
                    return Err(end_of_file(files, segment, filled));
                }
                if !window.straight {
                    let skip = window.skip_bytes;
                    piece[dst..dst + gained].copy_from_slice(&bounce[skip..skip + gained]);
                }
                filled += gained;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(failed(files, segment, source)),
        }
    }
    Ok(())
}

pub(super) fn end_of_file(files: &FileSet, segment: &Segment, got_bytes: usize) -> Error {
    Error::UnexpectedEof {
        path: files.path_or_empty(segment.file),
        offset_bytes: segment.offset_bytes,
        wanted_bytes: segment.len_bytes,
        got_bytes,
    }
}

pub(super) fn failed(files: &FileSet, segment: &Segment, source: io::Error) -> Error {
    Error::Read {
        path: files.path_or_empty(segment.file),
        offset_bytes: segment.offset_bytes,
        len_bytes: segment.len_bytes,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: usize = ALIGNMENT_BYTES;

    fn segment(offset_bytes: u64, len_bytes: usize, dst_bytes: usize) -> Segment {
        Segment {
            file: 0,
            offset_bytes,
            len_bytes,
            dst_bytes,
        }
    }

    fn window(offset_bytes: u64, len_bytes: usize, skip_bytes: usize, straight: bool) -> Window {
        Window {
            offset_bytes,
            len_bytes,
            skip_bytes,
            straight,
        }
    }

    #[test]
    fn aligned_segments_go_straight_and_others_through_the_bounce_buffer() {
        let next = |s: Segment, piece| Window::next(&s, 0, 16 * A, piece, A);
        let a = A as u64;
        assert_eq!(next(segment(a, 2 * A, A), 3 * A), window(a, 2 * A, 0, true));
        // The last block has room, and has none.
        assert_eq!(next(segment(a, A + 1, 0), 2 * A), window(a, 2 * A, 0, true));
        assert_eq!(next(segment(a, A + 1, 0), A + 1), window(a, A, 0, true));
        assert_eq!(next(segment(a, 9, 0), 9), window(a, A, 0, false));
        // The place, then the address is odd.
        assert_eq!(next(segment(a + 5, A, 0), A), window(a, 2 * A, 5, false));
        assert_eq!(next(segment(a, A, 1), 2 * A), window(a, A, 0, false));
        let long = next(segment(3, 10 * BOUNCE_BYTES, 0), 10 * BOUNCE_BYTES);
        assert_eq!(long, window(0, BOUNCE_BYTES, 3, false));
        // Buffered files take everything as it is.
        let all = Window::next(&segment(3, 70, 1), 10, 7, 71, 1);
        assert_eq!(all, window(13, 60, 0, true));
    }

    #[test]
    fn short_reads_gain_whole_blocks_unless_there_is_less() {
        let straight = window(0, 3 * A, 0, true);
        assert_eq!(straight.gained(3 * A, 2 * A + 9, A), 2 * A + 9);
        assert_eq!(straight.gained(2 * A + 50, 3 * A, A), 2 * A);
        assert_eq!(straight.gained(50, 3 * A, A), 50);
        assert_eq!(straight.gained(0, 3 * A, A), 0);
        // More than there was room for is not believed.
        assert_eq!(straight.gained(usize::MAX, 9 * A, A), 3 * A);
        let bounced = window(0, 2 * A, 100, false);
        assert_eq!(bounced.gained(2 * A, 2 * A, A), 2 * A - 100);
        assert_eq!(bounced.gained(A + 7, 2 * A, A), A - 100);
        assert_eq!(bounced.gained(100, 2 * A, A), 0);
        assert_eq!(bounced.gained(101, 1, A), 1);
    }
}
