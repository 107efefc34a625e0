//! The speed of a drive: reads of bytes that nobody has read before, checked against the count of
//! the system.
//!
//! Owns the test file (`RandomFile`), the plan that hands out its bytes (`SlicePlanner`), the
//! counters, and the timed reads (`measure`, `measure_reader`). Does not choose what is measured nor print it.
//! Memory: one block a thread. Invariants: 1. a [`Slice`] is consumed by the measurement that reads
//! it, and slices marked `fresh` are disjoint; 2. a [`Row`] is physical only if a counter agrees
//! with its bytes within 1 %. Cost: the reads themselves.

mod counter;
mod file;
mod plan;
mod reader;

use std::num::NonZeroUsize;
use std::panic;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::io::ReaderKind;
use crate::{AlignedBuf, DirectFile, Error, ReadMode, Result};

pub use counter::{CounterSource, DeviceCounter, ProcessCounter, ReadCounter, counters_for};
pub use file::RandomFile;
pub use plan::{Slice, SlicePlanner};
pub use reader::measure_reader;

/// How far the counted bytes may be from the bytes asked for, as a share of the latter.
pub const TOLERANCE: f64 = 0.01;
/// Most threads of a measurement: a mistyped number must not bring a machine down.
pub const MAX_THREADS: usize = 256;

/// Reads a slice and times it: each thread takes the next block that nobody has taken, until the
/// slice or the time is used up. Each thread keeps one read under way.
///
/// `counters` are asked before and after, and the first that has a count decides, with one
/// exception: a device counts for everybody, so where it has counted too much the next counter
/// decides, which may count for this process alone. `limit` ends the row at the next block;
/// at least one block is read.
///
/// # Errors
/// Those of [`DirectFile::read_exact_at`], from the first thread that failed;
/// [`Error::TooManyThreads`] above [`MAX_THREADS`]; [`Error::OutOfMemory`], [`Error::Thread`].
///
/// # Cost
/// `n_threads` blocks of memory. The time includes the start of the threads, some 50
/// microseconds each.
pub fn measure(
    file: &DirectFile,
    slice: Slice,
    n_threads: NonZeroUsize,
    limit: Duration,
    counters: &mut [Box<dyn ReadCounter>],
) -> Result<Row> {
    if n_threads.get() > MAX_THREADS {
        return Err(Error::TooManyThreads {
            found: n_threads.get(),
            limit: MAX_THREADS,
        });
    }
    let block_bytes = slice.block_bytes();
    let buffers: Result<Vec<_>> = (0..n_threads.get())
        .map(|_| touched(block_bytes.get()))
        .collect();
    let mut buffers = buffers?;
    if file.mode() == ReadMode::Buffered {
        // Pages that are still there would be read from memory. Best effort: the counters tell.
        let _ = file.evict();
    }

    let before: Vec<_> = counters.iter_mut().map(|c| c.read_bytes()).collect();
    let work = Work {
        file,
        slice: &slice,
        next_block: AtomicU64::new(0),
        failed: AtomicBool::new(false),
        start: Instant::now(),
        limit,
    };
    let n_blocks = thread::scope(|scope| {
        let mut threads = Vec::with_capacity(buffers.len());
        let mut result = Ok(0);
        for buffer in &mut buffers {
            let spawned = thread::Builder::new().spawn_scoped(scope, || work.run(buffer));
            match spawned {
                Ok(handle) => threads.push(handle),
                Err(source) => {
                    work.failed.store(true, Ordering::Relaxed);
                    result = Err(Error::Thread { source });
                    break;
                }
            }
        }
        for handle in threads {
            let one = match handle.join() {
                Ok(one) => one,
                Err(payload) => panic::resume_unwind(payload),
            };
            result = result.and_then(|sum| Ok(sum + one?));
        }
        result
    })?;
    let elapsed = work.start.elapsed();
    // Short of u64::MAX: all of it lies within a file.
    let bytes = n_blocks * block_bytes.get() as u64;

    Ok(Row {
        reader: None,
        n_threads,
        block_bytes,
        bytes,
        elapsed,
        mode: file.mode(),
        fresh: slice.is_fresh(),
        physical: decide(counts_since(before, counters), bytes),
    })
}

/// One measurement.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// The backend; `None` for plain threads without one.
    pub reader: Option<ReaderKind>,
    /// Threads, each with one read under way; of a ring the reads under way.
    pub n_threads: NonZeroUsize,
    /// Bytes of one read.
    pub block_bytes: NonZeroUsize,
    /// Bytes asked for and received.
    pub bytes: u64,
    /// From before the first thread started until after the last ended.
    pub elapsed: Duration,
    /// How the reads traveled.
    pub mode: ReadMode,
    /// Whether these bytes were read for the first time since the plan began.
    pub fresh: bool,
    /// What the deciding counter counted meanwhile; `None` without a counter.
    pub physical: Option<Physical>,
}

