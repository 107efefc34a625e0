//! What begins before what, and what can still be called back. Reads are held at a gate, so that
//! nothing depends on time.

use super::*;

const LEN: usize = 1000;

fn read(id: u64, priority: Priority) -> ReadOp {
    op(id, priority, vec![segment(0, id * 10_000, LEN, 0)], LEN)
}

/// The operations in the order in which their reads began.
fn begun(gate: &Gate) -> Vec<u64> {
    gate.arrived()
        .iter()
        .map(|offset| offset / 10_000)
        .collect()
}

#[test]
fn demands_overtake_read_aheads_that_wait() {
    use Priority::{Demand, Readahead};
    let data = Data::new();
    let (mut pool, gate) = gated(&data);
    pool.submit(read(0, Readahead)).unwrap();
    gate.wait_for_arrivals(1);
    // The thread is busy: all of these wait.
    for (id, priority) in [
        (1, Readahead),
        (2, Readahead),
        (3, Demand),
        (4, Readahead),
        (5, Demand),
    ] {
        pool.submit(read(id, priority)).unwrap();
    }
    pool.promote(4);
    let mut done = Vec::new();
    pool.poll(&mut done);
    assert_eq!((done.len(), pool.in_flight()), (0, 6));
    gate.open();
    let done = drain(&mut pool);
    done.iter().for_each(|d| data.check(d));
    assert_eq!(begun(&gate), [0, 3, 5, 4, 1, 2]);
}

#[test]
fn only_what_has_not_begun_can_be_called_back() {
    use Priority::{Demand, Readahead};
    let data = Data::new();
    let (mut pool, gate) = gated(&data);
    pool.submit(read(0, Readahead)).unwrap();
    gate.wait_for_arrivals(1);
    let two = vec![segment(0, 20_000, LEN, 0), segment(0, 30_000, LEN, LEN)];
    pool.submit(op(1, Readahead, two, 2 * LEN)).unwrap();
    pool.submit(read(4, Demand)).unwrap();
    pool.submit(read(5, Readahead)).unwrap();
    for id in [0, 1, 4] {
        pool.cancel(id);
    }
    // At once, while the reader is still at the gate.
    let mut done = Vec::new();
    pool.poll(&mut done);
    let mut ids: Vec<_> = done.iter().map(|d| d.op.id).collect();
    ids.sort_unstable();
    assert_eq!((ids, pool.in_flight()), (vec![1, 4], 2));
    for d in &done {
        assert!(matches!(d.result, Err(Error::Cancelled)));
        assert_eq!(d.op.buf.len(), if d.op.id == 1 { 2 * LEN } else { LEN });
    }
    gate.open();
    let done = drain(&mut pool);
    done.iter().for_each(|d| data.check(d));
    assert_eq!(begun(&gate), [0, 5]);
}

#[test]
fn an_operation_of_which_a_part_has_begun_is_finished() {
    let data = Data::new();
    let (mut pool, gate) = gated(&data);
    let two = vec![segment(0, 20_000, LEN, 0), segment(0, 30_000, LEN, LEN)];
    pool.submit(op(1, Priority::Demand, two, 2 * LEN)).unwrap();
    gate.wait_for_arrivals(1);
    pool.cancel(1);
    gate.open();
    let done = drain(&mut pool);
    data.check(&done[0]);
    assert_eq!(begun(&gate), [2, 3]);
}

#[test]
fn segments_of_one_operation_are_read_side_by_side() {
    let data = Data::new();
    let gate = Arc::new(Gate::default());
    let reader = || GatedReader {
        files: FaultReader::new(data.files.clone(), 0, usize::MAX),
        gate: Arc::clone(&gate),
    };
    let readers = (0..3).map(|_| reader()).collect();
    let mut pool = PoolBackend::with_readers(data.files.clone(), readers).unwrap();
    let segments = vec![
        segment(0, 0, LEN, 0),
        segment(1, 7, LEN, LEN),
        segment(0, 50, 9, 5000),
    ];
    pool.submit(op(1, Priority::Demand, segments, 6000))
        .unwrap();
    // All three are at the gate: a backend that reads them one by one would never get here.
    gate.wait_for_arrivals(3);
    gate.open();
    drain(&mut pool).iter().for_each(|d| data.check(d));
}

#[test]
fn a_long_segment_is_cut_for_idle_threads_alone() {
    let data = Data::new();
    let gate = Arc::new(Gate::default());
    let reader = || GatedReader {
        files: FaultReader::new(data.files.clone(), 0, usize::MAX),
        gate: Arc::clone(&gate),
    };
    let readers = (0..4).map(|_| reader()).collect();
    let mut pool = PoolBackend::with_readers(data.files.clone(), readers).unwrap();
    // 1.4 MB have room for more parts of 256 KiB than there are threads.
    let long = |id| {
        op(
            id,
            Priority::Demand,
            vec![segment(0, 5, 1_400_000, 0)],
            1_400_000,
        )
    };
    pool.submit(long(1)).unwrap();
    gate.wait_for_arrivals(4);
    pool.submit(long(2)).unwrap();
    gate.open();
    let done = drain(&mut pool);
    done.iter().for_each(|d| data.check(d));
    assert_eq!(gate.arrived().len(), 5);
    assert_eq!(pool.io_stats().bytes_requested, 2 * 1_400_000);
}

#[test]
fn dropping_finishes_what_has_begun_and_begins_nothing() {
    let data = Data::new();
    let (mut pool, gate) = gated(&data);
    for id in 0..4 {
        pool.submit(read(id, Priority::Demand)).unwrap();
    }
    gate.wait_for_arrivals(1);
    let opener = Arc::clone(&gate);
    let later = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        opener.open();
    });
    drop(pool);
    later.join().unwrap();
    assert_eq!(begun(&gate), [0]);
}

