use std::fs;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::*;
use crate::io::{PoolBackend, ReadAt, ReaderKind};
use crate::{
    ALIGNMENT_BYTES, AlignedBuf, Error, ExpertLayout, ExpertPartLayout, ExpertStore,
    ExpertStoreConfig, FileSet, PreadBackend, Priority, ReadBackend, ReadMode, ReadOp, Result,
};

const N_EXPERT: usize = 5;
/// A layer of odd lengths, one without experts, one above a bounce buffer and below a whole block.
const PARTS: [[usize; 3]; 3] = [[1000, 999, 777], [0; 3], [300_000, 300_001, 123_456]];
const TYPES: [[u32; 3]; 3] = [[8, 8, 14], [0; 3], [42, 42, 42]];
const FINGERPRINT: [u8; 32] = [0xA5; 32];

/// Experts scattered over a file, as in a model: part by part, at odd places.
struct Model {
    folder: tempfile::TempDir,
    content: Vec<u8>,
    layout: ExpertLayout,
    files: FileSet,
}

impl Model {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let mut layout = ExpertLayout::new();
        let mut at = 77;
        for parts in PARTS {
            let mut sources = Vec::new();
            for len in parts {
                sources.push(ExpertPartLayout {
                    file: 0,
                    offset_bytes: at as u64,
                    stride_bytes: len as u64,
                    len_bytes: len as u64,
                });
                at += len * N_EXPERT + 13;
            }
            let n_expert = if parts[0] == 0 { 0 } else { N_EXPERT };
            layout.push_layer(n_expert, &sources).expect("small");
        }
        let byte = |i: usize| (i.wrapping_mul(2_654_435_761) >> 13) as u8;
        let content: Vec<u8> = (0..at).map(byte).collect();
        let path = folder.path().join("model");
        fs::write(&path, &content).expect("writable");
        Self {
            files: FileSet::open(&[path]).expect("readable"),
            folder,
            content,
            layout,
        }
    }

    fn target(&self) -> PathBuf {
        self.folder.path().join("model.experts")
    }

    fn pack(&self) -> Result<Packed> {
        let target = self.target();
        pack(
            &target,
            &self.files,
            &self.layout,
            &TYPES,
            FINGERPRINT,
            &mut |_, _| ControlFlow::Continue(()),
        )
    }

    fn packed(&self) -> BundleFile {
        self.pack().expect("room");
        BundleFile::open(self.target()).expect("just written")
    }

    fn expert(&self, layer: usize, expert: u16) -> Vec<u8> {
        (0..3)
            .map(|part| self.layout.part(layer, expert, part).expect("in range"))
            .flat_map(|s| {
                let at = usize::try_from(s.offset_bytes).expect("small");
                self.content[at..at + s.len_bytes].to_vec()
            })
            .collect()
    }

    fn shape(&self) -> BundleShape {
        BundleShape::of(&self.layout, &TYPES).expect("three parts")
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).expect("readable");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("readable").file_name())
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

fn fault<T: std::fmt::Debug>(result: Result<T>) -> BundleFault {
    match result {
        Err(Error::Bundle { fault, .. }) => fault,
        other => panic!("expected a fault of the file, got {other:?}"),
    }
}

/// Two experts of 4 + 8 + 4 bytes: the file of the documentation.
fn example() -> BundleHeader {
    let layer = BundleLayer {
        types: [0, 1, 2],
        part_bytes: [4, 8, 4],
    };
    let shape = BundleShape::new(2, vec![layer]).expect("well formed");
    BundleHeader::new(shape, [0x11; 32], vec![0x1234_5678, 0x9ABC_DEF0]).expect("two of them")
}

