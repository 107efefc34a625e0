//! The tests that every backend passes.

use std::collections::BTreeSet;
use std::fs::OpenOptions;

use super::*;

type Backend = Box<dyn ReadBackend>;

/// Up to five ranges that do not overlap in the buffer.
fn random_op(data: &Data, rng: &mut SplitMix64, id: u64) -> ReadOp {
    let mut dst = rng.below(5000) as usize;
    let mut segments = Vec::new();
    for _ in 0..=rng.below(4) {
        let file = rng.below(2) as usize;
        let file_bytes = data.bytes[file].len() as u64;
        let aligned = rng.below(3) == 0;
        let step = if aligned { 4096 } else { 1 };
        let offset = rng.below(file_bytes) / step * step;
        let longest = match rng.below(4) {
            0 => 700_000,
            _ => 9_000,
        };
        let len = (1 + rng.below(longest)).min(file_bytes - offset) as usize;
        if aligned {
            dst = dst.next_multiple_of(4096);
        }
        segments.push(segment(file, offset, len, dst));
        dst += len + rng.below(3) as usize * 50;
    }
    // In the buffer they may lie in another order than that of reading.
    let at = rng.below(segments.len() as u64) as usize;
    segments.rotate_left(at);
    let buf_bytes = dst + rng.below(2) as usize * 5000;
    let priority = match rng.below(2) {
        0 => Priority::Demand,
        _ => Priority::Readahead,
    };
    op(id, priority, segments, buf_bytes)
}

/// Submits, waiting where the backend is full.
fn submit(backend: &mut Backend, mut op: ReadOp, done: &mut Vec<ReadDone>) {
    while let Err(back) = backend.submit(op) {
        op = back;
        backend.wait(done);
    }
}

pub(super) fn random_ranges_of_many_operations_are_those_of_the_files(
    data: &Data,
    mut backend: Backend,
) {
    let mut rng = SplitMix64::new(11);
    let mut lens = Vec::new();
    let mut done = Vec::new();
    for id in 0..150 {
        let op = random_op(data, &mut rng, id);
        lens.push(op.buf.len());
        submit(&mut backend, op, &mut done);
        if rng.below(10) == 0 {
            backend.wait(&mut done);
        }
    }
    done.extend(drain(&mut *backend));
    done.iter().for_each(|d| data.check(d));
    let ids: BTreeSet<_> = done.iter().map(|d| d.op.id).collect();
    assert_eq!((done.len(), ids.len()), (150, 150));
    // The buffers that went in, whole.
    assert!(
        done.iter()
            .all(|d| d.op.buf.len() == lens[d.op.id as usize])
    );
    // Nothing under way: nothing comes, and nobody waits.
    let mut more = Vec::new();
    backend.wait(&mut more);
    backend.poll(&mut more);
    assert!(more.is_empty());
}

pub(super) fn the_last_bytes_of_a_file_are_read_and_none_beyond(data: &Data, mut backend: Backend) {
    for (file, bytes) in data.bytes.iter().enumerate() {
        let end = bytes.len() as u64;
        let block = end / 4096 * 4096;
        for offset in [end - 1, end - 100, block, block - 1, block - 4096] {
            let len = (end - offset) as usize;
            // With room behind for a whole block, and with none.
            for room in [0, 5000] {
                let good = op(
                    0,
                    Priority::Demand,
                    vec![segment(file, offset, len, 0)],
                    len + room,
                );
                let over = vec![segment(file, offset, len + 3, 0)];
                let bad = op(1, Priority::Demand, over, len + 3 + room);
                let mut done = Vec::new();
                submit(&mut backend, good, &mut done);
                submit(&mut backend, bad, &mut done);
                done.extend(drain(&mut *backend));
                done.sort_by_key(|d| d.op.id);
                data.check(&done[0]);
                let error = done[1].result.as_ref().expect_err("beyond the end");
                let Error::UnexpectedEof {
                    path,
                    offset_bytes,
                    wanted_bytes,
                    got_bytes,
                } = error
                else {
                    panic!("{error}");
                };
                assert_eq!(*path, data.paths[file]);
                assert_eq!(*offset_bytes, offset);
                assert_eq!((*wanted_bytes, *got_bytes), (len + 3, len));
            }
        }
    }
}

pub(super) fn the_order_of_submission_does_not_matter(data: &Data, mut backend: Backend) {
    let make = |order: &[u64]| -> Vec<ReadOp> {
        let one = |id: &u64| {
            let at = id * 111_111;
            op(
                *id,
                Priority::Demand,
                vec![segment(0, at, 100_000, 7)],
                100_007,
            )
        };
        order.iter().map(one).collect()
    };
    let up: Vec<u64> = (0..20).collect();
    let down: Vec<u64> = (0..20).rev().collect();
    for order in [up, down] {
        let mut done = Vec::new();
        for op in make(&order) {
            submit(&mut backend, op, &mut done);
        }
        done.extend(drain(&mut *backend));
        assert_eq!(done.len(), 20);
        done.iter().for_each(|d| data.check(d));
    }
}

