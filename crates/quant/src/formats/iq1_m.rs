//! IQ1_M: the codebook of IQ1_S with scales for runs of 16 and a shift for each entry.
//!
//! Block of 256 weights, 56 bytes: `qs` u8[32], `qh` u8[16], `scales` u16[4]. The top nibbles of
//! the four `scales` are the f16 `d`, lowest first; below them lie sixteen scales of three bits:
//! the scale of run `r` of 16 weights is `d * (2 s + 1)`. Nibble `i` of `qh` belongs to weights
//! `8 i .. 8 i + 8`: three high bits of the codebook index, then the sign of the shift.

use bytemuck::{Pod, Zeroable};

use super::codebook::{IQ1S, put_shifted};
use super::{F16Le, block_out, scales_non_finite};
use crate::BlockFormat;

/// 1.75 bits a weight, codebook.
#[derive(Debug, Clone, Copy)]
pub struct IQ1_M;

/// 256 weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIQ1_M {
    /// Low eight bits of the codebook indices.
    pub qs: [u8; 32],
    /// For each 8 weights a nibble: three index bits and the sign of the shift.
    pub qh: [u8; 16],
    /// Four little-endian u16: four scales of three bits each, a nibble of `d` on top.
    pub scales: [[u8; 2]; 4],
}

const _: () = assert!(size_of::<BlockIQ1_M>() == 56);

impl BlockIQ1_M {
    /// The scale of scales, gathered from the top nibbles of `scales`.
    #[must_use]
    pub fn d(&self) -> F16Le {
        let [s0, s1, s2, s3] = self.scales.map(u16::from_le_bytes);
        F16Le::from_bits((s0 >> 12) | ((s1 >> 8) & 0x00f0) | ((s2 >> 4) & 0x0f00) | (s3 & 0xf000))
    }
}

impl BlockFormat for IQ1_M {
    type Block = BlockIQ1_M;
    const NAME: &'static str = "IQ1_M";
    const GGML_TYPE: u32 = 29;
    const BLOCK_LEN: usize = 256;

    fn decode(block: &BlockIQ1_M, out: &mut [f32]) {
        let out: &mut [f32; 256] = block_out(out);
        let d = block.d().to_f32();
        let words = block.scales.map(u16::from_le_bytes);
        for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let run = i / 2;
            let scale = d * f32::from(2 * ((words[run / 4] >> (3 * (run % 4))) & 7) + 1);
            let nibble = block.qh[i / 2] >> (4 * (i % 2));
            let index = usize::from(block.qs[i]) | (usize::from(nibble & 7) << 8);
            let shift = if nibble & 8 != 0 { -0.125 } else { 0.125 };
            put_shifted(out, scale, &IQ1S[index], shift);
        }
    }

    fn first_non_finite(block: &BlockIQ1_M) -> Option<usize> {
        scales_non_finite([block.d()])
    }
}
