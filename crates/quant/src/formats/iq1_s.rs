//! IQ1_S: a codebook of 2048 entries of eight ternary values, shifted by an eighth.
//!
//! Block of 256 weights, 50 bytes: `d` f16, `qs` u8[32], `qh` u16[8]. Run `b` of 32 weights has
//! `u` = `qh[b]`: its scale is `d * (2 s + 1)` with `s` in bits 12 to 14, its shift 1/8, negative
//! where bit 15 is set. Eight weights share an index: eight bits in `qs[4 b + l]`, three more in
//! bits `3 l` of `u`. The value is `scale * (entry + shift)`.

use bytemuck::{Pod, Zeroable};

use super::codebook::{IQ1S, put_shifted};
use super::{F16Le, block_out, scales_non_finite};
use crate::BlockFormat;

/// 1.5625 bits a weight, codebook.
#[derive(Debug, Clone, Copy)]
pub struct IQ1_S;

/// 256 weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIQ1_S {
    /// The scale of scales.
    pub d: F16Le,
    /// Low eight bits of the codebook indices.
    pub qs: [u8; 32],
    /// A little-endian u16 for each run: high bits of four indices, scale, sign of the shift.
    pub qh: [[u8; 2]; 8],
}

const _: () = assert!(size_of::<BlockIQ1_S>() == 50);

impl BlockFormat for IQ1_S {
    type Block = BlockIQ1_S;
    const NAME: &'static str = "IQ1_S";
    const GGML_TYPE: u32 = 19;
    const BLOCK_LEN: usize = 256;

    fn decode(block: &BlockIQ1_S, out: &mut [f32]) {
        let out: &mut [f32; 256] = block_out(out);
        let d = block.d.to_f32();
        for (b, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let word = u16::from_le_bytes(block.qh[b]);
            let scale = d * f32::from(2 * ((word >> 12) & 7) + 1);
            let shift = if word & 0x8000 != 0 { -0.125 } else { 0.125 };
            for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                let high = usize::from((word >> (3 * l)) & 7);
                let index = usize::from(block.qs[4 * b + l]) | (high << 8);
                put_shifted(out, scale, &IQ1S[index], shift);
            }
        }
    }

    fn first_non_finite(block: &BlockIQ1_S) -> Option<usize> {
        scales_non_finite([block.d])
    }
}