pub(super) fn segments_may_touch_overlap_and_be_empty(data: &Data, mut backend: Backend) {
    let all = [
        vec![],
        vec![segment(0, 77, 0, 4096)],
        vec![segment(0, 5, 4096, 0), segment(1, 0, 4096, 4096)],
        vec![segment(1, 4096, 100, 8092), segment(0, 4096, 8092, 0)],
        vec![
            segment(1, 9, 0, 50),
            segment(0, 9, 60, 20),
            segment(0, 9, 0, 50),
        ],
        // Aligned, with a whole last block in which two lie that were read before.
        vec![
            segment(1, 3, 10, 5000),
            segment(1, 3, 10, 5000),
            segment(0, 0, 4100, 0),
        ],
    ];
    for (id, segments) in (0..).zip(all) {
        backend
            .submit(op(id, Priority::Demand, segments, 8192))
            .expect("room for one");
        let done = drain(&mut *backend);
        assert_eq!((done.len(), done[0].op.buf.len()), (1, 8192));
        assert!(done[0].result.is_ok());
        // Of what lies at the same place, what was read last is to be found.
        let expected = match id {
            4 => vec![segment(0, 9, 60, 20)],
            _ => done[0].op.segments.clone(),
        };
        for s in &expected {
            let found = &done[0].op.buf[s.dst_bytes..s.dst_bytes + s.len_bytes];
            assert!(found == data.expected(s), "operation {id}, {s:?}");
        }
    }
}

pub(super) fn large_segments_at_every_misalignment_are_whole(data: &Data, mut backend: Backend) {
    let mut done = Vec::new();
    for (id, (offset, dst)) in [(0, 0), (1, 0), (0, 1), (4095, 4095), (8192, 4096), (32, 32)]
        .into_iter()
        .enumerate()
    {
        let len = 1_392_640 + (id % 2) * 333;
        let segments = vec![segment(0, offset, len, dst)];
        let room = (id % 3) * 4096;
        let op = op(id as u64, Priority::Demand, segments, dst + len + room);
        submit(&mut backend, op, &mut done);
    }
    done.extend(drain(&mut *backend));
    assert_eq!(done.len(), 6);
    done.iter().for_each(|d| data.check(d));
}

pub(super) fn impossible_reads_come_back_with_the_facts(data: &Data, mut backend: Backend) {
    let len = data.bytes[0].len() as u64;
    let cases = [
        (segment(2, 0, 1, 0), "file 2 of a set of 2"),
        (
            segment(0, 10, 100, 29),
            "segment of 100 bytes at 29 exceeds a buffer of 128 bytes",
        ),
        (
            segment(0, 0, usize::MAX, 2),
            "exceeds a buffer of 128 bytes",
        ),
        (segment(0, len - 1, 2, 0), "wanted 2 bytes, got 1"),
        (segment(0, 1 << 62, 2, 0), "wanted 2 bytes, got 0"),
        (segment(0, u64::MAX, 2, 0), "failed"),
        (segment(0, u64::MAX - 4096, 1, 0), "failed"),
    ];
    for (bad, expected) in cases {
        let good = segment(1, 3, 20, 100);
        backend
            .submit(op(1, Priority::Demand, vec![good, bad], 128))
            .expect("room for one");
        let done = drain(&mut *backend);
        assert_eq!((done.len(), done[0].op.buf.len()), (1, 128));
        assert_eq!(done[0].op.segments, [good, bad]);
        let error = done[0].result.as_ref().expect_err("impossible");
        assert!(error.to_string().contains(expected), "{error}");
    }
    // And the backend still reads.
    let segments = vec![segment(0, 1, 99, 0)];
    backend
        .submit(op(2, Priority::Demand, segments, 99))
        .expect("room for one");
    drain(&mut *backend).iter().for_each(|d| data.check(d));
}

pub(super) fn a_cancelled_operation_comes_back_once_with_its_buffer(
    data: &Data,
    mut backend: Backend,
) {
    let mut done = Vec::new();
    for id in 0..40 {
        let segments = vec![
            segment(0, id * 50_000 + 3, 400_000, 0),
            segment(1, 9, 90, 400_000),
        ];
        let priority = match id % 2 {
            0 => Priority::Readahead,
            _ => Priority::Demand,
        };
        submit(&mut backend, op(id, priority, segments, 400_090), &mut done);
    }
    for id in (0..40).rev().step_by(3) {
        backend.cancel(id);
        // Twice is once, and strangers are nobody.
        backend.cancel(id);
        backend.cancel(1000 + id);
    }
    done.extend(drain(&mut *backend));
    let ids: BTreeSet<_> = done.iter().map(|d| d.op.id).collect();
    assert_eq!((done.len(), ids.len()), (40, 40));
    for d in &done {
        assert_eq!(d.op.buf.len(), 400_090);
        match d.result {
            Err(Error::Cancelled) => assert_eq!((39 - d.op.id) % 3, 0),
            _ => data.check(d),
        }
    }
}

