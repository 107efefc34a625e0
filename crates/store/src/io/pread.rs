//! `PreadBackend`: positioned reads on the calling thread.
//!
//! Owns the queue of operations and the loop around the system call; not the files. Reads happen
//! in `wait`, one operation a call, in the order of submission. Memory: the queue.
//! Invariants: 1. an interrupted read is repeated and a short one continued; 2. zero bytes before
//! the end of a segment is [`Error::UnexpectedEof`]. Cost: one system call a segment, as a rule.

use std::collections::VecDeque;
use std::io;

use super::{ReadBackend, ReadDone, ReadOp, Segment};
use crate::{Error, FileSet, Result};

/// A single attempt at a positioned read: the seam under [`PreadBackend`]'s loop.
pub trait ReadAt: Send {
    /// Reads into `buffer` at a place of a file, once. May return fewer bytes than asked for, zero
    /// at the end of the file, and [`io::ErrorKind::Interrupted`].
    ///
    /// # Errors
    /// The system's.
    fn read_at(&mut self, file: usize, offset_bytes: u64, buffer: &mut [u8]) -> io::Result<usize>;
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
        }
    }

    fn run(&mut self, op: &mut ReadOp) -> Result<()> {
        let buf_bytes = op.buf.len();
        for segment in &op.segments {
            self.files.check_index(segment.file)?;
            let (start, len) = (segment.dst_bytes, segment.len_bytes);
            let end = start.checked_add(len).filter(|end| *end <= buf_bytes);
            let Some(end) = end else {
                return Err(Error::BadSegment {
                    dst_bytes: start,
                    len_bytes: len,
                    buf_bytes,
                });
            };
            self.read_segment(segment, &mut op.buf[start..end])?;
        }
        Ok(())
    }

    pub(crate) fn read_segment(&mut self, segment: &Segment, buffer: &mut [u8]) -> Result<()> {
        let mut filled = 0;
        while filled < buffer.len() {
            // A file offset beyond 64 bits does not exist: the end of the file comes first.
            let at = segment.offset_bytes.saturating_add(filled as u64);
            let rest = &mut buffer[filled..];
            let wanted = rest.len();
            match self.reader.read_at(segment.file, at, rest) {
                Ok(0) => {
                    return Err(Error::UnexpectedEof {
                        path: self.files.path_or_empty(segment.file),
                        offset_bytes: segment.offset_bytes,
                        wanted_bytes: segment.len_bytes,
                        got_bytes: filled,
                    });
                }
                // A reader that claims more than it was given room for is not believed.
                Ok(n) => filled += n.min(wanted),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(Error::Read {
                        path: self.files.path_or_empty(segment.file),
                        offset_bytes: segment.offset_bytes,
                        len_bytes: segment.len_bytes,
                        source,
                    });
                }
            }
        }
        Ok(())
    }
}

impl<R: ReadAt> ReadBackend for PreadBackend<R> {
    fn submit(&mut self, op: ReadOp) -> std::result::Result<(), ReadOp> {
        self.queue.push_back(op);
        Ok(())
    }

    fn wait(&mut self, done: &mut Vec<ReadDone>) {
        if let Some(mut op) = self.queue.pop_front() {
            let result = self.run(&mut op);
            done.push(ReadDone { op, result });
        }
    }

    fn in_flight(&self) -> usize {
        self.queue.len()
    }
}
