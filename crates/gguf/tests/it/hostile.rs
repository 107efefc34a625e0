//! Headers that lie. Each must be refused for its own reason, without a panic and within 100 ms.

use proptest::prelude::*;
use thalweg_gguf::{Error, Header, MAX_ALIGNMENT_BYTES, MAX_HEADER_BYTES};

use crate::raw::{ARRAY, BOOL, F32, Q2_0, Raw, STRING, U8, U32, assert_refused};

const HUGE: u64 = 1 << 60;

/// Two keys and two tensors with 32 + 8 bytes of data.
fn small_file() -> Raw {
    Raw::new(2, 2)
        .key("general.architecture", STRING)
        .str("demo")
        .key("demo.sizes", ARRAY)
        .u32(U32)
        .u64(2)
        .u32(7)
        .u32(9)
        .tensor("a", &[4, 2], F32, 0)
        .tensor("b", &[2], F32, 32)
        .data(32, 40)
}

#[test]
fn small_file_itself_is_accepted() {
    let header = small_file().parse().unwrap();
    assert_eq!(header.version(), 3);
    assert_eq!(header.metadata().u32_array("demo.sizes").unwrap(), [7, 9]);
    let places: Vec<_> = header
        .tensors()
        .iter()
        .map(|t| (t.offset_bytes, t.size_bytes))
        .collect();
    let start = header.data_start_bytes();
    assert_eq!(places, [(start, 32), (start + 32, 8)]);
}

#[test]
fn version_2_has_the_same_layout() {
    let mut raw = small_file();
    raw.0[4] = 2;
    let header = raw.parse().unwrap();
    assert_eq!((header.version(), header.tensors().len()), (2, 2));
}

#[test]
fn file_cut_anywhere_is_refused() {
    let Raw(whole) = small_file();
    for len in 0..whole.len() {
        assert!(Raw(whole[..len].to_vec()).parse().is_err(), "cut at {len}");
    }
}

#[test]
fn file_cut_at_every_64th_names_the_place() {
    let Raw(whole) = small_file();
    for part in 0..64 {
        let len = whole.len() * part / 64;
        let raw = Raw(whole[..len].to_vec());
        let facts = raw.refused();
        match facts.root() {
            Error::Truncated {
                offset_bytes,
                needed_bytes,
                left_bytes,
                ..
            } => {
                assert_eq!(offset_bytes + left_bytes, len as u64);
                assert!(needed_bytes > left_bytes);
            }
            Error::CountTooLarge { found, limit, .. } => assert!(found > limit),
            Error::OutsideFile { file_len_bytes, .. } => assert_eq!(*file_len_bytes, len as u64),
            _ => panic!("cut at {len}: {}", facts.0),
        }
    }
}

#[test]
fn reader_that_ends_before_its_stated_length_is_refused() {
    let error = Header::parse(&small_file().0[..50], u64::MAX).unwrap_err();
    assert!(matches!(error, Error::Truncated { .. }), "{error}");
}

