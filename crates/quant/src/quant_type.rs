//! Formats as values: the enum that a file's type id becomes.
//!
//! Owns [`QuantType`] and the table that leads from it to the code of a format; both are generated
//! from [`for_each_format!`](crate::for_each_format). Does not know GGUF: a type is its ggml id.
//! Memory: caller's slices only; sources and destinations need no alignment.
//! Invariants: (1) `TABLE[t as usize]` belongs to `t`; (2) lengths are checked before any block is
//! touched, so no byte slice whatever makes a call panic.
//! Cost: one indirect call a row, then the format's own loop.

use std::fmt;
use std::str::FromStr;

use bytemuck::PodCastError;

use crate::{BlockFormat, Error, Kernels, Result, for_each_format, formats};

macro_rules! define_quant_type {
    ($(($name:ident, $module:ident)),+ $(,)?) => {
        /// A block format, named as ggml names it.
        ///
        /// Every fallible call checks lengths first; a row of no elements is accepted as empty.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        #[expect(non_camel_case_types, reason = "users search for ggml's own names")]
        pub enum QuantType {
            $(
                #[doc = concat!("The format [`formats::", stringify!($name), "`].")]
                $name,
            )+
        }

        impl QuantType {
            /// Every format, in the order of [`for_each_format!`].
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// The format with this ggml type id, if this crate knows it.
            ///
            /// Unknown ids (integer types, removed types, ids private to a fork) are `None`; none
            /// is ever taken for another.
            #[must_use]
            pub const fn from_ggml(id: u32) -> Option<Self> {
                match id {
                    $(<formats::$name as BlockFormat>::GGML_TYPE => Some(Self::$name),)+
                    _ => None,
                }
            }
        }

        const TABLE: &[Entry] = &[$(Entry::of::<formats::$name>()),+];
    };
}

for_each_format!(define_quant_type);

impl QuantType {
    /// The ggml type id, as GGUF files store it.
    #[must_use]
    pub fn ggml_type(self) -> u32 {
        self.entry().ggml_type
    }

    /// The name as ggml prints it, for example `"Q2_0"`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.entry().name
    }

    /// The format with this name, whatever the case of its letters.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|format| format.name().eq_ignore_ascii_case(name))
    }

    /// Weights in a block.
    #[must_use]
    pub fn block_len(self) -> usize {
        self.entry().block_len
    }

    /// Bytes in a block.
    #[must_use]
    pub fn block_bytes(self) -> usize {
        self.entry().block_bytes
    }

    /// Storage cost of a weight, scales included.
    #[must_use]
    pub fn bits_per_weight(self) -> f64 {
        // Both are at most a few hundred: exact.
        (self.block_bytes() * 8) as f64 / self.block_len() as f64
    }

    /// Bytes of a row of `n_elements` weights.
    ///
    /// # Errors
    /// [`Error::PartialBlock`] if the block length does not divide `n_elements`;
    /// [`Error::RowTooLarge`] if the result does not fit a `usize`.
    pub fn row_bytes(self, n_elements: usize) -> Result<usize> {
        let entry = self.entry();
        if !n_elements.is_multiple_of(entry.block_len) {
            return Err(Error::PartialBlock {
                format: entry.name,
                block_len: entry.block_len,
                n_elements,
            });
        }
        (n_elements / entry.block_len)
            .checked_mul(entry.block_bytes)
            .ok_or(Error::RowTooLarge {
                format: entry.name,
                n_elements,
            })
    }

    /// Decodes a row: `src` holds `out.len()` weights; `out` is `[n]`, f32.
    ///
    /// Bit for bit what ggml's `dequantize_row` of the type gives (NaN payloads aside). Any bytes
    /// decode; check them with [`QuantType::first_non_finite`].
    ///
    /// # Errors
    /// As [`QuantType::row_bytes`] of `out.len()`; [`Error::ByteLength`] if `src` has another
    /// length. `out` is then unchanged.
    ///
    /// # Cost
    /// No allocation; one pass over `src` and `out`.
    pub fn decode_row(self, src: &[u8], out: &mut [f32]) -> Result<()> {
        Kernels::best().decode_row(self, src, out)
    }

    /// Dot product of a row with `x` (`[n]`) in f32, with the bits of
    /// [`BlockFormat::dot_reference`].
    ///
    /// # Errors
    /// As [`QuantType::decode_row`], with the length of `x`.
    ///
    /// # Cost
    /// No allocation; see [`Kernels::matmul`], which takes many rows at once.
    pub fn dot_row(self, src: &[u8], x: &[f32]) -> Result<f32> {
        Kernels::best().dot_row(self, src, x)
    }

    /// Index of the first weight of a row that decodes to NaN or an infinity.
    ///
    /// # Errors
    /// [`Error::PartialBlockBytes`] if `src` is not a whole number of blocks.
    ///
    /// # Cost
    /// Reads the scales alone for formats that have them.
    pub fn first_non_finite(self, src: &[u8]) -> Result<Option<usize>> {
        (self.entry().first_non_finite)(src)
    }

    /// Whether [`QuantType::quantize_row`] can write this format.
    #[must_use]
    pub fn can_quantize(self) -> bool {
        self.entry().can_quantize
    }

    /// Quantizes `src` (`[n]`, f32) into `out`, with the bytes of llama.cpp's reference quantizer.
    ///
    /// # Errors
    /// [`Error::NoQuantizer`] unless [`QuantType::can_quantize`]; length errors as
    /// [`QuantType::decode_row`]; [`Error::NonFinite`] for a NaN or an infinity and
    /// [`Error::OutOfRange`] for a finite value that the format cannot hold, both with the index in
    /// `src`. Blocks before the one at fault are then already written.
    pub fn quantize_row(self, src: &[f32], out: &mut [u8]) -> Result<()> {
        let entry = self.entry();
        if !entry.can_quantize {
            return Err(Error::NoQuantizer { format: entry.name });
        }
        self.check_row(out.len(), src.len())?;
        (entry.quantize)(src, out)
    }

    /// Checks that `found_bytes` bytes are a row of `n_elements`.
    pub(crate) fn check_row(self, found_bytes: usize, n_elements: usize) -> Result<()> {
        let expected_bytes = self.row_bytes(n_elements)?;
        if found_bytes == expected_bytes {
            return Ok(());
        }
        Err(Error::ByteLength {
            format: self.name(),
            n_elements,
            expected_bytes,
            found_bytes,
        })
    }

    /// Checks that `found_bytes` bytes are `n_rows` rows of `n_elements`.
    pub(crate) fn check_rows(
        self,
        found_bytes: usize,
        n_elements: usize,
        n_rows: usize,
    ) -> Result<()> {
        let expected_bytes = self.row_bytes(n_elements)?.saturating_mul(n_rows);
        if found_bytes == expected_bytes {
            return Ok(());
        }
        Err(Error::ByteLength {
            format: self.name(),
            n_elements: n_elements.saturating_mul(n_rows),
            expected_bytes,
            found_bytes,
        })
    }

    /// Decodes a row whose lengths agree with the format's own portable code.
    pub(crate) fn decode_reference(self, src: &[u8], out: &mut [f32]) -> Result<()> {
        (self.entry().decode)(src, out)
    }

    /// Checks that a slice of `found` elements fits a row of `expected`.
    pub(crate) fn check_elements(self, expected: usize, found: usize) -> Result<()> {
        if found == expected {
            return Ok(());
        }
        Err(Error::ElementCount {
            format: self.name(),
            expected,
            found,
        })
    }

    fn entry(self) -> &'static Entry {
        &TABLE[self as usize]
    }
}

