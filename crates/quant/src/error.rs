//! The crate's one error type.
//!
//! Owns: what can go wrong with a row, as facts a caller can print or act on. Element indices count
//! from the start of the slice that the failing call was given.

/// The result of this crate's fallible calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a row could not be read or written.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The number of elements is not a whole number of blocks.
    #[error(
        "{format} has blocks of {block_len} elements, which does not divide a row of {n_elements}"
    )]
    PartialBlock {
        /// Name of the block format.
        format: &'static str,
        /// Elements in a block.
        block_len: usize,
        /// Elements asked for.
        n_elements: usize,
    },
    /// The number of bytes is not a whole number of blocks.
    #[error(
        "{format} has blocks of {block_bytes} bytes, which does not divide {found_bytes} bytes"
    )]
    PartialBlockBytes {
        /// Name of the block format.
        format: &'static str,
        /// Bytes in a block.
        block_bytes: usize,
        /// Bytes given.
        found_bytes: usize,
    },
    /// The bytes of the row are too many or too few for its elements.
    #[error(
        "a {format} row of {n_elements} elements is {expected_bytes} bytes, found {found_bytes}"
    )]
    ByteLength {
        /// Name of the block format.
        format: &'static str,
        /// Elements in the row.
        n_elements: usize,
        /// Bytes that so many elements take.
        expected_bytes: usize,
        /// Bytes given.
        found_bytes: usize,
    },
    /// A slice of elements does not have the length of the row.
    #[error("a {format} row of {expected} elements was given a slice of {found}")]
    ElementCount {
        /// Name of the block format.
        format: &'static str,
        /// Elements in the row (or block).
        expected: usize,
        /// Elements given.
        found: usize,
    },
    /// The format has no kernel for vectors of eight bits.
    #[error("{format} has no integer kernel; multiply it with f32 vectors")]
    NoIntegerKernel {
        /// Name of the block format.
        format: &'static str,
    },
    /// Vectors of eight bits were quantized for another kind of format, or for rows of another
    /// length, or are fewer than asked for.
    #[error("{format} rows of {n_elements} elements cannot meet these vectors of {found}")]
    Q8Vectors {
        /// Name of the block format.
        format: &'static str,
        /// Elements of a row.
        n_elements: usize,
        /// Elements of a vector.
        found: usize,
    },
    /// The size of the row in bytes does not fit a `usize`.
    #[error("a {format} row of {n_elements} elements is larger than the address space")]
    RowTooLarge {
        /// Name of the block format.
        format: &'static str,
        /// Elements asked for.
        n_elements: usize,
    },
    /// A value to quantize is NaN or infinite.
    #[error("cannot quantize to {format}: element {index} is {value}")]
    NonFinite {
        /// Name of the block format.
        format: &'static str,
        /// Index of the first such element.
        index: usize,
        /// The value found there.
        value: f32,
    },
    /// An importance weight is NaN, infinite or negative.
    #[error(
        "cannot quantize to {format}: the importance of element {index} is {value}; it must be \
         finite and not negative"
    )]
    Importance {
        /// Name of the block format.
        format: &'static str,
        /// Index of the first such element.
        index: usize,
        /// The weight found there.
        value: f32,
    },
    /// A second moment of activations is NaN, infinite or negative.
    #[error("second moment {index} is {value}; it must be finite and not negative")]
    Moment {
        /// Index of the first such moment.
        index: usize,
        /// The moment found there.
        value: f64,
    },
    /// Slices of moments, weights or rows do not belong together.
    #[error("expected {expected} elements to go with the second moments, found {found}")]
    MomentCount {
        /// Elements that the other slices ask for.
        expected: usize,
        /// Elements given.
        found: usize,
    },
    /// The exponent of tempering is NaN, infinite or negative.
    #[error("cannot temper with the exponent {value}; it must be finite and not negative")]
    Exponent {
        /// The exponent given.
        value: f64,
    },
    /// A finite value is too large: its code or its block's scale would become infinite.
    #[error("cannot quantize to {format}: element {index} is {value}, beyond the format's range")]
    OutOfRange {
        /// Name of the block format.
        format: &'static str,
        /// Index of the element.
        index: usize,
        /// The value found there.
        value: f32,
    },
    /// The format can be read but not written.
    #[error("{format} has no quantizer in this crate; decode only")]
    NoQuantizer {
        /// Name of the block format.
        format: &'static str,
    },
    /// No block format has this name.
    #[error("unknown quant type name {name:?}; the known ones are in QuantType::ALL")]
    UnknownName {
        /// The name that was looked up.
        name: String,
    },
}

impl Error {
    /// The same error with element indices moved by `base`, for a caller that went block by block.
    pub(crate) fn offset_by(mut self, base: usize) -> Self {
        if let Self::NonFinite { index, .. } | Self::OutOfRange { index, .. } = &mut self {
            *index += base;
        }
        self
    }
}