#[test]
fn the_documented_bytes_are_read_and_written() {
    let mut expected: Vec<u8> = Vec::new();
    expected.extend(b"MEXP");
    for word in [1_u32, 16_384, 1, 2, 1] {
        expected.extend(word.to_le_bytes());
    }
    expected.extend([0x11; 32]);
    for word in [0_u32, 1, 2, 4, 8, 4, 0, 16_384] {
        expected.extend(word.to_le_bytes());
    }
    for (offset, checksum) in [(16_384_u64, 0x1234_5678_u32), (32_768, 0x9ABC_DEF0)] {
        expected.extend(offset.to_le_bytes());
        expected.extend(16_u32.to_le_bytes());
        expected.extend(checksum.to_le_bytes());
    }
    expected.resize(16_384, 0);
    let header = example();
    assert_eq!(header.to_bytes(), expected);
    assert_eq!(BundleHeader::parse(&expected).expect("sound"), header);
    assert_eq!(header.shape().file_bytes(), 3 * 16_384);
}

#[test]
fn every_field_is_checked() {
    let bytes = example().to_bytes();
    let with = |at: usize, value: u32| {
        let mut bytes = bytes.clone();
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        fault(BundleHeader::parse(&bytes))
    };
    use BundleFault as F;
    assert_eq!(with(0, 0), F::Magic { found: [0; 4] });
    assert_eq!(with(4, 2), F::Version { found: 2 });
    assert_eq!(with(8, 4096), F::Alignment { found: 4096 });
    for (n_layer, n_expert) in [(0, 2), (u32::MAX, 2), ((1 << 19) + 1, 2)] {
        assert_eq!(with(12, n_layer), F::Shape { n_layer, n_expert });
    }
    for n_expert in [0, 65_535, u32::MAX] {
        let n_layer = 1;
        assert_eq!(with(16, n_expert), F::Shape { n_layer, n_expert });
    }
    // More experts than the bytes have room for.
    let expected_bytes = 56 + 32 + 16 * 2000_u64;
    let expected_bytes = expected_bytes.next_multiple_of(16_384);
    let found_bytes = 16_384;
    assert_eq!(
        with(16, 2000),
        F::Length {
            expected_bytes,
            found_bytes
        }
    );
    let layer = |layer, field, expected, found| F::Layer {
        layer,
        field,
        expected,
        found,
    };
    assert_eq!(with(20, 2), layer(None, "the number of classes", 1, 2));
    let found_bytes = [0, 8, 4];
    assert_eq!(
        with(68, 0),
        F::Parts {
            layer: 0,
            found_bytes
        }
    );
    let found_bytes = [u32::MAX, 8, 4];
    assert_eq!(
        with(68, u32::MAX),
        F::Parts {
            layer: 0,
            found_bytes
        }
    );
    assert_eq!(with(80, 1), layer(Some(0), "class", 0, 1));
    assert_eq!(with(84, 32_768), layer(Some(0), "stride", 16_384, 32_768));
    let index = |expert, field, expected, found| F::Index {
        layer: 0,
        expert,
        field,
        expected,
        found,
    };
    // Not aligned, before the first bundle, on top of the first, beyond it.
    for offset in [16_385, 0, 32_768, 1 << 20] {
        let expected = index(0, "offset", 16_384, offset.into());
        assert_eq!(with(88, offset), expected);
    }
    assert_eq!(
        with(104, 16_384),
        index(1, "offset", 32_768, 16_384),
        "overlaps the first"
    );
    assert_eq!(
        with(92, 1),
        index(0, "offset", 16_384, (1 << 32) + 16_384),
        "the upper half counts"
    );
    assert_eq!(with(96, 17), index(0, "length", 16, 17));
    assert_eq!(with(120, 5), F::Padding { offset_bytes: 120 });
    assert_eq!(
        with(16_380, 1 << 24),
        F::Padding {
            offset_bytes: 16_383
        }
    );
    for n in [0, 3, 4, 55] {
        let expected_bytes = 56;
        let found_bytes = n as u64;
        assert_eq!(
            fault(BundleHeader::parse(&bytes[..n])),
            F::Length {
                expected_bytes,
                found_bytes
            }
        );
    }
    let cut = fault(BundleHeader::parse(&bytes[..16_383]));
    let (expected_bytes, found_bytes) = (16_384, 16_383);
    assert_eq!(
        cut,
        F::Length {
            expected_bytes,
            found_bytes
        }
    );
}

