//! IQ2_XS: a codebook of 512 entries of eight magnitudes, with signs of even parity.
//!
//! Block of 256 weights, 74 bytes: `d` f16, `qs` u16[32], `scales` u8[8]. Each u16 stands for 8
//! weights: nine bits of codebook index, then seven of signs. Run `b` of 32 weights has the scale
//! `d * (0.5 + s) * 0.25`, where `s` is the low nibble of `scales[b]` for its first 16 weights and
//! the high one for the rest.

use bytemuck::{Pod, Zeroable};

use super::codebook::{IQ2XS, even_signs, put_signed};
use super::{F16Le, block_out, scales_non_finite};
use crate::BlockFormat;

/// 2.3125 bits a weight, codebook.
#[derive(Debug, Clone, Copy)]
pub struct IQ2_XS;

/// 256 weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIQ2_XS {
    /// The scale of scales.
    pub d: F16Le,
    /// Little-endian u16 for each 8 weights: index and signs.
    pub qs: [[u8; 2]; 32],
    /// The scales of the sixteen runs of 16, two a byte.
    pub scales: [u8; 8],
}

const _: () = assert!(size_of::<BlockIQ2_XS>() == 74);

impl BlockFormat for IQ2_XS {
    type Block = BlockIQ2_XS;
    const NAME: &'static str = "IQ2_XS";
    const GGML_TYPE: u32 = 17;
    const BLOCK_LEN: usize = 256;

    fn decode(block: &BlockIQ2_XS, out: &mut [f32]) {
        let out: &mut [f32; 256] = block_out(out);
        let d = block.d.to_f32();
        for (i, (out, &q)) in out
            .as_chunks_mut::<8>()
            .0
            .iter_mut()
            .zip(&block.qs)
            .enumerate()
        {
            let q = u16::from_le_bytes(q);
            let nibble = (block.scales[i / 4] >> (4 * (i / 2 % 2))) & 15;
            let scale = d * (0.5 + f32::from(nibble)) * 0.25;
            put_signed(
                out,
                scale,
                &IQ2XS[usize::from(q & 511)],
                even_signs(u32::from(q >> 9)),
            );
        }
    }

    fn first_non_finite(block: &BlockIQ2_XS) -> Option<usize> {
        scales_non_finite([block.d])
    }
}
