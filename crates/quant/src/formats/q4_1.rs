//! Q4_1: scale, minimum and 32 codes of four bits.
//!
//! Block of 32 weights, 20 bytes: `d` f16, `m` f16, `qs` u8[16]. Weight `j < 16` takes the low
//! nibble of `qs[j]`, weight `j + 16` the high one; its value is `d * code + m`.

use bytemuck::{Pod, Zeroable};

use super::{F16Le, block_out, scales_non_finite};
use crate::BlockFormat;

/// 5 bits a weight, with an offset.
#[derive(Debug, Clone, Copy)]
pub struct Q4_1;

/// 32 weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ4_1 {
    /// The scale.
    pub d: F16Le,
    /// The offset.
    pub m: F16Le,
    /// The codes, two a byte.
    pub qs: [u8; 16],
}

const _: () = assert!(size_of::<BlockQ4_1>() == 20);

impl BlockFormat for Q4_1 {
    type Block = BlockQ4_1;
    const NAME: &'static str = "Q4_1";
    const GGML_TYPE: u32 = 3;
    const BLOCK_LEN: usize = 32;

    fn decode(block: &BlockQ4_1, out: &mut [f32]) {
        let out: &mut [f32; 32] = block_out(out);
        let (low, high) = out.split_at_mut(16);
        let (d, m) = (block.d.to_f32(), block.m.to_f32());
        for ((low, high), &byte) in low.iter_mut().zip(high).zip(&block.qs) {
            *low = f32::from(byte & 15) * d + m;
            *high = f32::from(byte >> 4) * d + m;
        }
    }

    fn first_non_finite(block: &BlockQ4_1) -> Option<usize> {
        scales_non_finite([block.d, block.m])
    }
}