#[test]
fn bundles_are_the_parts_of_the_model_back_to_back_and_padded_with_zeros() {
    let model = Model::new();
    let mut seen = (0, 0);
    let packed = pack(
        &model.target(),
        &model.files,
        &model.layout,
        &TYPES,
        FINGERPRINT,
        &mut |done, all| {
            assert!(done > seen.0 && done <= all);
            seen = (done, all);
            ControlFlow::Continue(())
        },
    )
    .expect("room");
    assert_eq!(seen.0, seen.1, "told to the end");
    let bytes = fs::read(model.target()).expect("readable");
    let shape = model.shape();
    assert_eq!(bytes.len() as u64, shape.file_bytes());
    assert_eq!(
        (packed.file_bytes, packed.n_experts, packed.removed_leftover),
        (shape.file_bytes(), 10, false)
    );
    let sum: usize = PARTS.as_flattened().iter().sum();
    assert_eq!(packed.expert_bytes, (N_EXPERT * sum) as u64);

    let file = BundleFile::open(model.target()).expect("complete");
    let header = file.header();
    let mut at = 16_384;
    for layer in [0, 2] {
        for expert in 0..5_u16 {
            let e = usize::from(expert);
            assert_eq!(header.offset_bytes(layer, e), Some(at as u64));
            let expected = model.expert(layer, expert);
            assert!(bytes[at..at + expected.len()] == expected);
            let next = (at + expected.len()).next_multiple_of(16_384);
            assert!(bytes[at + expected.len()..next].iter().all(|b| *b == 0));
            assert_eq!(
                header.checksum(layer, e),
                Some(crc32c::crc32c(&expected)),
                "layer {layer}, expert {expert}"
            );
            at = next;
        }
    }
    assert_eq!(at, bytes.len());
    assert_eq!(
        (header.offset_bytes(1, 0), header.offset_bytes(0, 5)),
        (None, None)
    );
    // The layers with 16, 0 and 720 KiB between experts are of three classes.
    assert_eq!(header.shape().n_class(), 3);
    file.verify(&model.files, &model.layout, &mut |_, _| {
        ControlFlow::Continue(())
    })
    .expect("the same bytes");
    model.pack().expect("replaces");
    assert!(
        fs::read(model.target()).expect("readable") == bytes,
        "determined to the byte"
    );
    assert_eq!(model.names(), ["model", "model.experts"]);
}

#[test]
fn the_checksum_is_crc_32c() {
    // Of RFC 3720, appendix B.4: 32 zeros, 32 ones, 32 rising, 32 falling.
    let rising: Vec<u8> = (0..32).collect();
    let falling: Vec<u8> = (0..32).rev().collect();
    for (bytes, expected) in [
        (&[0; 32][..], 0x8A91_36AA),
        (&[0xFF; 32], 0x62A8_AB43),
        (&rising, 0x46DD_794E),
        (&falling, 0x113F_DB5C),
    ] {
        assert_eq!(crc32c::crc32c(bytes), expected);
    }
}

#[test]
fn a_store_hands_out_the_same_experts_from_bundles_through_every_reader() {
    let model = Model::new();
    let (files, layout) = model.packed().into_parts().expect("small");
    for kind in ReaderKind::ALL {
        let threads = NonZeroUsize::new(3).expect("not zero");
        let backend = match crate::io::open(kind, files.clone(), threads) {
            Err(Error::RingUnsupported { source }) => {
                let text = format!("SKIPPED: io_uring does not work here: {source}\n");
                // Not through print, which tests capture.
                io::stderr().write_all(text.as_bytes()).expect("writable");
                continue;
            }
            other => other.expect("works"),
        };
        let config = ExpertStoreConfig {
            slots: vec![3, 0, 3],
            batch: vec![2, 0, 2],
            ..ExpertStoreConfig::uniform(3, 3, 2)
        };
        let mut store = ExpertStore::new(files.clone(), backend, layout.clone(), config)
            .expect("the layout fits the file");
        for (clock, picks) in [[4, 0], [1, 4], [2, 3], [0, 1]].iter().enumerate() {
            for layer in [0, 2] {
                let lease = store.acquire(clock as u64, layer, picks).expect("readable");
                for (i, &expert) in picks.iter().enumerate() {
                    let parts: Vec<u8> = (0..3)
                        .flat_map(|part| lease.part(i, part).to_vec())
                        .collect();
                    assert!(parts == model.expert(layer, expert), "{kind}");
                }
            }
        }
        store.validate().expect("sound");
        store.validate_contents().expect("as in the file");
        let stats = store.stats();
        assert_eq!(stats.reads, stats.misses, "one segment an expert");
    }
}

