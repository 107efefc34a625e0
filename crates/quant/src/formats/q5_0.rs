//! Q5_0: one signed scale and 32 codes of five bits.
//!
//! Block of 32 weights, 22 bytes: `d` f16, `qh` u32, `qs` u8[16]. The low four bits of a code lie
//! as in Q4_0, bit 4 of code `j` is bit `j` of `qh`; the value is `d * (code - 16)`.

use bytemuck::{Pod, Zeroable};

use super::{F16Le, block_out, scales_non_finite};
use crate::BlockFormat;

/// 5.5 bits a weight, symmetric.
#[derive(Debug, Clone, Copy)]
pub struct Q5_0;

/// 32 weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ5_0 {
    /// The scale; either sign.
    pub d: F16Le,
    /// Bit 4 of the codes: a little-endian u32, bit `j` for weight `j`.
    pub qh: [u8; 4],
    /// Bits 0 to 3 of the codes, two a byte.
    pub qs: [u8; 16],
}

const _: () = assert!(size_of::<BlockQ5_0>() == 22);

impl BlockFormat for Q5_0 {
    type Block = BlockQ5_0;
    const NAME: &'static str = "Q5_0";
    const GGML_TYPE: u32 = 6;
    const BLOCK_LEN: usize = 32;

    fn decode(block: &BlockQ5_0, out: &mut [f32]) {
        let out: &mut [f32; 32] = block_out(out);
        let d = block.d.to_f32();
        for (out, code) in out.iter_mut().zip(codes(&block.qs, block.qh)) {
            *out = (i32::from(code) - 16) as f32 * d;
        }
    }

    fn first_non_finite(block: &BlockQ5_0) -> Option<usize> {
        scales_non_finite([block.d])
    }
}

/// The 32 codes of five bits: nibbles of `qs` below, bits of `qh` on top.
#[inline]
pub(crate) fn codes(qs: &[u8; 16], qh: [u8; 4]) -> [u8; 32] {
    let mut codes = [0; 32];
    let (low, high) = codes.split_at_mut(16);
    for ((low, high), &byte) in low.iter_mut().zip(high).zip(qs) {
        *low = byte & 15;
        *high = byte >> 4;
    }
    for (codes, bits) in codes.as_chunks_mut::<8>().0.iter_mut().zip(qh) {
        for (j, code) in codes.iter_mut().enumerate() {
            *code |= if bits & (1 << j) != 0 { 16 } else { 0 };
        }
    }
    codes
}
