//! Comparison with the Python package `gguf`, through the files that `data/make.py` wrote.

use std::collections::HashSet;
use std::path::Path;

use serde_json::{Value as Json, json};
use thalweg_gguf::{Array, Gguf, TensorType, Value};

#[test]
fn table_of_tensor_types_agrees() {
    let mut seen = HashSet::new();
    for line in include_str!("../data/quant_sizes.tsv").lines().skip(1) {
        let fields: Vec<&str> = line.split('\t').collect();
        let number = |i: usize| fields[i].parse::<u64>().unwrap();
        let ty = TensorType::from_id(number(0).try_into().unwrap()).unwrap();
        assert_eq!(ty.name(), fields[1]);
        assert_eq!(ty.block_len(), number(2), "{ty}");
        // The package still counts the two scales of this intermediate type, which no file holds,
        // as f32; ggml made them f16.
        let bytes = if ty == TensorType::Q8_1 {
            number(3) - 4
        } else {
            number(3)
        };
        assert_eq!(ty.block_bytes(), bytes, "{ty}");
        seen.insert(ty);
    }
    let missing: Vec<_> = TensorType::ALL
        .iter()
        .filter(|ty| !seen.contains(*ty))
        .collect();
    assert_eq!(missing, [&TensorType::Q2_0], "newer than the package");
}

#[test]
fn all_ids_are_known_removed_or_unknown() {
    let known: Vec<u32> = (0..100)
        .filter(|&id| TensorType::from_id(id).is_ok())
        .collect();
    let listed: Vec<u32> = TensorType::ALL.iter().map(|ty| ty.id()).collect();
    assert_eq!(known, listed);
    assert_eq!(known.len(), 43 - 8);
    for &ty in TensorType::ALL {
        assert_eq!(TensorType::from_name(ty.name()), Some(ty));
        assert_eq!(TensorType::from_name(&ty.name().to_lowercase()), Some(ty));
    }
    assert_eq!(TensorType::from_name("Q9_9"), None);
}

#[test]
fn demo_model_is_read_alike() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let model = Gguf::open(root.join("models/demo.gguf")).unwrap();
    let expected: Json = serde_json::from_str(include_str!("../data/demo_directory.json")).unwrap();

    assert_eq!(json!(model.data_start_bytes(0)), expected["data_start"]);
    let tensors: Vec<(&str, Json)> = model
        .tensors()
        .iter()
        .map(|t| {
            let facts = json!([t.ty.name(), t.shape(), t.offset_bytes, t.size_bytes]);
            (t.name.as_str(), facts)
        })
        .collect();
    assert_same(&tensors, &expected["tensors"]);
    let metadata: Vec<(&str, Json)> = model
        .metadata()
        .iter()
        .map(|(key, value)| (key, summary(value)))
        .collect();
    assert_same(&metadata, &expected["metadata"]);
}

/// Compares entries and their order.
fn assert_same(found: &[(&str, Json)], expected: &Json) {
    let expected = expected.as_object().unwrap();
    assert_eq!(found.len(), expected.len());
    for ((name, facts), (expected_name, expected_facts)) in found.iter().zip(expected) {
        assert_eq!((*name, facts), (expected_name.as_str(), expected_facts));
    }
}

/// As `summary` in `data/make.py`.
fn summary(value: &Value) -> Json {
    match value {
        Value::Bool(v) => json!(["bool", v]),
        Value::String(v) => json!(["string", v]),
        Value::U32(v) => json!(["uint32", v]),
        Value::F32(v) => json!(["float32", f64::from(*v)]),
        Value::Array(Array::I32(v)) => json!(["array", "int32", v.len(), v.first(), v.last()]),
        Value::Array(Array::U32(v)) => json!(["array", "uint32", v.len(), v.first(), v.last()]),
        Value::Array(Array::U64(v)) => json!(["array", "uint64", v.len(), v.first(), v.last()]),
        Value::Array(Array::String(v)) => {
            json!(["array", "string", v.len(), v.first(), v.last()])
        }
        other => panic!("the demo model has no {}", other.value_type()),
    }
}
