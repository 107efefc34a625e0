//! `UringBackend`: many reads under way through a ring of the Linux kernel, without threads.
//!
//! Owns the ring and its bounce buffers; the queue cuts operations into jobs (`queue`), and windows
//! say what each read asks for (`window`). Unsafe code stands here because the kernel writes to
//! memory behind the compiler's back. Memory: a bounce buffer for each place of the ring if a file
//! is read directly, see [`UringBackend::memory_bytes`]; the kernel pins it.
//! Invariants: 1. a slot is free, or it holds the flight whose completion the kernel owes; 2. the
//! piece that a straight flight reads into is in the flight, and slot `i`'s bounce buffer is used
//! by flight `i` alone: nothing refers to either until the completion has come; 3. the memory of
//! flights and the bounce buffers outlive their reads: dropping waits, and leaks them if it cannot.
//! Cost: one system call for all that is handed over together, and one for each wait.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSliceMut};
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::{fmt, mem, slice, thread};

use io_uring::squeue::Entry;
use io_uring::{IoUring, Probe, opcode, types};

use super::counters::IoCounters;
use super::queue::{Job, Queue};
use super::window::{BOUNCE_BYTES, Window, end_of_file, failed};
use super::{IoStats, ReadBackend, ReadDone, ReadMode, ReadOp, Segment};
use crate::{ALIGNMENT_BYTES, AlignedBuf, Error, FileSet, Result};

/// Most reads under way together: a mistyped number must not pin all memory.
pub const MAX_DEPTH: usize = 256;

/// Reads with one thread and one ring, directly where the files allow it.
///
/// Demands go first: read-aheads stay in a queue of the backend until the ring has room and no
/// demand waits. Nothing moves while nobody calls, but reads that were handed to the kernel go on.
pub struct UringBackend {
    /// First, so that it is closed before any memory goes that it knows.
    ring: IoUring,
    files: FileSet,
    queue: Queue,
    /// Begun and not complete: short reads, and what comes after a full bounce buffer.
    resume: VecDeque<Work>,
    slots: Vec<Option<Flight>>,
    free: Vec<u16>,
    /// One a slot, or none if every file is buffered.
    bounce: Vec<AlignedBuf>,
    /// Whether the kernel knows the bounce buffers.
    registered: bool,
    counters: Arc<IoCounters>,
    /// The system's code, once the ring itself has failed: nothing is begun any more.
    broken: Option<i32>,
}

/// A job and how far it is.
#[derive(Debug)]
struct Work {
    job: Job,
    read: usize,
    filled: usize,
}

/// What the kernel is reading.
#[derive(Debug)]
struct Flight {
    work: Work,
    window: Window,
    alignment: usize,
}

impl UringBackend {
    /// Reads under way that are enough for the drives we have measured.
    pub const DEFAULT_DEPTH: NonZeroUsize = NonZeroUsize::new(32).expect("not zero");

