//! Reads that go wrong.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use thalweg_cache::PolicyKind;
use thalweg_store::io::fault::{Fault, FaultBackend, FaultPlan, FaultReader};
use thalweg_store::{
    AlignedBuf, Error, ExpertStore, PreadBackend, Priority, ReadBackend, ReadDone, ReadOp,
    RowTable, Segment, SlotBuf,
};

use crate::fixture::{Fixture, chain};

fn store(fixture: &Fixture, slots: usize, plan: FaultPlan) -> ExpertStore {
    fixture
        .store_with(slots, PolicyKind::Lru, |files| {
            Box::new(FaultBackend::new(
                PreadBackend::new(files.clone()),
                files,
                plan,
            ))
        })
        .unwrap()
}

#[test]
fn interrupted_and_short_reads_change_nothing() {
    let fixture = Fixture::new();
    for (interrupts, max_read_bytes) in [(0, 1), (3, 7), (100, 150), (1, usize::MAX), (0, 0)] {
        let mut store = fixture
            .store_with(4, PolicyKind::Lru, |files| {
                let reader = FaultReader::new(files.clone(), interrupts, max_read_bytes);
                Box::new(PreadBackend::with_reader(files, reader))
            })
            .unwrap();
        let lease = store.acquire(0, 1, &[3, 0, 11]).unwrap();
        fixture.check(&lease, 1, &[3, 0, 11]);
    }
}

#[test]
fn a_failed_read_names_expert_file_and_place_and_a_retry_succeeds() {
    let fixture = Fixture::new();
    // The second read is expert 6's: reads go in file order.
    let plan = FaultPlan::new().with_fault(1, Fault::Fail(ErrorKind::PermissionDenied));
    let mut store = store(&fixture, 3, plan);
    let error = store.acquire(0, 0, &[6, 8, 2]).unwrap_err();
    let (offset, path) = (77 + 6 * 300, fixture.paths[0].display());
    assert_eq!(
        chain(&error),
        format!(
            "cannot load expert 6 of layer 0: reading 300 bytes at {offset} of {path} failed: \
             permission denied"
        )
    );
    assert!([2, 6, 8].iter().all(|e| !store.is_resident(0, *e)));
    store.validate().unwrap();
    // The failed operation had three reads, whose bytes do not count; the others were given up.
    let stats = store.stats();
    assert_eq!((stats.reads, stats.bytes_read, stats.failures), (3, 0, 1));
    let lease = store.acquire(1, 0, &[6, 8, 2]).unwrap();
    fixture.check(&lease, 0, &[6, 8, 2]);
}

#[test]
fn an_end_of_file_names_what_was_wanted_and_what_there_was() {
    let fixture = Fixture::new();
    let mut store = store(&fixture, 3, FaultPlan::new().with_fault(0, Fault::Eof));
    let error = store.acquire(0, 2, &[1]).unwrap_err();
    let text = chain(&error);
    assert!(
        text.starts_with("cannot load expert 1 of layer 2: "),
        "{text}"
    );
    assert!(text.ends_with("wanted 5000 bytes, got 2500"), "{text}");
    store.validate().unwrap();
    fixture.check(&store.acquire(1, 2, &[1]).unwrap(), 2, &[1]);
}

#[test]
fn hits_of_a_failed_acquire_keep_their_slots_and_lose_their_pins() {
    let fixture = Fixture::new();
    let plan = FaultPlan::new().with_fault(2, Fault::Fail(ErrorKind::Other));
    let mut store = store(&fixture, 3, plan);
    drop(store.acquire(0, 0, &[0, 1]).unwrap());
    assert!(store.acquire(1, 0, &[0, 5, 1]).is_err());
    assert!(store.is_resident(0, 0) && store.is_resident(0, 1) && !store.is_resident(0, 5));
    assert_eq!(store.residency(0).unwrap().n_pinned(), 0);
    store.validate().unwrap();
    // All three slots can be used by others.
    let lease = store.acquire(2, 0, &[6, 7, 8]).unwrap();
    fixture.check(&lease, 0, &[6, 7, 8]);
}

