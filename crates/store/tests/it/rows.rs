//! Rows of tables on disk.

use std::fs;
use std::io::ErrorKind;

use proptest::collection::vec;
use proptest::prelude::*;
use tempfile::TempDir;
use thalweg_cache::SplitMix64;
use thalweg_store::io::fault::{Fault, FaultBackend, FaultPlan, FaultReader};
use thalweg_store::{Error, FileSet, PreadBackend, RowTable};

const BLOCK: u64 = 4096;

struct Table {
    _dir: TempDir,
    files: FileSet,
    bytes: Vec<u8>,
    offset_bytes: u64,
    row_bytes: usize,
    n_rows: u64,
}

impl Table {
    /// A file of the rows between `offset_bytes` and `tail_bytes` of something else.
    fn new(offset_bytes: u64, row_bytes: usize, n_rows: u64, tail_bytes: u64) -> Self {
        let mut rng = SplitMix64::new(n_rows ^ offset_bytes);
        let len = offset_bytes + row_bytes as u64 * n_rows + tail_bytes;
        let bytes: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("table");
        fs::write(&path, &bytes).unwrap();
        let files = FileSet::open(&[path]).unwrap();
        Self {
            _dir: dir,
            files,
            bytes,
            offset_bytes,
            row_bytes,
            n_rows,
        }
    }

    fn open(&self, cache_bytes: u64) -> RowTable {
        let files = self.files.clone();
        RowTable::new(
            files,
            0,
            self.offset_bytes,
            self.row_bytes,
            self.n_rows,
            cache_bytes,
        )
        .unwrap()
    }

    fn row(&self, row: u64) -> &[u8] {
        &self.bytes[self.offset_bytes as usize + row as usize * self.row_bytes..][..self.row_bytes]
    }

    /// Fetches and compares.
    fn check(&self, table: &mut RowTable, rows: &[u64]) {
        let mut out = vec![0xAB; rows.len() * self.row_bytes];
        table.fetch(rows, &mut out).unwrap();
        for (row, found) in rows.iter().zip(out.chunks(self.row_bytes)) {
            assert_eq!(found, self.row(*row), "row {row}");
        }
        table.validate().unwrap();
    }
}

#[test]
fn rows_come_in_the_order_asked_for_and_may_repeat() {
    let fixture = Table::new(33, 90, 500, 7);
    for cache_bytes in [0, BLOCK, 1 << 20] {
        let mut table = fixture.open(cache_bytes);
        fixture.check(&mut table, &[499, 0, 3, 3, 250, 0, 499, 499]);
        fixture.check(&mut table, &[]);
        let all: Vec<u64> = (0..500).rev().collect();
        fixture.check(&mut table, &all);
        assert_eq!(table.stats().rows, 508);
    }
}

#[test]
fn rows_across_block_ends_are_whole() {
    // Rows shorter than a block, as long, and longer, all of which straddle.
    for row_bytes in [4095, 4096, 4097, 10_000] {
        let fixture = Table::new(50, row_bytes, 9, 0);
        for cache_bytes in [0, BLOCK, 3 * BLOCK, 1 << 20] {
            let mut table = fixture.open(cache_bytes);
            fixture.check(&mut table, &[8, 1, 4]);
            fixture.check(&mut table, &[1, 2, 3, 4, 0, 8]);
        }
    }
}

#[test]
fn the_last_partial_block_of_a_file_is_read() {
    let fixture = Table::new(0, 100, 41, 0); // 4100 bytes
    let mut table = fixture.open(1 << 20);
    fixture.check(&mut table, &[40]);
    assert_eq!(table.stats().bytes_read, 4100);
    fixture.check(&mut table, &[40, 0]);
    assert_eq!((table.stats().reads, table.stats().block_hits), (1, 2));
    // Within the last block alone.
    let fixture = Table::new(4096, 2, 3, 0);
    let mut table = fixture.open(1 << 20);
    fixture.check(&mut table, &[2, 0]);
    assert_eq!(table.stats().bytes_read, 6);
}

#[test]
fn rows_beyond_the_table_are_refused_with_their_position() {
    let fixture = Table::new(5, 10, 20, 100);
    let mut table = fixture.open(0);
    let mut out = [0; 30];
    for row in [20, u64::MAX] {
        let error = table.fetch(&[0, 19, row], &mut out).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("row {row} of 20, asked for at position 2")
        );
    }
    assert_eq!(table.stats(), Default::default());
    fixture.check(&mut table, &[19]);
}

#[test]
fn an_output_of_another_length_is_refused() {
    let fixture = Table::new(0, 10, 20, 0);
    let mut table = fixture.open(0);
    for len in [0, 19, 21] {
        let error = table.fetch(&[0_u32, 1], &mut vec![0; len]).unwrap_err();
        assert!(matches!(
            error,
            Error::OutputLength {
                n_rows: 2,
                row_bytes: 10,
                ..
            }
        ));
    }
}

#[test]
fn tables_that_are_not_in_the_file_are_refused() {
    let fixture = Table::new(0, 10, 20, 0);
    let new = |file, offset_bytes, row_bytes, n_rows| {
        RowTable::new(
            fixture.files.clone(),
            file,
            offset_bytes,
            row_bytes,
            n_rows,
            0,
        )
    };
    assert!(new(0, 200, 1, 0).is_ok());
    assert!(matches!(
        new(0, 1, 10, 20),
        Err(Error::BeyondFile {
            end_bytes: 201,
            len_bytes: 200,
            ..
        })
    ));
    assert!(matches!(
        new(0, 0, 10, u64::MAX),
        Err(Error::TooLarge { .. })
    ));
    assert!(matches!(
        new(0, u64::MAX, 1, 1),
        Err(Error::TooLarge { .. })
    ));
    assert!(matches!(new(0, 0, 0, 20), Err(Error::EmptyRow)));
    assert!(matches!(new(1, 0, 10, 20), Err(Error::NoSuchFile { .. })));
}