    /// A ring that reads these files, with at most `depth` reads under way.
    ///
    /// # Errors
    /// [`Error::RingUnsupported`] with the system's reason; [`Error::TooManyThreads`] above
    /// [`MAX_DEPTH`]; [`Error::OutOfMemory`].
    ///
    /// # Platform
    /// Linux. Containers often forbid it.
    pub fn new(files: FileSet, depth: NonZeroUsize) -> Result<Self> {
        let depth = depth.get();
        // Both fit: `MAX_DEPTH` is small.
        let (Ok(entries), Ok(n_slots)) = (u32::try_from(depth), u16::try_from(depth)) else {
            return Err(too_deep(depth));
        };
        if depth > MAX_DEPTH {
            return Err(too_deep(depth));
        }
        Self::is_supported()?;
        let unsupported = |source| Error::RingUnsupported { source };
        let ring = IoUring::new(entries).map_err(unsupported)?;
        let handles: Vec<RawFd> = (0..files.len())
            .filter_map(|file| Some(files.best_handle(file)?.as_raw_fd()))
            .collect();
        if !handles.is_empty() {
            let submitter = ring.submitter();
            submitter.register_files(&handles).map_err(unsupported)?;
        }
        let is_direct = |file| files.mode(file) == Some(ReadMode::Direct);
        let n_bounce = match (0..files.len()).any(is_direct) {
            true => depth,
            false => 0,
        };
        let bounce: Result<Vec<_>> = (0..n_bounce)
            .map(|_| AlignedBuf::zeroed(BOUNCE_BYTES))
            .collect();
        let mut bounce = bounce?;
        // Limits on locked memory may forbid it, and then reads are only a little slower.
        let registered = n_bounce > 0 && register(&ring, &mut bounce).is_ok();
        Ok(Self {
            ring,
            files,
            queue: Queue::default(),
            resume: VecDeque::new(),
            slots: (0..depth).map(|_| None).collect(),
            free: (0..n_slots).rev().collect(),
            bounce,
            registered,
            counters: Arc::default(),
            broken: None,
        })
    }

    /// Whether a ring can be made here and knows the reads that are needed.
    ///
    /// # Errors
    /// [`Error::RingUnsupported`] with the system's reason.
    pub fn is_supported() -> Result<()> {
        let unsupported = |source| Error::RingUnsupported { source };
        let ring = IoUring::new(1).map_err(unsupported)?;
        let mut probe = Probe::new();
        let submitter = ring.submitter();
        submitter.register_probe(&mut probe).map_err(unsupported)?;
        let needed = [opcode::Read::CODE, opcode::ReadFixed::CODE];
        if needed.into_iter().all(|code| probe.is_supported(code)) {
            return Ok(());
        }
        let why = "the kernel's ring has no positioned reads";
        Err(unsupported(io::Error::new(ErrorKind::Unsupported, why)))
    }

    /// Memory that a ring takes beside the buffers of its operations.
    #[must_use]
    pub const fn memory_bytes(depth: NonZeroUsize) -> usize {
        AlignedBuf::allocated_bytes(BOUNCE_BYTES).saturating_mul(depth.get())
    }

    /// Its counters, for whoever looks on while it works. A read counts as under way until its
    /// completion is looked at.
    #[must_use]
    pub fn counters(&self) -> Arc<IoCounters> {
        Arc::clone(&self.counters)
    }

    fn alignment(&self, file: usize) -> usize {
        match self.files.mode(file) {
            Some(ReadMode::Direct) if !self.bounce.is_empty() => ALIGNMENT_BYTES,
            _ => 1,
        }
    }

    /// Fills the ring from what waits.
    fn pump(&mut self) {
        if let Some(code) = self.broken {
            return self.fail(code);
        }
        while let Some(&slot) = self.free.last() {
            let resumed = self.resume.pop_front();
            let Some(work) = resumed.or_else(|| self.queue.take().map(Work::new)) else {
                return;
            };
            if let Err(work) = self.start(slot, work) {
                self.resume.push_front(work);
                return;
            }
        }
    }