/// Panics at one place.
struct Panicking(FaultReader);

impl ReadAt for Panicking {
    fn read_at(&mut self, file: usize, offset_bytes: u64, buffer: &mut [u8]) -> io::Result<usize> {
        assert!(offset_bytes != 20_000, "on purpose");
        self.0.read_at(file, offset_bytes, buffer)
    }
}

#[test]
fn a_reader_that_panics_fails_its_operation_and_no_other() {
    let data = Data::new();
    let reader = Panicking(FaultReader::new(data.files.clone(), 0, usize::MAX));
    let mut pool = PoolBackend::with_readers(data.files.clone(), vec![reader]).unwrap();
    for id in 0..4 {
        pool.submit(read(id, Priority::Demand)).unwrap();
    }
    let done = drain(&mut pool);
    assert_eq!(done.len(), 4);
    for d in &done {
        assert_eq!(d.op.buf.len(), LEN);
        match d.op.id {
            2 => assert!(matches!(
                &d.result,
                Err(Error::ReaderPanicked { path, offset_bytes: 20_000 }) if *path == data.paths[0]
            )),
            _ => data.check(d),
        }
    }
}

#[test]
fn too_many_threads_or_none_are_refused() {
    let data = Data::new();
    let error = PoolBackend::new(data.files.clone(), n(257)).unwrap_err();
    assert!(matches!(
        error,
        Error::TooManyThreads {
            found: 257,
            limit: 256
        }
    ));
    let none = PoolBackend::with_readers::<FaultReader>(data.files, Vec::new());
    assert!(matches!(none, Err(Error::NoReaders)));
    let memory = PoolBackend::memory_bytes(n(8));
    assert_eq!(memory, 8 * AlignedBuf::allocated_bytes(512 << 10));
}

#[test]
fn pread_runs_demands_first_and_gives_back_what_is_cancelled() {
    use Priority::{Demand, Readahead};
    let data = Data::new();
    let mut backend = PreadBackend::new(data.files);
    for (id, priority) in [
        (0, Readahead),
        (1, Readahead),
        (2, Demand),
        (3, Readahead),
        (4, Demand),
    ] {
        backend.submit(read(id, priority)).unwrap();
    }
    backend.promote(3);
    backend.promote(2);
    backend.cancel(1);
    let mut done = Vec::new();
    backend.poll(&mut done);
    assert!(matches!(
        done[..],
        [ReadDone {
            result: Err(Error::Cancelled),
            ..
        }]
    ));
    let order: Vec<_> = drain(&mut backend).iter().map(|d| d.op.id).collect();
    assert_eq!(order, [2, 4, 3, 0]);
}

#[test]
fn a_ring_begins_demands_before_read_aheads_that_wait() {
    use Priority::{Demand, Readahead};
    let data = Data::new();
    // One read at a time: reads end in the order in which they began.
    let Some(mut ring) = ring(&data.files, 1) else {
        return;
    };
    let long = |id, priority| op(id, priority, vec![segment(0, id * 9, 900_000, 0)], 900_000);
    ring.submit(long(0, Readahead)).unwrap();
    for (id, priority) in [
        (1, Readahead),
        (2, Readahead),
        (3, Demand),
        (4, Readahead),
        (5, Demand),
    ] {
        ring.submit(long(id, priority)).unwrap();
    }
    ring.promote(4);
    ring.cancel(2);
    let done = drain(&mut *ring);
    let read: Vec<_> = done
        .iter()
        .filter(|d| d.result.is_ok())
        .map(|d| d.op.id)
        .collect();
    // Nothing is looked at before the first wait, so only the first can have begun.
    assert_eq!(read, [0, 3, 5, 4, 1]);
    done.iter()
        .filter(|d| d.op.id != 2)
        .for_each(|d| data.check(d));
}

#[test]
fn faults_strike_operations_that_are_polled_promoted_and_cancelled() {
    use thalweg_store::io::fault::Fault;
    let data = Data::new();
    let (pool, gate) = gated(&data);
    let delay = std::time::Duration::from_millis(30);
    let plan = FaultPlan::new()
        .with_fault(0, Fault::Delay(delay))
        .with_fault(1, Fault::Corrupt)
        .with_fault(2, Fault::Fail(io::ErrorKind::Other));
    let mut backend = FaultBackend::new(pool, data.files.clone(), plan);
    backend.submit(read(0, Priority::Demand)).unwrap();
    gate.wait_for_arrivals(1);
    for id in 1..5 {
        backend.submit(read(id, Priority::Readahead)).unwrap();
    }
    backend.promote(4);
    backend.cancel(3);
    let mut done = Vec::new();
    backend.poll(&mut done);
    let ids: Vec<_> = done.iter().map(|d| d.op.id).collect();
    assert_eq!((ids, backend.in_flight()), (vec![2, 3], 3));
    assert!(matches!(done[0].result, Err(Error::Read { .. })));
    assert!(matches!(done[1].result, Err(Error::Cancelled)));
    gate.open();
    let start = std::time::Instant::now();
    let mut done = drain(&mut backend);
    assert!(start.elapsed() >= delay);
    assert_eq!(begun(&gate), [0, 4, 1]);
    done.sort_by_key(|d| d.op.id);
    assert!(done[1].op.buf.iter().all(|b| *b == 0xFF));
    data.check(&done[0]);
    data.check(&done[2]);
}
