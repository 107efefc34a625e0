//! Fingerprints of a model file: which model a trace, a profile or a keep-map was made from.
//!
//! Owns the definition of the bytes that are hashed. Does not own the file. Memory: one piece of a
//! tensor at a time. Invariants: 1. the order of metadata and tensors, their offsets, padding and
//! the split into shards do not matter; 2. a changed key, value, name, type or shape does, and so
//! does every data byte that is looked at.
//! Cost: `Ends` reads up to 8 KiB a tensor, `Whole` everything.

use sha2::{Digest, Sha256};
use thalweg_gguf::{Array, Gguf, TensorInfo, Value};

/// How much of each tensor's data a fingerprint looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FingerprintDepth {
    /// The first and the last 4 KiB: fast enough for every start of a program.
    Ends,
    /// All of it.
    Whole,
}

/// SHA-256 over a model's metadata, tensor directory and data.
///
/// Hashed are, in this order: each metadata key in ascending order of its bytes, with the number of
/// its type and its value; each tensor in ascending order of its name, with the number of its type,
/// its dimensions and the SHA-256 of its data (or of its ends, see [`FingerprintDepth`]). Numbers
/// are little endian, texts and lists are preceded by their length as a u64. `split.*` keys have no
/// part in it. The two depths give unrelated values.
///
/// # Errors
/// What [`Gguf::read_tensor_range`] finds.
///
/// # Cost
/// `Ends`: two reads a tensor. `Whole`: reads and hashes the whole file, about 1 s a GB.
pub fn fingerprint(file: &Gguf, depth: FingerprintDepth) -> Result<[u8; 32], thalweg_gguf::Error> {
    let mut hash = Sha256::new();
    let mut entries: Vec<_> = file.metadata().iter().collect();
    entries.sort_unstable_by_key(|(key, _)| *key);
    put_len(&mut hash, entries.len());
    for (key, value) in entries {
        put_text(&mut hash, key);
        hash.update(value.value_type().id().to_le_bytes());
        put_value(&mut hash, value);
    }
    let mut tensors: Vec<_> = file.tensors().iter().collect();
    tensors.sort_unstable_by_key(|tensor| tensor.name.as_str());
    put_len(&mut hash, tensors.len());
    let mut piece = Vec::new();
    for tensor in tensors {
        put_text(&mut hash, &tensor.name);
        hash.update(tensor.ty.id().to_le_bytes());
        put_len(&mut hash, tensor.shape().len());
        for dimension in tensor.shape() {
            hash.update(dimension.to_le_bytes());
        }
        hash.update(data_hash(file, tensor, depth, &mut piece)?);
    }
    Ok(hash.finalize().into())
}

/// Bytes at each end of a tensor that `Ends` looks at.
const END_BYTES: u64 = 4096;
/// Bytes that `Whole` reads at a time.
const PIECE_BYTES: u64 = 1 << 20;

fn data_hash(
    file: &Gguf,
    tensor: &TensorInfo,
    depth: FingerprintDepth,
    piece: &mut Vec<u8>,
) -> Result<[u8; 32], thalweg_gguf::Error> {
    let size = tensor.size_bytes;
    let mut hash = Sha256::new();
    let mut add = |start: u64, len: u64| {
        // At most a piece.
        piece.resize(len as usize, 0);
        file.read_tensor_range(tensor, start, piece)?;
        hash.update(&piece);
        Ok(())
    };
    match depth {
        FingerprintDepth::Ends => {
            let len = size.min(END_BYTES);
            add(0, len)?;
            add(size - len, len)?;
        }
        FingerprintDepth::Whole => {
            let mut start = 0;
            while start < size {
                let len = (size - start).min(PIECE_BYTES);
                add(start, len)?;
                start += len;
            }
        }
    }
    Ok(hash.finalize().into())
}

