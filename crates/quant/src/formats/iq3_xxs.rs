//! IQ3_XXS: a codebook of 256 entries of four magnitudes, with signs of even parity.
//!
//! Block of 256 weights, 98 bytes: `d` f16, `qs` u8[64], `scales_and_signs` u32[8]. Run `b` of 32
//! weights has eight codebook indices `qs[8 b ..]` and the word `u` = `scales_and_signs[b]`: its
//! scale is `d * (0.5 + (u >> 28)) * 0.5`, and bits `7 l` are the signs of weights
//! `8 l .. 8 l + 8`.

use bytemuck::{Pod, Zeroable};

use super::codebook::{IQ3XXS, even_signs, put_signed};
use super::{F16Le, block_out, scales_non_finite};
use crate::BlockFormat;

/// 3.0625 bits a weight, codebook.
#[derive(Debug, Clone, Copy)]
pub struct IQ3_XXS;

/// 256 weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIQ3_XXS {
    /// The scale of scales.
    pub d: F16Le,
    /// The codebook indices.
    pub qs: [u8; 64],
    /// A little-endian u32 for each run: four times seven sign bits, then four bits of scale.
    pub scales_and_signs: [[u8; 4]; 8],
}

const _: () = assert!(size_of::<BlockIQ3_XXS>() == 98);

impl BlockFormat for IQ3_XXS {
    type Block = BlockIQ3_XXS;
    const NAME: &'static str = "IQ3_XXS";
    const GGML_TYPE: u32 = 18;
    const BLOCK_LEN: usize = 256;

    fn decode(block: &BlockIQ3_XXS, out: &mut [f32]) {
        let out: &mut [f32; 256] = block_out(out);
        let d = block.d.to_f32();
        for (b, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let word = u32::from_le_bytes(block.scales_and_signs[b]);
            let scale = d * (0.5 + (word >> 28) as f32) * 0.5;
            for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                let signs = even_signs(word >> (7 * l));
                let [first, second] =
                    [0, 1].map(|i| &IQ3XXS[usize::from(block.qs[8 * b + 2 * l + i])]);
                let (out_first, out_second) = out.split_at_mut(4);
                put_signed(block_out(out_first), scale, first, signs);
                put_signed(block_out(out_second), scale, second, signs >> 4);
            }
        }
    }

    fn first_non_finite(block: &BlockIQ3_XXS) -> Option<usize> {
        scales_non_finite([block.d])
    }
}
