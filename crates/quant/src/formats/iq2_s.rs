//! IQ2_S: a codebook of 1024 entries of eight magnitudes, with free signs.
//!
//! Block of 256 weights, 82 bytes: `d` f16, `qs` u8[32], `signs` u8[32], `qh` u8[8], `scales`
//! u8[8]. Eight weights share an index: eight bits in `qs[4 b + l]`, two more in bits `2 l` of
//! `qh[b]`. Scales are as in IQ2_XS.

use bytemuck::{Pod, Zeroable};

use super::codebook::{IQ2S, put_signed};
use super::{F16Le, block_out, scales_non_finite};
use crate::BlockFormat;

/// 2.5625 bits a weight, codebook.
#[derive(Debug, Clone, Copy)]
pub struct IQ2_S;

/// 256 weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIQ2_S {
    /// The scale of scales.
    pub d: F16Le,
    /// Low eight bits of the codebook indices.
    pub qs: [u8; 32],
    /// Signs, one bit a weight.
    pub signs: [u8; 32],
    /// High two bits of the codebook indices, four a byte.
    pub qh: [u8; 8],
    /// The scales of the sixteen runs of 16, two a byte.
    pub scales: [u8; 8],
}

const _: () = assert!(size_of::<BlockIQ2_S>() == 82);

impl BlockFormat for IQ2_S {
    type Block = BlockIQ2_S;
    const NAME: &'static str = "IQ2_S";
    const GGML_TYPE: u32 = 22;
    const BLOCK_LEN: usize = 256;

    fn decode(block: &BlockIQ2_S, out: &mut [f32]) {
        let out: &mut [f32; 256] = block_out(out);
        let d = block.d.to_f32();
        for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let (b, l) = (i / 4, i % 4);
            let index = usize::from(block.qs[i]) | (usize::from((block.qh[b] >> (2 * l)) & 3) << 8);
            let nibble = (block.scales[b] >> (4 * (l / 2))) & 15;
            let scale = d * (0.5 + f32::from(nibble)) * 0.25;
            put_signed(out, scale, &IQ2S[index], block.signs[i]);
        }
    }

    fn first_non_finite(block: &BlockIQ2_S) -> Option<usize> {
        scales_non_finite([block.d])
    }
}
