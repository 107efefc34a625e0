//! Every backend gives what is in the files, and gives every buffer back.

mod order;
mod suite;

use std::fs;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, OnceLock};

use thalweg_cache::SplitMix64;
use thalweg_store::io::fault::{FaultBackend, FaultPlan, FaultReader};
use thalweg_store::io::{PoolBackend, ReaderKind};
use thalweg_store::{
    AlignedBuf, Error, FileSet, PreadBackend, Priority, ReadAt, ReadBackend, ReadDone, ReadOp,
    Segment, SlotBuf,
};

/// Two files whose last blocks are incomplete.
struct Data {
    _dir: tempfile::TempDir,
    paths: Vec<PathBuf>,
    bytes: &'static [Vec<u8>],
    files: FileSet,
}

impl Data {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder for temporary files");
        let mut paths = Vec::new();
        for (i, content) in content().iter().enumerate() {
            let path = dir.path().join(format!("{i}.bin"));
            fs::write(&path, content).expect("a writable folder");
            paths.push(path);
        }
        let files = FileSet::open(&paths).expect("readable files");
        Self {
            _dir: dir,
            paths,
            bytes: content(),
            files,
        }
    }

    /// What a segment should bring.
    fn expected(&self, s: &Segment) -> &[u8] {
        &self.bytes[s.file][s.offset_bytes as usize..][..s.len_bytes]
    }

    fn check(&self, done: &ReadDone) {
        let id = done.op.id;
        assert!(done.result.is_ok(), "operation {id}: {:?}", done.result);
        for s in &done.op.segments {
            let found = &done.op.buf[s.dst_bytes..s.dst_bytes + s.len_bytes];
            assert!(found == self.expected(s), "operation {id}, {s:?}");
        }
    }
}

/// What the files hold, made once.
fn content() -> &'static [Vec<u8>] {
    static CONTENT: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    CONTENT.get_or_init(|| {
        let mut rng = SplitMix64::new(3);
        let mut make = |len| (0..len).map(|_| rng.below(256) as u8).collect();
        vec![make(3_000_123), make(4096 * 5 + 1)]
    })
}

fn n(value: usize) -> NonZeroUsize {
    NonZeroUsize::new(value).expect("not zero")
}

fn segment(file: usize, offset_bytes: u64, len_bytes: usize, dst_bytes: usize) -> Segment {
    Segment {
        file,
        offset_bytes,
        len_bytes,
        dst_bytes,
    }
}

fn buffer(len: usize) -> SlotBuf {
    let buf = AlignedBuf::zeroed(len).expect("small");
    buf.carve([len]).expect("fits").remove(0)
}

fn op(id: u64, priority: Priority, segments: Vec<Segment>, buf_bytes: usize) -> ReadOp {
    ReadOp {
        id,
        priority,
        segments,
        buf: buffer(buf_bytes),
    }
}

fn drain(backend: &mut dyn ReadBackend) -> Vec<ReadDone> {
    let mut done = Vec::new();
    while backend.in_flight() > 0 {
        let n_before = done.len();
        backend.wait(&mut done);
        assert!(done.len() > n_before, "wait came back with nothing");
    }
    done
}

