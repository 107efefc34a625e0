//! The compute threads: they share one operation at a time and wait for the next without sleeping.
//!
//! Owns the threads, the hand-over of an operation, and the only unsafe code of the crate; does not
//! own what an operation computes. Memory: a thread's stack; a hand-over allocates nothing.
//! Invariants: (1) an operation is reached by a thread only between joining it and leaving it, and
//! the caller returns only when it is closed and all have left; (2) each part of an output goes to
//! one thread; (3) a panic in any thread reaches the caller after (1) holds.
//! Cost: about a microsecond for a hand-over while the threads are awake. They spin for
//! [`AWAKE`] after an operation and then sleep, so an idle backend uses no processor; waking them
//! is the operating system's business (tens of microseconds), during which the caller works alone.

use std::any::Any;
use std::cell::UnsafeCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use thalweg_quant::Kernels;

use super::Activations;
use crate::contract::volume;
use crate::{Error, Result};

/// Work below which an operation is not worth a second thread, in multiply-adds of a dot product:
/// a few microseconds.
const SERIAL_WORK: usize = 48 * 1024;

/// Least work of a part, so that fetching it costs little beside it.
const PART_WORK: usize = SERIAL_WORK / 4;

/// Parts that a thread gets of a large operation: how unevenly threads may advance.
const PARTS_PER_THREAD: usize = 8;

/// Rows that kernels take at once: parts are multiples of it where there are enough rows.
const ROW_GROUP: usize = 4;

/// How long a thread spins for the next operation before it sleeps.
const AWAKE: Duration = Duration::from_micros(100);

/// Spins between two looks at the clock, or before the processor is offered to somebody else.
const SPINS: u32 = 64;

/// Most threads that may be asked for: a mistyped number must not bring a machine down.
const MAX_THREADS: usize = 256;

/// Splits rows over threads.
pub(super) struct Team {
    n_threads: usize,
    kernels: Kernels,
    activations: Activations,
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Team {
    /// Starts `n_threads - 1` threads; the caller of an operation is the last one.
    pub(super) fn new(n_threads: usize, kernels: Kernels) -> Result<Self> {
        let refuse =
            |source: Box<dyn std::error::Error + Send + Sync>| Error::Threads { n_threads, source };
        if n_threads == 0 {
            return Err(refuse("at least one thread is needed".into()));
        }
        if n_threads > MAX_THREADS {
            return Err(refuse(format!("at most {MAX_THREADS} are of use").into()));
        }
        let mut team = Self {
            n_threads,
            kernels,
            activations: Activations::F32,
            shared: Arc::new(Shared::new(n_threads - 1)),
            workers: Vec::with_capacity(n_threads - 1),
        };
        for i in 0..n_threads - 1 {
            let shared = Arc::clone(&team.shared);
            let worker = thread::Builder::new()
                .name(format!("thalweg-compute-{}", i + 1))
                .spawn(move || shared.work(i));
            // On an error the drop of `team` ends those that run.
            team.workers.push(worker.map_err(|e| refuse(e.into()))?);
        }
        Ok(team)
    }

    pub(super) fn n_threads(&self) -> usize {
        self.n_threads
    }

    /// The kernels that operations use.
    pub(super) fn kernels(&self) -> Kernels {
        self.kernels
    }

    /// The precision of vectors in matrix products.
    pub(super) fn activations(&self) -> Activations {
        self.activations
    }

    pub(super) fn set_activations(&mut self, activations: Activations) {
        self.activations = activations;
    }

    /// Calls `f(row, out_row)` for each row of `row_len` elements of `out`, compiled for the
    /// instruction set of the kernels as far as it is inlined.
    ///
    /// `work` estimates the multiply-adds per row and decides whether threads pay.
    pub(super) fn rows<T: Send>(
        &self,
        out: &mut [T],
        row_len: usize,
        work: usize,
        f: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let each = |first: usize, out: &mut [T]| {
            self.kernels.vectorize(|| {
                for (i, row) in out.chunks_exact_mut(row_len).enumerate() {
                    f(first + i, row);
                }
            });
            Ok(())
        };
        // The closure cannot fail.
        let _: Result<()> = self.blocks(out, row_len, work, each);
    }

    /// Calls `f(row, row_of_x, row_of_y)` for the rows that two outputs have in common.
    ///
    /// An output is its elements and its row length; neither length is zero unless `y` is empty.
    pub(super) fn pairs(
        &self,
        (x, x_len): (&mut [f32], usize),
        (y, y_len): (&mut [f32], usize),
        work: usize,
        f: impl Fn(usize, &mut [f32], &mut [f32]) + Sync,
    ) {
        if y.is_empty() {
            return;
        }
        let mut rows: Vec<_> = x
            .chunks_exact_mut(x_len)
            .zip(y.chunks_exact_mut(y_len))
            .collect();
        self.rows(&mut rows, 1, work, |row, pair| {
            for (x, y) in pair {
                f(row, x, y);
            }
        });
    }

    /// Calls `f(first_row, out_rows)` for blocks of whole rows that together cover `out`.
    pub(super) fn blocks<T: Send>(
        &self,
        out: &mut [T],
        row_len: usize,
        work: usize,
        f: impl Fn(usize, &mut [T]) -> Result<()> + Sync,
    ) -> Result<()> {
        let n_rows = out.len().checked_div(row_len).unwrap_or(0);
        if n_rows == 0 {
            return Ok(());
        }
        if self.workers.is_empty() || n_rows == 1 || volume([n_rows, work]) <= SERIAL_WORK {
            return f(0, out);
        }
        let even = n_rows.div_ceil(self.n_threads * PARTS_PER_THREAD);
        let rows = even.max(PART_WORK.div_ceil(work.max(1)));
        let rows = rows.next_multiple_of(ROW_GROUP);
        let rows = rows.min(n_rows.div_ceil(self.n_threads));
        let parts = Parts::new(out, row_len * rows);
        let failure = Mutex::new(None);
        self.share(&|| {
            while let Some((i, part)) = parts.next() {
                if let Err(e) = f(i * rows, part) {
                    parts.skip_rest();
                    let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
                    failure.get_or_insert(e);
                }
            }
        });
        match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(e) => Err(e),
            None => Ok(()),
        }
    }

