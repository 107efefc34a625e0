//! Q6_K: codes of six bits; each run of 16 has a signed scale of eight bits.
//!
//! Block of 256 weights, 210 bytes: `ql` u8[128], `qh` u8[64], `scales` i8[16], `d` f16. Half `h`
//! of 128 weights owns 64 bytes of `ql` and 32 of `qh`; of its four runs of 32, runs 0 and 1 take
//! the low nibbles of the two halves of `ql`, runs 2 and 3 the high ones; run `r` takes bits `2 r`
//! of `qh` on top. The value is `d * scale * (code - 32)`.

use bytemuck::{Pod, Zeroable};

use super::{F16Le, block_out, scales_non_finite};
use crate::BlockFormat;

/// 6.5625 bits a weight, symmetric.
#[derive(Debug, Clone, Copy)]
pub struct Q6_K;

/// 256 weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ6_K {
    /// Bits 0 to 3 of the codes, two a byte.
    pub ql: [u8; 128],
    /// Bits 4 and 5 of the codes, four a byte.
    pub qh: [u8; 64],
    /// The scales of the sixteen runs of 16.
    pub scales: [i8; 16],
    /// The scale of scales.
    pub d: F16Le,
}

const _: () = assert!(size_of::<BlockQ6_K>() == 210);

impl BlockFormat for Q6_K {
    type Block = BlockQ6_K;
    const NAME: &'static str = "Q6_K";
    const GGML_TYPE: u32 = 14;
    const BLOCK_LEN: usize = 256;

    fn decode(block: &BlockQ6_K, out: &mut [f32]) {
        let out: &mut [f32; 256] = block_out(out);
        let scale = block
            .scales
            .map(|scale| block.d.to_f32() * f32::from(scale));
        for (run, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let (h, r, s) = (run / 8, run / 2 % 4, run % 2);
            let ql = &block.ql[64 * h + 32 * (r % 2) + 16 * s..];
            let qh = &block.qh[32 * h + 16 * s..];
            for (out, (&low, &high)) in out.iter_mut().zip(ql.iter().zip(qh)) {
                let code = ((low >> (4 * (r / 2))) & 15) | (((high >> (2 * r)) & 3) << 4);
                *out = scale[run] * (i32::from(code) - 32) as f32;
            }
        }
    }

    fn first_non_finite(block: &BlockQ6_K) -> Option<usize> {
        scales_non_finite([block.d])
    }
}
