//! Reads that go wrong on purpose. For tests.
//!
//! Two levels, because a backend hides what happens below it: [`FaultReader`] sits under the loop
//! of [`PreadBackend`](super::PreadBackend) or [`PoolBackend`](super::PoolBackend) and gives short and interrupted system calls;
//! [`FaultBackend`] wraps any backend and fails, delays, reorders, refuses or spoils operations.
//! Owns the plan and its random numbers; equal plans do equal things. Memory: the operations held
//! back. Cost: that of the wrapped backend and the delays.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use thalweg_cache::SplitMix64;

use super::{IoStats, ReadAt, ReadBackend, ReadDone, ReadOp};
use crate::{Error, FileSet};

/// What befalls an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// It fails with this error of the system.
    Fail(io::ErrorKind),
    /// It finds the end of its file half way through its first segment.
    Eof,
    /// It succeeds after this time.
    Delay(Duration),
    /// It is refused once, if something else is under way.
    Busy,
    /// It succeeds, but its segments hold bytes of 0xFF.
    Corrupt,
}

/// Which operations are hit. The default hits none.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    script: BTreeMap<u64, Fault>,
    random: Option<(SplitMix64, f64, Fault)>,
    reorder: Option<SplitMix64>,
}

impl FaultPlan {
    /// No faults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a fault of the `n`-th operation, counted from zero over the backend's life.
    #[must_use]
    pub fn with_fault(mut self, n: u64, fault: Fault) -> Self {
        self.script.insert(n, fault);
        self
    }

    /// Hits operations that the script does not name with probability `share`.
    #[must_use]
    pub fn with_random(mut self, seed: u64, share: f64, fault: Fault) -> Self {
        self.random = Some((SplitMix64::new(seed), share, fault));
        self
    }

    /// Lets operations that are under way together come back one by one in random order.
    #[must_use]
    pub fn with_reordering(mut self, seed: u64) -> Self {
        self.reorder = Some(SplitMix64::new(seed));
        self
    }

    fn fault(&mut self, n: u64) -> Option<Fault> {
        if let Some(fault) = self.script.remove(&n) {
            return Some(fault);
        }
        let (rng, share, fault) = self.random.as_mut()?;
        (rng.unit() < *share).then_some(*fault)
    }
}

/// A backend whose operations follow a [`FaultPlan`].
#[derive(Debug)]
pub struct FaultBackend<B> {
    inner: B,
    files: FileSet,
    plan: FaultPlan,
    n_ops: u64,
    delayed: BTreeMap<u64, Duration>,
    corrupt: BTreeSet<u64>,
    /// Come back from below, but not yet delivered.
    held: Vec<Held>,
}

/// An operation that the wrapped backend has finished.
#[derive(Debug)]
struct Held {
    done: ReadDone,
    /// When it may be seen.
    due: Instant,
}

impl<B: ReadBackend> FaultBackend<B> {
    /// Wraps `inner`; `files` names the files in errors.
    #[must_use]
    pub fn new(inner: B, files: FileSet, plan: FaultPlan) -> Self {
        Self {
            inner,
            files,
            plan,
            n_ops: 0,
            delayed: BTreeMap::new(),
            corrupt: BTreeSet::new(),
            held: Vec::new(),
        }
    }

    /// A failed operation, its buffer half overwritten as by a read that broke off.
    fn fail(&mut self, mut op: ReadOp, error: impl FnOnce(&FileSet, &ReadOp) -> Error) {
        let half = op.buf.len() / 2;
        op.buf[..half].fill(0x5A);
        let error = error(&self.files, &op);
        let result = Err(error);
        self.held.push(Held {
            done: ReadDone { op, result },
            due: Instant::now(),
        });
    }

    /// Lets the plan loose on what came back from below.
    fn hold(&mut self, fresh: Vec<ReadDone>) {
        for mut done in fresh {
            let delay = self.delayed.remove(&done.op.id);
            let corrupt = self.corrupt.remove(&done.op.id);
            let read = done.result.is_ok();
            if corrupt && read {
                spoil(&mut done.op);
            }
            let delay = delay.filter(|_| read).unwrap_or_default();
            self.held.push(Held {
                done,
                due: Instant::now() + delay,
            });
        }
    }

    /// Hands out what is due: all of it, or one by lot.
    fn deliver(&mut self, done: &mut Vec<ReadDone>) {
        let now = Instant::now();
        let due: Vec<usize> = (0..self.held.len())
            .filter(|i| self.held[*i].due <= now)
            .collect();
        let one = match &mut self.plan.reorder {
            // The remainder is below the length, which is a usize.
            Some(rng) if !due.is_empty() => due.get(rng.below(due.len() as u64) as usize).copied(),
            _ => None,
        };
        if let Some(one) = one {
            done.push(self.held.swap_remove(one).done);
            return;
        }
        let (ready, rest): (Vec<_>, Vec<_>) = self.held.drain(..).partition(|h| h.due <= now);
        done.extend(ready.into_iter().map(|h| h.done));
        self.held = rest;
    }
}

