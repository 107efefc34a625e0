//! IQ4_NL: one scale and 32 codes into a fixed, uneven set of sixteen levels.
//!
//! Block of 32 weights, 18 bytes: `d` f16, `qs` u8[16]. Weight `j < 16` takes the low nibble of
//! `qs[j]`, weight `j + 16` the high one; its value is `d * level[code]`.

use bytemuck::{Pod, Zeroable};

use super::codebook::LEVELS_IQ4;
use super::{F16Le, block_out, scales_non_finite};
use crate::BlockFormat;

/// 4.5 bits a weight, levels denser near zero.
#[derive(Debug, Clone, Copy)]
pub struct IQ4_NL;

/// 32 weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIQ4_NL {
    /// The scale; either sign.
    pub d: F16Le,
    /// The codes, two a byte.
    pub qs: [u8; 16],
}

const _: () = assert!(size_of::<BlockIQ4_NL>() == 18);

impl BlockFormat for IQ4_NL {
    type Block = BlockIQ4_NL;
    const NAME: &'static str = "IQ4_NL";
    const GGML_TYPE: u32 = 20;
    const BLOCK_LEN: usize = 32;

    #[inline]
    fn decode(block: &BlockIQ4_NL, out: &mut [f32]) {
        put_levels(block_out(out), block.d.to_f32(), &block.qs);
    }

    fn first_non_finite(block: &BlockIQ4_NL) -> Option<usize> {
        scales_non_finite([block.d])
    }
}

/// Writes `scale * level` for 32 codes: low nibbles first, then high ones.
#[inline]
pub(super) fn put_levels(out: &mut [f32; 32], scale: f32, qs: &[u8; 16]) {
    // Sixteen products here save thirty-two conversions below.
    let levels = LEVELS_IQ4.map(|level| scale * f32::from(level));
    let (low, high) = out.split_at_mut(16);
    for ((low, high), &byte) in low.iter_mut().zip(high).zip(qs) {
        *low = levels[usize::from(byte & 15)];
        *high = levels[usize::from(byte >> 4)];
    }
}