impl fmt::Display for QuantType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for QuantType {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::from_name(name).ok_or_else(|| Error::UnknownName {
            name: name.to_owned(),
        })
    }
}

/// What [`QuantType`] knows of a format, and the way to its code.
struct Entry {
    name: &'static str,
    ggml_type: u32,
    block_len: usize,
    block_bytes: usize,
    can_quantize: bool,
    decode: fn(&[u8], &mut [f32]) -> Result<()>,
    first_non_finite: fn(&[u8]) -> Result<Option<usize>>,
    quantize: fn(&[f32], &mut [u8]) -> Result<()>,
}

impl Entry {
    const fn of<F: BlockFormat>() -> Self {
        const { assert!(align_of::<F::Block>() == 1) };
        Self {
            name: F::NAME,
            ggml_type: F::GGML_TYPE,
            block_len: F::BLOCK_LEN,
            block_bytes: size_of::<F::Block>(),
            can_quantize: F::CAN_QUANTIZE,
            decode: decode::<F>,
            first_non_finite: first_non_finite::<F>,
            quantize: quantize::<F>,
        }
    }
}

fn decode<F: BlockFormat>(src: &[u8], out: &mut [f32]) -> Result<()> {
    F::decode_blocks(blocks_of::<F>(src)?, out);
    Ok(())
}

fn first_non_finite<F: BlockFormat>(src: &[u8]) -> Result<Option<usize>> {
    let blocks = blocks_of::<F>(src)?;
    Ok(blocks
        .iter()
        .enumerate()
        .find_map(|(i, block)| Some(i * F::BLOCK_LEN + F::first_non_finite(block)?)))
}

fn quantize<F: BlockFormat>(src: &[f32], out: &mut [u8]) -> Result<()> {
    let found_bytes = out.len();
    let blocks: &mut [F::Block] =
        bytemuck::try_cast_slice_mut(out).map_err(|error| cast_error::<F>(error, found_bytes))?;
    for (i, (block, values)) in blocks
        .iter_mut()
        .zip(src.chunks_exact(F::BLOCK_LEN))
        .enumerate()
    {
        F::quantize(values, block).map_err(|error| error.offset_by(i * F::BLOCK_LEN))?;
    }
    Ok(())
}

fn blocks_of<F: BlockFormat>(src: &[u8]) -> Result<&[F::Block]> {
    bytemuck::try_cast_slice(src).map_err(|error| cast_error::<F>(error, src.len()))
}

/// Blocks have alignment 1, so the length is all that a cast can fail on.
fn cast_error<F: BlockFormat>(error: PodCastError, found_bytes: usize) -> Error {
    debug_assert_ne!(
        error,
        PodCastError::TargetAlignmentGreaterAndInputNotAligned
    );
    Error::PartialBlockBytes {
        format: F::NAME,
        block_bytes: size_of::<F::Block>(),
        found_bytes,
    }
}
