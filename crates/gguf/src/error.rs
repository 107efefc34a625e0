//! The one error type of this crate. Owns: every way in which a file can be refused. Does not
//! own: wording for a particular program, or what an architecture needs from a file.
//!
//! Invariants: 1. a message is complete on its own, including the operating system's reason, so
//! `source()` is always `None` and nothing is printed twice. 2. Place is added by wrapping:
//! [`Error::InFile`] around [`Error::InTensor`] around the fact; [`Error::root`] strips both.

use std::io;
use std::path::{Path, PathBuf};

/// Why a GGUF file was refused, or could not be read or written.
///
/// Offsets count bytes from the start of the file unless the field says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The problem concerns this file.
    #[error("{}: {problem}", path.display())]
    InFile {
        /// The file as it was opened.
        path: PathBuf,
        /// What is wrong with it.
        problem: Box<Self>,
    },
    /// The problem concerns this tensor.
    #[error("tensor `{name}`: {problem}")]
    InTensor {
        /// Name of the tensor.
        name: String,
        /// What is wrong with it.
        problem: Box<Self>,
    },

    // Operating system
    /// A call that is neither a read nor a write failed.
    #[error("cannot {operation}: {cause}")]
    System {
        /// What was tried, as a verb: `open`, `rename`, `sync`.
        operation: &'static str,
        /// The operating system's reason.
        cause: io::Error,
    },
    /// The path names a folder, a pipe or a device.
    #[error("not a regular file")]
    NotAFile,
    /// A read failed.
    #[error("cannot read at byte {offset_bytes}: {cause}")]
    Read {
        /// Where the read was to start.
        offset_bytes: u64,
        /// The operating system's reason.
        cause: io::Error,
    },
    /// A write failed.
    #[error("cannot write at byte {offset_bytes}: {cause}")]
    Write {
        /// Position in the output at which the write was to start.
        offset_bytes: u64,
        /// The operating system's reason.
        cause: io::Error,
    },
    /// The file ended inside a read of tensor data: it was cut after it had been opened.
    #[error(
        "file ended early: wanted {wanted_bytes} bytes at byte {offset_bytes}, got {got_bytes}"
    )]
    UnexpectedEnd {
        /// Where the read started.
        offset_bytes: u64,
        /// Bytes asked for.
        wanted_bytes: u64,
        /// Bytes that were there.
        got_bytes: u64,
    },
    /// The file on disk is no longer the one that was opened.
    #[error("changed while open: {what} was {expected}, is {found}")]
    Changed {
        /// What differs: `length`, `modification time`, `identity on disk`.
        what: &'static str,
        /// As it was when the file was opened.
        expected: String,
        /// As it is now.
        found: String,
    },
    /// A buffer for tensor data could not be allocated.
    #[error("cannot allocate {size_bytes} bytes")]
    OutOfMemory {
        /// Size of the buffer.
        size_bytes: u64,
    },

    // Header bytes
    /// The file does not start with `GGUF`.
    #[error("not a GGUF file: starts with {found:02x?} instead of \"GGUF\"")]
    BadMagic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// The version is byte-swapped.
    #[error("big-endian GGUF (version {version}) is not supported; convert it to little-endian")]
    BigEndian {
        /// The version once its bytes are put in order.
        version: u32,
    },
    /// A version other than 2 and 3.
    #[error("GGUF version {found} is not supported; versions 2 and 3 are")]
    UnsupportedVersion {
        /// The version in the file.
        found: u32,
    },
    /// The file ends inside a field of the header.
    #[error(
        "truncated: {field} needs {needed_bytes} bytes at byte {offset_bytes}, {left_bytes} left"
    )]
    Truncated {
        /// The field, in words.
        field: String,
        /// Where the field starts.
        offset_bytes: u64,
        /// Bytes that the field takes.
        needed_bytes: u64,
        /// Bytes from there to the end of the file.
        left_bytes: u64,
    },
    /// The header goes on beyond [`MAX_HEADER_BYTES`](crate::MAX_HEADER_BYTES).
    #[error("header larger than {limit_bytes} bytes: {field} at byte {offset_bytes}")]
    HeaderTooLarge {
        /// The field that crosses the limit, in words.
        field: String,
        /// Where the field starts.
        offset_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// A count or length cannot be true, because the bytes left could not hold it.
    #[error("{field} at byte {offset_bytes} is {found}, but the bytes left hold at most {limit}")]
    CountTooLarge {
        /// The count, in words.
        field: String,
        /// Where the count is stored.
        offset_bytes: u64,
        /// The count.
        found: u64,
        /// The largest count that fits.
        limit: u64,
    },
    /// A string is not UTF-8.
    #[error("{field} is not UTF-8 at byte {offset_bytes}")]
    InvalidUtf8 {
        /// The string, in words.
        field: String,
        /// The first byte that is not UTF-8.
        offset_bytes: u64,
    },

    // Metadata
    /// A metadata key of length zero.
    #[error("metadata key {index} is empty")]
    EmptyKey {
        /// Position of the key in the file, from 0.
        index: usize,
    },
    /// A metadata key occurs twice.
    #[error("metadata key `{key}` occurs twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A value or element type outside 0..=12.
    #[error("{field} at byte {offset_bytes} is {found}, which is no GGUF value type")]
    UnknownValueType {
        /// The type field, in words.
        field: String,
        /// Where the type is stored.
        offset_bytes: u64,
        /// The type in the file.
        found: u32,
    },
    /// An array of arrays.
    #[error("`{key}` at byte {offset_bytes} is an array of arrays, which is not supported")]
    NestedArray {
        /// The key.
        key: String,
        /// Where the element type is stored.
        offset_bytes: u64,
    },
    /// A boolean byte other than 0 and 1.
    #[error("`{key}` at byte {offset_bytes} is a boolean of value {found}, expected 0 or 1")]
    InvalidBool {
        /// The key.
        key: String,
        /// Where the byte is.
        offset_bytes: u64,
        /// The byte.
        found: u8,
    },
    /// A required key is absent.
    #[error("metadata key `{key}` is missing, expected {expected}")]
    MissingKey {
        /// The key.
        key: String,
        /// What it should hold, in words.
        expected: &'static str,
    },
    /// A key holds a value of another type.
    #[error("metadata key `{key}` is of type {found}, expected {expected}")]
    WrongType {
        /// The key.
        key: String,
        /// What it should hold, in words.
        expected: &'static str,
        /// The stored type; arrays as `array of u8`.
        found: String,
    },
    /// A number does not fit the type asked for.
    #[error("metadata key `{key}`{} is {found}, expected {expected}",
        index.map(|i| format!(" at index {i}")).unwrap_or_default())]
    OutOfRange {
        /// The key.
        key: String,
        /// Position in the array, if it is one.
        index: Option<usize>,
        /// What it should hold, in words.
        expected: &'static str,
        /// The stored number.
        found: String,
    },
    /// `general.alignment` is not a power of two within the limit.
    #[error("`general.alignment` is {found}, expected a power of two from 1 to {limit}")]
    BadAlignment {
        /// The alignment in the file.
        found: u32,
        /// The largest alignment accepted.
        limit: u32,
    },

    // Tensor directory
    /// A tensor name of length zero, or of 64 bytes and more.
    #[error("name of tensor {index} has {found_bytes} bytes, expected 1 to {limit_bytes}")]
    TensorNameLength {
        /// Position of the tensor in the file, from 0.
        index: usize,
        /// Length of the name.
        found_bytes: u64,
        /// The longest name accepted.
        limit_bytes: u64,
    },
    /// Two tensors share a name, in one file or across the shards of a split file.
    #[error("tensor `{name}` occurs twice")]
    DuplicateTensor {
        /// The name.
        name: String,
    },
    /// A number of dimensions outside 1..=4.
    #[error("{found} dimensions, expected 1 to 4")]
    DimensionCount {
        /// The number of dimensions.
        found: u64,
    },
    /// A dimension of zero.
    #[error("dimension {index} is zero")]
    ZeroDimension {
        /// The dimension, from 0.
        index: usize,
    },
    /// The number of elements or bytes exceeds 2^63 - 1.
    #[error("shape {ne:?} is too large")]
    ShapeTooLarge {
        /// The dimensions, fastest first.
        ne: Vec<u64>,
    },
    /// A row is not a whole number of blocks.
    #[error("row of {ne0} elements is no multiple of the {block_len} elements of a {ty} block")]
    PartialBlock {
        /// Name of the type.
        ty: &'static str,
        /// Row length.
        ne0: u64,
        /// Elements of one block.
        block_len: u64,
    },
    /// A tensor type that ggml never had, or one newer than this crate.
    #[error("unknown tensor type {id}")]
    UnknownTensorType {
        /// The ggml type id.
        id: u32,
    },
    /// A tensor type that ggml has dropped.
    #[error("tensor type {id} was removed from ggml")]
    RemovedTensorType {
        /// The ggml type id.
        id: u32,
    },
    /// Tensor data does not start on the file's alignment.
    #[error("data offset {offset_bytes} is no multiple of the alignment {alignment_bytes}")]
    Misaligned {
        /// Offset from the start of the data section.
        offset_bytes: u64,
        /// Alignment of the file.
        alignment_bytes: u64,
    },
    /// Tensor data reaches beyond the end of the file.
    #[error(
        "{size_bytes} bytes at offset {offset_bytes} of the data section, which starts at byte \
         {data_start_bytes}, reach beyond the file's {file_len_bytes} bytes"
    )]
    OutsideFile {
        /// Offset from the start of the data section.
        offset_bytes: u64,
        /// Where the data section starts.
        data_start_bytes: u64,
        /// Size of the tensor.
        size_bytes: u64,
        /// Length of the file.
        file_len_bytes: u64,
    },
    /// The data of two tensors share bytes.
    #[error(
        "{size_bytes} bytes at byte {offset_bytes} overlap tensor `{other}` at byte \
         {other_offset_bytes}"
    )]
    Overlap {
        /// Where the tensor starts.
        offset_bytes: u64,
        /// Size of the tensor.
        size_bytes: u64,
        /// The tensor that starts next.
        other: String,
        /// Where that one starts.
        other_offset_bytes: u64,
    },
    /// A `Q2_0` tensor in the layout used before the type was merged into llama.cpp: 128 elements
    /// in 34 bytes. The ids are equal, so only the room up to the next tensor tells.
    #[error(
        "old Q2_0 layout: the {gap_bytes} bytes up to the next tensor hold {old_bytes} bytes of \
         128-element blocks, not {expected_bytes} bytes of 64-element blocks; convert the model \
         again with a current llama.cpp"
    )]
    OldQ2Layout {
        /// Bytes up to the next tensor or the end of the file.
        gap_bytes: u64,
        /// Size in the present layout.
        expected_bytes: u64,
        /// Size in the old layout.
        old_bytes: u64,
    },
    /// A read past the end of a tensor.
    #[error("{wanted_bytes} bytes at offset {offset_bytes} reach beyond its {size_bytes} bytes")]
    OutsideTensor {
        /// Offset from the start of the tensor.
        offset_bytes: u64,
        /// Bytes asked for.
        wanted_bytes: u64,
        /// Size of the tensor.
        size_bytes: u64,
    },

    // Split files
    /// No such shard: the index is beyond the number of open files.
    #[error("no shard {shard}: {n_shards} are open")]
    NoSuchShard {
        /// The index asked for, from 0.
        shard: usize,
        /// Number of open files.
        n_shards: usize,
    },
    /// A shard of a split model is not there.
    #[error("shard {number} of {count} is missing")]
    MissingShard {
        /// Number of the shard as in the file name, from 1.
        number: u32,
        /// Number of shards.
        count: u32,
    },
    /// A shard whose name is not `PREFIX-00001-of-00003.gguf`, so that the others can't be found.
    #[error("shard of a model of {count} files, but the name does not end in -NNNNN-of-NNNNN.gguf")]
    NotAShardName {
        /// Number of shards by the metadata.
        count: u32,
    },
    /// The shard's own number disagrees with its place.
    #[error("`split.no` is {found}, expected {expected}")]
    SplitNumber {
        /// Number by place or file name, from 0.
        expected: u32,
        /// Number in the metadata.
        found: u32,
    },
    /// The shard's number of files disagrees with the others or with its name.
    #[error("`split.count` is {found}, expected {expected}")]
    SplitCount {
        /// Number of files by the other shards or the file name.
        expected: u32,
        /// Number in the metadata.
        found: u32,
    },
    /// The shards together hold another number of tensors than they claim.
    #[error("`split.tensors.count` is {expected}, but the shards hold {found} tensors")]
    SplitTensorCount {
        /// Number in the metadata.
        expected: u64,
        /// Number found.
        found: u64,
    },
    /// Two shards give one metadata key different values: they are of different models.
    #[error("shard {shard} disagrees with an earlier shard about metadata key `{key}`")]
    SplitConflict {
        /// Index of the later shard, from 0.
        shard: usize,
        /// The key.
        key: String,
    },

    // Writing
    /// Data was offered for a tensor out of turn.
    #[error("data for tensor `{found}` came when {} was due",
        expected.as_ref().map_or_else(|| "none".into(), |name| format!("`{name}`")))]
    OutOfTurn {
        /// The tensor whose data is due, if one is.
        expected: Option<String>,
        /// The tensor whose data was offered.
        found: String,
    },
    /// A tensor got more or fewer bytes than its type and shape take.
    #[error("got {found_bytes} bytes, its type and shape take {expected_bytes}")]
    DataLength {
        /// Size of the tensor.
        expected_bytes: u64,
        /// Bytes offered, or bytes written when the file was finished.
        found_bytes: u64,
    },
    /// An earlier write failed, so what was written is incomplete.
    #[error("an earlier write failed, so the file can't be finished")]
    WriterFailed,
}

impl Error {
    /// The fact itself, without the file and tensor it concerns.
    #[must_use]
    pub fn root(&self) -> &Self {
        match self {
            Self::InFile { problem, .. } | Self::InTensor { problem, .. } => problem.root(),
            fact => fact,
        }
    }

    /// The file concerned, where one is known.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::InFile { path, .. } => Some(path),
            _ => None,
        }
    }

    pub(crate) fn in_file(self, path: &Path) -> Self {
        Self::InFile {
            path: path.to_owned(),
            problem: Box::new(self),
        }
    }

    pub(crate) fn in_tensor(self, name: &str) -> Self {
        Self::InTensor {
            name: name.to_owned(),
            problem: Box::new(self),
        }
    }
}
