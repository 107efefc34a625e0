//! TQ2_0: one scale and 256 codes of two bits, meant for ternary weights.
//!
//! Block of 256 weights, 66 bytes: `qs` u8[64], `d` f16. Half `h` of 128 weights owns 32 bytes;
//! weight `128 h + 32 l + m` is bits `2 l` of byte `32 h + m`; its value is `d * (code - 1)`.

use bytemuck::{Pod, Zeroable};

use super::{F16Le, block_out, scales_non_finite};
use crate::BlockFormat;

/// 2.0625 bits a weight, ternary.
#[derive(Debug, Clone, Copy)]
pub struct TQ2_0;

/// 256 weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockTQ2_0 {
    /// The codes, four a byte.
    pub qs: [u8; 64],
    /// The scale.
    pub d: F16Le,
}

const _: () = assert!(size_of::<BlockTQ2_0>() == 66);

impl BlockFormat for TQ2_0 {
    type Block = BlockTQ2_0;
    const NAME: &'static str = "TQ2_0";
    const GGML_TYPE: u32 = 35;
    const BLOCK_LEN: usize = 256;

    fn decode(block: &BlockTQ2_0, out: &mut [f32]) {
        let out: &mut [f32; 256] = block_out(out);
        let d = block.d.to_f32();
        for (out, qs) in out
            .as_chunks_mut::<128>()
            .0
            .iter_mut()
            .zip(block.qs.as_chunks::<32>().0)
        {
            for (l, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                for (out, &byte) in out.iter_mut().zip(qs) {
                    *out = (i32::from((byte >> (2 * l)) & 3) - 1) as f32 * d;
                }
            }
        }
    }

    fn first_non_finite(block: &BlockTQ2_0) -> Option<usize> {
        scales_non_finite([block.d])
    }
}