    /// Runs `f` here and in every thread that arrives before this one is done with it.
    ///
    /// `f` takes parts of the work until there are none. Within another operation, or while another
    /// caller has the threads, `f` runs here alone.
    fn share(&self, f: &(dyn Fn() + Sync)) {
        let shared = &*self.shared;
        if shared.busy.swap(true, Ordering::Acquire) {
            return f();
        }
        shared.open(f);
        for (worker, asleep) in self.workers.iter().zip(&shared.asleep) {
            // In this order with `open`, all of it sequentially consistent: either this sees a
            // thread asleep, or that thread sees the operation before it sleeps.
            if asleep.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        let own = catch_unwind(AssertUnwindSafe(f));
        shared.close();
        let theirs = shared.take_panic();
        shared.busy.store(false, Ordering::Release);
        if let Some(panic) = own.err().or(theirs) {
            resume_unwind(panic);
        }
    }
}

impl fmt::Debug for Team {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Team")
            .field("n_threads", &self.n_threads)
            .field("kernels", &self.kernels)
            .finish_non_exhaustive()
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A thread catches the panics of operations and has none of its own.
            let _ = worker.join();
        }
    }
}

/// An operation with its lifetime erased; see `Shared::open`.
type Operation = &'static (dyn Fn() + Sync);

/// What caller and threads have in common.
struct Shared {
    /// Whether somebody has the threads.
    busy: AtomicBool,
    /// Number of the operation, in the upper bits; [`OPEN`]; the threads that are in it.
    state: AtomicU64,
    /// Written by the owner of `busy` while the state is closed and no thread is in it; read by
    /// threads that are in it.
    operation: UnsafeCell<Option<Operation>>,
    /// Whether a thread sleeps or is about to.
    asleep: Vec<AtomicBool>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
}

/// The operation may be joined.
const OPEN: u64 = 1 << 16;
/// The threads in the operation: more than [`MAX_THREADS`] fit below [`OPEN`].
const MEMBERS: u64 = OPEN - 1;
/// From one operation's number to the next.
const NEXT: u64 = OPEN << 1;

// SAFETY: `operation` is the one field that is not `Sync`. It is written only while `busy` is held,
// the state is closed and has no members, and read only by members; joining and leaving synchronize
// through `state`.
unsafe impl Sync for Shared {}

impl Shared {
    fn new(n_workers: usize) -> Self {
        Self {
            busy: AtomicBool::new(false),
            state: AtomicU64::new(0),
            operation: UnsafeCell::new(None),
            asleep: (0..n_workers).map(|_| AtomicBool::new(false)).collect(),
            panic: Mutex::new(None),
            stop: AtomicBool::new(false),
        }
    }

    /// Lets threads join `f`. The caller holds `busy`, and calls `close` before `f` ends.
    fn open(&self, f: &(dyn Fn() + Sync)) {
        let state = self.state.load(Ordering::Relaxed);
        debug_assert_eq!(state & (OPEN | MEMBERS), 0, "closed, and all have left");
        // SAFETY: only the lifetime changes. Threads reach the reference as members alone, and the
        // caller lets `f` live until `close` has seen the last of them leave.
        let f = unsafe { std::mem::transmute::<&(dyn Fn() + Sync), Operation>(f) };
        // SAFETY: the state is closed without members, so nobody else reads or writes the cell.
        unsafe { *self.operation.get() = Some(f) };
        self.state.store((state + NEXT) | OPEN, Ordering::SeqCst);
    }

