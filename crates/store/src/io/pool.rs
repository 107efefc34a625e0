//! `PoolBackend`: threads that take reads from one queue.
//!
//! Owns the threads and their bounce buffers; the queue cuts operations into jobs (`queue`), and
//! windows make direct reads of unaligned ranges (`window`). Memory: one bounce buffer a thread,
//! see [`PoolBackend::memory_bytes`]. Invariants: 1. a thread owns the piece that it reads into, so
//! segments of one operation are read side by side; 2. a reader that panics fails its operation and
//! nothing else; 3. no lock is held while reading; 4. dropping ends reads under way, not those that
//! wait, and then the threads. Cost: two locks and one wake-up a job.

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::counters::IoCounters;
use super::queue::{Job, Queue};
use super::window::{BOUNCE_BYTES, read_segment};
use super::{IoStats, ReadAt, ReadBackend, ReadDone, ReadMode, ReadOp, Segment};
use crate::{ALIGNMENT_BYTES, AlignedBuf, Error, FileSet, Result};

/// Most threads of a pool: a mistyped number must not bring a machine down.
pub const MAX_READERS: usize = 256;
/// Segments above this may be cut, and parts do not become shorter than half of it.
const CUT_ABOVE_BYTES: usize = 512 << 10;

/// Reads with several threads, directly where the files allow it.
///
/// A segment is read by one thread, unless there are fewer jobs than threads: then one above
/// 512 KiB is cut into parts for the idle threads, of at least 256 KiB.
#[derive(Debug)]
pub struct PoolBackend {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    n_threads: usize,
}

#[derive(Debug)]
struct Shared {
    files: FileSet,
    counters: Arc<IoCounters>,
    state: Mutex<State>,
    /// A job waits, or the pool closes.
    work: Condvar,
    /// An operation is finished.
    done: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: Queue,
    closing: bool,
}

/// Reads past the page cache where the file allows it.
struct BestReader(FileSet);

impl ReadAt for BestReader {
    fn read_at(
        &mut self,
        file: usize,
        offset_bytes: u64,
        buffer: &mut [u8],
    ) -> std::io::Result<usize> {
        self.0.read_best_at(file, offset_bytes, buffer)
    }

    fn alignment_bytes(&self, file: usize) -> usize {
        match self.0.mode(file) {
            Some(ReadMode::Direct) => ALIGNMENT_BYTES,
            _ => 1,
        }
    }
}

impl PoolBackend {
    /// Threads that are enough for the drives we have measured.
    pub const DEFAULT_THREADS: NonZeroUsize = NonZeroUsize::new(8).expect("eight is not zero");

    /// A pool that reads these files.
    ///
    /// # Errors
    /// [`Error::TooManyThreads`] above [`MAX_READERS`]; [`Error::OutOfMemory`], [`Error::Thread`].
    pub fn new(files: FileSet, n_threads: NonZeroUsize) -> Result<Self> {
        let n_threads = n_threads.get();
        if n_threads > MAX_READERS {
            return Err(too_many(n_threads));
        }
        let readers = (0..n_threads).map(|_| BestReader(files.clone())).collect();
        Self::with_readers(files, readers)
    }