/// A ring, or why there is none, said aloud: a test that does nothing must not look like one that
/// passed.
fn ring(files: &FileSet, depth: usize) -> Option<Box<dyn ReadBackend>> {
    match thalweg_store::io::open(ReaderKind::Uring, files.clone(), n(depth)) {
        Ok(ring) => Some(ring),
        Err(Error::RingUnsupported { source }) => {
            let text = format!("SKIPPED: io_uring does not work here: {source}\n");
            // Not through print, which tests capture.
            io::stderr().write_all(text.as_bytes()).expect("writable");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// A door that reads have to pass.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    open: bool,
    /// Places of the reads that have come to the door, in order.
    arrived: Vec<u64>,
}

impl Gate {
    fn pass(&self, offset_bytes: u64) {
        let mut state = self.state.lock().unwrap();
        state.arrived.push(offset_bytes);
        self.changed.notify_all();
        let _open = self.changed.wait_while(state, |s| !s.open).unwrap();
    }

    fn open(&self) {
        self.state.lock().unwrap().open = true;
        self.changed.notify_all();
    }

    fn wait_for_arrivals(&self, n: usize) {
        let state = self.state.lock().unwrap();
        drop(
            self.changed
                .wait_while(state, |s| s.arrived.len() < n)
                .unwrap(),
        );
    }

    fn arrived(&self) -> Vec<u64> {
        self.state.lock().unwrap().arrived.clone()
    }
}

/// Reads that wait at a gate.
struct GatedReader {
    files: FaultReader,
    gate: Arc<Gate>,
}

impl ReadAt for GatedReader {
    fn read_at(&mut self, file: usize, offset_bytes: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.gate.pass(offset_bytes);
        self.files.read_at(file, offset_bytes, buffer)
    }
}

/// A pool of one thread behind a gate.
fn gated(data: &Data) -> (PoolBackend, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let reader = GatedReader {
        files: FaultReader::new(data.files.clone(), 0, usize::MAX),
        gate: Arc::clone(&gate),
    };
    let pool = PoolBackend::with_readers(data.files.clone(), vec![reader]).expect("starts");
    (pool, gate)
}

/// A pool whose reads are interrupted and cut short, and must be aligned.
fn faulty_pool(files: &FileSet, n_threads: usize, max_read_bytes: usize) -> PoolBackend {
    let reader = FaultReader::new(files.clone(), 2, max_read_bytes).with_alignment(4096);
    let readers = vec![reader; n_threads];
    PoolBackend::with_readers(files.clone(), readers).expect("starts")
}

fn pool(files: &FileSet, n_threads: usize) -> Option<Box<dyn ReadBackend>> {
    let pool = PoolBackend::new(files.clone(), n(n_threads)).expect("starts");
    Some(Box::new(pool))
}

/// The suite for one backend: a module of its name, with a function that makes it for a set of
/// files, or `None` where it cannot be had.
macro_rules! read_backend_tests {
    ($($name:ident: $make:expr;)*) => {$(
        mod $name {
            use super::*;

            fn make(files: &FileSet) -> Option<Box<dyn ReadBackend>> {
                let make: fn(&FileSet) -> Option<Box<dyn ReadBackend>> = $make;
                make(files)
            }

            read_backend_tests!(@
                random_ranges_of_many_operations_are_those_of_the_files,
                the_last_bytes_of_a_file_are_read_and_none_beyond,
                the_order_of_submission_does_not_matter,
                segments_may_touch_overlap_and_be_empty,
                large_segments_at_every_misalignment_are_whole,
                impossible_reads_come_back_with_the_facts,
                a_cancelled_operation_comes_back_once_with_its_buffer,
                promoting_changes_nothing_but_the_order,
                polling_gives_each_operation_once,
                an_operation_in_flight_may_be_dropped_with_its_backend,
                a_backend_may_change_threads_while_operations_are_under_way,
                a_file_cut_short_meanwhile_is_the_end_of_it,
                bytes_and_reads_are_counted,
            );
        }
    )*};
    (@ $($test:ident,)*) => {$(
        #[test]
        fn $test() {
            let data = Data::new();
            if let Some(backend) = make(&data.files) {
                suite::$test(&data, backend);
            }
        }
    )*};
}

read_backend_tests! {
    pread: |files| Some(Box::new(PreadBackend::new(files.clone())));
    pread_of_aligned_short_reads: |files| {
        let reader = FaultReader::new(files.clone(), 1, 70_000).with_alignment(512);
        Some(Box::new(PreadBackend::with_reader(files.clone(), reader)))
    };
    pool_of_one: |files| pool(files, 1);
    pool_of_two: |files| pool(files, 2);
    pool_of_eight: |files| pool(files, 8);
    pool_of_buffered_files: |files| {
        let paths: Vec<_> = (0..files.len()).filter_map(|i| files.path(i)).collect();
        pool(&FileSet::open_buffered(&paths).expect("readable"), 3)
    };
    pool_of_short_reads: |files| Some(Box::new(faulty_pool(files, 3, 9000)));
    ring_of_one: |files| ring(files, 1);
    ring_of_four: |files| ring(files, 4);
    ring_of_32: |files| ring(files, 32);
    ring_of_buffered_files: |files| {
        let paths: Vec<_> = (0..files.len()).filter_map(|i| files.path(i)).collect();
        ring(&FileSet::open_buffered(&paths).expect("readable"), 8)
    };
    faults_over_a_pool: |files| {
        let plan = FaultPlan::new().with_reordering(5);
        let inner = faulty_pool(files, 2, usize::MAX);
        Some(Box::new(FaultBackend::new(inner, files.clone(), plan)))
    };
}