pub(super) fn promoting_changes_nothing_but_the_order(data: &Data, mut backend: Backend) {
    let mut done = Vec::new();
    for id in 0..30 {
        let segments = vec![segment(0, id * 90_001, 200_000, 0)];
        let priority = match id % 4 {
            0 => Priority::Demand,
            _ => Priority::Readahead,
        };
        submit(&mut backend, op(id, priority, segments, 200_000), &mut done);
    }
    for id in 0..35 {
        backend.promote(id);
        backend.promote(id);
    }
    done.extend(drain(&mut *backend));
    let ids: BTreeSet<_> = done.iter().map(|d| d.op.id).collect();
    assert_eq!((done.len(), ids.len()), (30, 30));
    done.iter().for_each(|d| data.check(d));
}

pub(super) fn polling_gives_each_operation_once(data: &Data, mut backend: Backend) {
    let mut done = Vec::new();
    for id in 0..30 {
        let segments = vec![segment(0, id * 90_001, 30_000, 0)];
        submit(
            &mut backend,
            op(id, Priority::Demand, segments, 30_000),
            &mut done,
        );
        backend.poll(&mut done);
    }
    backend.poll(&mut done);
    assert_eq!(done.len() + backend.in_flight(), 30);
    done.extend(drain(&mut *backend));
    let ids: BTreeSet<_> = done.iter().map(|d| d.op.id).collect();
    assert_eq!((done.len(), ids.len()), (30, 30));
    done.iter().for_each(|d| data.check(d));
}

pub(super) fn an_operation_in_flight_may_be_dropped_with_its_backend(
    _: &Data,
    mut backend: Backend,
) {
    let mut done = Vec::new();
    for id in 0..40 {
        let segments = vec![segment(0, id * 50_000 + 3, 900_000, 0)];
        submit(
            &mut backend,
            op(id, Priority::Demand, segments, 900_000),
            &mut done,
        );
    }
    drop(backend);
    // Memory that somebody still wrote to would be handed out here again.
    let after: Vec<Vec<u8>> = (0..40).map(|_| vec![0; 900_000]).collect();
    assert!(after.iter().flatten().all(|b| *b == 0));
    drop(done);
}

pub(super) fn a_backend_may_change_threads_while_operations_are_under_way(
    data: &Data,
    backend: Backend,
) {
    // The thread that handed them over is gone when they come back.
    let start = |mut backend: Backend| {
        let mut done = Vec::new();
        for id in 0..20 {
            let segments = vec![segment(0, id * 50_000 + 3, 900_000, 0)];
            let op = op(id, Priority::Demand, segments, 900_000);
            submit(&mut backend, op, &mut done);
        }
        (backend, done)
    };
    let started = std::thread::spawn(move || start(backend)).join();
    let (mut backend, mut done) = started.expect("no panic");
    done.extend(drain(&mut *backend));
    assert_eq!(done.len(), 20);
    done.iter().for_each(|d| data.check(d));
}

pub(super) fn a_file_cut_short_meanwhile_is_the_end_of_it(data: &Data, mut backend: Backend) {
    let file = OpenOptions::new().write(true).open(&data.paths[0]);
    file.and_then(|f| f.set_len(10_000)).expect("writable");
    let segments = vec![segment(0, 4000, 600_000, 0)];
    backend
        .submit(op(1, Priority::Demand, segments, 600_000))
        .expect("room for one");
    let done = drain(&mut *backend);
    let error = done[0].result.as_ref().expect_err("too short");
    let Error::UnexpectedEof {
        path, got_bytes, ..
    } = error
    else {
        panic!("{error}");
    };
    // A part of a segment knows what itself got.
    assert_eq!((path, *got_bytes <= 6000), (&data.paths[0], true));
}

pub(super) fn bytes_and_reads_are_counted(_: &Data, mut backend: Backend) {
    assert_eq!(backend.io_stats(), Default::default());
    let segments = vec![segment(0, 1, 300_000, 0), segment(1, 0, 10, 300_000)];
    backend
        .submit(op(1, Priority::Demand, segments, 300_010))
        .expect("room for one");
    drain(&mut *backend);
    let stats = backend.io_stats();
    assert!(
        stats.reads >= 2 && stats.bytes_requested >= 300_010,
        "{stats:?}"
    );
    assert!(stats.gb_per_s().expect("has read") > 0.0);
    // Nothing is under way, so nothing counts on.
    assert_eq!(backend.io_stats(), stats);
}
