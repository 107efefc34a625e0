//! Q1_0: one scale and 128 signs.
//!
//! Block of 128 weights, 18 bytes: `d` f16, `qs` u8[16]. Weight `j` is `d` where bit `j % 8` of
//! `qs[j / 8]` is set and `-d` where it is clear.

use bytemuck::{Pod, Zeroable};

use super::{F16Le, block_out, scales_non_finite};
use crate::BlockFormat;
use crate::arch::scalar::with_sign;

/// 1.125 bits a weight, two levels.
#[derive(Debug, Clone, Copy)]
pub struct Q1_0;

/// 128 weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ1_0 {
    /// The scale.
    pub d: F16Le,
    /// The signs, eight a byte, lowest bit first; a set bit is plus.
    pub qs: [u8; 16],
}

const _: () = assert!(size_of::<BlockQ1_0>() == 18);

impl BlockFormat for Q1_0 {
    type Block = BlockQ1_0;
    const NAME: &'static str = "Q1_0";
    const GGML_TYPE: u32 = 41;
    const BLOCK_LEN: usize = 128;

    fn decode(block: &BlockQ1_0, out: &mut [f32]) {
        let out: &mut [f32; 128] = block_out(out);
        let d = block.d.to_f32();
        for (out, &byte) in out.as_chunks_mut::<8>().0.iter_mut().zip(&block.qs) {
            for (j, out) in out.iter_mut().enumerate() {
                *out = with_sign(d, byte & (1 << j) == 0);
            }
        }
    }

    fn first_non_finite(block: &BlockQ1_0) -> Option<usize> {
        scales_non_finite([block.d])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_bit_is_plus_and_a_clear_bit_minus() {
        let mut block = BlockQ1_0 {
            d: F16Le::from_f32(0.5),
            qs: [0; 16],
        };
        block.qs[0] = 0b0000_0101;
        block.qs[15] = 0b1000_0000;
        let mut out = [f32::NAN; 128];
        Q1_0::decode(&block, &mut out);
        for (j, value) in out.into_iter().enumerate() {
            let expected: f32 = if [0, 2, 127].contains(&j) { 0.5 } else { -0.5 };
            assert_eq!(value.to_bits(), expected.to_bits(), "weight {j}");
        }
    }
}