#[test]
fn wrong_magic() {
    assert_refused!(
        Raw(b"GGML\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec()),
        Error::BadMagic { found } if found == b"GGML"
    );
    assert_refused!(
        Raw(Vec::new()),
        Error::Truncated {
            offset_bytes: 0,
            left_bytes: 0,
            ..
        }
    );
}

#[test]
fn other_versions() {
    for version in [0, 1, 4, 0xffff, u32::MAX] {
        assert_refused!(
            Raw::version(version).u64(0).u64(0),
            Error::UnsupportedVersion { found } if *found == version
        );
    }
}

#[test]
fn big_endian_is_named_as_such() {
    for version in [2_u32, 3] {
        let raw = Raw::version(version.swap_bytes()).u64(0).u64(0);
        assert_refused!(raw, Error::BigEndian { version: v } if *v == version);
        assert!(raw.refused().0.to_string().contains("big-endian"));
    }
}

#[test]
fn counts_of_2_to_the_60() {
    let too_large = |raw: Raw, offset: u64| {
        assert_refused!(
            raw,
            Error::CountTooLarge { found: HUGE, offset_bytes, .. } if *offset_bytes == offset
        );
    };
    too_large(Raw::new(HUGE, 0), 8);
    too_large(Raw::new(0, HUGE), 16);
    too_large(Raw::new(0, 1).u64(HUGE).data(1, 64), 24);
    too_large(Raw::new(0, 1).key("k", STRING).u64(HUGE).data(1, 64), 37);
    for element in [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12] {
        too_large(
            Raw::new(0, 1)
                .key("k", ARRAY)
                .u32(element)
                .u64(HUGE)
                .data(1, 64),
            41,
        );
    }
    too_large(
        Raw::new(0, 1)
            .key("k", ARRAY)
            .u32(STRING)
            .u64(1)
            .u64(HUGE)
            .data(1, 64),
        49,
    );
    too_large(Raw::new(1, 0).u64(HUGE).data(1, 64), 24);
}

#[test]
fn count_that_fits_only_as_bytes_is_refused_by_element_size() {
    let raw = Raw::new(0, 1).key("k", ARRAY).u32(U32).u64(17).data(1, 64);
    assert_refused!(
        raw,
        Error::CountTooLarge {
            found: 17,
            limit: 16,
            ..
        }
    );
}

#[test]
fn header_beyond_the_limit_is_not_read_from_a_long_file() {
    let raw = Raw::new(0, 1).key("k", STRING).u64(MAX_HEADER_BYTES);
    let error = Header::parse(&raw.0, u64::MAX).unwrap_err();
    assert!(
        matches!(
            error,
            Error::CountTooLarge {
                found: MAX_HEADER_BYTES,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn header_that_grows_past_the_limit_is_refused() {
    use std::io::Read;
    let most = MAX_HEADER_BYTES - 50;
    let start = Raw::new(0, 2).key("k", ARRAY).u32(U8).u64(most - 100);
    let rest = Raw(Vec::new()).key(&"x".repeat(90), STRING).u64(0);
    let reader = start
        .0
        .chain(std::io::repeat(7).take(most - 100))
        .chain(&rest.0[..]);
    let error = Header::read(reader, u64::MAX).unwrap_err();
    assert!(matches!(error, Error::HeaderTooLarge { .. }), "{error}");
}

#[test]
fn number_of_dimensions() {
    let with = |n_dims: u32| Raw::new(1, 0).str("t").u32(n_dims).data(1, 128);
    for n_dims in [0, 5, u32::MAX] {
        let wide = u64::from(n_dims);
        assert_refused!(with(n_dims), Error::DimensionCount { found } if *found == wide);
    }
    let five = Raw::new(1, 0).tensor("t", &[1; 5], F32, 0).data(32, 32);
    let text = five.refused().0.to_string();
    assert_eq!(text, "tensor `t`: 5 dimensions, expected 1 to 4");
}

#[test]
fn product_of_dimensions_that_wraps() {
    for shape in [
        &[1 << 63, 2, 1, 1][..],
        &[1 << 32, 1 << 32],
        &[1 << 62, 4],
        &[1 << 63],
        &[u64::MAX; 4],
        &[(1 << 62) - 1, 2], // elements fit, bytes do not
    ] {
        let raw = Raw::new(1, 0).tensor("t", shape, F32, 0).data(32, 64);
        assert_refused!(raw, Error::ShapeTooLarge { ne } if ne == shape);
    }
}

#[test]
fn zero_dimension() {
    for (index, shape) in [(0, &[0, 64][..]), (1, &[64, 0]), (3, &[1, 1, 1, 0])] {
        let raw = Raw::new(1, 0).tensor("t", shape, F32, 0).data(32, 512);
        assert_refused!(raw, Error::ZeroDimension { index: i } if *i == index);
    }
}

#[test]
fn row_of_broken_blocks() {
    let raw = Raw::new(1, 0).tensor("t", &[96], Q2_0, 0).data(32, 512);
    assert_refused!(
        raw,
        Error::PartialBlock {
            ty: "Q2_0",
            ne0: 96,
            block_len: 64
        }
    );
}

#[test]
fn data_past_the_end() {
    let at = |offset| Raw::new(1, 0).tensor("t", &[8], F32, offset).data(32, 64);
    assert!(at(32).parse().is_ok());
    assert_refused!(
        at(64),
        Error::OutsideFile {
            offset_bytes: 64,
            size_bytes: 32,
            ..
        }
    );
    assert_refused!(
        at(HUGE),
        Error::OutsideFile {
            offset_bytes: HUGE,
            ..
        }
    );
    let one_short = Raw::new(1, 0).tensor("t", &[8], F32, 32).data(32, 63);
    assert_refused!(
        one_short,
        Error::OutsideFile {
            offset_bytes: 32,
            size_bytes: 32,
            ..
        }
    );
}

#[test]
fn offset_that_wraps() {
    for offset in [u64::MAX - 31, u64::MAX - 63, 1 << 63] {
        let raw = Raw::new(1, 0).tensor("t", &[8], F32, offset).data(32, 64);
        assert_refused!(raw, Error::OutsideFile { offset_bytes, .. } if *offset_bytes == offset);
    }
}

#[test]
fn overlapping_tensors() {
    let two = |first, second| {
        Raw::new(2, 0)
            .tensor("a", &[16], F32, first)
            .tensor("b", &[16], F32, second)
            .data(32, 160)
    };
    assert!(two(0, 64).parse().is_ok());
    assert!(two(64, 0).parse().is_ok(), "any order");
    assert!(two(0, 96).parse().is_ok(), "gaps");
    for (first, second) in [(0, 0), (0, 32), (32, 0)] {
        assert_refused!(two(first, second), Error::Overlap { size_bytes: 64, .. });
    }
}

#[test]
fn misaligned_data() {
    let raw = Raw::new(1, 0).tensor("t", &[8], F32, 16).data(32, 64);
    assert_refused!(
        raw,
        Error::Misaligned {
            offset_bytes: 16,
            alignment_bytes: 32
        }
    );
}

#[test]
fn duplicate_tensor_names() {
    let raw = Raw::new(2, 0)
        .tensor("t", &[8], F32, 0)
        .tensor("t", &[8], F32, 32)
        .data(32, 64);
    assert_refused!(raw, Error::DuplicateTensor { name } if name == "t");
}

#[test]
fn tensor_names_of_0_and_64_bytes() {
    for len in [0, 64, 100] {
        let raw = Raw::new(1, 0)
            .tensor(&"n".repeat(len), &[8], F32, 0)
            .data(32, 64);
        assert_refused!(
            raw,
            Error::TensorNameLength { found_bytes, .. } if *found_bytes == len as u64
        );
    }
    let longest = Raw::new(1, 0)
        .tensor(&"n".repeat(63), &[8], F32, 0)
        .data(32, 64);
    assert!(longest.parse().is_ok());
}

#[test]
fn duplicate_and_empty_keys() {
    let twice = Raw::new(0, 2).key("k", U32).u32(1).key("k", U32).u32(2);
    assert_refused!(twice, Error::DuplicateKey { key } if key == "k");
    let empty = Raw::new(0, 2).key("k", U32).u32(1).key("", U32).u32(2);
    assert_refused!(empty, Error::EmptyKey { index: 1 });
}

#[test]
fn arrays_nested_10_000_deep() {
    let mut raw = Raw::new(0, 1).key("k", ARRAY);
    for _ in 0..10_000 {
        raw = raw.u32(ARRAY).u64(1);
    }
    assert_refused!(raw.u32(U8).u64(0), Error::NestedArray { key, offset_bytes: 37 } if key == "k");
}

#[test]
fn unknown_value_and_element_types() {
    for ty in [13, 99, u32::MAX] {
        let value = Raw::new(0, 1).key("k", ty).data(1, 64);
        assert_refused!(
            value,
            Error::UnknownValueType { found, offset_bytes: 33, .. } if *found == ty
        );
        let element = Raw::new(0, 1).key("k", ARRAY).u32(ty).u64(1).data(1, 64);
        assert_refused!(
            element,
            Error::UnknownValueType { found, offset_bytes: 37, .. } if *found == ty
        );
    }
}

#[test]
fn alignment() {
    let with = |alignment| {
        Raw::new(1, 1)
            .key("general.alignment", U32)
            .u32(alignment)
            .tensor("t", &[8], F32, 0)
            .data(alignment.clamp(1, 1 << 20) as usize, 32)
    };
    for good in [1, 2, 8, 32, 4096, MAX_ALIGNMENT_BYTES] {
        let header = with(good).parse().unwrap();
        assert_eq!(header.alignment_bytes(), good);
        assert!(header.data_start_bytes().is_multiple_of(good.into()));
    }
    for bad in [
        0,
        3,
        48,
        MAX_ALIGNMENT_BYTES + 1,
        MAX_ALIGNMENT_BYTES * 2,
        1 << 30,
        u32::MAX,
    ] {
        assert_refused!(with(bad), Error::BadAlignment { found, .. } if *found == bad);
    }
}

#[test]
fn alignment_of_another_type_is_an_error_not_a_default() {
    let text = Raw::new(0, 1).key("general.alignment", STRING).str("32");
    assert_refused!(text, Error::WrongType { expected: "u32", found, .. } if found == "string");
    let wide = Raw::new(0, 1).key("general.alignment", 10).u64(32);
    assert_refused!(wide, Error::WrongType { expected: "u32", found, .. } if found == "u64");
}

#[test]
fn unknown_and_removed_tensor_types() {
    let with = |ty| Raw::new(1, 0).tensor("t", &[256], ty, 0).data(32, 2048);
    for id in [4, 5, 31, 32, 33, 36, 37, 38] {
        assert_refused!(with(id), Error::RemovedTensorType { id: found } if *found == id);
    }
    for id in [43, 99, 142, 143, u32::MAX] {
        assert_refused!(with(id), Error::UnknownTensorType { id: found } if *found == id);
    }
}

#[test]
fn text_that_is_not_utf_8() {
    let key = Raw::new(0, 1).u64(3).bytes(b"a\xffb").u32(U8).bytes(&[1]);
    assert_refused!(
        key,
        Error::InvalidUtf8 {
            offset_bytes: 33,
            ..
        }
    );
    let value = Raw::new(0, 1).key("k", STRING).u64(2).bytes(b"\xc3\x28");
    assert_refused!(
        value,
        Error::InvalidUtf8 {
            offset_bytes: 45,
            ..
        }
    );
    let element = Raw::new(0, 1)
        .key("k", ARRAY)
        .u32(STRING)
        .u64(1)
        .u64(1)
        .bytes(b"\x80");
    assert_refused!(element, Error::InvalidUtf8 { offset_bytes: 57, field } if
        field == "element 0 of `k`");
    let name = Raw::new(1, 0)
        .u64(1)
        .bytes(b"\xff")
        .u32(1)
        .u64(8)
        .u32(F32)
        .u64(0)
        .data(32, 32);
    assert_refused!(
        name,
        Error::InvalidUtf8 {
            offset_bytes: 32,
            ..
        }
    );
}

#[test]
fn boolean_byte_of_7() {
    let one = Raw::new(0, 1).key("k", BOOL).bytes(&[7]);
    assert_refused!(
        one,
        Error::InvalidBool {
            found: 7,
            offset_bytes: 37,
            ..
        }
    );
    let many = Raw::new(0, 1)
        .key("k", ARRAY)
        .u32(BOOL)
        .u64(3)
        .bytes(&[0, 1, 7]);
    assert_refused!(
        many,
        Error::InvalidBool {
            found: 7,
            offset_bytes: 51,
            ..
        }
    );
}

/// 128 elements take 36 bytes now and took 34 in the old layout; only an alignment that keeps the
/// two apart lets the gap show which it is.
#[test]
fn old_q2_0_layout_is_told_by_the_gap() {
    let file = |gap: u64, len: usize| {
        Raw::new(2, 1)
            .key("general.alignment", U32)
            .u32(2)
            .tensor("old", &[128], Q2_0, 0)
            .tensor("next", &[1], F32, gap)
            .data(2, len)
    };
    assert!(file(36, 40).parse().is_ok());
    assert_refused!(
        file(34, 38),
        Error::OldQ2Layout {
            gap_bytes: 34,
            expected_bytes: 36,
            old_bytes: 34
        }
    );
    assert!(
        file(34, 38)
            .refused()
            .0
            .to_string()
            .contains("old Q2_0 layout")
    );
    assert_refused!(file(32, 36), Error::Overlap { .. });
}

#[test]
fn old_q2_0_layout_is_told_by_the_end_of_the_file_and_at_usual_alignment() {
    let last = Raw::new(1, 0)
        .tensor("old", &[2560, 64], Q2_0, 0)
        .data(32, 2560 * 64 / 128 * 34);
    assert_refused!(last, Error::OldQ2Layout { .. });
    let shorter = Raw::new(1, 0)
        .tensor("cut", &[2560, 64], Q2_0, 0)
        .data(32, 43_519);
    assert_refused!(shorter, Error::OutsideFile { .. });
    // Rows of 64 never were in the old layout.
    let narrow = Raw::new(1, 0)
        .tensor("cut", &[64, 64], Q2_0, 0)
        .data(32, 1100);
    assert_refused!(narrow, Error::OutsideFile { .. });
}

#[test]
fn messages_are_one_line_without_a_full_stop() {
    for raw in [
        Raw::new(HUGE, 0),
        Raw(b"nope".to_vec()),
        Raw::version(1),
        Raw::new(1, 0).tensor("t", &[0], F32, 0).data(32, 32),
        Raw::new(1, 0).tensor("t", &[64], F32, 0).data(32, 32),
        Raw::new(0, 1).key("general.alignment", U32).u32(3),
    ] {
        let text = raw.refused().0.to_string();
        assert!(
            !text.contains('\n') && !text.ends_with('.') && !text.contains("  "),
            "{text}"
        );
    }
}

proptest! {
    #[test]
    fn damaged_files_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let Raw(mut bytes) = small_file();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let len = cut.index(bytes.len() * 2).min(bytes.len());
        let _ = Raw(bytes[..len].to_vec()).parse();
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        n_tensors in 0_u64..4,
        n_keys in 0_u64..4,
        bytes in prop::collection::vec(
            prop_oneof![4 => Just(0), 1 => 1..14_u8, 1 => any::<u8>()],
            0..300,
        ),
    ) {
        let _ = Raw::new(n_tensors, n_keys).bytes(&bytes).parse();
    }
}