fn put_value(hash: &mut Sha256, value: &Value) {
    match value {
        Value::U8(v) => hash.update(v.to_le_bytes()),
        Value::I8(v) => hash.update(v.to_le_bytes()),
        Value::U16(v) => hash.update(v.to_le_bytes()),
        Value::I16(v) => hash.update(v.to_le_bytes()),
        Value::U32(v) => hash.update(v.to_le_bytes()),
        Value::I32(v) => hash.update(v.to_le_bytes()),
        Value::F32(v) => hash.update(v.to_le_bytes()),
        Value::Bool(v) => hash.update([u8::from(*v)]),
        Value::String(v) => put_text(hash, v),
        Value::U64(v) => hash.update(v.to_le_bytes()),
        Value::I64(v) => hash.update(v.to_le_bytes()),
        Value::F64(v) => hash.update(v.to_le_bytes()),
        Value::Array(array) => put_array(hash, array),
        // A type that GGUF does not have yet: its text is as good as its bytes.
        other => put_text(hash, &other.to_string()),
    }
}

fn put_array(hash: &mut Sha256, array: &Array) {
    hash.update(array.element_type().id().to_le_bytes());
    put_len(hash, array.len());
    if let Array::String(items) = array {
        // The long ones, tokens and merges: without a copy of each.
        items.iter().for_each(|item| put_text(hash, item));
        return;
    }
    let items = (0..array.len()).filter_map(|index| array.get(index));
    items.for_each(|item| put_value(hash, &item));
}

fn put_text(hash: &mut Sha256, text: &str) {
    put_len(hash, text.len());
    hash.update(text.as_bytes());
}

fn put_len(hash: &mut Sha256, len: usize) {
    hash.update((len as u64).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use thalweg_gguf::{Metadata, TensorSpec, TensorType, Writer};

    const LEN: usize = 20_000;

    fn write(path: &Path, keys: &[(&str, u32)], tensors: &[(&str, Vec<u8>)]) -> Gguf {
        let mut metadata = Metadata::new();
        for (key, value) in keys {
            metadata.insert(*key, *value).expect("new key");
        }
        let specs: Vec<_> = tensors
            .iter()
            .map(|(name, data)| {
                let shape = [data.len() as u64 / 4];
                TensorSpec::new(*name, TensorType::F32, &shape).expect("valid")
            })
            .collect();
        let mut writer = Writer::create(path, &metadata, &specs).expect("created");
        for (name, data) in tensors {
            writer.write_tensor(name, data).expect("written");
        }
        writer.finish().expect("finished");
        Gguf::open(path).expect("just written")
    }

    #[test]
    fn the_order_of_keys_and_tensors_does_not_matter_and_everything_else_does() {
        let folder = tempfile::tempdir().expect("writable");
        let a = vec![1u8; LEN];
        let b = vec![2u8; 8];
        let base = write(
            &folder.path().join("base.gguf"),
            &[("x.one", 1), ("x.two", 2)],
            &[("a", a.clone()), ("b", b.clone())],
        );
        let swapped = write(
            &folder.path().join("swapped.gguf"),
            &[("x.two", 2), ("x.one", 1)],
            &[("b", b.clone()), ("a", a.clone())],
        );
        let of = |file: &Gguf, depth| fingerprint(file, depth).expect("readable");
        for depth in [FingerprintDepth::Ends, FingerprintDepth::Whole] {
            assert_eq!(of(&base, depth), of(&swapped, depth));
        }
        let (ends, whole) = (FingerprintDepth::Ends, FingerprintDepth::Whole);
        assert_ne!(of(&base, ends), of(&base, whole));
        let mut index = 0;
        let mut differs = |keys: &[(&str, u32)], tensors: &[(&str, Vec<u8>)], depth| {
            index += 1;
            let other = write(&folder.path().join(format!("{index}.gguf")), keys, tensors);
            of(&other, depth) != of(&base, depth)
        };
        let keys = [("x.one", 1), ("x.two", 2)];
        let with = |at: usize| {
            let mut data = a.clone();
            data[at] = 9;
            [("a", data), ("b", b.clone())]
        };
        assert!(differs(
            &[("x.one", 1), ("x.two", 3)],
            &[("a", a.clone()), ("b", b.clone())],
            ends
        ));
        assert!(differs(&keys, &[("a", a.clone()), ("c", b.clone())], ends));
        for at in [0, 4095, LEN - 4096, LEN - 1] {
            assert!(differs(&keys, &with(at), ends), "byte {at}");
        }
        assert!(
            !differs(&keys, &with(LEN / 2), ends),
            "the middle is not read"
        );
        assert!(differs(&keys, &with(LEN / 2), whole));
    }
}
