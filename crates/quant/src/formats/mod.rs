//! The formats, one file each, and the few things that they share.
//!
//! A file owns the bytes of one block (`BlockX`, little endian, alignment 1), its decode and, where
//! there is one, its quantizer. Every file is in the list of
//! [`for_each_format!`](crate::for_each_format).
//! Layouts and values follow llama.cpp (`ggml-common.h`, `ggml-quants.c`).
//! Invariants: (1) decode performs the f32 operations of ggml in ggml's order, so results are equal
//! bit for bit; (2) no bit pattern of a block makes decode fail.

#![expect(non_camel_case_types, reason = "users search for ggml's own names")]

pub(crate) mod codebook;
mod grids;

mod bf16;
mod f16;
mod f32;
mod iq1_m;
mod iq1_s;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;
mod iq4_nl;
mod iq4_xs;
mod mxfp4;
mod q1_0;
mod q2_0;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod tq1_0;
mod tq2_0;

pub use bf16::{BF16, BlockBF16};
pub use f16::{BlockF16, F16};
pub use f32::{BlockF32, F32};
pub use iq1_m::{BlockIQ1_M, IQ1_M};
pub use iq1_s::{BlockIQ1_S, IQ1_S};
pub use iq2_s::{BlockIQ2_S, IQ2_S};
pub use iq2_xs::{BlockIQ2_XS, IQ2_XS};
pub use iq2_xxs::{BlockIQ2_XXS, IQ2_XXS};
pub use iq3_s::{BlockIQ3_S, IQ3_S};
pub use iq3_xxs::{BlockIQ3_XXS, IQ3_XXS};
pub use iq4_nl::{BlockIQ4_NL, IQ4_NL};
pub use iq4_xs::{BlockIQ4_XS, IQ4_XS};
pub use mxfp4::{BlockMXFP4, MXFP4};
pub use q1_0::{BlockQ1_0, Q1_0};
pub use q2_0::{BlockQ2_0, Q2_0};
pub use q2_k::{BlockQ2_K, Q2_K};
pub use q3_k::{BlockQ3_K, Q3_K};
pub use q4_0::{BlockQ4_0, Q4_0};
pub use q4_1::{BlockQ4_1, Q4_1};
pub use q4_k::{BlockQ4_K, Q4_K};
pub use q5_0::{BlockQ5_0, Q5_0};
pub use q5_1::{BlockQ5_1, Q5_1};
pub use q5_k::{BlockQ5_K, Q5_K};
pub use q6_k::{BlockQ6_K, Q6_K};
pub use q8_0::{BlockQ8_0, Q8_0};
pub use tq1_0::{BlockTQ1_0, TQ1_0};
pub use tq2_0::{BlockTQ2_0, TQ2_0};

pub(crate) use mxfp4::{LEVELS as LEVELS_MXFP4, scale as scale_mxfp4};
pub(crate) use q3_k::scales as scales_q3_k;
pub(crate) use q4_k::scales_and_mins;
pub(crate) use q5_0::codes as codes_q5;

use bytemuck::{Pod, Zeroable};

use crate::arch::scalar::f16_to_f32;
use crate::{BlockFormat, Error, Result};

/// An IEEE half as two little-endian bytes: the scale of most formats, with alignment 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct F16Le([u8; 2]);

impl F16Le {
    /// The half with these bits.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits.to_le_bytes())
    }

    /// The nearest half, ties to even; values of 65520 and more become infinite.
    #[must_use]
    pub fn from_f32(value: f32) -> Self {
        Self::from_bits(half::f16::from_f32(value).to_bits())
    }

    /// The bits of the half.
    #[must_use]
    pub const fn to_bits(self) -> u16 {
        u16::from_le_bytes(self.0)
    }

    /// The value, exactly.
    #[must_use]
    #[inline]
    pub fn to_f32(self) -> f32 {
        f16_to_f32(self.to_bits())
    }

    /// Whether the value is neither infinite nor NaN.
    #[must_use]
    #[inline]
    pub const fn is_finite(self) -> bool {
        self.to_bits() & 0x7c00 != 0x7c00
    }
}

/// The answer of `first_non_finite` for a format whose every weight is a multiple of these scales
/// (or such a multiple plus one): a scale that is infinite or NaN spoils all weights of the block,
/// because zero times infinity is NaN, and finite scales cannot overflow an f32.
fn scales_non_finite<const N: usize>(scales: [F16Le; N]) -> Option<usize> {
    scales.iter().any(|scale| !scale.is_finite()).then_some(0)
}

/// The output of one block as an array, which lets the compiler drop bounds checks.
#[inline]
fn block_out<const N: usize>(out: &mut [f32]) -> &mut [f32; N] {
    out.try_into()
        .expect("out holds exactly one block, as BlockFormat::decode demands")
}

/// The input of one block as an array, all of it finite.
fn block_in<F: BlockFormat, const N: usize>(values: &[f32]) -> Result<&[f32; N]> {
    let found = values.len();
    let block: &[f32; N] = values.try_into().map_err(|_| Error::ElementCount {
        format: F::NAME,
        expected: N,
        found,
    })?;
    match block.iter().position(|value| !value.is_finite()) {
        Some(index) => Err(Error::NonFinite {
            format: F::NAME,
            index,
            value: block[index],
        }),
        None => Ok(block),
    }
}

/// The first element of largest magnitude: its index and its value, sign kept.
fn extreme<const N: usize>(values: &[f32; N]) -> (usize, f32) {
    let mut index = 0;
    for (i, value) in values.iter().enumerate() {
        if value.abs() > values[index].abs() {
            index = i;
        }
    }
    (index, values[index])
}

/// The scale as the half that is stored, and its reciprocal from the unrounded f32, as ggml takes
/// it. `None` if the half is infinite.
///
/// The reciprocal is 0 for a zero scale, and also where 1/scale overflows (below 2^-128), for which
/// ggml's result is undefined: such a scale is stored as zero, so every code decodes to zero.
fn scale_and_inverse(scale: f32) -> Option<(F16Le, f32)> {
    let stored = F16Le::from_f32(scale);
    let inverse = 1.0 / scale;
    stored
        .is_finite()
        .then_some((stored, if inverse.is_finite() { inverse } else { 0.0 }))
}