impl<B: ReadBackend> ReadBackend for FaultBackend<B> {
    fn submit(&mut self, op: ReadOp) -> Result<(), ReadOp> {
        match self.plan.fault(self.n_ops) {
            Some(Fault::Busy) if self.in_flight() > 0 => return Err(op),
            Some(Fault::Fail(kind)) => self.fail(op, |files, op| failed_read(files, op, kind)),
            Some(Fault::Eof) => self.fail(op, early_end),
            other => {
                let id = op.id;
                self.inner.submit(op)?;
                match other {
                    Some(Fault::Delay(time)) => {
                        self.delayed.insert(id, time);
                    }
                    Some(Fault::Corrupt) => {
                        self.corrupt.insert(id);
                    }
                    _ => {}
                }
            }
        }
        self.n_ops += 1;
        Ok(())
    }

    fn wait(&mut self, done: &mut Vec<ReadDone>) {
        let mut fresh = Vec::new();
        if self.plan.reorder.is_some() {
            // Everything under way becomes a candidate for the next place.
            while self.inner.in_flight() > 0 {
                let n_before = fresh.len();
                self.inner.wait(&mut fresh);
                if fresh.len() == n_before {
                    break;
                }
            }
        } else if self.held.is_empty() {
            self.inner.wait(&mut fresh);
        } else {
            // Something is there already, though perhaps not due: no need to wait for more.
            self.inner.poll(&mut fresh);
        }
        self.hold(fresh);
        let first_due = self.held.iter().map(|h| h.due).min();
        if let Some(due) = first_due {
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        self.deliver(done);
    }

    fn poll(&mut self, done: &mut Vec<ReadDone>) {
        let mut fresh = Vec::new();
        self.inner.poll(&mut fresh);
        self.hold(fresh);
        self.deliver(done);
    }

    fn promote(&mut self, id: u64) {
        self.inner.promote(id);
    }

    fn cancel(&mut self, id: u64) {
        self.inner.cancel(id);
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.held.len()
    }

    fn io_stats(&self) -> IoStats {
        self.inner.io_stats()
    }
}

/// System calls that are interrupted and cut short.
#[derive(Clone, Debug)]
pub struct FaultReader {
    files: FileSet,
    max_read_bytes: usize,
    interrupts: u32,
    n_interrupts: u32,
    alignment: usize,
}

impl FaultReader {
    /// Every read is interrupted `interrupts` times and then returns at most `max_read_bytes`
    /// (at least one, since none would mean the end of the file).
    #[must_use]
    pub fn new(files: FileSet, interrupts: u32, max_read_bytes: usize) -> Self {
        Self {
            files,
            max_read_bytes: max_read_bytes.max(1),
            interrupts,
            n_interrupts: 0,
            alignment: 1,
        }
    }

    /// Refuses reads whose place, length or address is not a multiple of `alignment`, as the
    /// system does for direct ones.
    #[must_use]
    pub const fn with_alignment(mut self, alignment: usize) -> Self {
        self.alignment = alignment;
        self
    }
}

impl ReadAt for FaultReader {
    fn read_at(&mut self, file: usize, offset_bytes: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let aligned = offset_bytes.is_multiple_of(self.alignment as u64)
            && buffer.len().is_multiple_of(self.alignment)
            && buffer.as_ptr().addr().is_multiple_of(self.alignment);
        if !aligned {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if self.n_interrupts < self.interrupts {
            self.n_interrupts += 1;
            return Err(io::ErrorKind::Interrupted.into());
        }
        self.n_interrupts = 0;
        let len = buffer.len().min(self.max_read_bytes);
        self.files.read_at(file, offset_bytes, &mut buffer[..len])
    }

    fn alignment_bytes(&self, _: usize) -> usize {
        self.alignment
    }
}

fn failed_read(files: &FileSet, op: &ReadOp, kind: io::ErrorKind) -> Error {
    let first = op.segments.first();
    Error::Read {
        path: first.map_or_else(Default::default, |s| files.path_or_empty(s.file)),
        offset_bytes: first.map_or(0, |s| s.offset_bytes),
        len_bytes: first.map_or(0, |s| s.len_bytes),
        source: kind.into(),
    }
}

fn early_end(files: &FileSet, op: &ReadOp) -> Error {
    let first = op.segments.first();
    Error::UnexpectedEof {
        path: first.map_or_else(Default::default, |s| files.path_or_empty(s.file)),
        offset_bytes: first.map_or(0, |s| s.offset_bytes),
        wanted_bytes: first.map_or(0, |s| s.len_bytes),
        got_bytes: first.map_or(0, |s| s.len_bytes / 2),
    }
}

fn spoil(op: &mut ReadOp) {
    for s in &op.segments {
        let end = s.dst_bytes.saturating_add(s.len_bytes);
        if let Some(bytes) = op.buf.get_mut(s.dst_bytes..end) {
            bytes.fill(0xFF);
        }
    }
}