    /// Hands the next read of a job to the ring, or the job back if the ring has no room.
    fn start(&mut self, slot: u16, mut work: Work) -> std::result::Result<(), Work> {
        let segment = work.job.reads[work.read];
        let alignment = self.alignment(segment.file);
        let room = work.job.room_bytes(work.read);
        let address = work.job.piece.as_ptr().addr();
        let window = Window::next(&segment, work.filled, address, room, alignment);
        // The window lies within the piece or the bounce buffer.
        let (target, fixed) = if window.straight {
            let start = work.job.piece.start().as_ptr();
            (start.wrapping_add(segment.dst_bytes + work.filled), false)
        } else {
            let bounce = &mut self.bounce[usize::from(slot)];
            (bounce.as_mut_ptr(), self.registered)
        };
        let entry = entry(&segment, &window, target, fixed.then_some(slot));
        let entry = entry.user_data(u64::from(slot));
        // SAFETY: the entry's memory is exclusively its own until the completion: the piece moves
        // into the slot below, a bounce buffer belongs to its slot (invariants 2 and 3). Handles
        // are registered and kept open by `files`.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        if pushed.is_err() {
            return Err(work);
        }
        self.counters.begin(window.len_bytes);
        self.free.pop();
        self.slots[usize::from(slot)] = Some(Flight {
            work,
            window,
            alignment,
        });
        Ok(())
    }

    /// Takes all completions that are there.
    fn reap(&mut self) {
        loop {
            let Some(completion) = self.ring.completion().next() else {
                return;
            };
            // What `start` wrote there.
            let slot = u16::try_from(completion.user_data()).unwrap_or(u16::MAX);
            let flight = self.slots.get_mut(usize::from(slot)).and_then(Option::take);
            let Some(flight) = flight else {
                debug_assert!(false, "a completion has a flight (invariant 1)");
                continue;
            };
            self.free.push(slot);
            self.counters.end();
            self.land(slot, flight, completion.result());
        }
    }

    /// Goes on with a job after one of its reads.
    fn land(&mut self, slot: u16, flight: Flight, result: i32) {
        let Flight {
            mut work,
            window,
            alignment,
        } = flight;
        let segment = work.job.reads[work.read];
        let Ok(n_read) = usize::try_from(result) else {
            let source = io::Error::from_raw_os_error(result.saturating_neg());
            match is_transient(&source) {
                true => self.resume.push_back(work),
                false => {
                    let error = failed(&self.files, &segment, source);
                    self.queue.complete(work.job, Err(error));
                }
            }
            return;
        };
        let gained = window.gained(n_read, segment.len_bytes - work.filled, alignment);
        if gained == 0 {
            let error = end_of_file(&self.files, &segment, work.filled);
            return self.queue.complete(work.job, Err(error));
        }
        if !window.straight {
            let from = &self.bounce[usize::from(slot)][window.skip_bytes..][..gained];
            work.job.piece[segment.dst_bytes + work.filled..][..gained].copy_from_slice(from);
        }
        work.filled += gained;
        if work.filled == segment.len_bytes {
            work.read += 1;
            work.filled = 0;
        }
        match work.read == work.job.reads.len() {
            true => self.queue.complete(work.job, Ok(())),
            false => self.resume.push_back(work),
        }
    }

    /// Hands over what is in the ring, and waits for `n_wait` completions. After an error of the
    /// ring itself nothing waits any more, and the answer is no.
    fn enter(&mut self, n_wait: usize) -> bool {
        match self.ring.submit_and_wait(n_wait) {
            Ok(_) => true,
            Err(e) if is_transient(&e) => {
                // The caller looks for completions, which is what a busy kernel wants.
                thread::yield_now();
                true
            }
            Err(e) => {
                self.fail(e.raw_os_error().unwrap_or_default());
                false
            }
        }
    }

    /// Gives up what the kernel does not have.
    fn fail(&mut self, code: i32) {
        self.broken = Some(code);
        let resumed: Vec<_> = self.resume.drain(..).collect();
        let mut next: Vec<Job> = resumed.into_iter().map(|work| work.job).collect();
        loop {
            for job in next.drain(..) {
                let source = io::Error::from_raw_os_error(code);
                let error = Error::RingFailed { source };
                self.queue.complete(job, Err(error));
            }
            match self.queue.take() {
                Some(job) => next.push(job),
                None => return,
            }
        }
    }

    fn n_flights(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

impl Work {
    const fn new(job: Job) -> Self {
        Self {
            job,
            read: 0,
            filled: 0,
        }
    }
}

impl ReadBackend for UringBackend {
    fn submit(&mut self, op: ReadOp) -> std::result::Result<(), ReadOp> {
        let files = &self.files;
        let n_parts = |segment: &Segment, straight: bool| match files.mode(segment.file) {
            // Each part fits its bounce buffer, wherever it begins and ends.
            Some(ReadMode::Direct) if !straight => segment
                .len_bytes
                .div_ceil(BOUNCE_BYTES - 4 * ALIGNMENT_BYTES),
            _ => 1,
        };
        self.queue.push(op, files, n_parts);
        self.pump();
        self.enter(0);
        Ok(())
    }

    fn wait(&mut self, done: &mut Vec<ReadDone>) {
        loop {
            self.reap();
            self.pump();
            let n_wait = usize::from(!self.queue.has_finished());
            if n_wait == 1 && self.queue.in_flight() == 0 {
                return;
            }
            let works = self.enter(n_wait);
            if !works || n_wait == 0 {
                return self.queue.deliver(done);
            }
        }
    }

    fn poll(&mut self, done: &mut Vec<ReadDone>) {
        self.reap();
        self.pump();
        self.enter(0);
        self.reap();
        self.queue.deliver(done);
    }

    fn promote(&mut self, id: u64) {
        self.queue.promote(id);
    }

    fn cancel(&mut self, id: u64) {
        self.queue.cancel(id);
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    fn io_stats(&self) -> IoStats {
        self.counters.stats()
    }
}

impl Drop for UringBackend {
    fn drop(&mut self) {
        self.queue.abandon();
        while self.n_flights() > 0 {
            if !self.enter(1) {
                // The kernel may still write there: lost memory is better than memory of others.
                mem::forget(mem::take(&mut self.slots));
                mem::forget(mem::take(&mut self.bounce));
                return;
            }
            self.reap();
        }
    }
}

impl fmt::Debug for UringBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UringBackend")
            .field("depth", &self.slots.len())
            .field("in_flight", &self.queue.in_flight())
            .finish_non_exhaustive()
    }
}

