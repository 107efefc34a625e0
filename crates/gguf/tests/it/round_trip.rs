//! What the writer writes, the reader reads.

use proptest::prelude::*;
use thalweg_gguf::{Array, Header, Metadata, StreamWriter, TensorSpec, TensorType, Value};

/// Text with multi-byte characters, and sometimes none at all.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "[a-zé漢😀\\x00 .]{1,12}"]
}

fn array() -> impl Strategy<Value = Array> {
    macro_rules! many {
        ($ty:ty, $variant:ident) => {
            prop::collection::vec(any::<$ty>(), 0..5).prop_map(Array::$variant)
        };
    }
    let narrow = prop_oneof![
        many!(u8, U8),
        many!(i8, I8),
        many!(u16, U16),
        many!(i16, I16),
        many!(bool, Bool),
        prop::collection::vec(text(), 0..5).prop_map(Array::String),
    ];
    let wide = prop_oneof![
        many!(u32, U32),
        many!(i32, I32),
        many!(f32, F32),
        many!(u64, U64),
        many!(i64, I64),
        many!(f64, F64),
    ];
    prop_oneof![narrow, wide]
}

fn value() -> impl Strategy<Value = Value> {
    let narrow = prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<bool>().prop_map(Value::Bool),
        text().prop_map(Value::String),
    ];
    let wide = prop_oneof![
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<f32>().prop_map(Value::F32),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        any::<f64>().prop_map(Value::F64),
    ];
    prop_oneof![narrow, wide, array().prop_map(Value::Array)]
}

fn metadata() -> impl Strategy<Value = Metadata> {
    let keys = prop::collection::btree_map("[a-z._é]{1,16}", value(), 0..8);
    (keys, prop::option::of(0_u32..10)).prop_map(|(entries, alignment)| {
        let mut metadata = Metadata::new();
        // Reversed, so that the order is not the sorted one.
        for (key, value) in entries.into_iter().rev() {
            metadata.insert(key, value).unwrap();
        }
        if let Some(log) = alignment {
            metadata.set("general.alignment", 1_u32 << log).unwrap();
        }
        metadata
    })
}

fn spec() -> impl Strategy<Value = (TensorType, Vec<u64>)> {
    let ty = prop::sample::select(TensorType::ALL);
    (ty, 1_u64..4, prop::collection::vec(1_u64..4, 0..4)).prop_map(|(ty, blocks, rest)| {
        let mut shape = vec![blocks * ty.block_len()];
        shape.extend(rest);
        shape.truncate(4);
        (ty, shape)
    })
}

/// Bytes that differ from tensor to tensor and from place to place.
fn data(tensor: usize, len: u64) -> Vec<u8> {
    (0..len)
        .map(|i| (i * 7 + tensor as u64 * 13 + 1) as u8)
        .collect()
}

fn write(metadata: &Metadata, specs: &[TensorSpec], chunk: usize) -> Vec<u8> {
    let mut writer = StreamWriter::new(Vec::new(), metadata, specs).unwrap();
    for (i, spec) in specs.iter().enumerate() {
        for part in data(i, spec.size_bytes()).chunks(chunk) {
            writer.write_chunk(spec.name(), part).unwrap();
        }
    }
    writer.finish().unwrap()
}

proptest! {
    #[test]
    fn any_metadata_and_tensors_come_back(
        metadata in metadata(),
        shapes in prop::collection::vec(spec(), 0..6),
        chunk in 1_usize..100,
    ) {
        let specs: Vec<TensorSpec> = shapes
            .iter()
            .enumerate()
            .map(|(i, (ty, shape))| TensorSpec::new(format!("t.{i}"), *ty, shape).unwrap())
            .collect();
        let bytes = write(&metadata, &specs, chunk);
        let header = Header::parse(&bytes, bytes.len() as u64).unwrap();

        prop_assert_eq!(header.version(), 3);
        // By text, because NaN differs from itself; bits are compared below.
        prop_assert_eq!(format!("{:?}", header.metadata()), format!("{metadata:?}"));
        prop_assert_eq!(header.tensors().len(), specs.len());
        let mut end = header.data_start_bytes();
        for (i, (tensor, spec)) in header.tensors().iter().zip(&specs).enumerate() {
            prop_assert_eq!(&TensorSpec::like(tensor).unwrap(), spec);
            prop_assert_eq!(tensor.offset_bytes, end, "no gaps");
            end = tensor.end_bytes().next_multiple_of(header.alignment_bytes().into());
            let range = tensor.offset_bytes as usize..tensor.end_bytes() as usize;
            prop_assert_eq!(&bytes[range], &data(i, tensor.size_bytes)[..]);
        }
        prop_assert_eq!(bytes.len() as u64, end, "padded to the alignment");

        let again = write(header.metadata(), &specs, 1 << 20);
        prop_assert!(again == bytes, "writing what was read gives the same bytes");
    }

    #[test]
    fn version_2_reads_the_same(metadata in metadata()) {
        let specs = [TensorSpec::new("t", TensorType::F32, &[3]).unwrap()];
        let mut bytes = write(&metadata, &specs, 5);
        let as_3 = Header::parse(&bytes, bytes.len() as u64).unwrap();
        bytes[4] = 2;
        let as_2 = Header::parse(&bytes, bytes.len() as u64).unwrap();
        prop_assert_eq!(as_2.version(), 2);
        prop_assert_eq!(format!("{:?}", as_2.metadata()), format!("{:?}", as_3.metadata()));
        prop_assert_eq!(as_2.tensors(), as_3.tensors());
        prop_assert_ne!(as_2.hash(), as_3.hash());
    }
}

#[test]
fn header_alone_is_enough_to_parse() {
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", "demo").unwrap();
    let specs = [TensorSpec::new("t", TensorType::Q2_0, &[128, 1000]).unwrap()];
    let bytes = write(&metadata, &specs, 4096);
    let whole = Header::parse(&bytes, bytes.len() as u64).unwrap();
    let start = whole.data_start_bytes() as usize;
    let part = Header::parse(&bytes[..start], bytes.len() as u64).unwrap();
    assert_eq!(part.tensors(), whole.tensors());
    assert_eq!(part.hash(), whole.hash());
}

#[test]
fn long_arrays_cross_the_read_buffer() {
    let tokens: Vec<String> = (0..50_000).map(|i| format!("tok{i}")).collect();
    let scores: Vec<f64> = (0..50_000).map(f64::from).collect();
    let bytes: Vec<i8> = (0..200_003_i32).map(|i| (i % 100) as i8).collect();
    let mut metadata = Metadata::new();
    metadata.insert("tokens", tokens).unwrap();
    metadata.insert("scores", scores).unwrap();
    metadata.insert("bytes", bytes).unwrap();
    metadata.insert("long", "x".repeat(300_001)).unwrap();
    let file = write(&metadata, &[], 1);
    let header = Header::parse(&file, file.len() as u64).unwrap();
    assert!(*header.metadata() == metadata);
}