/// Bytes that the system says were read from a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Physical {
    /// Who counted.
    pub source: CounterSource,
    /// How many.
    pub bytes: u64,
}

impl Row {
    /// Bytes over time, in 1e9 bytes a second.
    #[must_use]
    pub fn gb_per_s(&self) -> f64 {
        // A clock may not have moved between two looks.
        let elapsed = self.elapsed.max(Duration::from_nanos(1));
        self.bytes as f64 / elapsed.as_secs_f64() / 1e9
    }

    /// Bytes counted over bytes asked for; `None` without a counter.
    #[must_use]
    pub fn physical_ratio(&self) -> Option<f64> {
        let counted = self.physical?.bytes;
        (self.bytes > 0).then(|| counted as f64 / self.bytes as f64)
    }

    /// Whether it is not proven that all bytes came from the device: the ratio is off by more than
    /// [`TOLERANCE`], or there is no counter.
    #[must_use]
    pub fn is_cached(&self) -> bool {
        !self.physical_ratio().is_some_and(agrees)
    }
}

/// What the threads share.
struct Work<'a> {
    file: &'a DirectFile,
    slice: &'a Slice,
    next_block: AtomicU64,
    failed: AtomicBool,
    start: Instant,
    limit: Duration,
}

impl Work<'_> {
    /// Reads blocks; returns how many.
    fn run(&self, buffer: &mut AlignedBuf) -> Result<u64> {
        let mut n_read = 0;
        loop {
            // Only the number is shared; what is read goes to this thread's buffer.
            let block = self.next_block.fetch_add(1, Ordering::Relaxed);
            let late = block > 0 && self.start.elapsed() >= self.limit;
            if late || self.failed.load(Ordering::Relaxed) {
                return Ok(n_read);
            }
            let Some(offset_bytes) = self.slice.block_offset_bytes(block) else {
                return Ok(n_read);
            };
            if let Err(e) = self.file.read_exact_at(offset_bytes, buffer) {
                self.failed.store(true, Ordering::Relaxed);
                return Err(e);
            }
            n_read += 1;
        }
    }
}

/// A buffer whose pages exist, so that the first reads do not pay for them.
fn touched(len_bytes: usize) -> Result<AlignedBuf> {
    let mut buffer = AlignedBuf::zeroed(len_bytes)?;
    buffer.fill(1);
    Ok(buffer)
}

/// What each counter has counted since it said `before`.
fn counts_since(
    before: Vec<Option<u64>>,
    counters: &mut [Box<dyn ReadCounter>],
) -> impl Iterator<Item = (CounterSource, u64)> {
    before.into_iter().zip(counters).filter_map(|(before, c)| {
        let counted = c.read_bytes()?.saturating_sub(before?);
        Some((c.source(), counted))
    })
}

/// The count that decides, of counts in the order of their weight.
fn decide(
    counts: impl Iterator<Item = (CounterSource, u64)>,
    requested_bytes: u64,
) -> Option<Physical> {
    let mut counts = counts.map(|(source, bytes)| Physical { source, bytes });
    let agree = |p: &Physical| agrees(p.bytes as f64 / requested_bytes as f64);
    let first = counts.next()?;
    // Too little from a device means that some of it did not come from there, whoever else counts.
    if agree(&first) || first.bytes < requested_bytes {
        return Some(first);
    }
    Some(counts.find(agree).unwrap_or(first))
}