/// What a reader was asked for: place, length, address.
type Calls = Arc<Mutex<Vec<(u64, usize, usize)>>>;

/// Reads like the system does past the page cache: aligned, or not at all.
struct Aligned(FileSet, Calls);

impl ReadAt for Aligned {
    fn read_at(&mut self, file: usize, offset_bytes: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let (len, address) = (buffer.len(), buffer.as_ptr().addr());
        let a = ALIGNMENT_BYTES;
        if !offset_bytes.is_multiple_of(a as u64)
            || !len.is_multiple_of(a)
            || !address.is_multiple_of(a)
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.1
            .lock()
            .expect("nobody panics")
            .push((offset_bytes, len, address));
        self.0.read_at(file, offset_bytes, buffer)
    }

    fn alignment_bytes(&self, _: usize) -> usize {
        ALIGNMENT_BYTES
    }
}

/// Reads one expert into a slot of the layout's size; returns the slot's address.
fn read_one(backend: &mut dyn ReadBackend, layout: &ExpertLayout, model: &Model) -> usize {
    let slot_bytes = layout.slot_bytes(2).expect("there");
    let slots = AlignedBuf::zeroed(slot_bytes).and_then(|b| b.carve([slot_bytes]));
    let buf = slots.expect("small").remove(0);
    let address = buf.as_ptr().addr();
    let op = ReadOp {
        id: 1,
        priority: Priority::Demand,
        segments: layout.segments(2, 3).expect("in range"),
        buf,
    };
    backend.submit(op).expect("idle");
    let mut done = Vec::new();
    while done.is_empty() {
        backend.wait(&mut done);
    }
    let done = done.remove(0);
    done.result.expect("readable");
    let mut at = 0;
    let mut found: Vec<u8> = Vec::new();
    for part in 0..3 {
        let segment = layout.part(2, 3, part).expect("in range");
        assert!(segment.dst_bytes >= at);
        at = segment.dst_bytes + segment.len_bytes;
        found.extend(&done.op.buf[segment.dst_bytes..at]);
    }
    assert!(found == model.expert(2, 3));
    address
}

