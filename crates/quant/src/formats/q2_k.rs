//! Q2_K: codes of two bits; each run of 16 has a scale and a minimum of four bits.
//!
//! Block of 256 weights, 84 bytes: `scales` u8[16], `qs` u8[64], `d` f16, `dmin` f16. Half `h` of
//! 128 weights owns 32 bytes of `qs`; weight `128 h + 32 j + 16 s + l` is bits `2 j` of byte
//! `32 h + 16 s + l`. With `sc = scales[8 h + 2 j + s]` its value is
//! `d * (sc & 15) * code - dmin * (sc >> 4)`.

use bytemuck::{Pod, Zeroable};

use super::{F16Le, block_out, scales_non_finite};
use crate::BlockFormat;

/// 2.625 bits a weight.
#[derive(Debug, Clone, Copy)]
pub struct Q2_K;

/// 256 weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ2_K {
    /// Scale (low nibble) and minimum (high nibble) of the sixteen runs.
    pub scales: [u8; 16],
    /// The codes, four a byte.
    pub qs: [u8; 64],
    /// The scale of scales.
    pub d: F16Le,
    /// The scale of minima.
    pub dmin: F16Le,
}

const _: () = assert!(size_of::<BlockQ2_K>() == 84);

impl BlockFormat for Q2_K {
    type Block = BlockQ2_K;
    const NAME: &'static str = "Q2_K";
    const GGML_TYPE: u32 = 10;
    const BLOCK_LEN: usize = 256;

    fn decode(block: &BlockQ2_K, out: &mut [f32]) {
        let out: &mut [f32; 256] = block_out(out);
        let (d, dmin) = (block.d.to_f32(), block.dmin.to_f32());
        for (run, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let (h, j, s) = (run / 8, run / 2 % 4, run % 2);
            let scale = d * f32::from(block.scales[run] & 15);
            let min = dmin * f32::from(block.scales[run] >> 4);
            for (out, &byte) in out.iter_mut().zip(&block.qs[32 * h + 16 * s..]) {
                *out = scale * f32::from((byte >> (2 * j)) & 3) - min;
            }
        }
    }

    fn first_non_finite(block: &BlockQ2_K) -> Option<usize> {
        scales_non_finite([block.d, block.dmin])
    }
}
