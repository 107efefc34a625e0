//! `thalweg-store`.

use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::OnceLock;

use tempfile::NamedTempFile;
use thalweg_cache::{ExpertKey, PolicyKind, Residency};
use thalweg_store::io::fault::{Fault, FaultBackend, FaultPlan};
use thalweg_store::{
    ExpertAccess, ExpertLayout, ExpertPartLayout, ExpertStore, ExpertStoreConfig, FileSet, Lease,
    PROFILE_MAGIC, PreadBackend, Profile, RowTable,
};

use crate::input::{Input, crc32c};

const N_LAYER: usize = 2;
const N_EXPERT: usize = 8;
const BATCH: usize = 2;
/// Bytes of the two parts of an expert, by layer: slots of one page and of two.
const PARTS: [[usize; 2]; N_LAYER] = [[100, 37], [4100, 64]];
const FILE_BYTES: usize = 40_000;

/// Does everything that a store offers, in any order, with an arena and transit slots of any allowed
/// number under any policy, while reads fail and come back in any order. What leases and streams
/// show must be what the file holds.
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
        transit: input.below(6),
        policy: online[input.below(online.len())],
        seed: u64::from(input.byte()),
    };
    let files = files();
    let mut plan = FaultPlan::new();
    let order = input.byte();
    if order > 0 {
        plan = plan.with_reordering(u64::from(order));
    }
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

    let mut n_failed = 0;
    for clock in 0..64 {
        if input.is_empty() {
            break;
        }
        n_failed += u64::from(!operation(&mut store, clock, &mut input));
        store
            .validate()
            .expect("the store is sound after each step");
    }
    // Every backend here keeps its contract: whatever was asked of it comes back.
    store.settle().expect("nothing is lost");
    store.validate().expect("and nothing under way");
    store
        .validate_contents()
        .expect("residents are what the file holds");
    assert!(store.stats().failures <= n_failed);
    let pinned = |layer| store.residency(layer).map(Residency::n_pinned);
    assert!((0..N_LAYER).all(|layer| pinned(layer) == Some(0)));
    // Every transit slot is free again.
    let all: Vec<u16> = (0..N_EXPERT as u16).collect();
    let is_absent = |layer, e: &u16| !store.is_resident(layer, *e);
    let n_absent: usize = (0..N_LAYER)
        .map(|layer| all.iter().filter(|e| is_absent(layer, e)).count())
        .sum();
    let n: usize = (0..N_LAYER)
        .map(|layer| store.read_ahead(layer, &all))
        .sum();
    // More if some of them have failed already.
    assert!(n >= n_absent.min(store.n_transit()));
}

/// One operation of [`arena_ops`]; false if it failed.
fn operation(store: &mut ExpertStore, clock: u64, input: &mut Input<'_>) -> bool {
    let kind = input.below(8);
    // A layer too many now and then, and one expert that is not there.
    let layer = input.below(N_LAYER + 1);
    let most = if kind < 4 { BATCH + 2 } else { N_EXPERT };
    let experts: Vec<u16> = (0..input.below(most))
        .map(|_| (input.byte() % (N_EXPERT as u8 + 1)).into())
        .collect();
    match kind {
        0 | 1 => acquire(store, clock, layer, &experts),
        2 | 3 => open(store, clock, layer, &experts, input.byte()),
        4 | 5 => {
            let n = store.read_ahead(layer, &experts);
            assert!(n <= experts.len().min(store.n_transit()));
            true
        }
        6 => stream(store, layer, &experts, input.byte()),
        _ => warm(store, layer, &experts, input.byte()),
    }
}

fn acquire(store: &mut ExpertStore, clock: u64, layer: usize, picks: &[u16]) -> bool {
    let Ok(lease) = store.acquire(clock, layer, picks) else {
        return false;
    };
    assert!(lease.is_complete());
    check(&lease, layer, picks);
    true
}