#[test]
fn a_direct_read_of_a_bundle_is_one_and_goes_straight_into_its_slot() {
    let model = Model::new();
    let file = model.packed();
    let at = file.header().offset_bytes(2, 3).expect("in range");
    let (files, layout) = file.into_parts().expect("small");
    let len = PARTS[2].iter().sum::<usize>();
    let whole = len.next_multiple_of(ALIGNMENT_BYTES);
    assert!(len > 512 << 10 && whole > len, "worth cutting, with a tail");

    let calls = Calls::default();
    let reader = || Aligned(files.clone(), Arc::clone(&calls));
    let mut pool = PoolBackend::with_readers(files.clone(), vec![reader()]).expect("a thread");
    let mut pread = PreadBackend::with_reader(files.clone(), reader());
    let backends: [&mut dyn ReadBackend; 2] = [&mut pool, &mut pread];
    for backend in backends {
        let address = read_one(backend, &layout, &model);
        let calls = std::mem::take(&mut *calls.lock().expect("nobody panics"));
        assert_eq!(calls, [(at, whole, address)]);
    }
    // With idle threads it is cut, and every piece still lands in the slot.
    let readers = vec![reader(), reader()];
    let mut two = PoolBackend::with_readers(files.clone(), readers).expect("threads");
    let address = read_one(&mut two, &layout, &model);
    let mut pieces = std::mem::take(&mut *calls.lock().expect("nobody panics"));
    pieces.sort_unstable();
    assert_eq!(pieces.len(), 2);
    assert_eq!(pieces.iter().map(|p| p.1).sum::<usize>(), whole);
    for (offset, _, place) in pieces {
        assert_eq!(place - address, usize::try_from(offset - at).expect("near"));
    }
    // From the model file the same expert takes copies: other addresses than the slot's.
    let mut scattered = PreadBackend::with_reader(
        model.files.clone(),
        Aligned(model.files.clone(), Arc::clone(&calls)),
    );
    let address = read_one(&mut scattered, &model.layout, &model);
    let slot = address..address + model.layout.slot_bytes(2).expect("there");
    let calls = std::mem::take(&mut *calls.lock().expect("nobody panics"));
    assert!(calls.len() >= 3);
    assert!(calls.iter().all(|call| !slot.contains(&call.2)));
}

#[test]
fn readers_of_the_system_ask_for_a_bundle_once() {
    let model = Model::new();
    let (files, layout) = model.packed().into_parts().expect("small");
    let len = PARTS[2].iter().sum::<usize>();
    let whole = match files.mode(0) {
        Some(ReadMode::Direct) => len.next_multiple_of(ALIGNMENT_BYTES),
        _ => len,
    };
    for kind in [ReaderKind::Pool, ReaderKind::Uring] {
        let backend = crate::io::open(kind, files.clone(), NonZeroUsize::MIN);
        let Ok(mut backend) = backend else {
            eprintln!("skipped: {kind} does not work here");
            continue;
        };
        read_one(&mut backend, &layout, &model);
        let stats = backend.io_stats();
        assert_eq!((stats.reads, stats.bytes_requested), (1, whole as u64));
    }
}

#[test]
fn a_file_that_is_cut_short_or_longer_is_refused() {
    let model = Model::new();
    model.pack().expect("room");
    let whole = fs::read(model.target()).expect("readable");
    let expected_bytes = whole.len() as u64;
    let open = |bytes: &[u8]| {
        fs::write(model.target(), bytes).expect("writable");
        BundleFile::open(model.target())
    };
    for n in [whole.len() - 1, 20_000, 16_384] {
        let found_bytes = n as u64;
        assert_eq!(
            fault(open(&whole[..n])),
            BundleFault::Length {
                expected_bytes,
                found_bytes
            }
        );
    }
    for n in [16_383, 56, 4, 0] {
        let fault = fault(open(&whole[..n]));
        assert!(matches!(fault, BundleFault::Length { .. }), "{fault}");
    }
    let longer = [&whole[..], &[0]].concat();
    let found_bytes = expected_bytes + 1;
    let error = open(&longer).expect_err("refused");
    assert!(
        error.to_string().contains("model.experts"),
        "{error} names the file"
    );
    assert_eq!(
        fault::<BundleFile>(Err(error)),
        BundleFault::Length {
            expected_bytes,
            found_bytes
        }
    );
    let missing = BundleFile::open(model.folder.path().join("missing"));
    assert!(matches!(missing, Err(Error::Open { .. })));
}

