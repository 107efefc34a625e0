//! The byte-level reader under `read`. Owns: counting, limits, decoding of values, the hash of the
//! bytes read. Does not own: what follows what in a file (`read`).
//! Memory: two buffers of 64 KiB, and the values that it returns.
//!
//! Invariants: 1. no length is believed before it is compared with the bytes left, and memory
//! grows only as bytes arrive. 2. No recursion. 3. `position` is the number of bytes hashed.
//! Cost: linear in the bytes read, which `MAX_HEADER_BYTES` caps.

use std::fmt;
use std::io::{BufRead, BufReader, ErrorKind, Read};

use crate::error::Error;
use crate::value::{Array, Value, ValueType};

/// The longest header accepted. The largest in the wild, with vocabularies of 256 000 tokens, have
/// some 20 MiB; the limit keeps a hostile sparse file from being read, and held, without end.
pub const MAX_HEADER_BYTES: u64 = 1 << 28;

/// Bytes asked for at a time: the most that memory runs ahead of what was read.
const STEP: usize = 64 << 10;

/// What is being read, for error messages; becomes text only on failure.
pub(crate) enum Field<'a> {
    Magic,
    Version,
    TensorCount,
    KeyCount,
    Key(u64),
    ValueType(&'a str),
    Value(&'a str),
    ElementType(&'a str),
    ElementCount(&'a str),
    Element(&'a str, u64),
    TensorName(u64),
    DimensionCount(&'a str),
    Dimension(&'a str),
    TensorType(&'a str),
    DataOffset(&'a str),
}

impl fmt::Display for Field<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic => write!(f, "magic"),
            Self::Version => write!(f, "version"),
            Self::TensorCount => write!(f, "number of tensors"),
            Self::KeyCount => write!(f, "number of metadata keys"),
            Self::Key(i) => write!(f, "metadata key {i}"),
            Self::ValueType(key) => write!(f, "type of `{key}`"),
            Self::Value(key) => write!(f, "value of `{key}`"),
            Self::ElementType(key) => write!(f, "element type of `{key}`"),
            Self::ElementCount(key) => write!(f, "number of elements of `{key}`"),
            Self::Element(key, i) => write!(f, "element {i} of `{key}`"),
            Self::TensorName(i) => write!(f, "name of tensor {i}"),
            Self::DimensionCount(name) => write!(f, "number of dimensions of tensor `{name}`"),
            Self::Dimension(name) => write!(f, "dimensions of tensor `{name}`"),
            Self::TensorType(name) => write!(f, "type of tensor `{name}`"),
            Self::DataOffset(name) => write!(f, "data offset of tensor `{name}`"),
        }
    }
}

/// A reader that knows its place, the bytes left, and the hash of the bytes gone by.
pub(crate) struct Source<'a> {
    reader: BufReader<&'a mut dyn Read>,
    position: u64,
    file_len_bytes: u64,
    hash: u64,
    step: Vec<u8>,
}

impl<'a> Source<'a> {
    pub(crate) fn new(reader: &'a mut dyn Read, file_len_bytes: u64) -> Self {
        let reader = BufReader::with_capacity(STEP, reader);
        Self {
            reader,
            position: 0,
            file_len_bytes,
            hash: FNV_OFFSET,
            step: Vec::new(),
        }
    }

    /// Bytes that the header may still take.
    fn left_bytes(&self) -> u64 {
        self.file_len_bytes
            .min(MAX_HEADER_BYTES)
            .saturating_sub(self.position)
    }

    /// Checks that a field of this size can follow.
    fn expect(&self, needed_bytes: u64, field: &Field<'_>) -> Result<(), Error> {
        let left_bytes = self.file_len_bytes.saturating_sub(self.position);
        if needed_bytes > left_bytes {
            return Err(self.truncated(needed_bytes, left_bytes, field));
        }
        if needed_bytes > self.left_bytes() {
            return Err(Error::HeaderTooLarge {
                field: field.to_string(),
                offset_bytes: self.position,
                limit_bytes: MAX_HEADER_BYTES,
            });
        }
        Ok(())
    }

    fn truncated(&self, needed_bytes: u64, left_bytes: u64, field: &Field<'_>) -> Error {
        let offset_bytes = self.position;
        Error::Truncated {
            field: field.to_string(),
            offset_bytes,
            needed_bytes,
            left_bytes,
        }
    }

    /// Where the next byte is read.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// FNV-1a hash of all bytes before that.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    fn fill(&mut self, buffer: &mut [u8], field: &Field<'_>) -> Result<(), Error> {
        let needed_bytes = u64::try_from(buffer.len()).unwrap_or(u64::MAX);
        self.expect(needed_bytes, field)?;
        let mut filled = 0;
        while filled < buffer.len() {
            match self.reader.fill_buf() {
                // The reader ends before the length that the caller gave for the file.
                Ok([]) => {
                    let left_bytes = u64::try_from(filled).unwrap_or(u64::MAX);
                    return Err(self.truncated(needed_bytes, left_bytes, field));
                }
                Ok(bytes) => {
                    let n = bytes.len().min(buffer.len() - filled);
                    buffer[filled..filled + n].copy_from_slice(&bytes[..n]);
                    self.reader.consume(n);
                    filled += n;
                }
                Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
                Err(cause) => {
                    return Err(Error::Read {
                        offset_bytes: self.position,
                        cause,
                    });
                }
            }
        }
        self.hash = fnv(self.hash, buffer);
        self.position += needed_bytes;
        Ok(())
    }

    pub(crate) fn array<const N: usize>(&mut self, field: &Field<'_>) -> Result<[u8; N], Error> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, field)?;
        Ok(bytes)
    }

    pub(crate) fn u32(&mut self, field: &Field<'_>) -> Result<u32, Error> {
        self.array(field).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, field: &Field<'_>) -> Result<u64, Error> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// Reads a count of things that take `min_bytes` each, at least.
    pub(crate) fn count(&mut self, field: &Field<'_>, min_bytes: u64) -> Result<u64, Error> {
        let offset_bytes = self.position;
        let found = self.u64(field)?;
        let limit = self.left_bytes() / min_bytes;
        if found > limit {
            return Err(Error::CountTooLarge {
                field: field.to_string(),
                offset_bytes,
                found,
                limit,
            });
        }
        Ok(found)
    }

    pub(crate) fn string(&mut self, field: &Field<'_>) -> Result<String, Error> {
        let len_bytes = self.count(field, 1)?;
        self.text(len_bytes, field)
    }

    pub(crate) fn text(&mut self, len_bytes: u64, field: &Field<'_>) -> Result<String, Error> {
        let start = self.position;
        let mut bytes = Vec::new();
        let mut left = len_bytes;
        while left > 0 {
            let n = at_most(left, STEP);
            let filled = bytes.len();
            bytes.resize(filled + n, 0);
            self.fill(&mut bytes[filled..], field)?;
            left -= n as u64;
        }
        String::from_utf8(bytes).map_err(|e| {
            let valid = u64::try_from(e.utf8_error().valid_up_to()).unwrap_or(u64::MAX);
            let offset_bytes = start.saturating_add(valid);
            Error::InvalidUtf8 {
                field: field.to_string(),
                offset_bytes,
            }
        })
    }

    pub(crate) fn value_type(&mut self, field: &Field<'_>) -> Result<ValueType, Error> {
        let offset_bytes = self.position;
        let found = self.u32(field)?;
        ValueType::from_id(found).ok_or_else(|| Error::UnknownValueType {
            field: field.to_string(),
            offset_bytes,
            found,
        })
    }

    pub(crate) fn value(&mut self, key: &str, ty: ValueType) -> Result<Value, Error> {
        let field = &Field::Value(key);
        Ok(match ty {
            ValueType::U8 => Value::U8(u8::from_le_bytes(self.array(field)?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(self.array(field)?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(self.array(field)?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(self.array(field)?)),
            ValueType::U32 => Value::U32(u32::from_le_bytes(self.array(field)?)),
            ValueType::I32 => Value::I32(i32::from_le_bytes(self.array(field)?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(self.array(field)?)),
            ValueType::U64 => Value::U64(u64::from_le_bytes(self.array(field)?)),
            ValueType::I64 => Value::I64(i64::from_le_bytes(self.array(field)?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(self.array(field)?)),
            ValueType::String => Value::String(self.string(field)?),
            ValueType::Bool => {
                let [byte] = self.array(field)?;
                Value::Bool(boolean(key, self.position - 1, byte)?)
            }
            ValueType::Array => Value::Array(self.values(key)?),
        })
    }

    pub(crate) fn values(&mut self, key: &str) -> Result<Array, Error> {
        let offset_bytes = self.position;
        let ty = self.value_type(&Field::ElementType(key))?;
        if ty == ValueType::Array {
            return Err(Error::NestedArray {
                key: key.to_owned(),
                offset_bytes,
            });
        }
        let count = self.count(&Field::ElementCount(key), ty.min_bytes())?;
        Ok(match ty {
            ValueType::U8 => Array::U8(self.scalars(key, count, u8::from_le_bytes)?),
            ValueType::I8 => Array::I8(self.scalars(key, count, i8::from_le_bytes)?),
            ValueType::U16 => Array::U16(self.scalars(key, count, u16::from_le_bytes)?),
            ValueType::I16 => Array::I16(self.scalars(key, count, i16::from_le_bytes)?),
            ValueType::U32 => Array::U32(self.scalars(key, count, u32::from_le_bytes)?),
            ValueType::I32 => Array::I32(self.scalars(key, count, i32::from_le_bytes)?),
            ValueType::F32 => Array::F32(self.scalars(key, count, f32::from_le_bytes)?),
            ValueType::U64 => Array::U64(self.scalars(key, count, u64::from_le_bytes)?),
            ValueType::I64 => Array::I64(self.scalars(key, count, i64::from_le_bytes)?),
            ValueType::F64 => Array::F64(self.scalars(key, count, f64::from_le_bytes)?),
            ValueType::Bool => {
                let start = self.position;
                let bytes = self.scalars(key, count, u8::from_le_bytes)?;
                let flags = (start..)
                    .zip(bytes)
                    .map(|(at, byte)| boolean(key, at, byte));
                Array::Bool(flags.collect::<Result<_, _>>()?)
            }
            ValueType::String | ValueType::Array => {
                let mut strings = Vec::new();
                for index in 0..count {
                    strings.push(self.string(&Field::Element(key, index))?);
                }
                Array::String(strings)
            }
        })
    }

    fn scalars<T, const N: usize>(
        &mut self,
        key: &str,
        count: u64,
        decode: fn([u8; N]) -> T,
    ) -> Result<Vec<T>, Error> {
        let mut step = std::mem::take(&mut self.step);
        let mut values = Vec::new();
        let mut left = count;
        while left > 0 {
            let n = at_most(left, STEP / N);
            step.resize(n * N, 0);
            self.fill(&mut step, &Field::Value(key))?;
            values.extend(step.as_chunks().0.iter().map(|&bytes| decode(bytes)));
            left -= n as u64;
        }
        self.step = step;
        Ok(values)
    }
}

/// The size of the next step when `left` things are left.
fn at_most(left: u64, step: usize) -> usize {
    usize::try_from(left).map_or(step, |left| left.min(step))
}

fn boolean(key: &str, offset_bytes: u64, byte: u8) -> Result<bool, Error> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        found => Err(Error::InvalidBool {
            key: key.to_owned(),
            offset_bytes,
            found,
        }),
    }
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;

/// Extends a 64-bit FNV-1a hash.
fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |h, &byte| {
        (h ^ u64::from(byte)).wrapping_mul(FNV_PRIME)
    })
}

#[cfg(test)]
mod tests {
    use super::{FNV_OFFSET, fnv};

    #[test]
    fn hash_is_fnv_1a_by_its_published_vectors() {
        // From the FNV reference distribution, test_fnv.c.
        assert_eq!(fnv(FNV_OFFSET, b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv(FNV_OFFSET, b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv(FNV_OFFSET, b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn hash_does_not_depend_on_the_pieces() {
        assert_eq!(
            fnv(fnv(FNV_OFFSET, b"foo"), b"bar"),
            fnv(FNV_OFFSET, b"foobar")
        );
    }
}
