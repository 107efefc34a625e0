//! `PreadBackend`: positioned reads on the calling thread.
//!
//! Owns the queue of operations; not the files, nor the loop around the system call (`window`).
//! Reads happen in `wait`, one operation a call: demands before read-aheads, else in the order of
//! submission. Files are read through the page cache. Memory: the queue.
//! Invariants: 1. an interrupted read is repeated and a short one continued; 2. zero bytes before
//! the end of a segment is [`Error::UnexpectedEof`]. Cost: one system call a segment, as a rule.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use super::counters::IoCounters;
use super::window::{BOUNCE_BYTES, alignment_of, read_segment};
use super::{IoStats, Priority, ReadBackend, ReadDone, ReadOp, Segment};
use crate::{AlignedBuf, Error, FileSet, Result};

/// A single attempt at a positioned read: the seam under the loops of [`PreadBackend`] and
/// [`PoolBackend`](super::PoolBackend).
pub trait ReadAt: Send {
    /// Reads into `buffer` at a place of a file, once. May return fewer bytes than asked for, zero
    /// at the end of the file, and [`io::ErrorKind::Interrupted`].
    ///
    /// # Errors
    /// The system's.
    fn read_at(&mut self, file: usize, offset_bytes: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// What place, length and address of reads of a file must be multiples of: one, or a divisor of
    /// [`ALIGNMENT_BYTES`](crate::ALIGNMENT_BYTES). Does not change.
    fn alignment_bytes(&self, file: usize) -> usize {
        let _ = file;
        1
    }
}

impl ReadAt for FileSet {
    fn read_at(&mut self, file: usize, offset_bytes: u64, buffer: &mut [u8]) -> io::Result<usize> {
        Self::read_at(self, file, offset_bytes, buffer)
    }
}

/// The simplest backend: every read blocks the caller.
#[derive(Debug)]
pub struct PreadBackend<R = FileSet> {
    files: FileSet,
    reader: R,
    queue: VecDeque<ReadOp>,
    cancelled: Vec<ReadDone>,
    counters: Arc<IoCounters>,
    /// Empty until a reader wants aligned reads.
    bounce: Option<AlignedBuf>,
}

impl PreadBackend {
    /// A backend that reads these files.
    #[must_use]
    pub fn new(files: FileSet) -> Self {
        Self::with_reader(files.clone(), files)
    }
}

impl<R: ReadAt> PreadBackend<R> {
    /// A backend with another system call; `files` names the files in errors.
    #[must_use]
    pub fn with_reader(files: FileSet, reader: R) -> Self {
        Self {
            files,
            reader,
            queue: VecDeque::new(),
            cancelled: Vec::new(),
            counters: Arc::default(),
            bounce: None,
        }
    }

    /// Its counters, for whoever looks on while it works.
    #[must_use]
    pub fn counters(&self) -> Arc<IoCounters> {
        Arc::clone(&self.counters)
    }

    fn run(&mut self, op: &mut ReadOp) -> Result<()> {
        let buf_bytes = op.buf.len();
        for segment in &op.segments {
            self.files.check_index(segment.file)?;
            let (dst_bytes, len_bytes) = (segment.dst_bytes, segment.len_bytes);
            let end = dst_bytes.checked_add(len_bytes);
            if end.is_none_or(|end| end > buf_bytes) {
                return Err(Error::BadSegment {
                    dst_bytes,
                    len_bytes,
                    buf_bytes,
                });
            }
            // Cut off behind the segment: what follows may be one that is there already. Alone, it
            // has all the room, so that a read of whole blocks needs no copy of the last one.
            let end = match op.segments.len() {
                1 => buf_bytes,
                _ => dst_bytes + len_bytes,
            };
            self.read_into(segment, &mut op.buf[..end])?;
        }
        Ok(())
    }

    /// Reads a segment to the start of a buffer of its length.
    pub(crate) fn read_segment(&mut self, segment: &Segment, buffer: &mut [u8]) -> Result<()> {
        let segment = Segment {
            dst_bytes: 0,
            len_bytes: buffer.len(),
            ..*segment
        };
        self.read_into(&segment, buffer)
    }

    /// Reads a segment to its place in a piece.
    fn read_into(&mut self, segment: &Segment, piece: &mut [u8]) -> Result<()> {
        let bounce: &mut [u8] = match &mut self.bounce {
            _ if alignment_of(&self.reader, segment.file) == 1 => &mut [],
            Some(bounce) => bounce,
            none => none.insert(AlignedBuf::zeroed(BOUNCE_BYTES)?),
        };
        let (files, counters) = (&self.files, &self.counters);
        read_segment(&mut self.reader, files, counters, segment, piece, bounce)
    }

    /// The operation to run next.
    fn take(&mut self) -> Option<ReadOp> {
        let demand = self
            .queue
            .iter()
            .position(|op| op.priority == Priority::Demand);
        self.queue.remove(demand.unwrap_or(0))
    }
}

impl<R: ReadAt> ReadBackend for PreadBackend<R> {
    fn submit(&mut self, op: ReadOp) -> std::result::Result<(), ReadOp> {
        self.queue.push_back(op);
        Ok(())
    }

    fn wait(&mut self, done: &mut Vec<ReadDone>) {
        if !self.cancelled.is_empty() {
            return self.poll(done);
        }
        if let Some(mut op) = self.take() {
            let result = self.run(&mut op);
            done.push(ReadDone { op, result });
        }
    }

    fn poll(&mut self, done: &mut Vec<ReadDone>) {
        done.append(&mut self.cancelled);
    }

    fn promote(&mut self, id: u64) {
        if let Some(at) = self.queue.iter().position(|op| op.id == id)
            && let Some(mut op) = self.queue.remove(at)
        {
            // A demand keeps its place; a read-ahead lines up behind those that wait.
            match op.priority {
                Priority::Demand => self.queue.insert(at, op),
                Priority::Readahead => {
                    op.priority = Priority::Demand;
                    self.queue.push_back(op);
                }
            }
        }
    }

    fn cancel(&mut self, id: u64) {
        if let Some(at) = self.queue.iter().position(|op| op.id == id)
            && let Some(op) = self.queue.remove(at)
        {
            let result = Err(Error::Cancelled);
            self.cancelled.push(ReadDone { op, result });
        }
    }

    fn in_flight(&self) -> usize {
        self.queue.len() + self.cancelled.len()
    }

    fn io_stats(&self) -> IoStats {
        self.counters.stats()
    }
}
