//! MXFP4: the OCP microscaling format, a power-of-two scale and 32 codes of E2M1.
//!
//! Block of 32 weights, 17 bytes: `e` E8M0, `qs` u8[16]. Weight `j < 16` takes the low nibble of
//! `qs[j]`, weight `j + 16` the high one; its value is `2^(e - 128) * level[code]`. Levels are
//! twice those of E2M1, hence 128 and not 127. `e` = 255 is NaN by the format's definition; decode
//! does as ggml does and takes it for 2^127, `first_non_finite` reports it.

use bytemuck::{Pod, Zeroable};

use super::block_out;
use crate::BlockFormat;

/// 4.25 bits a weight, floating point codes.
#[derive(Debug, Clone, Copy)]
pub struct MXFP4;

/// 32 weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockMXFP4 {
    /// The biased exponent of the scale.
    pub e: u8,
    /// The codes, two a byte.
    pub qs: [u8; 16],
}

const _: () = assert!(size_of::<BlockMXFP4>() == 17);

/// Twice the values of E2M1: sign, two bits of exponent, one of mantissa.
pub(crate) const LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

impl BlockFormat for MXFP4 {
    type Block = BlockMXFP4;
    const NAME: &'static str = "MXFP4";
    const GGML_TYPE: u32 = 39;
    const BLOCK_LEN: usize = 32;

    fn decode(block: &BlockMXFP4, out: &mut [f32]) {
        let out: &mut [f32; 32] = block_out(out);
        let scale = scale(block.e);
        let levels = LEVELS.map(|level| scale * f32::from(level));
        let (low, high) = out.split_at_mut(16);
        for ((low, high), &byte) in low.iter_mut().zip(high).zip(&block.qs) {
            *low = levels[usize::from(byte & 15)];
            *high = levels[usize::from(byte >> 4)];
        }
    }

    fn first_non_finite(block: &BlockMXFP4) -> Option<usize> {
        match block.e {
            u8::MAX => Some(0),
            // 12 * 2^(252 - 128) is the largest product that an f32 holds.
            0..=252 => None,
            253.. => {
                let mut out = [0.0; 32];
                Self::decode(block, &mut out);
                out.iter().position(|value| !value.is_finite())
            }
        }
    }
}

/// 2^(e - 128); the two smallest are subnormal.
pub(crate) fn scale(e: u8) -> f32 {
    let e = u32::from(e);
    f32::from_bits(if e < 2 {
        0x0020_0000 << e
    } else {
        (e - 1) << 23
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_is_two_to_the_exponent_minus_128() {
        for e in 0..=u8::MAX {
            let expected = 2_f64.powi(i32::from(e) - 128);
            assert_eq!(f64::from(scale(e)).to_bits(), expected.to_bits(), "{e}");
        }
    }

    #[test]
    fn the_nan_exponent_is_reported_though_its_weights_may_be_finite() {
        assert_eq!(
            MXFP4::first_non_finite(&BlockMXFP4 {
                e: 255,
                qs: [0; 16]
            }),
            Some(0)
        );
    }
}
