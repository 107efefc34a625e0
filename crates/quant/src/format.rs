//! The seam of the crate: what one block format must say about itself.
//!
//! Owns [`BlockFormat`] and [`for_each_format!`](crate::for_each_format), the one list of formats.
//! Does not own the formats themselves (`formats/`) nor the type-erased face (`quant_type.rs`).
//! Memory: borrowed blocks and caller-owned outputs; nothing is allocated.
//! Invariants: (1) a block has alignment 1, so any byte slice of the right length is a slice of
//! blocks; (2) `BLOCK_LEN` divides [`CHUNK_LEN`], so a dot product by chunks adds in the same order
//! as one over the whole row.

use bytemuck::Pod;

use crate::arch::scalar::Lanes;
use crate::{Error, Result};

/// Elements decoded at a time where a whole row needs no buffer of its own: 1 KiB of stack.
const CHUNK_LEN: usize = 256;

/// One block format of ggml: a fixed number of weights packed into a fixed number of bytes.
///
/// A format is a unit struct with this trait; its bytes are [`BlockFormat::Block`]. Use the trait
/// when the format is known at compile time, [`QuantType`](crate::QuantType) when it comes from a
/// file.
pub trait BlockFormat {
    /// The bytes of one block: `repr(C)`, alignment 1, every bit pattern valid.
    type Block: Pod;
    /// The name as ggml prints it, for example `"Q2_0"`.
    const NAME: &'static str;
    /// The type id in GGUF files.
    const GGML_TYPE: u32;
    /// Weights in a block.
    const BLOCK_LEN: usize;
    /// Whether [`BlockFormat::quantize`] is implemented.
    const CAN_QUANTIZE: bool = false;

    /// Writes the block's `BLOCK_LEN` weights to `out`, bit for bit as ggml's `dequantize_row`.
    ///
    /// Any bytes decode; a scale that is not finite gives NaN or infinite weights.
    ///
    /// # Panics
    /// If `out` does not hold exactly `BLOCK_LEN` elements; the length is the caller's to check, as
    /// [`QuantType::decode_row`](crate::QuantType::decode_row) does.
    fn decode(block: &Self::Block, out: &mut [f32]);

    /// Index within the block of the first weight that decodes to NaN or an infinity.
    ///
    /// # Cost
    /// Looks at the scales alone where the format has them, at every value for float formats.
    fn first_non_finite(block: &Self::Block) -> Option<usize>;

    /// Decodes consecutive blocks: `out` is `[blocks.len() * BLOCK_LEN]`.
    ///
    /// Stops at the end of the shorter of the two.
    fn decode_blocks(blocks: &[Self::Block], out: &mut [f32]) {
        for (block, out) in blocks.iter().zip(out.chunks_exact_mut(Self::BLOCK_LEN)) {
            Self::decode(block, out);
        }
    }

    /// Dot product of a row of blocks with `x` (`[blocks.len() * BLOCK_LEN]`), in f32.
    ///
    /// Equal bit for bit to decoding the row and calling [`dot_f32`](crate::dot_f32). Every faster
    /// kernel is tested against this one. Stops at the end of the shorter of the two.
    fn dot_reference(blocks: &[Self::Block], x: &[f32]) -> f32 {
        const { assert!(CHUNK_LEN.is_multiple_of(Self::BLOCK_LEN)) };
        let mut lanes = Lanes::default();
        let mut chunk = [0.0; CHUNK_LEN];
        for (blocks, x) in blocks
            .chunks(CHUNK_LEN / Self::BLOCK_LEN)
            .zip(x.chunks(CHUNK_LEN))
        {
            let decoded = &mut chunk[..blocks.len() * Self::BLOCK_LEN];
            Self::decode_blocks(blocks, decoded);
            lanes.add_products(decoded, x);
        }
        lanes.sum()
    }

    /// Quantizes `BLOCK_LEN` values into `block`, with the same bytes as llama.cpp's reference
    /// quantizer of the format.
    ///
    /// # Errors
    /// [`Error::NoQuantizer`] unless `CAN_QUANTIZE`; [`Error::ElementCount`] if `values` is not one
    /// block; [`Error::NonFinite`] or [`Error::OutOfRange`] with the index within the block. On an
    /// error `block` is unchanged.
    fn quantize(values: &[f32], block: &mut Self::Block) -> Result<()> {
        let _ = (values, block);
        Err(Error::NoQuantizer { format: Self::NAME })
    }
}

/// Calls a macro with the list of formats: `callback! { (Q8_0, q8_0), (Q4_0, q4_0), ... }`.
///
/// Each pair is the name of the unit struct in [`formats`](crate::formats), which is also the name
/// of the [`QuantType`](crate::QuantType) variant, and its module. Whatever must exist once per
/// format (an enum, a dispatch table, tests, benches) is stamped from this list, so a new format is
/// one file in `formats/` and one line here. The order is that of the ggml ids.
///
/// ```
/// macro_rules! names {
///     ($(($name:ident, $module:ident)),+ $(,)?) => { [$(stringify!($name)),+] };
/// }
/// assert!(thalweg_quant::for_each_format!(names).contains(&"Q2_0"));
/// ```
#[macro_export]
macro_rules! for_each_format {
    ($callback:ident) => {
        $callback! {
            (F32, f32),
            (F16, f16),
            (Q4_0, q4_0),
            (Q4_1, q4_1),
            (Q5_0, q5_0),
            (Q5_1, q5_1),
            (Q8_0, q8_0),
            (Q2_K, q2_k),
            (Q3_K, q3_k),
            (Q4_K, q4_k),
            (Q5_K, q5_k),
            (Q6_K, q6_k),
            (IQ2_XXS, iq2_xxs),
            (IQ2_XS, iq2_xs),
            (IQ3_XXS, iq3_xxs),
            (IQ1_S, iq1_s),
            (IQ4_NL, iq4_nl),
            (IQ3_S, iq3_s),
            (IQ2_S, iq2_s),
            (IQ4_XS, iq4_xs),
            (IQ1_M, iq1_m),
            (BF16, bf16),
            (TQ1_0, tq1_0),
            (TQ2_0, tq2_0),
            (MXFP4, mxfp4),
            (Q1_0, q1_0),
            (Q2_0, q2_0),
        }
    };
}
