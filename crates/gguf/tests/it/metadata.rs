//! Typed access: conversion between widths, never reinterpretation.

use thalweg_gguf::{Array, Error, Metadata, Value};

use crate::raw::{ARRAY, Raw, U8};

fn table(entries: impl IntoIterator<Item = (&'static str, Value)>) -> Metadata {
    let mut metadata = Metadata::new();
    for (key, value) in entries {
        metadata.insert(key, value).unwrap();
    }
    metadata
}

#[test]
fn token_type_stored_as_u8_is_read_as_i32() {
    let raw = Raw::new(0, 1)
        .key("tokenizer.ggml.token_type", ARRAY)
        .u32(U8)
        .u64(5)
        .bytes(&[1, 3, 6, 128, 255]);
    let header = raw.parse().unwrap();
    let metadata = header.metadata();
    assert_eq!(
        metadata.i32_array("tokenizer.ggml.token_type").unwrap(),
        [1, 3, 6, 128, 255]
    );
    assert_eq!(
        metadata.u64_array("tokenizer.ggml.token_type").unwrap(),
        [1, 3, 6, 128, 255]
    );
    assert_eq!(
        metadata.get("tokenizer.ggml.token_type"),
        Some(&Value::Array(Array::U8(vec![1, 3, 6, 128, 255])))
    );
}

#[test]
fn every_integer_type_converts_to_every_other_within_range() {
    let values = [
        Value::U8(9),
        Value::I8(9),
        Value::U16(9),
        Value::I16(9),
        Value::U32(9),
        Value::I32(9),
        Value::U64(9),
        Value::I64(9),
    ];
    for value in values {
        let metadata = table([("k", value)]);
        assert_eq!(metadata.u32("k").unwrap(), 9);
        assert_eq!(metadata.i32("k").unwrap(), 9);
        assert_eq!(metadata.u64("k").unwrap(), 9);
        assert_eq!(metadata.i64("k").unwrap(), 9);
        assert!(matches!(metadata.f32("k"), Err(Error::WrongType { .. })));
        assert!(matches!(metadata.str("k"), Err(Error::WrongType { .. })));
        assert!(matches!(
            metadata.u32_array("k"),
            Err(Error::WrongType { .. })
        ));
        assert!(matches!(metadata.bool("k"), Err(Error::OutOfRange { .. })));
    }
}

#[test]
fn integers_at_the_edges_are_kept_or_refused() {
    let metadata = table([
        ("max", Value::U64(u64::MAX)),
        ("min", Value::I64(i64::MIN)),
        ("minus", Value::I8(-1)),
        ("2^32", Value::I64(1 << 32)),
        ("2^32-1", Value::U64((1 << 32) - 1)),
    ]);
    assert_eq!(metadata.u64("max").unwrap(), u64::MAX);
    assert_eq!(metadata.i64("min").unwrap(), i64::MIN);
    assert_eq!(metadata.i32("minus").unwrap(), -1);
    assert_eq!(metadata.u32("2^32-1").unwrap(), u32::MAX);
    for (key, error) in [
        ("max", metadata.i64("max").unwrap_err()),
        ("minus", metadata.u64("minus").unwrap_err()),
        ("2^32", metadata.u32("2^32").unwrap_err()),
        ("2^32-1", metadata.i32("2^32-1").unwrap_err()),
    ] {
        assert!(
            matches!(&error, Error::OutOfRange { key: k, .. } if k == key),
            "{error}"
        );
    }
}

#[test]
fn element_out_of_range_is_named_by_its_index() {
    let metadata = table([("k", Value::from(vec![1_i64, 2, -3]))]);
    let error = metadata.u32_array("k").unwrap_err();
    assert_eq!(
        error.to_string(),
        "metadata key `k` at index 2 is -3, expected a u32 integer"
    );
}

#[test]
fn absent_keys_differ_from_mistyped_ones() {
    let metadata = table([
        ("text", Value::from("7")),
        ("texts", Value::from(vec![7_u32])),
    ]);
    assert_eq!(metadata.opt_u32("absent").unwrap(), None);
    assert_eq!(metadata.opt_f32("absent").unwrap(), None);
    assert_eq!(metadata.opt_bool("absent").unwrap(), None);
    assert_eq!(metadata.opt_str("absent").unwrap(), None);
    assert_eq!(metadata.opt_u32_array("absent").unwrap(), None);
    assert_eq!(metadata.opt_str_array("absent").unwrap(), None);
    assert!(matches!(
        metadata.opt_u32("text"),
        Err(Error::WrongType { .. })
    ));
    assert!(matches!(
        metadata.opt_u32("texts"),
        Err(Error::WrongType { .. })
    ));
    assert!(matches!(
        metadata.opt_u32_array("text"),
        Err(Error::WrongType { .. })
    ));
    assert!(matches!(
        metadata.opt_str("texts"),
        Err(Error::WrongType { .. })
    ));
    assert!(matches!(
        metadata.opt_str_array("texts"),
        Err(Error::WrongType { .. })
    ));
    for error in [
        metadata.u32("absent").unwrap_err(),
        metadata.f32_array("absent").unwrap_err(),
        metadata.str("absent").unwrap_err(),
    ] {
        assert!(matches!(error, Error::MissingKey { .. }), "{error}");
    }
}

#[test]
fn floats_come_from_both_widths_but_not_from_beyond_f32() {
    let metadata = table([
        ("f32", Value::F32(1e-6)),
        ("f64", Value::F64(1e-6)),
        ("large", Value::F64(1e300)),
        ("inf", Value::F64(f64::INFINITY)),
        ("nan", Value::F64(f64::NAN)),
        ("many", Value::from(vec![0.5_f64, -2.0])),
    ]);
    assert_eq!(metadata.f32("f32").unwrap().to_bits(), 1e-6_f32.to_bits());
    assert_eq!(metadata.f32("f64").unwrap().to_bits(), 1e-6_f32.to_bits());
    assert_eq!(
        metadata.f32("inf").unwrap().to_bits(),
        f32::INFINITY.to_bits()
    );
    assert!(metadata.f32("nan").unwrap().is_nan());
    assert!(matches!(
        metadata.f32("large"),
        Err(Error::OutOfRange { .. })
    ));
    let many: Vec<u32> = metadata
        .f32_array("many")
        .unwrap()
        .iter()
        .map(|v| v.to_bits())
        .collect();
    assert_eq!(many, [0.5_f32.to_bits(), (-2.0_f32).to_bits()]);
}

#[test]
fn booleans_come_from_0_and_1() {
    let metadata = table([
        ("true", Value::Bool(true)),
        ("one", Value::U32(1)),
        ("two", Value::U32(2)),
        ("flags", Value::from(vec![true, false])),
        ("ints", Value::from(vec![1_i32, 0, 1])),
    ]);
    assert!(metadata.bool("true").unwrap());
    assert!(metadata.bool("one").unwrap());
    assert!(matches!(
        metadata.bool("two"),
        Err(Error::OutOfRange { .. })
    ));
    assert_eq!(metadata.bool_array("flags").unwrap(), [true, false]);
    assert_eq!(metadata.bool_array("ints").unwrap(), [true, false, true]);
    assert!(matches!(metadata.u32("true"), Err(Error::WrongType { .. })));
}

#[test]
fn strings_are_borrowed_in_order() {
    let metadata = table([("k", Value::from(vec!["b".to_owned(), "a".to_owned()]))]);
    assert_eq!(metadata.str_array("k").unwrap(), ["b", "a"]);
    assert!(matches!(
        metadata.i32_array("k"),
        Err(Error::WrongType { .. })
    ));
}

#[test]
fn order_survives_replacing_and_removing() {
    let mut metadata = table([
        ("a", Value::U8(1)),
        ("b", Value::U8(2)),
        ("c", Value::U8(3)),
    ]);
    metadata.set("b", 20_u8).unwrap();
    assert_eq!(metadata.remove("a"), Some(Value::U8(1)));
    assert_eq!(metadata.remove("a"), None);
    metadata.insert("a", 10_u8).unwrap();
    let entries: Vec<_> = metadata
        .iter()
        .map(|(key, value)| (key, value.to_string()))
        .collect();
    assert_eq!(
        entries,
        [("b", "20".into()), ("c", "3".into()), ("a", "10".into())]
    );
    assert_eq!(metadata.u32("c").unwrap(), 3);
    assert!(matches!(
        metadata.insert("c", 0_u8),
        Err(Error::DuplicateKey { .. })
    ));
    assert!(matches!(
        metadata.insert("", 0_u8),
        Err(Error::EmptyKey { index: 3 })
    ));
    assert_eq!(metadata.len(), 3);
}