#[test]
fn bundles_of_another_model_are_refused_with_both_figures() {
    let model = Model::new();
    let file = model.packed();
    let shape = model.shape();
    file.expect(&FINGERPRINT, &shape).expect("its own");
    let mut other = FINGERPRINT;
    other[31] = 0;
    let error = file.expect(&other, &shape).expect_err("stale");
    let text = error.to_string();
    assert!(text.contains(&"a5".repeat(32)), "{text}");
    assert!(text.contains(&format!("{}00", "a5".repeat(31))), "{text}");
    assert_eq!(
        fault::<()>(Err(error)),
        BundleFault::Stale {
            expected: other,
            found: FINGERPRINT
        }
    );
    let differs = |n_expert, change: fn(&mut Vec<BundleLayer>)| {
        let mut layers = shape.layers().to_vec();
        change(&mut layers);
        let shape = BundleShape::new(n_expert, layers).expect("well formed");
        match fault(file.expect(&FINGERPRINT, &shape)) {
            BundleFault::OtherModel {
                layer,
                what,
                expected,
                found,
            } => (layer, what, expected, found),
            other => panic!("{other}"),
        }
    };
    assert_eq!(differs(6, |_| ()), (None, "the number of experts", 6, 5));
    let fewer = differs(5, |layers| layers.truncate(2));
    assert_eq!(fewer, (None, "the number of layers", 2, 3));
    let types = differs(5, |layers| layers[2].types[1] = 7);
    assert_eq!(types, (Some(2), "type of up", 7, 42));
    let bytes = differs(5, |layers| layers[0].part_bytes[2] += 1);
    assert_eq!(bytes, (Some(0), "bytes of down", 778, 777));
}

#[test]
fn verifying_finds_every_kind_of_difference() {
    let model = Model::new();
    let file = model.packed();
    let verify = |path: &Path| {
        let file = BundleFile::open(path).expect("its header is sound");
        fault(file.verify(&model.files, &model.layout, &mut |_, _| {
            ControlFlow::Continue(())
        }))
    };
    let whole = fs::read(model.target()).expect("readable");
    let at = usize::try_from(file.header().offset_bytes(2, 4).expect("in range")).expect("small");
    let flipped = |i: usize| {
        let mut bytes = whole.clone();
        bytes[i] ^= 1;
        bytes
    };
    // A content byte: the checksum tells.
    fs::write(model.target(), flipped(at + 300_007)).expect("writable");
    let checksum = verify(&model.target());
    assert!(
        matches!(
            checksum,
            BundleFault::Checksum {
                layer: 2,
                expert: 4,
                ..
            }
        ),
        "{checksum}"
    );
    // The same with its checksum put right: the model tells.
    let mut sealed = flipped(at + 300_007);
    let len = PARTS[2].iter().sum::<usize>();
    let crc = crc32c::crc32c(&sealed[at..at + len]);
    let entry = 56 + 3 * 32 + 16 * (2 * N_EXPERT + 4) + 12;
    sealed[entry..entry + 4].copy_from_slice(&crc.to_le_bytes());
    fs::write(model.target(), &sealed).expect("writable");
    let offset_bytes = (at + 300_007) as u64;
    assert_eq!(
        verify(&model.target()),
        BundleFault::Differs {
            layer: 2,
            expert: 4,
            part: 1,
            offset_bytes
        }
    );
    // Padding behind the last bundle.
    fs::write(model.target(), flipped(whole.len() - 1)).expect("writable");
    let offset_bytes = whole.len() as u64 - 1;
    assert_eq!(
        verify(&model.target()),
        BundleFault::Padding { offset_bytes }
    );
}

#[test]
fn a_failure_keeps_the_old_file_and_leaves_nothing_else() {
    let model = Model::new();
    model.pack().expect("room");
    let before = fs::read(model.target()).expect("readable");
    // The model file loses its end while it is read.
    let path = model.folder.path().join("model");
    let mut cut = false;
    let result = pack(
        &model.target(),
        &model.files,
        &model.layout,
        &TYPES,
        [1; 32],
        &mut |_, _| {
            if !cut {
                let file = fs::File::options().write(true).open(&path);
                file.and_then(|file| file.set_len(2000)).expect("writable");
                cut = true;
            }
            ControlFlow::Continue(())
        },
    );
    assert!(
        matches!(result, Err(Error::UnexpectedEof { .. })),
        "{result:?}"
    );
    assert_eq!(model.names(), ["model", "model.experts"]);
    assert!(fs::read(model.target()).expect("readable") == before);
    let gone = model.folder.path().join("missing").join("x.experts");
    let result = pack(
        &gone,
        &model.files,
        &ExpertLayout::new(),
        &[],
        [1; 32],
        &mut |_, _| ControlFlow::Continue(()),
    );
    assert!(matches!(
        fault(result),
        BundleFault::Shape { n_layer: 0, .. }
    ));
}

