//! IQ3_S: a codebook of 512 entries of four magnitudes, with free signs.
//!
//! Block of 256 weights, 110 bytes: `d` f16, `qs` u8[64], `qh` u8[8], `signs` u8[32], `scales`
//! u8[4]. Run `b` of 32 weights has the scale `d * (1 + 2 s)`, `s` being nibble `b` of `scales`,
//! and eight codebook indices: eight bits in `qs[8 b + i]`, the ninth in bit `i` of `qh[b]`.

use bytemuck::{Pod, Zeroable};

use super::codebook::{IQ3S, put_signed};
use super::{F16Le, block_out, scales_non_finite};
use crate::BlockFormat;

/// 3.4375 bits a weight, codebook.
#[derive(Debug, Clone, Copy)]
pub struct IQ3_S;

/// 256 weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIQ3_S {
    /// The scale of scales.
    pub d: F16Le,
    /// Low eight bits of the codebook indices.
    pub qs: [u8; 64],
    /// Ninth bits of the codebook indices.
    pub qh: [u8; 8],
    /// Signs, one bit a weight.
    pub signs: [u8; 32],
    /// Scales of the eight runs, two a byte.
    pub scales: [u8; 4],
}

const _: () = assert!(size_of::<BlockIQ3_S>() == 110);

impl BlockIQ3_S {
    /// The factor of `d` in run `run` of 32 weights.
    #[inline]
    pub(crate) fn scale(&self, run: usize) -> f32 {
        let nibble = (self.scales[run / 2] >> (4 * (run % 2))) & 15;
        f32::from(1 + 2 * nibble)
    }

    /// The codebook index of four weights: entry `i` of run `run`.
    #[inline]
    pub(crate) fn index(&self, run: usize, i: usize) -> usize {
        let ninth = (usize::from(self.qh[run]) >> i) & 1;
        usize::from(self.qs[8 * run + i]) | (ninth << 8)
    }
}

impl BlockFormat for IQ3_S {
    type Block = BlockIQ3_S;
    const NAME: &'static str = "IQ3_S";
    const GGML_TYPE: u32 = 21;
    const BLOCK_LEN: usize = 256;

    fn decode(block: &BlockIQ3_S, out: &mut [f32]) {
        let out: &mut [f32; 256] = block_out(out);
        let d = block.d.to_f32();
        for (b, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let scale = d * block.scale(b);
            for (i, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let signs = block.signs[4 * b + i / 2] >> (4 * (i % 2));
                put_signed(out, scale, &IQ3S[block.index(b, i)], signs);
            }
        }
    }

    fn first_non_finite(block: &BlockIQ3_S) -> Option<usize> {
        scales_non_finite([block.d])
    }
}
