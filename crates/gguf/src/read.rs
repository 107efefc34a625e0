//! One file's header. Owns: its layout, its limits, the checks of the tensor directory. Does not
//! own: bytes (`source`), tensor data, files (`file`), the union of shards (`split`).
//! Memory: the header's values; never a byte of tensor data.
//!
//! Invariants of a [`Header`]: 1. every tensor lies inside the file, on the alignment, and shares
//! no byte with another. 2. Names and keys are unique.
//! Cost: linear in the header, which is capped; n log n in the number of tensors.

use std::collections::HashSet;
use std::io::Read;

use crate::error::Error;
use crate::metadata::Metadata;
use crate::source::{Field, Source};
use crate::tensor::{MAX_NAME_BYTES, TensorInfo, TensorSpec, TensorType};
use crate::value::{Value, ValueType};

/// The alignment of tensor data where `general.alignment` is absent.
pub const DEFAULT_ALIGNMENT_BYTES: u32 = 32;

/// The largest `general.alignment` accepted. Real files use 32 to 4096, a huge page is 2 MiB at
/// most on common machines, and no reader gains from more than 1 MiB.
pub const MAX_ALIGNMENT_BYTES: u32 = 1 << 20;

pub(crate) const MAGIC: [u8; 4] = *b"GGUF";
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";

/// The header of one GGUF file: metadata and tensor directory, checked.
///
/// ```
/// use thalweg_gguf::{Error, Header};
///
/// let bytes = b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0"; // ends before the number of keys
/// let error = Header::parse(bytes, 16).unwrap_err();
/// assert!(matches!(error, Error::Truncated { offset_bytes: 16, .. }));
/// ```
#[derive(Clone, Debug)]
pub struct Header {
    version: u32,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    alignment_bytes: u32,
    data_start_bytes: u64,
    file_len_bytes: u64,
    hash: u64,
}

impl Header {
    /// Parses a header from memory: the whole file, or as much of its start as holds the header.
    /// `file_len_bytes` is the length of the whole file.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn parse(bytes: &[u8], file_len_bytes: u64) -> Result<Self, Error> {
        Self::read(bytes, file_len_bytes)
    }

    /// Reads a header from the start of a file of `file_len_bytes` bytes.
    ///
    /// The reader may be left some way behind the header, since it is read in large pieces.
    ///
    /// # Errors
    /// Any of [`Error`]'s groups "header bytes", "metadata" and "tensor directory";
    /// [`Error::Read`] if the reader fails.
    pub fn read(mut reader: impl Read, file_len_bytes: u64) -> Result<Self, Error> {
        let mut source = Source::new(&mut reader, file_len_bytes);
        let version = read_version(&mut source)?;

        let n_tensors = source.count(&Field::TensorCount, MIN_TENSOR_BYTES)?;
        let n_keys = source.count(&Field::KeyCount, MIN_ENTRY_BYTES)?;
        let metadata = read_metadata(&mut source, n_keys)?;
        let alignment_bytes = alignment(&metadata)?;
        let mut tensors = read_tensors(&mut source, n_tensors, alignment_bytes)?;

        let data_start_bytes = source
            .position()
            .next_multiple_of(u64::from(alignment_bytes));
        place_tensors(&mut tensors, data_start_bytes, file_len_bytes)?;
        let hash = source.hash();
        Ok(Self {
            version,
            metadata,
            tensors,
            alignment_bytes,
            data_start_bytes,
            file_len_bytes,
            hash,
        })
    }

    /// The container version, 2 or 3.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Keys and values in the order of the file.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tensor directory in the order of the file; `file` is 0 throughout.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The alignment of tensor data in this file.
    #[must_use]
    pub fn alignment_bytes(&self) -> u32 {
        self.alignment_bytes
    }

    /// Where the data section starts.
    #[must_use]
    pub fn data_start_bytes(&self) -> u64 {
        self.data_start_bytes
    }

    /// Length of the whole file, as it was given.
    #[must_use]
    pub fn file_len_bytes(&self) -> u64 {
        self.file_len_bytes
    }

    /// 64-bit FNV-1a hash of the header's bytes, up to the end of the tensor directory.
    ///
    /// It tells changed files from unchanged ones; it does not resist forgery.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn into_parts(self) -> (Metadata, Vec<TensorInfo>) {
        (self.metadata, self.tensors)
    }
}

/// The alignment that a file's metadata asks for.
pub(crate) fn alignment(metadata: &Metadata) -> Result<u32, Error> {
    match metadata.get(ALIGNMENT_KEY) {
        None => Ok(DEFAULT_ALIGNMENT_BYTES),
        Some(&Value::U32(n)) if n.is_power_of_two() && n <= MAX_ALIGNMENT_BYTES => Ok(n),
        Some(&Value::U32(found)) => Err(Error::BadAlignment {
            found,
            limit: MAX_ALIGNMENT_BYTES,
        }),
        // llama.cpp insists on the type, so a file that it would refuse is not accepted here.
        Some(other) => Err(Error::WrongType {
            key: ALIGNMENT_KEY.to_owned(),
            expected: "u32",
            found: other.value_type().to_string(),
        }),
    }
}

/// Name length, one byte of name, number of dimensions, one dimension, type, offset.
const MIN_TENSOR_BYTES: u64 = 8 + 1 + 4 + 8 + 4 + 8;
/// Key length, one byte of key, type, one byte of value.
const MIN_ENTRY_BYTES: u64 = 8 + 1 + 4 + 1;