#[test]
fn a_model_that_changes_while_it_is_packed_is_an_error() {
    let model = Model::new();
    let path = model.folder.path().join("model");
    let mut changed = false;
    let result = pack(
        &model.target(),
        &model.files,
        &model.layout,
        &TYPES,
        FINGERPRINT,
        &mut |_, _| {
            if !changed {
                let mut file = fs::File::options()
                    .append(true)
                    .open(&path)
                    .expect("writable");
                file.write_all(b"more").expect("writable");
                changed = true;
            }
            ControlFlow::Continue(())
        },
    );
    assert!(
        matches!(result, Err(Error::FileChanged { .. })),
        "{result:?}"
    );
    assert_eq!(model.names(), ["model"]);
}

#[test]
fn the_model_file_is_never_replaced() {
    let model = Model::new();
    let path = model.folder.path().join("model");
    let other = model.folder.path().join("other");
    fs::hard_link(&path, &other).expect("one file system");
    for target in [&path, &other] {
        let result = pack(
            target,
            &model.files,
            &model.layout,
            &TYPES,
            FINGERPRINT,
            &mut |_, _| ControlFlow::Continue(()),
        );
        assert!(
            matches!(result, Err(Error::TargetIsSource { .. })),
            "{result:?}"
        );
    }
    assert!(fs::read(&path).expect("readable") == model.content);
}

