//! Reads that go wrong on purpose. For tests.
//!
//! Two levels, because a backend hides what happens below it: [`FaultReader`] sits under
//! [`PreadBackend`](super::PreadBackend)'s loop and gives short and interrupted system calls;
//! [`FaultBackend`] wraps any backend and fails, delays, reorders, refuses or spoils operations.
//! Owns the plan and its random numbers; equal plans do equal things. Memory: the operations held
//! back. Cost: that of the wrapped backend and the delays.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::thread;
use std::time::Duration;

use thalweg_cache::SplitMix64;

use super::{ReadAt, ReadBackend, ReadDone, ReadOp};
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
    /// Done, but not yet delivered.
    held: Vec<ReadDone>,
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
        self.held.push(ReadDone {
            op,
            result: Err(error),
        });
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
        let fresh = self.held.len();
        if self.plan.reorder.is_some() {
            // Everything under way becomes a candidate for the next place.
            while self.inner.in_flight() > 0 {
                let n_before = self.held.len();
                self.inner.wait(&mut self.held);
                if self.held.len() == n_before {
                    break;
                }
            }
        } else {
            self.inner.wait(&mut self.held);
        }
        for d in &mut self.held[fresh..] {
            if let Some(time) = self.delayed.remove(&d.op.id) {
                thread::sleep(time);
            }
            if self.corrupt.remove(&d.op.id) {
                spoil(&mut d.op);
            }
        }
        match &mut self.plan.reorder {
            Some(rng) if !self.held.is_empty() => {
                // The remainder is below the length, which is a usize.
                let at = rng.below(self.held.len() as u64) as usize;
                done.push(self.held.swap_remove(at));
            }
            _ => done.append(&mut self.held),
        }
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.held.len()
    }
}

/// System calls that are interrupted and cut short.
#[derive(Clone, Debug)]
pub struct FaultReader {
    files: FileSet,
    max_read_bytes: usize,
    interrupts: u32,
    n_interrupts: u32,
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
        }
    }
}

impl ReadAt for FaultReader {
    fn read_at(&mut self, file: usize, offset_bytes: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if self.n_interrupts < self.interrupts {
            self.n_interrupts += 1;
            return Err(io::ErrorKind::Interrupted.into());
        }
        self.n_interrupts = 0;
        let len = buffer.len().min(self.max_read_bytes);
        self.files.read_at(file, offset_bytes, &mut buffer[..len])
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
