//! `thalweg-store`.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::OnceLock;

use tempfile::NamedTempFile;
use thalweg_cache::PolicyKind;
use thalweg_store::io::fault::{Fault, FaultBackend, FaultPlan};
use thalweg_store::{
    ExpertLayout, ExpertPartLayout, ExpertStore, ExpertStoreConfig, FileSet, PROFILE_MAGIC,
    PreadBackend, Profile, RowTable,
};

use crate::input::{Input, crc32c};

const N_LAYER: usize = 2;
const N_EXPERT: usize = 8;
const BATCH: usize = 2;
/// Bytes of the two parts of an expert, by layer.
const PARTS: [[usize; 2]; N_LAYER] = [[100, 37], [300, 64]];
const FILE_BYTES: usize = 20_000;

/// Acquires experts from an arena of any allowed size under any policy while reads fail and come
/// back in any order. What a lease shows must be what the file holds.
pub fn arena_ops(data: &[u8]) {
    let mut input = Input::new(data);
    let online: Vec<PolicyKind> = PolicyKind::ALL
        .iter()
        .copied()
        .filter(|p| *p != PolicyKind::BeladyMin)
        .collect();
    let config = ExpertStoreConfig {
        slots: (0..N_LAYER)
            .map(|_| BATCH + input.below(N_EXPERT - BATCH + 1))
            .collect(),
        batch: vec![BATCH; N_LAYER],
        transit: 0,
        policy: online[input.below(online.len())],
        seed: u64::from(input.byte()),
    };
    let files = FileSet::open(&[file()]).expect("the file is there");
    let mut plan = FaultPlan::new().with_reordering(u64::from(input.byte()));
    for _ in 0..input.below(8) {
        let fault = match input.below(4) {
            0 => Fault::Fail(ErrorKind::Other),
            1 => Fault::Eof,
            _ => Fault::Busy,
        };
        plan = plan.with_fault(u64::from(input.byte()), fault);
    }
    let backend = FaultBackend::new(PreadBackend::new(files.clone()), files.clone(), plan);
    let mut store = ExpertStore::new(files, Box::new(backend), layout(), config)
        .expect("all sizes are allowed");

    for clock in 0..64 {
        if input.is_empty() {
            break;
        }
        let layer = input.below(N_LAYER + 1);
        // One expert too many now and then, and one that is not there.
        let picks: Vec<u16> = (0..input.below(BATCH + 2))
            .map(|_| (input.byte() % (N_EXPERT as u8 + 1)).into())
            .collect();
        if let Ok(lease) = store.acquire(clock, layer, &picks) {
            assert_eq!(lease.n(), picks.len());
            for (i, expert) in picks.iter().enumerate() {
                for part in 0..lease.n_parts() {
                    assert_eq!(lease.part(i, part), expected(layer, *expert, part));
                }
            }
        }
        store
            .validate()
            .expect("the store is sound after each step");
    }
}

/// Fetches rows of any length from anywhere in a file through a cache of any size.
pub fn table_rows(data: &[u8]) {
    let mut input = Input::new(data);
    let row_bytes = 1 + input.below(200) * (1 + input.below(30));
    let offset = input.below(256) * 40;
    let n_rows = ((FILE_BYTES - offset) / row_bytes) as u64;
    let cache_bytes = [0, 4096, 3 * 4096, 1 << 20][input.below(4)];
    let files = FileSet::open(&[file()]).expect("the file is there");
    let mut table = RowTable::new(files, 0, offset as u64, row_bytes, n_rows, cache_bytes)
        .expect("the table lies in the file");
    while !input.is_empty() {
        let rows: Vec<u64> = (0..1 + input.below(9))
            .map(|_| {
                let row = u64::from(input.byte()) | u64::from(input.byte()) << 8;
                // One beyond the last now and then.
                row % (n_rows + 1)
            })
            .collect();
        let mut out = vec![0; rows.len() * row_bytes];
        let result = table.fetch(&rows, &mut out);
        assert_eq!(result.is_ok(), rows.iter().all(|row| *row < n_rows));
        table
            .validate()
            .expect("the table is sound after each step");
        if result.is_ok() {
            for (row, found) in rows.iter().zip(out.chunks_exact(row_bytes)) {
                let start = offset + *row as usize * row_bytes;
                assert_eq!(found, &content()[start..start + row_bytes]);
            }
        }
    }
}

fn layout() -> ExpertLayout {
    let mut layout = ExpertLayout::new();
    for parts in 0..N_LAYER {
        let parts = [part_layout(parts, 0), part_layout(parts, 1)];
        layout
            .push_layer(N_EXPERT, &parts)
            .expect("the parts are small");
    }
    layout
}

fn part_layout(layer: usize, part: usize) -> ExpertPartLayout {
    let len_bytes = PARTS[layer][part] as u64;
    ExpertPartLayout {
        file: 0,
        offset_bytes: start(layer, part) as u64,
        stride_bytes: len_bytes,
        len_bytes,
    }
}

/// Where expert 0's part begins.
fn start(layer: usize, part: usize) -> usize {
    let sizes = PARTS.as_flattened();
    sizes[..layer * 2 + part]
        .iter()
        .map(|bytes| bytes * N_EXPERT)
        .sum()
}

fn expected(layer: usize, expert: u16, part: usize) -> &'static [u8] {
    let len = PARTS[layer][part];
    &content()[start(layer, part) + usize::from(expert) * len..][..len]
}

fn content() -> &'static [u8] {
    static CONTENT: OnceLock<Vec<u8>> = OnceLock::new();
    let byte = |i: usize| (i.wrapping_mul(2_654_435_761) >> 13) as u8;
    CONTENT.get_or_init(|| (0..FILE_BYTES).map(byte).collect())
}

fn file() -> &'static Path {
    static FILE: OnceLock<NamedTempFile> = OnceLock::new();
    FILE.get_or_init(|| {
        let file = NamedTempFile::new().expect("a temporary file can be made");
        std::fs::write(file.path(), content()).expect("and written");
        file
    })
    .path()
}

/// Parses a profile, as it is and with the magic number and the checksum of version 2 put right.
/// What is accepted is written back byte for byte.
pub fn profile(data: &[u8]) {
    write_back(data);
    let mut bytes = data.to_vec();
    if bytes.len() < 28 {
        return;
    }
    bytes[..4].copy_from_slice(&PROFILE_MAGIC);
    if bytes[4..8] == 2_u32.to_le_bytes() {
        let at = bytes.len() - 4;
        let checksum = crc32c(&bytes[..at]);
        bytes[at..].copy_from_slice(&checksum.to_le_bytes());
    }
    write_back(&bytes);
}

fn write_back(bytes: &[u8]) {
    let Ok(profile) = Profile::parse(bytes) else {
        return;
    };
    assert_eq!(profile.to_bytes(), bytes);
    let first = Profile::parse(&profile.to_bytes_v1()).expect("the ranking alone is a profile too");
    assert_eq!(first.ranking(), profile.ranking());
}
