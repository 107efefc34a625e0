//! `Flights`: the reads that are under way, and what each is for.
//!
//! Owns the read backend, the operations that it has not taken yet (demands before read-aheads)
//! and the table from an operation's number to its target. Does not own buffers at rest (`Arena`)
//! nor what a finished read means (`serve`, `transit`). Memory: a few words an operation.
//! Invariants: 1. an operation is in the queue, with the backend, or has landed, and in exactly one
//! of them; 2. every operation lands once, with its buffer, unless the backend loses it.
//! Cost: O(operations under way) a call; nothing is allocated in the long run.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::io::IoStats;
use crate::{Error, Priority, ReadBackend, ReadDone, ReadOp, Result, Segment, SlotBuf};

/// What a read is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Target {
    /// An arena slot that was reserved for a miss.
    Slot { place: usize },
    /// A transit slot, by its number among the transit slots.
    Transit { index: usize },
}

/// A read that came back.
#[derive(Debug)]
pub(super) struct Landed {
    pub(super) id: u64,
    pub(super) target: Target,
    pub(super) done: ReadDone,
}

pub(super) struct Flights {
    backend: Box<dyn ReadBackend>,
    next_id: u64,
    /// Not taken by the backend yet: demands first.
    queue: VecDeque<ReadOp>,
    targets: Vec<(u64, Target)>,
    done: Vec<ReadDone>,
    landed: VecDeque<Landed>,
}

impl Flights {
    pub(super) fn new(backend: Box<dyn ReadBackend>) -> Self {
        Self {
            backend,
            next_id: 0,
            queue: VecDeque::new(),
            targets: Vec::new(),
            done: Vec::new(),
            landed: VecDeque::new(),
        }
    }

    /// Hands over a read; it may wait in the queue. Returns its number.
    pub(super) fn start(
        &mut self,
        target: Target,
        priority: Priority,
        segments: Vec<Segment>,
        buf: SlotBuf,
    ) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.targets.push((id, target));
        let op = ReadOp {
            id,
            priority,
            segments,
            buf,
        };
        let at = match priority {
            Priority::Readahead => self.queue.len(),
            Priority::Demand => self
                .queue
                .iter()
                .position(|op| op.priority == Priority::Readahead)
                .unwrap_or(self.queue.len()),
        };
        self.queue.insert(at, op);
        id
    }

    /// Lets the backend take what it will.
    pub(super) fn push(&mut self) {
        while let Some(op) = self.queue.pop_front() {
            if let Err(op) = self.backend.submit(op) {
                self.queue.push_front(op);
                break;
            }
        }
    }

    /// Takes in what is done, without waiting.
    pub(super) fn poll(&mut self) {
        self.push();
        self.backend.poll(&mut self.done);
        self.land();
    }

    /// Waits until something has landed. Returns the time that took.
    ///
    /// # Errors
    /// [`Error::OperationRefused`], [`Error::OperationsLost`] when the backend breaks its contract;
    /// then nothing is under way any more: refused operations have landed as given up, lost ones
    /// are gone.
    pub(super) fn wait(&mut self) -> Result<Duration> {
        if !self.landed.is_empty() {
            return Ok(Duration::ZERO);
        }
        self.push();
        let start = Instant::now();
        while self.landed.is_empty() {
            let n_out = self.targets.len() - self.queue.len();
            self.backend.wait(&mut self.done);
            if self.done.is_empty() {
                self.give_up_queue();
                self.targets.clear();
                return Err(match n_out {
                    0 => Error::OperationRefused,
                    n_lost => Error::OperationsLost { n_lost },
                });
            }
            // Nothing lands of operations that were taken for lost before.
            self.land();
        }
        self.push();
        Ok(start.elapsed())
    }

    /// Somebody waits for this read now.
    pub(super) fn promote(&mut self, id: u64) {
        match self.queue.iter().position(|op| op.id == id) {
            Some(at) => {
                if let Some(mut op) = self.queue.remove(at) {
                    op.priority = Priority::Demand;
                    self.queue.push_front(op);
                }
            }
            None => self.backend.promote(id),
        }
    }

    /// Nobody wants this read any more; it lands as [`Error::Cancelled`] if it was not begun.
    pub(super) fn cancel(&mut self, id: u64) {
        match self.queue.iter().position(|op| op.id == id) {
            Some(at) => {
                if let Some(op) = self.queue.remove(at) {
                    let result = Err(Error::Cancelled);
                    self.done.push(ReadDone { op, result });
                    self.land();
                }
            }
            None => self.backend.cancel(id),
        }
    }

    /// The next read that came back.
    pub(super) fn pop(&mut self) -> Option<Landed> {
        self.landed.pop_front()
    }

    /// Reads that have not come back.
    pub(super) fn n_out(&self) -> usize {
        self.targets.len()
    }

    /// Whether this read has not come back.
    pub(super) fn is_out(&self, id: u64) -> bool {
        self.targets.iter().any(|(out, _)| *out == id)
    }

    /// Whether this read is going to be, or can be, [popped](Self::pop): it has not been lost.
    pub(super) fn is_known(&self, id: u64) -> bool {
        self.is_out(id) || self.landed.iter().any(|landed| landed.id == id)
    }

    pub(super) fn io_stats(&self) -> IoStats {
        self.backend.io_stats()
    }

    /// What never went to the backend comes back as given up.
    fn give_up_queue(&mut self) {
        for op in self.queue.drain(..) {
            let result = Err(Error::Cancelled);
            self.done.push(ReadDone { op, result });
        }
        self.land();
    }

    /// Finds out what the finished operations were for.
    fn land(&mut self) {
        for done in self.done.drain(..) {
            let id = done.op.id;
            // An operation that was never submitted has no target: the backend made it up.
            if let Some(at) = self.targets.iter().position(|(out, _)| *out == id) {
                let (id, target) = self.targets.swap_remove(at);
                self.landed.push_back(Landed { id, target, done });
            }
        }
    }
}
