//! Reading: the `ReadBackend` seam, and the backends behind it.
//!
//! Owns the shape of an operation (owned buffers move in and come back) and the loop that runs a
//! set of them to completion. Does not own the buffers (`arena`) nor what is read (`experts`,
//! `rows`). Memory: none of its own.
//! Invariant: whatever happens, every operation handed over comes back with its buffer.

mod counters;
pub(crate) mod direct;
pub mod fault;
mod kind;
pub(crate) mod platform;
mod pool;
mod pread;
mod queue;
#[cfg(all(target_os = "linux", feature = "io-uring"))]
mod uring;
mod window;

use crate::{Error, Result, SlotBuf};

pub use counters::{IoCounters, IoStats};
pub use direct::{DirectFile, ReadMode};
pub use kind::{ReaderKind, open};
pub use pool::{MAX_READERS, PoolBackend};
pub use pread::{PreadBackend, ReadAt};
#[cfg(all(target_os = "linux", feature = "io-uring"))]
pub use uring::{MAX_DEPTH, UringBackend};

/// One range of a file and where in the buffer it lands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Number of the file in its set.
    pub file: usize,
    /// Where in the file the range begins.
    pub offset_bytes: u64,
    /// Its length.
    pub len_bytes: usize,
    /// Where in the buffer it goes.
    pub dst_bytes: usize,
}

/// Who waits for a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::exhaustive_enums, reason = "backends tell these two apart")]
pub enum Priority {
    /// Somebody waits for it now.
    Demand,
    /// A guess: to be begun only while no demand is waiting to be begun.
    Readahead,
}

/// A read: some ranges into one buffer, which the operation owns while it is under way.
#[derive(Debug)]
pub struct ReadOp {
    /// The submitter's number for it, unique among those under way.
    pub id: u64,
    /// Who waits for it.
    pub priority: Priority,
    /// What to read; served in order, but a backend may serve them at the same time.
    pub segments: Vec<Segment>,
    /// Where to.
    pub buf: SlotBuf,
}

impl ReadOp {
    /// Bytes of all segments.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.segments.iter().map(|s| s.len_bytes as u64).sum()
    }
}

/// An operation that came back.
#[derive(Debug)]
pub struct ReadDone {
    /// The operation, with its buffer. After a failure the buffer's content is not defined.
    pub op: ReadOp,
    /// Whether all segments are complete.
    pub result: Result<()>,
}

/// Carries out reads: one at a time, or many at once.
///
/// The contract:
///
/// 1. An operation accepted by [`submit`](Self::submit) comes out of [`wait`](Self::wait) exactly
///    once, with the buffer that went in, in any order.
/// 2. It is successful only if every byte of every segment is in the buffer. Interrupted and short
///    reads are the backend's business; the end of the file is a failure.
/// 3. `submit` refuses only while something is under way.
/// 4. `wait` blocks until something is done, unless nothing is under way.
/// 5. Bytes of the buffer between and behind the segments may be written to.
pub trait ReadBackend: Send {
    /// Hands over an operation.
    ///
    /// # Errors
    /// Gives the operation back when no more can be taken now: wait, then try again.
    fn submit(&mut self, op: ReadOp) -> std::result::Result<(), ReadOp>;

    /// Waits for something to be done and appends everything that is.
    fn wait(&mut self, done: &mut Vec<ReadDone>);

    /// Appends what is done already, without waiting for more.
    ///
    /// A backend that reads only while somebody waits has nothing to give here.
    fn poll(&mut self, done: &mut Vec<ReadDone>) {
        let _ = done;
    }

    /// Makes a read-ahead that is under way a demand: somebody waits for it now.
    fn promote(&mut self, id: u64) {
        let _ = id;
    }

    /// Gives up an operation that has not been begun. It comes back like any other, with
    /// [`Error::Cancelled`]; one that has been begun is finished and comes back as usual.
    fn cancel(&mut self, id: u64) {
        let _ = id;
    }

    /// Operations under way: submitted and not yet returned.
    fn in_flight(&self) -> usize;

    /// What was asked of the system so far; all zero from a backend that does not count.
    fn io_stats(&self) -> IoStats {
        IoStats::default()
    }
}

/// So that a backend chosen at run time can be wrapped like any other.
impl ReadBackend for Box<dyn ReadBackend> {
    fn submit(&mut self, op: ReadOp) -> std::result::Result<(), ReadOp> {
        (**self).submit(op)
    }

    fn wait(&mut self, done: &mut Vec<ReadDone>) {
        (**self).wait(done);
    }

    fn poll(&mut self, done: &mut Vec<ReadDone>) {
        (**self).poll(done);
    }

    fn promote(&mut self, id: u64) {
        (**self).promote(id);
    }

    fn cancel(&mut self, id: u64) {
        (**self).cancel(id);
    }

    fn in_flight(&self) -> usize {
        (**self).in_flight()
    }

    fn io_stats(&self) -> IoStats {
        (**self).io_stats()
    }
}

/// Runs operations to completion. On return `done` holds those that were carried out, and `ops`
/// those that were not begun because an earlier one had failed.
///
/// # Errors
/// [`Error::OperationsLost`] and [`Error::OperationRefused`] when the backend breaks its contract;
/// failed reads are in `done`.
pub(crate) fn run_all(
    backend: &mut dyn ReadBackend,
    ops: &mut Vec<ReadOp>,
    done: &mut Vec<ReadDone>,
) -> Result<()> {
    // Taken from the end.
    ops.reverse();
    let mut n_out = 0_usize;
    let mut failed = false;
    while n_out > 0 || (!failed && !ops.is_empty()) {
        let mut refused = false;
        while !failed && !refused {
            let Some(op) = ops.pop() else { break };
            match backend.submit(op) {
                Ok(()) => n_out += 1,
                Err(op) => {
                    ops.push(op);
                    refused = true;
                }
            }
        }
        let n_before = done.len();
        backend.wait(done);
        let back = &done[n_before..];
        if back.is_empty() {
            return Err(match n_out {
                0 => Error::OperationRefused,
                n_lost => Error::OperationsLost { n_lost },
            });
        }
        n_out = n_out.saturating_sub(back.len());
        failed |= back.iter().any(|d| d.result.is_err());
    }
    Ok(())
}
