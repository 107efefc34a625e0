//! `Queue`: operations cut into jobs that can be carried out side by side, in two levels.
//!
//! Owns the operations under way, with the pieces of their buffers, and the order in which jobs
//! begin: demands first, each level in the order of submission. Does not read (`pool`, `uring`) and
//! knows no threads. Memory: the pieces are the operations' own buffers; a few words a job.
//! Invariants: 1. every piece of a buffer is in its job or in its operation's list, and all are
//! joined again before the operation comes back; 2. an operation comes back exactly once, after the
//! last of its jobs; 3. an operation of which a job was taken has begun and is never cancelled.
//! Cost: a job is O(1); promote and cancel look through the queue.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use super::window::{failed, over};
use super::{Priority, ReadDone, ReadOp, Segment};
use crate::{ALIGNMENT_BYTES, Error, FileSet, Result, SlotBuf};

/// Some reads into a piece of an operation's buffer.
#[derive(Debug)]
pub(super) struct Job {
    key: u64,
    index: usize,
    pub(super) piece: SlotBuf,
    /// Their places in the buffer are counted from the start of the piece. More than one only
    /// where the segments of an operation overlap.
    pub(super) reads: Vec<Segment>,
}

impl Job {
    /// Bytes of the piece that a read may write to: all of it, unless other reads share it.
    pub(super) fn room_bytes(&self, read: usize) -> usize {
        match self.reads.as_slice() {
            [_] => self.piece.len(),
            reads => reads[read].dst_bytes + reads[read].len_bytes,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    next_key: u64,
    demand: VecDeque<Job>,
    readahead: VecDeque<Job>,
    ops: BTreeMap<u64, Pending>,
    /// Jobs that were taken and have not come back.
    n_running: usize,
    finished: Vec<ReadDone>,
}

/// An operation without its buffer.
#[derive(Debug)]
struct Pending {
    id: u64,
    priority: Priority,
    segments: Vec<Segment>,
    /// What lies before all of them.
    head: SlotBuf,
    /// In the order of the buffer; `None` while a job has it.
    pieces: Vec<Option<SlotBuf>>,
    n_left: usize,
    begun: bool,
    error: Option<Error>,
}

impl Queue {
    /// Takes an operation. `n_parts` says into how many parts a segment is cut that can, or cannot,
    /// be read without a bounce buffer.
    pub(super) fn push(
        &mut self,
        op: ReadOp,
        files: &FileSet,
        mut n_parts: impl FnMut(&Segment, bool) -> usize,
    ) {
        if let Err(e) = check(&op, files) {
            let result = Err(e);
            self.finished.push(ReadDone { op, result });
            return;
        }
        let ReadOp {
            id,
            priority,
            segments,
            buf,
        } = op;
        let address = buf.as_ptr().addr();
        let mut reads: Vec<Segment> = Vec::with_capacity(segments.len());
        for segment in segments.iter().filter(|s| s.len_bytes > 0) {
            let alignment = ALIGNMENT_BYTES as u64;
            let straight = segment.offset_bytes.is_multiple_of(alignment)
                && (address + segment.dst_bytes).is_multiple_of(ALIGNMENT_BYTES);
            cut(segment, n_parts(segment, straight), &mut reads);
        }
        let key = self.next_key;
        self.next_key += 1;
        let (head, jobs) = divide(key, buf, reads);
        let n_left = jobs.len();
        let queue = match priority {
            Priority::Demand => &mut self.demand,
            Priority::Readahead => &mut self.readahead,
        };
        queue.extend(jobs);
        let pending = Pending {
            id,
            priority,
            segments,
            head,
            pieces: (0..n_left).map(|_| None).collect(),
            n_left,
            begun: false,
            error: None,
        };
        match n_left {
            0 => self.finished.push(pending.into_done()),
            _ => drop(self.ops.insert(key, pending)),
        }
    }

    /// The next job to begin. Jobs of an operation that has failed are passed over.
    pub(super) fn take(&mut self) -> Option<Job> {
        loop {
            let job = self
                .demand
                .pop_front()
                .or_else(|| self.readahead.pop_front())?;
            self.n_running += 1;
            match self.ops.get_mut(&job.key) {
                Some(pending) if pending.error.is_none() => {
                    pending.begun = true;
                    return Some(job);
                }
                _ => self.complete(job, Ok(())),
            }
        }
    }

    /// Gives a job back, and its operation with the last of them.
    pub(super) fn complete(&mut self, job: Job, result: Result<()>) {
        self.n_running = self.n_running.saturating_sub(1);
        let Some(pending) = self.ops.get_mut(&job.key) else {
            debug_assert!(false, "a job's operation is under way (invariant 2)");
            return;
        };
        pending.pieces[job.index] = Some(job.piece);
        pending.n_left -= 1;
        if let Err(e) = result {
            pending.error.get_or_insert(e);
        }
        if pending.n_left == 0
            && let Some(pending) = self.ops.remove(&job.key)
        {
            self.finished.push(pending.into_done());
        }
    }

    pub(super) fn promote(&mut self, id: u64) {
        let Some((&key, pending)) = self.ops.iter_mut().find(|(_, p)| p.id == id) else {
            return;
        };
        if pending.priority == Priority::Readahead {
            pending.priority = Priority::Demand;
            let jobs = extract(&mut self.readahead, key);
            self.demand.extend(jobs);
        }
    }

    pub(super) fn cancel(&mut self, id: u64) {
        let found = self.ops.iter_mut().find(|(_, p)| p.id == id && !p.begun);
        let Some((&key, pending)) = found else {
            return;
        };
        pending.error = Some(Error::Cancelled);
        let queue = match pending.priority {
            Priority::Demand => &mut self.demand,
            Priority::Readahead => &mut self.readahead,
        };
        for job in extract(queue, key) {
            self.n_running += 1;
            self.complete(job, Ok(()));
        }
    }

    /// Forgets what has not begun: nobody waits any more.
    pub(super) fn abandon(&mut self) {
        self.demand.clear();
        self.readahead.clear();
    }

    /// Jobs that wait or run.
    pub(super) fn n_jobs(&self) -> usize {
        self.demand.len() + self.readahead.len() + self.n_running
    }

    pub(super) const fn has_finished(&self) -> bool {
        !self.finished.is_empty()
    }

    pub(super) fn deliver(&mut self, done: &mut Vec<ReadDone>) {
        done.append(&mut self.finished);
    }

    /// Operations that were taken and not delivered.
    pub(super) fn in_flight(&self) -> usize {
        self.ops.len() + self.finished.len()
    }
}

impl Pending {
    fn into_done(self) -> ReadDone {
        let mut buf = self.head;
        for piece in self.pieces.into_iter().flatten() {
            let joined = buf.join(piece);
            debug_assert!(joined.is_ok(), "pieces are neighbors (invariant 1)");
        }
        ReadDone {
            op: ReadOp {
                id: self.id,
                priority: self.priority,
                segments: self.segments,
                buf,
            },
            result: self.error.map_or(Ok(()), Err),
        }
    }
}

/// What can be known without reading.
fn check(op: &ReadOp, files: &FileSet) -> Result<()> {
    let buf_bytes = op.buf.len();
    for segment in &op.segments {
        files.check_index(segment.file)?;
        let (dst_bytes, len_bytes) = (segment.dst_bytes, segment.len_bytes);
        if dst_bytes
            .checked_add(len_bytes)
            .is_none_or(|end| end > buf_bytes)
        {
            return Err(Error::BadSegment {
                dst_bytes,
                len_bytes,
                buf_bytes,
            });
        }
        // No file reaches there, and systems give the highest places a meaning of their own.
        let end = segment.offset_bytes.checked_add(len_bytes as u64);
        if end.is_none_or(|end| end > i64::MAX as u64) {
            return Err(failed(files, segment, io::ErrorKind::InvalidInput.into()));
        }
    }
    Ok(())
}

/// Cuts a segment at aligned places of its file into up to `n_parts` parts of about equal length.
fn cut(segment: &Segment, n_parts: usize, parts: &mut Vec<Segment>) {
    let n_parts = n_parts.clamp(1, segment.len_bytes);
    let mut from = 0;
    for part in 1..=n_parts {
        let to = if part == n_parts {
            segment.len_bytes
        } else {
            // Divided first: the product stays below the length.
            let near = segment.len_bytes / n_parts * part;
            let at = segment.offset_bytes + near as u64;
            near.saturating_sub(over(at, ALIGNMENT_BYTES))
        };
        if to > from {
            parts.push(Segment {
                offset_bytes: segment.offset_bytes + from as u64,
                len_bytes: to - from,
                dst_bytes: segment.dst_bytes + from,
                ..*segment
            });
            from = to;
        }
    }
}

/// One job a read, each with the buffer from where its read lands to where the next does; or one
/// job for all if they overlap. The first piece is what lies before all of them.
fn divide(key: u64, mut buf: SlotBuf, reads: Vec<Segment>) -> (SlotBuf, Vec<Job>) {
    let mut by_place: Vec<usize> = (0..reads.len()).collect();
    by_place.sort_by_key(|i| reads[*i].dst_bytes);
    let overlap = by_place.windows(2).any(|pair| {
        let (first, second) = (&reads[pair[0]], &reads[pair[1]]);
        first.dst_bytes + first.len_bytes > second.dst_bytes
    });
    if overlap {
        let job = Job {
            key,
            index: 0,
            piece: buf.split_off(0),
            reads,
        };
        return (buf, vec![job]);
    }
    let mut jobs: Vec<(usize, Job)> = Vec::with_capacity(reads.len());
    for (place, &i) in by_place.iter().enumerate().rev() {
        let read = reads[i];
        let job = Job {
            key,
            index: place,
            piece: buf.split_off(read.dst_bytes),
            reads: vec![Segment {
                dst_bytes: 0,
                ..read
            }],
        };
        jobs.push((i, job));
    }
    jobs.sort_by_key(|(i, _)| *i);
    let jobs = jobs.into_iter().map(|(_, job)| job).collect();
    (buf, jobs)
}

/// Takes the jobs of an operation out of a queue.
fn extract(queue: &mut VecDeque<Job>, key: u64) -> Vec<Job> {
    let (out, rest): (Vec<_>, Vec<_>) = queue.drain(..).partition(|job| job.key == key);
    queue.extend(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(offset_bytes: u64, len_bytes: usize, n: usize) -> Vec<(u64, usize, usize)> {
        let segment = Segment {
            file: 0,
            offset_bytes,
            len_bytes,
            dst_bytes: 100,
        };
        let mut parts = Vec::new();
        cut(&segment, n, &mut parts);
        parts
            .iter()
            .map(|p| (p.offset_bytes, p.len_bytes, p.dst_bytes))
            .collect()
    }

    #[test]
    fn parts_follow_each_other_and_begin_at_aligned_places() {
        assert_eq!(parts(10, 1000, 1), [(10, 1000, 100)]);
        // Nothing to cut at: one part, however many are asked for.
        assert_eq!(parts(10, 1000, 3), [(10, 1000, 100)]);
        assert_eq!(
            parts(4000, 10_000, 2),
            [(4000, 4192, 100), (8192, 5808, 4292)]
        );
        for (offset, len, n) in [(1, 1 << 20, 4), (4096, 1_392_640, 5), (777, 1_392_640, 3)] {
            let parts = parts(offset, len, n);
            assert_eq!(parts.len(), n);
            let mut at = (offset, 100);
            for (i, part) in parts.iter().enumerate() {
                assert_eq!((part.0, part.2), at);
                assert!(i == 0 || part.0.is_multiple_of(4096));
                at = (part.0 + part.1 as u64, part.2 + part.1);
            }
            assert_eq!(at.1, 100 + len);
        }
    }
}