/// A read of a registered file; into a registered buffer if it has a number.
fn entry(segment: &Segment, window: &Window, target: *mut u8, buffer: Option<u16>) -> Entry {
    // The set has as many files as could be registered, and windows are below 2 GiB. Neither is cut
    // short should that change: the kernel refuses the number, and less is a short read.
    let file = types::Fixed(u32::try_from(segment.file).unwrap_or(u32::MAX));
    let len = u32::try_from(window.len_bytes).unwrap_or(1 << 30);
    let at = window.offset_bytes;
    match buffer {
        Some(number) => opcode::ReadFixed::new(file, target, len, number)
            .offset(at)
            .build(),
        None => opcode::Read::new(file, target, len).offset(at).build(),
    }
}

fn register(ring: &IoUring, bounce: &mut [AlignedBuf]) -> io::Result<()> {
    let slices: Vec<IoSliceMut<'_>> = bounce.iter_mut().map(|b| IoSliceMut::new(b)).collect();
    // SAFETY: `IoSliceMut` is documented to have the layout of the system's `iovec`, and the vector
    // lives until the end of this function.
    let vectors = unsafe { slice::from_raw_parts(slices.as_ptr().cast(), slices.len()) };
    // SAFETY: the buffers stay where they are and live until the ring is closed (invariant 3); the
    // kernel writes only what an entry tells it to.
    unsafe { ring.submitter().register_buffers(vectors) }
}

/// Whether the same request may succeed when made again: signals, full queues, and the end of the
/// thread that made it.
fn is_transient(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let transient = [Errno::INTR, Errno::AGAIN, Errno::BUSY, Errno::CANCELED];
    let code = error.raw_os_error();
    transient.iter().any(|e| Some(e.raw_os_error()) == code)
}