    /// A pool of one thread a reader; `files` names the files in errors.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`Error::NoReaders`] for none.
    pub fn with_readers<R: ReadAt + 'static>(files: FileSet, readers: Vec<R>) -> Result<Self> {
        if readers.is_empty() {
            return Err(Error::NoReaders);
        }
        if readers.len() > MAX_READERS {
            return Err(too_many(readers.len()));
        }
        let mut pool = Self {
            n_threads: readers.len(),
            threads: Vec::with_capacity(readers.len()),
            shared: Arc::new(Shared {
                files,
                counters: Arc::default(),
                state: Mutex::default(),
                work: Condvar::new(),
                done: Condvar::new(),
            }),
        };
        for (i, reader) in readers.into_iter().enumerate() {
            let bounce = AlignedBuf::zeroed(BOUNCE_BYTES)?;
            let shared = Arc::clone(&pool.shared);
            let thread = thread::Builder::new()
                .name(format!("thalweg-read-{i}"))
                .spawn(move || shared.run(reader, bounce))
                .map_err(|source| Error::Thread { source })?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Memory that a pool takes beside the buffers of its operations and the threads' stacks.
    #[must_use]
    pub const fn memory_bytes(n_threads: NonZeroUsize) -> usize {
        AlignedBuf::allocated_bytes(BOUNCE_BYTES).saturating_mul(n_threads.get())
    }

    /// Its counters, for whoever looks on while it works.
    #[must_use]
    pub fn counters(&self) -> Arc<IoCounters> {
        Arc::clone(&self.shared.counters)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Readers panic outside the lock; see `read`.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a thread does.
    fn run(&self, mut reader: impl ReadAt, mut bounce: AlignedBuf) {
        while let Some(mut job) = self.next_job() {
            let result = self.read(&mut reader, &mut job, &mut bounce);
            let mut state = self.lock();
            state.queue.complete(job, result);
            self.tell(&state);
        }
    }

    fn next_job(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            let job = state.queue.take();
            // Passing over jobs of a failed operation may have finished it.
            self.tell(&state);
            if job.is_some() || state.closing {
                return job;
            }
            state = self
                .work
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn tell(&self, state: &State) {
        if state.queue.has_finished() {
            self.done.notify_all();
        }
    }

    fn read(&self, reader: &mut impl ReadAt, job: &mut Job, bounce: &mut [u8]) -> Result<()> {
        for i in 0..job.reads.len() {
            let segment = &job.reads[i];
            let room = job.room_bytes(i);
            let piece = &mut job.piece[..room];
            // The piece has no defined content after a failure, and the reader is asked again for
            // other reads only: nothing half done is looked at.
            let read = catch_unwind(AssertUnwindSafe(|| {
                read_segment(reader, &self.files, &self.counters, segment, piece, bounce)
            }));
            read.unwrap_or_else(|_| {
                Err(Error::ReaderPanicked {
                    path: self.files.path_or_empty(segment.file),
                    offset_bytes: segment.offset_bytes,
                })
            })?;
        }
        Ok(())
    }
}

impl ReadBackend for PoolBackend {
    fn submit(&mut self, op: ReadOp) -> std::result::Result<(), ReadOp> {
        let mut state = self.shared.lock();
        let mut n_jobs = state.queue.n_jobs();
        let n_parts = |segment: &Segment, _straight: bool| {
            let n_idle = self.n_threads.saturating_sub(n_jobs);
            let n_parts = match segment.len_bytes {
                // Cuts move to an aligned place, by less than one unit.
                len if len > CUT_ABOVE_BYTES => len / (CUT_ABOVE_BYTES / 2 + ALIGNMENT_BYTES),
                _ => 1,
            };
            let n_parts = n_parts.min(n_idle).max(1);
            n_jobs += n_parts;
            n_parts
        };
        state.queue.push(op, &self.shared.files, n_parts);
        drop(state);
        self.shared.work.notify_all();
        Ok(())
    }

    fn wait(&mut self, done: &mut Vec<ReadDone>) {
        let mut state = self.shared.lock();
        while !state.queue.has_finished() && state.queue.in_flight() > 0 {
            state = self
                .shared
                .done
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.queue.deliver(done);
    }

    fn poll(&mut self, done: &mut Vec<ReadDone>) {
        self.shared.lock().queue.deliver(done);
    }

    fn promote(&mut self, id: u64) {
        self.shared.lock().queue.promote(id);
    }

    fn cancel(&mut self, id: u64) {
        self.shared.lock().queue.cancel(id);
    }

    fn in_flight(&self) -> usize {
        self.shared.lock().queue.in_flight()
    }

    fn io_stats(&self) -> IoStats {
        self.shared.counters.stats()
    }
}

impl Drop for PoolBackend {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.queue.abandon();
        state.closing = true;
        drop(state);
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // Nobody is left to tell of a panic.
            let _ = thread.join();
        }
    }
}

fn too_many(found: usize) -> Error {
    Error::TooManyThreads {
        found,
        limit: MAX_READERS,
    }
}
