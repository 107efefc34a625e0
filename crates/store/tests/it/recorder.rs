//! A backend that keeps a record of what it is told and does what tests want of it.

use std::sync::{Arc, Mutex, MutexGuard};

use thalweg_store::{
    AlignedBuf, FileSet, PreadBackend, Priority, ReadBackend, ReadDone, ReadOp, Segment,
};

/// What a [`Recorder`] was told, and what it is to do.
#[derive(Default)]
pub(crate) struct Record {
    /// Operations taken: number, priority, first segment.
    pub(crate) taken: Vec<(u64, Priority, Segment)>,
    pub(crate) promoted: Vec<u64>,
    pub(crate) cancelled: Vec<u64>,
    /// The most operations that were under way together.
    pub(crate) most: usize,
    /// Read at once when told, instead of one by one when waited for.
    pub(crate) eager: bool,
    /// Refuse operations beyond so many under way; 0 takes everything.
    pub(crate) limit: usize,
    /// Keep the next so many operations for ever.
    pub(crate) swallow: usize,
    /// Give back another buffer for the next so many operations.
    pub(crate) exchange: usize,
}

/// Reads like [`PreadBackend`], watched.
pub(crate) struct Recorder {
    inner: PreadBackend,
    record: Arc<Mutex<Record>>,
    done: Vec<ReadDone>,
    swallowed: Vec<ReadOp>,
}

/// The test's hold on the [`Recorder`] that the store has.
#[derive(Clone, Default)]
pub(crate) struct Handle(Arc<Mutex<Record>>);

impl Handle {
    pub(crate) fn eager() -> Self {
        let handle = Self::default();
        handle.record().eager = true;
        handle
    }

    pub(crate) fn record(&self) -> MutexGuard<'_, Record> {
        self.0.lock().expect("no test panics while it holds this")
    }

    pub(crate) fn backend(&self, files: FileSet) -> Box<dyn ReadBackend> {
        Box::new(self.recorder(files))
    }

    pub(crate) fn recorder(&self, files: FileSet) -> Recorder {
        Recorder {
            inner: PreadBackend::new(files),
            record: Arc::clone(&self.0),
            done: Vec::new(),
            swallowed: Vec::new(),
        }
    }

    /// Number of operations taken so far.
    pub(crate) fn n_taken(&self) -> usize {
        self.record().taken.len()
    }

    /// Where in their files the operations taken so far begin, in order.
    pub(crate) fn places(&self) -> Vec<(usize, u64)> {
        let record = self.record();
        let taken = record.taken.iter();
        taken.map(|(_, _, s)| (s.file, s.offset_bytes)).collect()
    }

    /// The priorities of the operations taken so far, in order.
    pub(crate) fn priorities(&self) -> Vec<Priority> {
        let record = self.record();
        record.taken.iter().map(|(_, p, _)| *p).collect()
    }
}

impl Recorder {
    fn give(&self, done: &mut [ReadDone]) {
        let mut record = self.record.lock().expect("as above");
        for done in done {
            if record.exchange > 0 {
                record.exchange -= 1;
                let len = done.op.buf.len();
                let other = AlignedBuf::zeroed(len).and_then(|buf| buf.carve([len]));
                done.op.buf = other.expect("small").remove(0);
            }
        }
    }
}

impl ReadBackend for Recorder {
    fn submit(&mut self, op: ReadOp) -> Result<(), ReadOp> {
        let n_out = self.in_flight();
        let eager = {
            let mut record = self.record.lock().expect("as above");
            if record.limit > 0 && n_out >= record.limit {
                return Err(op);
            }
            record.taken.push((op.id, op.priority, op.segments[0]));
            record.most = record.most.max(n_out + 1);
            if record.swallow > 0 {
                record.swallow -= 1;
                self.swallowed.push(op);
                return Ok(());
            }
            record.eager
        };
        self.inner.submit(op)?;
        while eager && self.inner.in_flight() > 0 {
            self.inner.wait(&mut self.done);
        }
        Ok(())
    }

    fn wait(&mut self, done: &mut Vec<ReadDone>) {
        let from = done.len();
        done.append(&mut self.done);
        if done.len() == from {
            self.inner.wait(done);
        }
        self.give(&mut done[from..]);
    }

    fn poll(&mut self, done: &mut Vec<ReadDone>) {
        let from = done.len();
        done.append(&mut self.done);
        self.inner.poll(done);
        self.give(&mut done[from..]);
    }

    fn promote(&mut self, id: u64) {
        self.record.lock().expect("as above").promoted.push(id);
        self.inner.promote(id);
    }

    fn cancel(&mut self, id: u64) {
        self.record.lock().expect("as above").cancelled.push(id);
        self.inner.cancel(id);
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.done.len()
    }
}
