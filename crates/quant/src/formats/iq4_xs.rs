//! IQ4_XS: the levels of IQ4_NL under a two-step scale.
//!
//! Block of 256 weights, 136 bytes: `d` f16, `scales_h` u16, `scales_l` u8[4], `qs` u8[128]. Run
//! `b` of 32 weights has the scale `d * (s - 32)`, where `s` has its low four bits in nibble `b` of
//! `scales_l` and its high two in `scales_h`; its codes are `qs[16 b ..]` as in IQ4_NL.

use bytemuck::{Pod, Zeroable};

use super::iq4_nl::put_levels;
use super::{F16Le, block_out, scales_non_finite};
use crate::BlockFormat;

/// 4.25 bits a weight, levels denser near zero.
#[derive(Debug, Clone, Copy)]
pub struct IQ4_XS;

/// 256 weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIQ4_XS {
    /// The scale of scales.
    pub d: F16Le,
    /// Bits 4 and 5 of the eight scales: a little-endian u16, two bits each.
    pub scales_h: [u8; 2],
    /// Bits 0 to 3 of the eight scales, two a byte.
    pub scales_l: [u8; 4],
    /// The codes, two a byte.
    pub qs: [u8; 128],
}

const _: () = assert!(size_of::<BlockIQ4_XS>() == 136);

impl BlockIQ4_XS {
    /// The factor of `d` in run `run` of 32 weights.
    #[inline]
    pub(crate) fn scale(&self, run: usize) -> f32 {
        let low = (self.scales_l[run / 2] >> (4 * (run % 2))) & 15;
        let high = ((u16::from_le_bytes(self.scales_h) >> (2 * run)) & 3) as u8;
        (i32::from(low | (high << 4)) - 32) as f32
    }
}

impl BlockFormat for IQ4_XS {
    type Block = BlockIQ4_XS;
    const NAME: &'static str = "IQ4_XS";
    const GGML_TYPE: u32 = 23;
    const BLOCK_LEN: usize = 256;

    fn decode(block: &BlockIQ4_XS, out: &mut [f32]) {
        let out: &mut [f32; 256] = block_out(out);
        let d = block.d.to_f32();
        let runs = out
            .as_chunks_mut::<32>()
            .0
            .iter_mut()
            .zip(block.qs.as_chunks::<16>().0);
        for (b, (out, qs)) in runs.enumerate() {
            put_levels(out, d * block.scale(b), qs);
        }
    }

    fn first_non_finite(block: &BlockIQ4_XS) -> Option<usize> {
        scales_non_finite([block.d])
    }
}