fn read_version(source: &mut Source<'_>) -> Result<u32, Error> {
    let found = source.array(&Field::Magic)?;
    if found != MAGIC {
        return Err(Error::BadMagic { found });
    }
    match source.u32(&Field::Version)? {
        version @ (2 | 3) => Ok(version),
        // No version has its low half empty, unless its bytes are in the other order.
        found if found != 0 && found & 0xffff == 0 => Err(Error::BigEndian {
            version: found.swap_bytes(),
        }),
        found => Err(Error::UnsupportedVersion { found }),
    }
}

fn read_metadata(source: &mut Source<'_>, n_keys: u64) -> Result<Metadata, Error> {
    let mut metadata = Metadata::new();
    for index in 0..n_keys {
        let key = source.string(&Field::Key(index))?;
        let ty = source.value_type(&Field::ValueType(&key))?;
        let value = match ty {
            ValueType::Array => Value::Array(source.values(&key)?),
            scalar => source.value(&key, scalar)?,
        };
        metadata.insert(key, value)?;
    }
    Ok(metadata)
}

/// Reads the directory; `offset_bytes` still counts from the start of the data section.
fn read_tensors(
    source: &mut Source<'_>,
    n_tensors: u64,
    alignment_bytes: u32,
) -> Result<Vec<TensorInfo>, Error> {
    let mut tensors: Vec<TensorInfo> = Vec::new();
    for index in 0..n_tensors {
        let tensor = read_tensor(source, index, tensors.len(), u64::from(alignment_bytes))?;
        tensors.push(tensor);
    }
    let mut names = HashSet::with_capacity(tensors.len());
    match tensors
        .iter()
        .find(|tensor| !names.insert(tensor.name.as_str()))
    {
        Some(twice) => Err(Error::DuplicateTensor {
            name: twice.name.clone(),
        }),
        None => Ok(tensors),
    }
}

fn read_tensor(
    source: &mut Source<'_>,
    number: u64,
    index: usize,
    alignment_bytes: u64,
) -> Result<TensorInfo, Error> {
    let field = Field::TensorName(number);
    let found_bytes = source.count(&field, 1)?;
    if found_bytes == 0 || found_bytes > MAX_NAME_BYTES {
        return Err(Error::TensorNameLength {
            index,
            found_bytes,
            limit_bytes: MAX_NAME_BYTES,
        });
    }
    let name = source.text(found_bytes, &field)?;

    let n_dims = source.u32(&Field::DimensionCount(&name))?;
    if !(1..=4).contains(&n_dims) {
        return Err(Error::DimensionCount {
            found: n_dims.into(),
        }
        .in_tensor(&name));
    }
    let mut shape = Vec::with_capacity(4);
    for _ in 0..n_dims {
        shape.push(source.u64(&Field::Dimension(&name))?);
    }
    let id = source.u32(&Field::TensorType(&name))?;
    let ty = TensorType::from_id(id).map_err(|e| e.in_tensor(&name))?;
    let offset_bytes = source.u64(&Field::DataOffset(&name))?;
    if !offset_bytes.is_multiple_of(alignment_bytes) {
        return Err(Error::Misaligned {
            offset_bytes,
            alignment_bytes,
        }
        .in_tensor(&name));
    }
    TensorSpec::new(name, ty, &shape).map(|spec| spec.place(offset_bytes))
}

/// Makes offsets count from the start of the file, after checking that each tensor lies inside it
/// and that no two overlap. Gaps and any order are accepted, though llama.cpp writes neither:
/// tools that edit a file in place leave both, and nothing is misread because of them.
fn place_tensors(
    tensors: &mut [TensorInfo],
    data_start_bytes: u64,
    file_len_bytes: u64,
) -> Result<(), Error> {
    let outside = |tensor: &TensorInfo, offset_bytes: u64| {
        Error::OutsideFile {
            offset_bytes,
            data_start_bytes,
            size_bytes: tensor.size_bytes,
            file_len_bytes,
        }
        .in_tensor(&tensor.name)
    };
    for tensor in tensors.iter_mut() {
        match data_start_bytes.checked_add(tensor.offset_bytes) {
            Some(start) if start < file_len_bytes => tensor.offset_bytes = start,
            _ => return Err(outside(tensor, tensor.offset_bytes)),
        }
    }

    let mut by_offset: Vec<&TensorInfo> = tensors.iter().collect();
    by_offset.sort_by_key(|tensor| tensor.offset_bytes);
    for (i, tensor) in by_offset.iter().enumerate() {
        let next = by_offset.get(i + 1);
        let gap_bytes = next.map_or(file_len_bytes, |n| n.offset_bytes) - tensor.offset_bytes;
        if tensor.size_bytes <= gap_bytes {
            continue;
        }
        if let Some(old_bytes) = old_q2_bytes(tensor).filter(|&old| old <= gap_bytes) {
            let expected_bytes = tensor.size_bytes;
            let problem = Error::OldQ2Layout {
                gap_bytes,
                expected_bytes,
                old_bytes,
            };
            return Err(problem.in_tensor(&tensor.name));
        }
        let Some(next) = next else {
            return Err(outside(tensor, tensor.offset_bytes - data_start_bytes));
        };
        return Err(Error::Overlap {
            offset_bytes: tensor.offset_bytes,
            size_bytes: tensor.size_bytes,
            other: next.name.clone(),
            other_offset_bytes: next.offset_bytes,
        }
        .in_tensor(&tensor.name));
    }
    Ok(())
}

/// The size of a `Q2_0` tensor in the layout from before the type was merged: 128 elements in 34
/// bytes. It is smaller than the present one, so such a file shows as an overlap.
fn old_q2_bytes(tensor: &TensorInfo) -> Option<u64> {
    let fits = tensor.ty == TensorType::Q2_0 && tensor.ne[0].is_multiple_of(128);
    fits.then(|| tensor.n_elements() / 128 * 34)
}