/// Waits a few times and then finishes, drops or forgets the lease.
fn open(store: &mut ExpertStore, clock: u64, layer: usize, picks: &[u16], how: u8) -> bool {
    let was: Vec<bool> = picks.iter().map(|e| store.is_resident(layer, *e)).collect();
    let Ok(mut lease) = store.begin_acquire(&ExpertAccess::new(clock, layer, picks)) else {
        return false;
    };
    let mut n_here = check(&lease, layer, picks);
    for _ in 0..how % 4 {
        let complete = lease.is_complete();
        if lease.wait().is_err() {
            assert_eq!(lease.n(), 0);
            return false;
        }
        let n = check(&lease, layer, picks);
        assert!(complete || n > n_here);
        n_here = n;
    }
    let end = how / 4 % 3;
    let finished = match end {
        0 => lease.finish(),
        1 => Ok(()),
        _ => {
            std::mem::forget(lease);
            return true;
        }
    };
    let ended = finished.is_ok();
    drop(lease);
    let is_kept = ended && end == 0;
    for (expert, was) in picks.iter().zip(was) {
        assert_eq!(store.is_resident(layer, *expert), was || is_kept);
    }
    ended
}

/// Checks what is here of a lease; returns how many that is.
fn check(lease: &Lease<'_>, layer: usize, picks: &[u16]) -> usize {
    assert_eq!(lease.n(), picks.len());
    for (i, expert) in picks.iter().enumerate() {
        for part in 0..lease.n_parts() {
            let bytes: &[u8] = match lease.is_here(i) {
                true => expected(layer, *expert, part),
                false => &[],
            };
            assert_eq!(lease.part(i, part), bytes);
        }
    }
    (0..picks.len()).filter(|i| lease.is_here(*i)).count()
}

/// Takes a few batches, or all, and then drops or forgets the stream.
fn stream(store: &mut ExpertStore, layer: usize, experts: &[u16], how: u8) -> bool {
    let Ok(mut stream) = store.stream(layer, experts) else {
        return false;
    };
    let n_batches = match how % 8 {
        7 => usize::MAX,
        n => usize::from(n),
    };
    let mut seen = Vec::new();
    for _ in 0..n_batches {
        match stream.next_batch() {
            Err(_) => return false,
            Ok(false) => {
                assert_eq!(seen.len(), experts.len());
                break;
            }
            Ok(true) => assert!(stream.n() > 0),
        }
        for i in 0..stream.n() {
            let expert = stream.expert(i).expect("within the batch");
            assert!(experts.contains(&expert) && !seen.contains(&expert));
            seen.push(expert);
            for part in 0..2 {
                assert_eq!(stream.part(i, part), expected(layer, expert, part));
            }
        }
    }
    if how & 8 != 0 {
        std::mem::forget(stream);
    }
    true
}

/// Fills free slots, perhaps not to the end, or settles.
fn warm(store: &mut ExpertStore, layer: usize, experts: &[u16], how: u8) -> bool {
    if how == 0 {
        return store.settle().is_ok();
    }
    let layer = layer as u16;
    let ranking: Vec<ExpertKey> = experts
        .iter()
        .map(|expert| ExpertKey::new(layer, *expert))
        .collect();
    let filled = store.warm_fill(&ranking, |n, of| {
        assert!(n <= of);
        match n < usize::from(how) {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    });
    filled.is_ok()
}

/// Fetches rows of any length from anywhere in a file through a cache of any size.
pub fn table_rows(data: &[u8]) {
    let mut input = Input::new(data);
    let row_bytes = 1 + input.below(200) * (1 + input.below(30));
    let offset = input.below(256) * 40;
    let n_rows = ((FILE_BYTES - offset) / row_bytes) as u64;
    let cache_bytes = [0, 4096, 3 * 4096, 1 << 20][input.below(4)];
    let files = files();
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

/// The file, opened once: opening reads and hashes its head.
fn files() -> FileSet {
    static FILES: OnceLock<FileSet> = OnceLock::new();
    let files = FILES.get_or_init(|| FileSet::open(&[file()]).expect("the file is there"));
    files.clone()
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
