//! Q2_0: one signed scale and 64 codes of two bits.
//!
//! Block of 64 weights, 18 bytes: `d` f16, `qs` u8[16]. The code of weight `j` is bits `2 (j % 4)`
//! of `qs[j / 4]`; codes 0, 1, 2, 3 are the values -d, 0, +d, +2d. The set is not symmetric, so the
//! sign of `d` carries information: a negative `d` gives |d|, 0, -|d|, -2|d|.

use bytemuck::{Pod, Zeroable};

use super::{F16Le, block_in, block_out, extreme, scale_and_inverse, scales_non_finite};
use crate::arch::scalar::round_half_away;
use crate::{BlockFormat, Error, Result};

/// 2.25 bits a weight, four levels.
#[derive(Debug, Clone, Copy)]
pub struct Q2_0;

/// 64 weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ2_0 {
    /// The scale; either sign.
    pub d: F16Le,
    /// The codes, four a byte, lowest bits first.
    pub qs: [u8; 16],
}

const _: () = assert!(size_of::<BlockQ2_0>() == 18);

impl BlockFormat for Q2_0 {
    type Block = BlockQ2_0;
    const NAME: &'static str = "Q2_0";
    const GGML_TYPE: u32 = 42;
    const BLOCK_LEN: usize = 64;
    const CAN_QUANTIZE: bool = true;

    #[inline]
    fn decode(block: &BlockQ2_0, out: &mut [f32]) {
        let out: &mut [f32; 64] = block_out(out);
        let d = block.d.to_f32();
        for (out, &byte) in out.as_chunks_mut::<4>().0.iter_mut().zip(&block.qs) {
            for (j, out) in out.iter_mut().enumerate() {
                *out = (i32::from((byte >> (2 * j)) & 3) - 1) as f32 * d;
            }
        }
    }

    fn first_non_finite(block: &BlockQ2_0) -> Option<usize> {
        scales_non_finite([block.d])
    }

    /// The scale is `max|x|`; a code is `x / scale`, rounded half away from zero, plus 1. So the
    /// reference never makes a negative scale nor code 3; better fits may, and decode takes both.
    fn quantize(values: &[f32], block: &mut BlockQ2_0) -> Result<()> {
        let values = block_in::<Self, 64>(values)?;
        let (index, value) = extreme(values);
        let (d, inverse) = scale_and_inverse(value.abs()).ok_or(Error::OutOfRange {
            format: Self::NAME,
            index,
            value,
        })?;
        let code = |x: f32| (round_half_away(x * inverse) + 1).clamp(0, 3) as u8;
        block.d = d;
        for (byte, &[a, b, c, d]) in block.qs.iter_mut().zip(values.as_chunks::<4>().0) {
            *byte = code(a) | (code(b) << 2) | (code(c) << 4) | (code(d) << 6);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODES_0123: u8 = 0xe4;

    fn same_bits(found: [f32; 4], expected: [f32; 4]) -> bool {
        found.map(f32::to_bits) == expected.map(f32::to_bits)
    }

    #[test]
    fn codes_0_to_3_are_minus_d_zero_d_and_two_d() {
        let block = BlockQ2_0 {
            d: F16Le::from_f32(0.5),
            qs: [CODES_0123; 16],
        };
        assert_eq!(bytemuck::bytes_of(&block)[..3], [0x00, 0x38, 0xe4]);
        let mut out = [f32::NAN; 64];
        Q2_0::decode(&block, &mut out);
        assert!(
            out.as_chunks::<4>()
                .0
                .iter()
                .all(|four| same_bits(*four, [-0.5, 0.0, 0.5, 1.0]))
        );
    }

    #[test]
    fn a_negative_scale_mirrors_the_levels() {
        let block = BlockQ2_0 {
            d: F16Le::from_f32(-0.5),
            qs: [CODES_0123; 16],
        };
        assert_eq!(bytemuck::bytes_of(&block)[..3], [0x00, 0xb8, 0xe4]);
        let mut out = [f32::NAN; 64];
        Q2_0::decode(&block, &mut out);
        assert!(
            out.as_chunks::<4>()
                .0
                .iter()
                .all(|four| same_bits(*four, [0.5, -0.0, -0.5, -1.0]))
        );
    }

    #[test]
    fn the_reference_quantizer_is_ternary_with_the_threshold_at_half_the_scale() {
        let mut values = [0.0; 64];
        values[..8].copy_from_slice(&[2.0, -2.0, 1.0, -1.0, 0.99, -0.99, 0.0, 1.5]);
        let mut block = BlockQ2_0::zeroed();
        Q2_0::quantize(&values, &mut block).expect("finite values quantize");
        assert_eq!(block.d, F16Le::from_f32(2.0));
        // Codes 2 0 2 0, then 1 1 1 2: halves round away from zero.
        assert_eq!(block.qs[..3], [0b00_10_00_10, 0b10_01_01_01, 0b01_01_01_01]);
    }
}