#[test]
fn completions_in_any_order_give_the_same_bytes() {
    let fixture = Fixture::new();
    for seed in 0..20 {
        let mut store = store(&fixture, 8, FaultPlan::new().with_reordering(seed));
        let picks = [7, 0, 3, 11, 5, 1, 2, 10];
        fixture.check(&store.acquire(0, 0, &picks).unwrap(), 0, &picks);
        let picks = [4, 6, 8, 9, 7, 0];
        fixture.check(&store.acquire(1, 0, &picks).unwrap(), 0, &picks);
        store.validate_contents().unwrap();
    }
}

#[test]
fn a_slow_read_is_waited_for_and_counted() {
    let fixture = Fixture::new();
    let time = Duration::from_millis(20);
    let mut store = store(
        &fixture,
        3,
        FaultPlan::new().with_fault(1, Fault::Delay(time)),
    );
    let start = Instant::now();
    fixture.check(&store.acquire(0, 0, &[1, 2, 3]).unwrap(), 0, &[1, 2, 3]);
    assert!(start.elapsed() >= time && store.stats().wait >= time);
}

#[test]
fn a_backend_that_is_full_is_tried_again() {
    let fixture = Fixture::new();
    let plan = (0..9).fold(FaultPlan::new(), |plan, n| plan.with_fault(n, Fault::Busy));
    let mut store = store(&fixture, 5, plan);
    for picks in [[0, 1, 2, 3, 4], [9, 8, 7, 6, 5]] {
        fixture.check(&store.acquire(0, 0, &picks).unwrap(), 0, &picks);
    }
}

#[test]
fn nothing_more_is_begun_after_a_failure() {
    let fixture = Fixture::new();
    let plan = FaultPlan::new()
        .with_fault(0, Fault::Fail(ErrorKind::Other))
        .with_fault(1, Fault::Busy);
    let mut store = store(&fixture, 3, plan);
    assert!(store.acquire(0, 0, &[1, 2, 3]).is_err());
    // One operation of three reads; the others were still waiting to be taken.
    assert_eq!((store.stats().reads, store.stats().bytes_read), (3, 0));
    store.validate().unwrap();
    fixture.check(&store.acquire(1, 0, &[1, 2, 3]).unwrap(), 0, &[1, 2, 3]);
}

#[test]
fn bytes_that_are_no_weights_are_caught_by_the_check() {
    let fixture = Fixture::new();
    let mut store = store(&fixture, 3, FaultPlan::new().with_fault(1, Fault::Corrupt));
    store.set_check(Box::new(|_, _, _, bytes| match bytes.contains(&0xFF) {
        true => Err("not a number".into()),
        false => Ok(()),
    }));
    let error = store.acquire(0, 0, &[2, 1]).unwrap_err();
    assert!(matches!(error, Error::Expert { expert: 2, .. }), "{error}");
    fixture.check(&store.acquire(0, 0, &[2, 1]).unwrap(), 0, &[2, 1]);
}

/// Keeps operations while told to.
struct Swallowing {
    inner: PreadBackend,
    active: Arc<AtomicBool>,
    swallowed: Vec<ReadOp>,
}

impl ReadBackend for Swallowing {
    fn submit(&mut self, op: ReadOp) -> Result<(), ReadOp> {
        if self.active.load(Ordering::Relaxed) && self.swallowed.is_empty() {
            self.swallowed.push(op);
            return Ok(());
        }
        self.inner.submit(op)
    }

    fn wait(&mut self, done: &mut Vec<ReadDone>) {
        self.inner.wait(done);
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.swallowed.len()
    }
}