    /// Ends the operation: nobody joins any more, and all who did have left.
    fn close(&self) {
        self.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0_u32;
        while self.state.load(Ordering::Acquire) & MEMBERS != 0 {
            spins += 1;
            if spins.is_multiple_of(SPINS * 16) {
                // The thread that is waited for may not have a processor.
                thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    fn take_panic(&self) -> Option<Box<dyn Any + Send>> {
        let mut panic = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
        panic.take()
    }

    /// The life of thread `index`.
    fn work(&self, index: usize) {
        let mut seen = 0;
        let mut idle = Idle::default();
        while !self.stop.load(Ordering::SeqCst) {
            let state = self.state.load(Ordering::Acquire);
            let is_new = state & OPEN != 0 && state / NEXT != seen;
            if is_new && self.join(state) {
                seen = state / NEXT;
                idle = Idle::default();
            } else if !is_new && idle.is_over() {
                self.asleep[index].store(true, Ordering::SeqCst);
                // Whatever was opened or stopped before this line is seen by the next.
                let missed = self.state.load(Ordering::SeqCst) != state;
                if !missed && !self.stop.load(Ordering::SeqCst) {
                    thread::park();
                }
                self.asleep[index].store(false, Ordering::SeqCst);
                idle = Idle::default();
            }
        }
    }

    /// Takes part in the operation if the state is still `state`.
    fn join(&self, state: u64) -> bool {
        let joined =
            self.state
                .compare_exchange(state, state + 1, Ordering::Acquire, Ordering::Relaxed);
        if joined.is_err() {
            return false;
        }
        // SAFETY: this thread is a member, so the cell is not written until it leaves.
        let operation = unsafe { *self.operation.get() };
        if let Some(f) = operation
            && let Err(panic) = catch_unwind(AssertUnwindSafe(f))
        {
            let mut first = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert(panic);
        }
        self.state.fetch_sub(1, Ordering::Release);
        true
    }
}

/// How long a thread has had nothing to do.
#[derive(Default)]
struct Idle {
    spins: u32,
    since: Option<Instant>,
}

impl Idle {
    /// Spins once; whether it is time to sleep.
    fn is_over(&mut self) -> bool {
        std::hint::spin_loop();
        self.spins += 1;
        if self.spins < SPINS {
            return false;
        }
        self.spins = 0;
        // Where others wait for the processor, a thread should lose it here, not amid an operation
        // for which the caller must then wait.
        thread::yield_now();
        self.since.get_or_insert_with(Instant::now).elapsed() > AWAKE
    }
}

/// An output in parts of equal length, each handed out once.
struct Parts<'a, T> {
    first: *mut T,
    len: usize,
    part_len: usize,
    next: AtomicUsize,
    out: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: a part is handed out once, so sharing the parts moves each `&mut [T]` to one thread,
// which `T: Send` allows.
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    /// `part_len` is not zero.
    fn new(out: &'a mut [T], part_len: usize) -> Self {
        debug_assert_ne!(part_len, 0);
        Self {
            first: out.as_mut_ptr(),
            len: out.len(),
            part_len,
            next: AtomicUsize::new(0),
            out: std::marker::PhantomData,
        }
    }

    /// The next part and its number; the last part may be shorter.
    fn next(&self) -> Option<(usize, &'a mut [T])> {
        let i = self.next.fetch_add(1, Ordering::Relaxed);
        let at = i.checked_mul(self.part_len).filter(|at| *at < self.len)?;
        let len = self.part_len.min(self.len - at);
        // SAFETY: `at` is within the slice that `first` and `len` came from.
        let first = unsafe { self.first.add(at) };
        // SAFETY: the elements lie within that slice, which is borrowed for `'a`; the counter gives
        // `i` to this call alone, and other parts do not overlap this one.
        Some((i, unsafe { std::slice::from_raw_parts_mut(first, len) }))
    }

    /// Lets no further part be handed out.
    fn skip_rest(&self) {
        // Far from overflow for as many calls of `next` as there can be threads.
        self.next.store(usize::MAX / 2, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    /// Enough work per row for any number of rows to be shared.
    const MUCH: usize = SERIAL_WORK + 1;

    fn team(n_threads: usize) -> Team {
        Team::new(n_threads, Kernels::best()).unwrap()
    }

    #[test]
    fn every_row_is_computed_once_by_any_number_of_threads() {
        for n_threads in [1, 2, 3, 8] {
            let team = team(n_threads);
            for n_rows in [0, 1, 2, 3, 7, 8, 100, 1001] {
                for work in [1, PART_WORK / 3, MUCH] {
                    let mut out = vec![0_u64; n_rows * 3];
                    team.rows(&mut out, 3, work, |row, out| {
                        for (i, out) in out.iter_mut().enumerate() {
                            *out += (3 * row + i) as u64 + 1;
                        }
                    });
                    assert!(
                        out.iter()
                            .zip(1..)
                            .all(|(found, expected)| *found == expected)
                    );
                }
            }
        }
    }

    #[test]
    fn operations_follow_each_other_with_and_without_sleep_between() {
        let team = team(3);
        for round in 0..2000_u32 {
            let mut out = [0; 64];
            team.rows(&mut out, 1, MUCH, |row, out| out[0] = row as u32 + round);
            assert!(
                out.iter()
                    .zip(round..)
                    .all(|(found, expected)| *found == expected)
            );
            if round % 500 == 0 {
                thread::sleep(3 * AWAKE);
            }
        }
    }

    #[test]
    fn threads_share_the_work() {
        let team = team(2);
        let ids = Mutex::new(std::collections::HashSet::new());
        // The other thread may be slow to come, but not this slow.
        for _ in 0..200 {
            team.rows(&mut [0; 64], 1, MUCH, |_, _| {
                ids.lock().unwrap().insert(thread::current().id());
                thread::sleep(Duration::from_micros(20));
            });
        }
        assert_eq!(ids.into_inner().unwrap().len(), 2);
    }

    #[test]
    fn an_operation_within_an_operation_runs_in_its_thread() {
        let team = team(2);
        let mut out = [0_u32; 64];
        team.rows(&mut out, 8, MUCH, |_, out| {
            let own = thread::current().id();
            team.rows(out, 1, MUCH, |row, out| {
                assert_eq!(thread::current().id(), own);
                out[0] = row as u32;
            });
        });
        assert!(out.iter().enumerate().all(|(i, x)| *x == i as u32 % 8));
    }

    #[test]
    fn two_callers_at_once_both_get_their_results() {
        let team = team(2);
        thread::scope(|scope| {
            for caller in 0..3_u32 {
                let team = &team;
                scope.spawn(move || {
                    for round in 0..300 {
                        let mut out = [0; 32];
                        team.rows(&mut out, 1, MUCH, |_, out| out[0] = caller + round);
                        assert_eq!(out, [caller + round; 32]);
                    }
                });
            }
        });
    }

    #[test]
    fn the_first_error_ends_the_operation_and_is_returned() {
        let team = team(2);
        let calls = AtomicU32::new(0);
        let failed = team.blocks(&mut [0; 4096], 1, MUCH, |_, _| {
            calls.fetch_add(1, Ordering::Relaxed);
            Err(Error::OutOfMemory { bytes: 7 })
        });
        assert!(matches!(failed, Err(Error::OutOfMemory { bytes: 7 })));
        assert!(calls.into_inner() <= 2, "a thread stops at its error");
    }

    #[test]
    fn a_panic_in_any_thread_reaches_the_caller_and_the_team_works_on() {
        let team = team(2);
        for who in 0..2 {
            let caller = thread::current().id();
            let result = catch_unwind(AssertUnwindSafe(|| {
                // Until the thread that is meant gets a part.
                loop {
                    team.rows(&mut [0; 16], 1, MUCH, |_, _| {
                        let here = usize::from(thread::current().id() != caller);
                        assert_ne!(here, who, "as meant");
                        thread::sleep(Duration::from_micros(50));
                    });
                }
            }));
            let panic = result.unwrap_err();
            let text = panic.downcast_ref::<String>().map_or("", String::as_str);
            assert!(text.contains("as meant"), "{text}");
            let mut out = [0; 64];
            team.rows(&mut out, 1, MUCH, |_, out| out[0] = 1);
            assert_eq!(out, [1; 64]);
        }
    }

    #[test]
    fn dropping_a_team_ends_threads_that_sleep_and_threads_that_spin() {
        for pause in [Duration::ZERO, 5 * AWAKE] {
            let team = team(4);
            let shared = Arc::downgrade(&team.shared);
            team.rows(&mut [0; 64], 1, MUCH, |_, _| ());
            thread::sleep(pause);
            drop(team);
            assert!(shared.upgrade().is_none(), "no thread holds it any more");
        }
    }

    #[test]
    fn numbers_of_threads_that_make_no_sense_are_errors() {
        for n_threads in [0, MAX_THREADS + 1] {
            let e = Team::new(n_threads, Kernels::best()).unwrap_err();
            assert!(matches!(e, Error::Threads { n_threads: found, .. } if found == n_threads));
        }
    }
}
