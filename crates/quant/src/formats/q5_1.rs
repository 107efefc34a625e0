//! Q5_1: scale, minimum and 32 codes of five bits.
//!
//! Block of 32 weights, 24 bytes: `d` f16, `m` f16, `qh` u32, `qs` u8[16]. Codes lie as in Q5_0;
//! the value is `d * code + m`.

use bytemuck::{Pod, Zeroable};

use super::q5_0::codes;
use super::{F16Le, block_out, scales_non_finite};
use crate::BlockFormat;

/// 6 bits a weight, with an offset.
#[derive(Debug, Clone, Copy)]
pub struct Q5_1;

/// 32 weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ5_1 {
    /// The scale.
    pub d: F16Le,
    /// The offset.
    pub m: F16Le,
    /// Bit 4 of the codes: a little-endian u32, bit `j` for weight `j`.
    pub qh: [u8; 4],
    /// Bits 0 to 3 of the codes, two a byte.
    pub qs: [u8; 16],
}

const _: () = assert!(size_of::<BlockQ5_1>() == 24);

impl BlockFormat for Q5_1 {
    type Block = BlockQ5_1;
    const NAME: &'static str = "Q5_1";
    const GGML_TYPE: u32 = 7;
    const BLOCK_LEN: usize = 32;

    fn decode(block: &BlockQ5_1, out: &mut [f32]) {
        let out: &mut [f32; 32] = block_out(out);
        let (d, m) = (block.d.to_f32(), block.m.to_f32());
        for (out, code) in out.iter_mut().zip(codes(&block.qs, block.qh)) {
            *out = f32::from(code) * d + m;
        }
    }

    fn first_non_finite(block: &BlockQ5_1) -> Option<usize> {
        scales_non_finite([block.d, block.m])
    }
}