fn too_deep(found: usize) -> Error {
    Error::TooManyThreads {
        found,
        limit: MAX_DEPTH,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::{Priority, SlotBuf};

    const LEN: usize = 1000;

    /// A ring with one operation that waits in its queue, and a file of sevens; `None` where rings
    /// do not work.
    fn ring() -> Option<UringBackend> {
        let mut file = tempfile::NamedTempFile::new().expect("temporary file");
        file.write_all(&[7; LEN]).expect("writable");
        let files = FileSet::open_buffered(&[file.path()]).expect("readable");
        let mut ring = match UringBackend::new(files.clone(), NonZeroUsize::MIN) {
            Err(Error::RingUnsupported { source }) => {
                let text = format!("SKIPPED: io_uring does not work here: {source}\n");
                // Not through print, which tests capture.
                io::stderr().write_all(text.as_bytes()).expect("writable");
                return None;
            }
            other => other.expect("works"),
        };
        let buf: SlotBuf = AlignedBuf::zeroed(LEN)
            .and_then(|b| b.carve([LEN]))
            .expect("small")
            .remove(0);
        let segment = Segment {
            file: 0,
            offset_bytes: 0,
            len_bytes: LEN,
            dst_bytes: 0,
        };
        let op = ReadOp {
            id: 3,
            priority: Priority::Demand,
            segments: vec![segment],
            buf,
        };
        ring.queue.push(op, &files, |_, _| 1);
        Some(ring)
    }

    /// Lets the work in hand come back with a result as if the kernel had said so.
    fn come_back(ring: &mut UringBackend, result: i32) {
        let resumed = ring.resume.pop_front();
        let work = resumed.or_else(|| ring.queue.take().map(Work::new));
        let work = work.expect("something waits");
        let segment = work.job.reads[0];
        let window = Window::next(&segment, work.filled, 0, LEN, 1);
        let flight = Flight {
            work,
            window,
            alignment: 1,
        };
        ring.land(0, flight, result);
    }

    #[test]
    fn interrupted_and_short_reads_go_on_where_they_were() {
        let Some(mut ring) = ring() else { return };
        // EINTR, EAGAIN, ECANCELED, and 100 bytes that nobody wrote.
        for result in [-4, -11, -125, 100] {
            come_back(&mut ring, result);
            assert_eq!((ring.resume.len(), ring.in_flight()), (1, 1));
        }
        let mut done = Vec::new();
        ring.wait(&mut done);
        assert!(done[0].result.is_ok());
        let buf = &done[0].op.buf;
        assert!(buf[..100].iter().all(|b| *b == 0) && buf[100..].iter().all(|b| *b == 7));
    }

    #[test]
    fn other_errors_and_the_end_of_the_file_are_reported() {
        for (result, expected) in [(-5, "failed"), (0, "wanted 1000 bytes, got 0")] {
            let Some(mut ring) = ring() else { return };
            come_back(&mut ring, result);
            let mut done = Vec::new();
            ring.poll(&mut done);
            let error = done[0].result.as_ref().expect_err("as told");
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn a_broken_ring_gives_everything_back_with_the_reason() {
        let Some(mut ring) = ring() else { return };
        come_back(&mut ring, -4);
        ring.fail(9);
        let mut done = Vec::new();
        ring.poll(&mut done);
        // And what is handed over later does not wait for ever.
        let again = done.remove(0);
        check_broken(&again);
        ring.submit(again.op).expect("takes everything");
        ring.wait(&mut done);
        check_broken(&done[0]);
        assert_eq!((done.len(), ring.in_flight()), (1, 0));
    }

    fn check_broken(done: &ReadDone) {
        let Err(Error::RingFailed { source }) = &done.result else {
            panic!("{:?}", done.result);
        };
        assert_eq!((source.raw_os_error(), done.op.buf.len()), (Some(9), LEN));
    }

    #[test]
    fn a_ring_of_no_sensible_depth_is_refused() {
        let files = FileSet::open::<&str>(&[]).expect("no files");
        let depth = NonZeroUsize::new(MAX_DEPTH + 1).expect("not zero");
        let error = UringBackend::new(files, depth).expect_err("too deep");
        assert!(matches!(error, Error::TooManyThreads { found: 257, .. }));
    }
}
