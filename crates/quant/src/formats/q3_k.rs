//! Q3_K: codes of three bits; each run of 16 has a signed scale of six bits.
//!
//! Block of 256 weights, 110 bytes: `hmask` u8[32], `qs` u8[64], `scales` u8[12], `d` f16. The low
//! two bits of a code lie as in Q2_K; weight `128 h + 32 j + 16 s + l` is 4 less where bit
//! `4 h + j` of `hmask[16 s + l]` is clear. The value is `d * (scale - 32) * code`.

use bytemuck::{Pod, Zeroable};

use super::{F16Le, block_out, scales_non_finite};
use crate::BlockFormat;

/// 3.4375 bits a weight, symmetric.
#[derive(Debug, Clone, Copy)]
pub struct Q3_K;

/// 256 weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ3_K {
    /// Third bits of the codes; clear means minus 4.
    pub hmask: [u8; 32],
    /// Low two bits of the codes, four a byte.
    pub qs: [u8; 64],
    /// Sixteen scales of six bits: nibbles in the first eight bytes, then pairs of high bits.
    pub scales: [u8; 12],
    /// The scale of scales.
    pub d: F16Le,
}

const _: () = assert!(size_of::<BlockQ3_K>() == 110);

impl BlockFormat for Q3_K {
    type Block = BlockQ3_K;
    const NAME: &'static str = "Q3_K";
    const GGML_TYPE: u32 = 11;
    const BLOCK_LEN: usize = 256;

    fn decode(block: &BlockQ3_K, out: &mut [f32]) {
        let out: &mut [f32; 256] = block_out(out);
        let d = block.d.to_f32();
        let scales = scales(&block.scales);
        for (run, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let (h, j, s) = (run / 8, run / 2 % 4, run % 2);
            let scale = d * f32::from(scales[run]);
            let bit = 1 << (4 * h + j);
            let codes = block.qs[32 * h + 16 * s..]
                .iter()
                .zip(&block.hmask[16 * s..]);
            for (out, (&byte, &mask)) in out.iter_mut().zip(codes) {
                let code = i32::from((byte >> (2 * j)) & 3) - if mask & bit != 0 { 0 } else { 4 };
                *out = scale * code as f32;
            }
        }
    }

    fn first_non_finite(block: &BlockQ3_K) -> Option<usize> {
        scales_non_finite([block.d])
    }
}

/// The sixteen scales, -32 to 31.
#[inline]
pub(crate) fn scales(packed: &[u8; 12]) -> [i8; 16] {
    std::array::from_fn(|i| {
        let low = if i < 8 {
            packed[i] & 15
        } else {
            packed[i - 8] >> 4
        };
        let high = (packed[8 + i % 4] >> (2 * (i / 4))) & 3;
        (low | (high << 4)).cast_signed() - 32
    })
}