#[test]
fn whoever_looks_on_can_end_the_work() {
    let model = Model::new();
    let mut stop_after = 3;
    let mut stop = |_, _| {
        stop_after -= 1;
        match stop_after {
            0 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    };
    let result = pack(
        &model.target(),
        &model.files,
        &model.layout,
        &TYPES,
        FINGERPRINT,
        &mut stop,
    );
    let Err(Error::Stopped { done_bytes, .. }) = result else {
        panic!("{result:?}");
    };
    assert_eq!(done_bytes, 3 * 16_384);
    assert_eq!(model.names(), ["model"]);
    let file = model.packed();
    let result = file.verify(&model.files, &model.layout, &mut |_, _| {
        ControlFlow::Break(())
    });
    assert!(matches!(result, Err(Error::Stopped { .. })), "{result:?}");
}

#[test]
fn what_an_interrupted_run_left_is_replaced_and_a_running_one_is_respected() {
    let model = Model::new();
    let partial = model.folder.path().join(".model.experts.partial");
    fs::write(&partial, vec![7; 3_000_000]).expect("writable");
    assert!(
        BundleFile::open(&partial).is_err(),
        "not taken for a file of bundles"
    );
    let packed = model.pack().expect("room");
    assert!(packed.removed_leftover);
    assert_eq!(model.names(), ["model", "model.experts"]);

    let running = crate::unfinished::Unfinished::create(partial.clone()).expect("free");
    let result = model.pack();
    assert!(matches!(result, Err(Error::Busy { .. })), "{result:?}");
    assert!(partial.exists(), "the other run's file stays");
    drop(running);
    assert!(!model.pack().expect("free again").removed_leftover);
}

#[test]
fn experts_that_the_format_cannot_express_are_refused_with_their_layer() {
    let model = Model::new();
    let part = ExpertPartLayout {
        file: 0,
        offset_bytes: 0,
        stride_bytes: 8,
        len_bytes: 8,
    };
    let of = |layers: &[(usize, usize)]| {
        let mut layout = ExpertLayout::new();
        for &(n_expert, n_parts) in layers {
            layout
                .push_layer(n_expert, &vec![part; n_parts])
                .expect("small");
        }
        BundleShape::of(&layout, &vec![[0; 3]; layers.len()])
    };
    let error = of(&[(4, 3), (3, 3)]).expect_err("another number of experts");
    assert!(
        matches!(
            error,
            Error::Unbundleable {
                layer: 1,
                expected: 4,
                found: 3,
                ..
            }
        ),
        "{error}"
    );
    let error = of(&[(4, 3), (4, 2)]).expect_err("two parts");
    assert!(
        matches!(
            error,
            Error::Unbundleable {
                layer: 1,
                expected: 3,
                found: 2,
                ..
            }
        ),
        "{error}"
    );
    assert!(matches!(
        fault(of(&[(0, 3)])),
        BundleFault::Shape { n_expert: 0, .. }
    ));
    let error = BundleShape::of(&model.layout, &TYPES[..2]).expect_err("types of two layers");
    assert!(matches!(error, Error::LayerCount { .. }));
}

#[test]
fn a_large_model_has_the_documented_sizes() {
    let layer = BundleLayer {
        types: [42; 3],
        part_bytes: [460_800; 3],
    };
    let shape = BundleShape::new(256, vec![layer; 48]).expect("well formed");
    assert_eq!(
        (layer.len_bytes(), layer.stride_bytes()),
        (1_382_400, 1_392_640)
    );
    // 56 + 48 * 32 + 12,288 * 16 = 198,200, rounded up.
    assert_eq!(shape.header_bytes(), 212_992);
    assert_eq!(shape.file_bytes(), 212_992 + 12_288 * 1_392_640);
    assert_eq!(shape.n_class(), 1);
    let layout = shape.layout().expect("addressable");
    assert_eq!(layout.slot_bytes(47), Some(1_392_640));
}

fn header() -> impl Strategy<Value = BundleHeader> {
    let layer = (any::<[u32; 3]>(), prop::array::uniform3(1_u32..2_000_000));
    let layer = prop_oneof![
        4 => layer.prop_map(|(types, part_bytes)| BundleLayer { types, part_bytes }),
        1 => Just(BundleLayer::default()),
    ];
    let layers = prop::collection::vec(layer, 1..6);
    (1_u32..40, layers, any::<[u8; 32]>(), any::<u64>()).prop_map(
        |(n_expert, layers, fingerprint, seed)| {
            let shape = BundleShape::new(n_expert, layers).expect("well formed");
            let n = shape.n_layer() * n_expert as usize;
            let checksums = (0..n as u64).map(|i| {
                let layer = usize::try_from(i).expect("small") / n_expert as usize;
                match shape.n_expert(layer) {
                    0 => 0,
                    _ => (seed.wrapping_mul(i + 1) >> 32) as u32,
                }
            });
            let checksums = checksums.collect();
            BundleHeader::new(shape, fingerprint, checksums).expect("as many as experts")
        },
    )
}

proptest! {
    #[test]
    fn any_header_is_read_back(header in header()) {
        let mut bytes = header.to_bytes();
        prop_assert_eq!(bytes.len() as u64, header.shape().header_bytes());
        bytes.extend([1, 2, 3]);
        prop_assert_eq!(BundleHeader::parse(&bytes).expect("what follows is ignored"), header);
    }

    #[test]
    fn what_is_accepted_is_written_back(
        header in header(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = header.to_bytes();
        for (at, byte) in changes {
            let at = at.index(bytes.len().min(400));
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len() + 1));
        }
        if let Ok(parsed) = BundleHeader::parse(&bytes) {
            let written = parsed.to_bytes();
            prop_assert_eq!(&bytes[..written.len()], &written[..]);
            let layout = parsed.shape().layout().expect("addressable");
            for layer in 0..layout.n_layer() {
                for expert in 0..layout.n_expert(layer) {
                    let id = u16::try_from(expert).expect("small");
                    let segments = layout.segments(layer, id).expect("in range");
                    prop_assert_eq!(segments.len(), 1);
                    prop_assert_eq!(Some(segments[0].offset_bytes), parsed.offset_bytes(layer, expert));
                }
            }
        }
    }
}
