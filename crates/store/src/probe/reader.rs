//! `measure_reader`: the blocks of a slice through a read backend, so that what the backend reaches
//! in use can be judged against what it reaches at best.
//!
//! Owns the loop that keeps operations under way; not the backend, which `io::open` makes anew for
//! each row. Memory: one block an operation under way, and the backend's own.
//! Invariant: every block is one operation of one segment into an aligned buffer, as a packed
//! expert is. Cost: the reads themselves; making the backend is not timed.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use super::{ReadCounter, Row, counts_since, decide};
use crate::io::{self, ReaderKind};
use crate::probe::{MAX_THREADS, Slice};
use crate::{
    AlignedBuf, DirectFile, Error, FileSet, Priority, ReadBackend, ReadMode, ReadOp, Result,
    Segment, SlotBuf,
};

/// As [`measure`](super::measure), but through a backend that has `depth` threads, or a ring of that
/// depth, and as many operations under way. [`ReaderKind::Pread`] has one, whatever is asked for,
/// and the row says so.
///
/// # Errors
/// Those of the backend's reads, from the first that failed; those of [`io::open`] and
/// [`FileSet::open`]; [`Error::TooManyThreads`] above [`MAX_THREADS`]; [`Error::OutOfMemory`].
///
/// # Cost
/// `depth` blocks of memory beside the backend's.
pub fn measure_reader(
    kind: ReaderKind,
    file: &DirectFile,
    slice: Slice,
    depth: NonZeroUsize,
    limit: Duration,
    counters: &mut [Box<dyn ReadCounter>],
) -> Result<Row> {
    if depth.get() > MAX_THREADS {
        return Err(Error::TooManyThreads {
            found: depth.get(),
            limit: MAX_THREADS,
        });
    }
    let files = FileSet::open(&[file.path()])?;
    let (depth, mode) = match kind {
        ReaderKind::Pread => (NonZeroUsize::MIN, ReadMode::Buffered),
        _ => (depth, files.mode(0).unwrap_or(ReadMode::Buffered)),
    };
    let mut backend = io::open(kind, files, depth)?;
    let block_bytes = slice.block_bytes();
    let buffers = buffers(block_bytes.get(), depth.get())?;
    if mode == ReadMode::Buffered {
        // Pages that are still there would be read from memory. Best effort: the counters tell.
        let _ = file.evict();
    }

    let before: Vec<_> = counters.iter_mut().map(|c| c.read_bytes()).collect();
    let start = Instant::now();
    let n_blocks = read_blocks(&mut *backend, &slice, buffers, start, limit)?;
    let elapsed = start.elapsed();
    // Short of u64::MAX: all of it lies within a file.
    let bytes = n_blocks * block_bytes.get() as u64;
    Ok(Row {
        reader: Some(kind),
        n_threads: depth,
        block_bytes,
        bytes,
        elapsed,
        mode,
        fresh: slice.is_fresh(),
        physical: decide(counts_since(before, counters), bytes),
    })
}

/// Keeps a read under way into every buffer until the slice or the time is used up.
fn read_blocks(
    backend: &mut dyn ReadBackend,
    slice: &Slice,
    mut buffers: Vec<SlotBuf>,
    start: Instant,
    limit: Duration,
) -> Result<u64> {
    let mut next_block = 0;
    let mut n_read = 0;
    let mut failure = None;
    let mut done = Vec::with_capacity(buffers.len());
    loop {
        while failure.is_none() && (next_block == 0 || start.elapsed() < limit) {
            let Some(offset_bytes) = slice.block_offset_bytes(next_block) else {
                break;
            };
            let Some(buf) = buffers.pop() else { break };
            let op = ReadOp {
                id: next_block,
                priority: Priority::Demand,
                segments: vec![Segment {
                    file: 0,
                    offset_bytes,
                    len_bytes: buf.len(),
                    dst_bytes: 0,
                }],
                buf,
            };
            if let Err(op) = backend.submit(op) {
                buffers.push(op.buf);
                break;
            }
            next_block += 1;
        }
        let n_out = backend.in_flight();
        backend.wait(&mut done);
        if done.is_empty() {
            return match (failure, n_out) {
                (Some(e), _) => Err(e),
                (None, 0) => Ok(n_read),
                (None, n_lost) => Err(Error::OperationsLost { n_lost }),
            };
        }
        for done in done.drain(..) {
            match done.result {
                Ok(()) => n_read += 1,
                Err(e) => drop(failure.get_or_insert(e)),
            }
            buffers.push(done.op.buf);
        }
    }
}

/// Buffers whose pages exist, so that the first reads do not pay for them.
fn buffers(block_bytes: usize, n: usize) -> Result<Vec<SlotBuf>> {
    let all_bytes = block_bytes.checked_mul(n).ok_or(Error::TooLarge {
        what: "the blocks under way",
    })?;
    let mut all = AlignedBuf::zeroed(all_bytes)?;
    all.fill(1);
    all.carve(std::iter::repeat_n(block_bytes, n))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::{RandomFile, SlicePlanner};

    const LONG: Duration = Duration::from_secs(3600);

    fn n(value: usize) -> NonZeroUsize {
        NonZeroUsize::new(value).expect("not zero")
    }

    /// Of 4 MiB, read as blocks of 340 pages; `len_bytes` is what the plan believes.
    fn row(kind: ReaderKind, depth: usize, len_bytes: u64, limit: Duration) -> Result<Row> {
        let folder = tempfile::tempdir().expect("temporary folder");
        let random = RandomFile::prepare(folder.path(), 4 << 20, &mut |_, _| ())?;
        let file = DirectFile::open(random.path())?;
        let slice = SlicePlanner::new(len_bytes).take(n(1_392_640), len_bytes)?;
        measure_reader(kind, &file, slice, n(depth), limit, &mut [])
    }

    #[test]
    fn every_reader_reads_each_block_once() {
        for kind in ReaderKind::ALL {
            let row = match row(kind, 2, 4 << 20, LONG) {
                Err(Error::RingUnsupported { source }) => {
                    eprintln!("SKIPPED: io_uring does not work here: {source}");
                    continue;
                }
                other => other.expect("readable"),
            };
            assert_eq!((row.reader, row.bytes), (Some(kind), 3 * 1_392_640));
            let depth = if kind == ReaderKind::Pread { 1 } else { 2 };
            assert_eq!(row.n_threads.get(), depth);
            assert!(row.gb_per_s() > 0.0 && row.is_cached());
        }
    }

    #[test]
    fn time_and_failures_end_a_row_and_threads_are_bounded() {
        let late = row(ReaderKind::Pool, 3, 4 << 20, Duration::ZERO).expect("readable");
        assert_eq!(late.bytes, 1_392_640);
        let beyond = row(ReaderKind::Pool, 3, 8 << 20, LONG).expect_err("beyond the end");
        let Error::UnexpectedEof { offset_bytes, .. } = beyond else {
            panic!("{beyond}");
        };
        assert!(offset_bytes >= 2 * 1_392_640);
        let many = row(ReaderKind::Pread, 257, 4 << 20, LONG);
        assert!(matches!(
            many,
            Err(Error::TooManyThreads { found: 257, .. })
        ));
    }
}