fn agrees(ratio: f64) -> bool {
    (ratio - 1.0).abs() <= TOLERANCE
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Says what it was told to say.
    struct Scripted {
        source: CounterSource,
        counts: std::array::IntoIter<Option<u64>, 2>,
    }

    impl ReadCounter for Scripted {
        fn source(&self) -> CounterSource {
            self.source
        }

        fn read_bytes(&mut self) -> Option<u64> {
            self.counts.next().expect("asked before and after")
        }
    }

    fn scripted(source: CounterSource, counts: [Option<u64>; 2]) -> Box<dyn ReadCounter> {
        Box::new(Scripted {
            source,
            counts: counts.into_iter(),
        })
    }

    const MIB: usize = 1 << 20;
    const LONG: Duration = Duration::from_secs(3600);

    fn n(value: usize) -> NonZeroUsize {
        NonZeroUsize::new(value).expect("not zero")
    }

    /// An 8 MiB file, measured as one slice of `block_bytes`.
    fn row(n_threads: usize, block_bytes: usize, counters: &mut [Box<dyn ReadCounter>]) -> Row {
        let folder = tempfile::tempdir().expect("temporary folder");
        let random = RandomFile::prepare(folder.path(), 8 << 20, &mut |_, _| ()).expect("room");
        let file = DirectFile::open(random.path()).expect("opens");
        let mut plan = SlicePlanner::new(file.len_bytes());
        let slice = plan.take(n(block_bytes), 8 << 20).expect("room");
        measure(&file, slice, n(n_threads), LONG, counters).expect("readable")
    }

    #[test]
    fn a_row_counts_every_block_once_whatever_the_threads() {
        for n_threads in [1, 2, 5] {
            let counts = [Some(1000), Some(1000 + (8 << 20))];
            let counter = scripted(CounterSource::Device, counts);
            let row = row(n_threads, MIB, &mut [counter]);
            assert_eq!(row.bytes, 8 << 20);
            assert!(row.fresh && !row.is_cached());
            assert!(row.gb_per_s() > 0.0);
        }
        // 6 blocks of 340 pages fit into 8 MiB.
        let odd = row(2, 1_392_640, &mut []);
        assert_eq!(odd.bytes, 6 * 1_392_640);
    }

    #[test]
    fn without_a_counter_nothing_is_proven() {
        let none = row(1, MIB, &mut []);
        assert_eq!((none.physical, none.is_cached()), (None, true));
        let blind = scripted(CounterSource::Process, [Some(0), None]);
        assert!(row(1, MIB, &mut [blind]).is_cached());
    }

    #[test]
    fn a_ratio_off_by_more_than_a_hundredth_is_cached() {
        // Bytes of an 8 MiB slice that were counted, and what that makes of the row.
        let whole = 8_u64 << 20;
        for (counted, cached) in [
            (whole, false),
            (whole - whole / 101, false),
            (whole + whole / 101, false),
            (whole - whole / 99, true),
            (whole + whole / 99, true),
            (0, true),
        ] {
            let counter = scripted(CounterSource::Process, [Some(5), Some(5 + counted)]);
            let row = row(1, MIB, &mut [counter]);
            assert_eq!(row.is_cached(), cached, "{counted} of {whole}");
            let ratio = row.physical_ratio().expect("counted");
            assert!((ratio - counted as f64 / whole as f64).abs() < 1e-12);
        }
    }

    #[test]
    fn a_busy_device_leaves_the_decision_to_the_process() {
        use CounterSource::{Device, Process};
        let decide = |device, process| {
            let counts = [(Device, device), (Process, process)];
            decide(counts.into_iter(), 1000).map(|p| (p.source, p.bytes))
        };
        assert_eq!(decide(1000, 0), Some((Device, 1000)));
        assert_eq!(decide(1500, 1000), Some((Process, 1000)));
        // Others read, and this process did not.
        assert_eq!(decide(1500, 10), Some((Device, 1500)));
        // A device that saw too little is believed over the process.
        assert_eq!(decide(10, 1000), Some((Device, 10)));
    }

    #[test]
    fn the_time_limit_ends_a_row_after_its_first_block() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let random = RandomFile::prepare(folder.path(), 8 << 20, &mut |_, _| ()).expect("room");
        let file = DirectFile::open(random.path()).expect("opens");
        let slice = SlicePlanner::new(8 << 20)
            .take(n(MIB), 8 << 20)
            .expect("room");
        let row = measure(&file, slice, n(1), Duration::ZERO, &mut []).expect("readable");
        assert_eq!(row.bytes, 1 << 20);
    }

    #[test]
    fn a_failed_read_ends_the_row_with_its_place() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let random = RandomFile::prepare(folder.path(), 1 << 20, &mut |_, _| ()).expect("room");
        let file = DirectFile::open(random.path()).expect("opens");
        // A plan for a file twice as long.
        let slice = SlicePlanner::new(2 << 20)
            .take(n(4096), 2 << 20)
            .expect("room");
        let error = measure(&file, slice, n(3), LONG, &mut []).expect_err("beyond the end");
        let Error::UnexpectedEof { offset_bytes, .. } = error else {
            panic!("{error}");
        };
        assert!(offset_bytes >= 1 << 20);
    }

    #[test]
    fn a_mistyped_number_of_threads_is_refused_before_memory_is_taken() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let random = RandomFile::prepare(folder.path(), 1 << 20, &mut |_, _| ()).expect("room");
        let file = DirectFile::open(random.path()).expect("opens");
        let slice = SlicePlanner::new(1 << 20)
            .take(n(4096), 4096)
            .expect("room");
        let error = measure(&file, slice, n(usize::MAX), LONG, &mut []);
        assert!(matches!(
            error,
            Err(Error::TooManyThreads { limit: 256, .. })
        ));
    }
}
