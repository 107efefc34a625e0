//! Q4_K: codes of four bits; each run of 32 has a scale and a minimum of six bits.
//!
//! Block of 256 weights, 144 bytes: `d` f16, `dmin` f16, `scales` u8[12], `qs` u8[128]. Group `g`
//! of 64 weights owns 32 bytes of `qs`: low nibbles are run `2 g`, high ones run `2 g + 1`. The
//! value is `d * scale * code - dmin * min`.

use bytemuck::{Pod, Zeroable};

use super::{F16Le, block_out, scales_non_finite};
use crate::BlockFormat;

/// 4.5 bits a weight.
#[derive(Debug, Clone, Copy)]
pub struct Q4_K;

/// 256 weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ4_K {
    /// The scale of scales.
    pub d: F16Le,
    /// The scale of minima.
    pub dmin: F16Le,
    /// Eight scales and eight minima of six bits; see `scales_and_mins`.
    pub scales: [u8; 12],
    /// The codes, two a byte.
    pub qs: [u8; 128],
}

const _: () = assert!(size_of::<BlockQ4_K>() == 144);

impl BlockFormat for Q4_K {
    type Block = BlockQ4_K;
    const NAME: &'static str = "Q4_K";
    const GGML_TYPE: u32 = 12;
    const BLOCK_LEN: usize = 256;

    fn decode(block: &BlockQ4_K, out: &mut [f32]) {
        let out: &mut [f32; 256] = block_out(out);
        let (d, dmin) = (block.d.to_f32(), block.dmin.to_f32());
        let (scale, min) = scales_and_mins(&block.scales);
        let scale = scale.map(|scale| d * f32::from(scale));
        let min = min.map(|min| dmin * f32::from(min));
        let groups = out
            .as_chunks_mut::<64>()
            .0
            .iter_mut()
            .zip(block.qs.as_chunks::<32>().0);
        for (g, (out, qs)) in groups.enumerate() {
            let (low, high) = out.split_at_mut(32);
            for ((low, high), &byte) in low.iter_mut().zip(high).zip(qs) {
                *low = scale[2 * g] * f32::from(byte & 15) - min[2 * g];
                *high = scale[2 * g + 1] * f32::from(byte >> 4) - min[2 * g + 1];
            }
        }
    }

    fn first_non_finite(block: &BlockQ4_K) -> Option<usize> {
        scales_non_finite([block.d, block.dmin])
    }
}

/// The eight scales and eight minima of six bits that Q4_K and Q5_K pack into twelve bytes.
///
/// The first four of each lie in the low six bits of bytes 0..4 and 4..8; the last four have their
/// low nibbles in bytes 8..12 and their high two bits on top of the first four.
#[inline]
pub(crate) fn scales_and_mins(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let scale = |i: usize| match i {
        0..4 => packed[i] & 63,
        _ => (packed[i + 4] & 15) | ((packed[i - 4] >> 6) << 4),
    };
    let min = |i: usize| match i {
        0..4 => packed[i + 4] & 63,
        _ => (packed[i + 4] >> 4) | ((packed[i] >> 6) << 4),
    };
    (std::array::from_fn(scale), std::array::from_fn(min))
}
