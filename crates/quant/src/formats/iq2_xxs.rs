//! IQ2_XXS: a codebook of 256 entries of eight magnitudes, with signs of even parity.
//!
//! Block of 256 weights, 66 bytes: `d` f16, `qs` 8 pairs of u32. Run `b` of 32 weights has the
//! pair `lo`, `hi`: byte `l` of `lo` is the codebook index of weights `8 l .. 8 l + 8`, bits `7 l`
//! of `hi` their signs, and the scale is `d * (0.5 + (hi >> 28)) * 0.25`.

use bytemuck::{Pod, Zeroable};

use super::codebook::{IQ2XXS, even_signs, put_signed};
use super::{F16Le, block_out, scales_non_finite};
use crate::BlockFormat;

/// 2.0625 bits a weight, codebook.
#[derive(Debug, Clone, Copy)]
pub struct IQ2_XXS;

/// 256 weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIQ2_XXS {
    /// The scale of scales.
    pub d: F16Le,
    /// For each run: four codebook indices, then a little-endian u32 of four times seven sign
    /// bits and four bits of scale.
    pub qs: [[u8; 8]; 8],
}

const _: () = assert!(size_of::<BlockIQ2_XXS>() == 66);

impl BlockFormat for IQ2_XXS {
    type Block = BlockIQ2_XXS;
    const NAME: &'static str = "IQ2_XXS";
    const GGML_TYPE: u32 = 16;
    const BLOCK_LEN: usize = 256;

    fn decode(block: &BlockIQ2_XXS, out: &mut [f32]) {
        let out: &mut [f32; 256] = block_out(out);
        let d = block.d.to_f32();
        for (qs, out) in block.qs.iter().zip(out.as_chunks_mut::<32>().0) {
            let &[i0, i1, i2, i3, w0, w1, w2, w3] = qs;
            let word = u32::from_le_bytes([w0, w1, w2, w3]);
            let (eights, _) = out.as_chunks_mut::<8>();
            let scale = d * (0.5 + (word >> 28) as f32) * 0.25;
            for (l, index) in [i0, i1, i2, i3].into_iter().enumerate() {
                let signs = even_signs(word >> (7 * l));
                put_signed(&mut eights[l], scale, &IQ2XXS[usize::from(index)], signs);
            }
        }
    }

    fn first_non_finite(block: &BlockIQ2_XXS) -> Option<usize> {
        scales_non_finite([block.d])
    }
}