#[test]
fn a_backend_that_loses_an_operation_is_an_error_not_a_hang() {
    let fixture = Fixture::new();
    let active = Arc::new(AtomicBool::new(true));
    let flag = Arc::clone(&active);
    let mut store = fixture
        .store_with(3, PolicyKind::Lru, |files| {
            let inner = PreadBackend::new(files);
            Box::new(Swallowing {
                inner,
                active: flag,
                swallowed: Vec::new(),
            })
        })
        .unwrap();
    let error = store.acquire(0, 0, &[0, 1, 2]).unwrap_err();
    assert!(
        matches!(error, Error::OperationsLost { n_lost: 1 }),
        "{error}"
    );
    // The slot's buffer is gone, which validate says and acquire reports.
    assert!(matches!(
        store.validate(),
        Err(Error::Broken { invariant: 3, .. })
    ));
    active.store(false, Ordering::Relaxed);
    let error = store.acquire(1, 0, &[0, 1, 2]).unwrap_err();
    assert!(matches!(error, Error::SlotLost { .. }), "{error}");
    // Other layers go on.
    fixture.check(&store.acquire(1, 1, &[0, 1, 2]).unwrap(), 1, &[0, 1, 2]);
}

/// Takes nothing.
struct Refusing;

impl ReadBackend for Refusing {
    fn submit(&mut self, op: ReadOp) -> Result<(), ReadOp> {
        Err(op)
    }

    fn wait(&mut self, _: &mut Vec<ReadDone>) {}

    fn in_flight(&self) -> usize {
        0
    }
}

#[test]
fn a_backend_that_takes_nothing_is_an_error_and_no_buffer_is_lost() {
    let fixture = Fixture::new();
    let mut store = fixture
        .store_with(3, PolicyKind::Lru, |_| Box::new(Refusing))
        .unwrap();
    for _ in 0..2 {
        let error = store.acquire(0, 0, &[0, 1, 2]).unwrap_err();
        assert!(matches!(error, Error::OperationRefused), "{error}");
        store.validate().unwrap();
    }
    let mut table = RowTable::new(fixture.files(), 0, 0, 8, 8, 0)
        .unwrap()
        .with_backend(Box::new(Refusing));
    let error = table.fetch(&[1_u32], &mut [0; 8]).unwrap_err();
    assert!(matches!(error, Error::OperationRefused), "{error}");
    table.validate().unwrap();
}

fn buffer(len: usize) -> SlotBuf {
    let mut pieces = AlignedBuf::zeroed(len).unwrap().carve([len]).unwrap();
    pieces.pop().unwrap()
}

#[test]
fn operations_come_back_with_their_buffers_whatever_they_ask() {
    let fixture = Fixture::new();
    let mut backend = PreadBackend::new(fixture.files());
    let len = fixture.bytes[0].len() as u64;
    let segment = |file, offset_bytes, len_bytes, dst_bytes| Segment {
        file,
        offset_bytes,
        len_bytes,
        dst_bytes,
    };
    let cases = [
        (segment(0, 10, 100, 28), ""),
        (segment(0, len, 0, 128), ""),
        (
            segment(0, 10, 100, 29),
            "segment of 100 bytes at 29 exceeds a buffer of 128 bytes",
        ),
        (
            segment(0, 0, usize::MAX, 2),
            "exceeds a buffer of 128 bytes",
        ),
        (segment(2, 0, 1, 0), "file 2 of a set of 2"),
        (segment(0, len - 1, 2, 0), "wanted 2 bytes, got 1"),
        (segment(0, 1 << 62, 2, 0), "wanted 2 bytes, got 0"),
        (segment(0, u64::MAX, 2, 0), "failed"),
    ];
    for (id, (segment, _)) in (0..).zip(&cases) {
        backend
            .submit(ReadOp {
                priority: Priority::Demand,
                id,
                segments: vec![*segment],
                buf: buffer(128),
            })
            .unwrap();
    }
    assert_eq!(backend.in_flight(), cases.len());
    let mut done = Vec::new();
    while backend.in_flight() > 0 {
        backend.wait(&mut done);
    }
    for (done, (segment, expected)) in done.iter().zip(&cases) {
        assert_eq!((done.op.buf.len(), done.op.segments[0]), (128, *segment));
        match &done.result {
            Ok(()) => assert_eq!(*expected, ""),
            Err(e) => assert!(
                !expected.is_empty() && e.to_string().contains(expected),
                "{e}"
            ),
        }
    }
    assert_eq!(done[0].op.buf[28..], fixture.bytes[0][10..110]);
    // Nothing under way: nothing comes, and nobody waits.
    backend.wait(&mut done);
    assert_eq!(done.len(), cases.len());
}
