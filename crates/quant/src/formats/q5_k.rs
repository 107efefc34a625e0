//! Q5_K: as Q4_K with codes of five bits.
//!
//! Block of 256 weights, 176 bytes: `d` f16, `dmin` f16, `scales` u8[12], `qh` u8[32], `qs`
//! u8[128]. Scales, minima and the low four bits of codes lie as in Q4_K; weight `l` of run `r` of
//! 32 is 16 more where bit `r` of `qh[l]` is set.

use bytemuck::{Pod, Zeroable};

use super::q4_k::scales_and_mins;
use super::{F16Le, block_out, scales_non_finite};
use crate::BlockFormat;

/// 5.5 bits a weight.
#[derive(Debug, Clone, Copy)]
pub struct Q5_K;

/// 256 weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ5_K {
    /// The scale of scales.
    pub d: F16Le,
    /// The scale of minima.
    pub dmin: F16Le,
    /// Eight scales and eight minima of six bits, as in Q4_K.
    pub scales: [u8; 12],
    /// Bit 4 of the codes: bit `r` for run `r`.
    pub qh: [u8; 32],
    /// Bits 0 to 3 of the codes, two a byte.
    pub qs: [u8; 128],
}

const _: () = assert!(size_of::<BlockQ5_K>() == 176);

impl BlockFormat for Q5_K {
    type Block = BlockQ5_K;
    const NAME: &'static str = "Q5_K";
    const GGML_TYPE: u32 = 13;
    const BLOCK_LEN: usize = 256;

    fn decode(block: &BlockQ5_K, out: &mut [f32]) {
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
            let (low_bit, high_bit) = (1_u8 << (2 * g), 2_u8 << (2 * g));
            let codes = qs.iter().zip(&block.qh);
            for ((low, high), (&byte, &bits)) in low.iter_mut().zip(high).zip(codes) {
                let low_code = (byte & 15) + if bits & low_bit != 0 { 16 } else { 0 };
                let high_code = (byte >> 4) + if bits & high_bit != 0 { 16 } else { 0 };
                *low = scale[2 * g] * f32::from(low_code) - min[2 * g];
                *high = scale[2 * g + 1] * f32::from(high_code) - min[2 * g + 1];
            }
        }
    }

    fn first_non_finite(block: &BlockQ5_K) -> Option<usize> {
        scales_non_finite([block.d, block.dmin])
    }
}