#[test]
fn each_block_is_read_once_a_fetch_and_neighbors_together() {
    let fixture = Table::new(0, 64, 64 * 40, 0); // 64 rows a block, 40 blocks
    let mut table = fixture.open(0);
    // Blocks 0, 1, 2 and 5 are two runs.
    fixture.check(&mut table, &[64, 0, 130, 1, 64 * 5, 63]);
    let stats = table.take_stats();
    assert_eq!(
        (stats.block_misses, stats.reads, stats.bytes_read),
        (4, 2, 4 * BLOCK)
    );
    // A long stretch: runs of four blocks.
    let all: Vec<u64> = (0..64 * 40).collect();
    fixture.check(&mut table, &all);
    let stats = table.take_stats();
    assert_eq!(
        (stats.block_misses, stats.reads, stats.bytes_read),
        (40, 10, 40 * BLOCK)
    );
    // More separate runs than are under way at once.
    let spread: Vec<u64> = (0..20).map(|i| 128 * i).collect();
    fixture.check(&mut table, &spread);
    assert_eq!(table.stats().reads, 20);
}

#[test]
fn a_large_cache_reads_each_block_once_ever() {
    let fixture = Table::new(17, 90, 2000, 0);
    let mut table = fixture.open(1 << 30);
    let n_blocks = (fixture.bytes.len() as u64).div_ceil(BLOCK);
    // Bounded by the file, not by what was allowed.
    assert!(table.cache_blocks() as u64 <= n_blocks + 2);
    let mut rng = SplitMix64::new(3);
    for _ in 0..200 {
        let rows: Vec<u64> = (0..16).map(|_| rng.below(2000)).collect();
        fixture.check(&mut table, &rows);
    }
    let stats = table.stats();
    assert!(stats.block_misses <= n_blocks && stats.bytes_read <= fixture.bytes.len() as u64);
    assert!(stats.block_hits > 10 * stats.block_misses);
}

#[test]
fn a_small_cache_serves_requests_larger_than_itself() {
    let fixture = Table::new(17, 90, 2000, 0); // 44 blocks
    let mut table = fixture.open(2 * BLOCK);
    assert_eq!(table.cache_blocks(), 2);
    let all: Vec<u64> = (0..2000).collect();
    for _ in 0..2 {
        fixture.check(&mut table, &all);
    }
}

#[test]
fn failed_reads_name_the_place_and_leave_the_table_usable() {
    let fixture = Table::new(0, 64, 64 * 10, 0);
    // The second read of the first fetch, and of the second.
    let plan = FaultPlan::new()
        .with_fault(1, Fault::Fail(ErrorKind::Other))
        .with_fault(3, Fault::Eof);
    let pread = PreadBackend::new(fixture.files.clone());
    let faulty = FaultBackend::new(pread, fixture.files.clone(), plan);
    let mut table = fixture.open(1 << 20).with_backend(Box::new(faulty));
    let rows = [64 * 4, 0];
    let mut out = [0; 128];
    for kind in ["failed", "wanted 4096 bytes, got 2048"] {
        let error = table.fetch(&rows, &mut out).unwrap_err().to_string();
        assert!(
            error.contains("at 16384") && error.ends_with(kind),
            "{error}"
        );
        table.validate().unwrap();
    }
    // Nothing of a failed fetch's reads was kept, not even what succeeded.
    assert_eq!((table.stats().failures, table.stats().block_hits), (2, 0));
    fixture.check(&mut table, &rows);
    assert_eq!(
        (table.stats().reads, table.stats().bytes_read),
        (6, 4 * BLOCK)
    );
}

proptest! {
    #[test]
    fn every_fetch_equals_the_file(
        offset_bytes in 0..9000_u64,
        row_bytes in 1..9000_usize,
        n_rows in 1..60_u64,
        tail_bytes in 0..5000_u64,
        cache_bytes in 0..12 * BLOCK,
        seed in any::<u64>(),
        share in 0.0..0.4,
        requests in vec(vec(any::<prop::sample::Index>(), 0..40), 1..12),
    ) {
        let fixture = Table::new(offset_bytes, row_bytes, n_rows, tail_bytes);
        let plan = FaultPlan::new()
            .with_random(seed, share, Fault::Fail(ErrorKind::Other))
            .with_reordering(seed);
        let reader = FaultReader::new(fixture.files.clone(), 1, 5000);
        let pread = PreadBackend::with_reader(fixture.files.clone(), reader);
        let faulty = FaultBackend::new(pread, fixture.files.clone(), plan);
        let mut table = fixture.open(cache_bytes).with_backend(Box::new(faulty));
        for request in &requests {
            let rows: Vec<u64> =
                request.iter().map(|i| i.index(n_rows as usize) as u64).collect();
            let mut out = vec![0xAB; rows.len() * row_bytes];
            match table.fetch(&rows, &mut out) {
                Ok(()) => {
                    for (row, found) in rows.iter().zip(out.chunks(row_bytes)) {
                        prop_assert_eq!(found, fixture.row(*row));
                    }
                }
                Err(Error::Read { .. }) => {}
                Err(other) => panic!("{other}"),
            }
            table.validate().unwrap();
        }
    }
}
