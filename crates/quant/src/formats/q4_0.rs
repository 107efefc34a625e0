//! Q4_0: one signed scale and 32 codes of four bits.
//!
//! Block of 32 weights, 18 bytes: `d` f16, `qs` u8[16]. Weight `j < 16` takes the low nibble of
//! `qs[j]`, weight `j + 16` the high one; its value is `d * (code - 8)`.

use bytemuck::{Pod, Zeroable};

use super::{F16Le, block_in, block_out, extreme, scale_and_inverse, scales_non_finite};
use crate::{BlockFormat, Error, Result};

/// 4.5 bits a weight, symmetric.
#[derive(Debug, Clone, Copy)]
pub struct Q4_0;

/// 32 weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ4_0 {
    /// The scale; either sign.
    pub d: F16Le,
    /// The codes, two a byte.
    pub qs: [u8; 16],
}

const _: () = assert!(size_of::<BlockQ4_0>() == 18);

impl BlockFormat for Q4_0 {
    type Block = BlockQ4_0;
    const NAME: &'static str = "Q4_0";
    const GGML_TYPE: u32 = 2;
    const BLOCK_LEN: usize = 32;
    const CAN_QUANTIZE: bool = true;

    #[inline]
    fn decode(block: &BlockQ4_0, out: &mut [f32]) {
        let out: &mut [f32; 32] = block_out(out);
        let (low, high) = out.split_at_mut(16);
        let d = block.d.to_f32();
        for ((low, high), &byte) in low.iter_mut().zip(high).zip(&block.qs) {
            *low = (i32::from(byte & 15) - 8) as f32 * d;
            *high = (i32::from(byte >> 4) - 8) as f32 * d;
        }
    }

    fn first_non_finite(block: &BlockQ4_0) -> Option<usize> {
        scales_non_finite([block.d])
    }

    /// The scale makes the first value of largest magnitude code 0, which is -8 times the scale; a
    /// code is `x / scale + 8`, rounded half up and capped at 15.
    fn quantize(values: &[f32], block: &mut BlockQ4_0) -> Result<()> {
        let values = block_in::<Self, 32>(values)?;
        let (index, value) = extreme(values);
        let (d, inverse) = scale_and_inverse(value / -8.0).ok_or(Error::OutOfRange {
            format: Self::NAME,
            index,
            value,
        })?;
        // x * inverse + 8.5 is in [0.5, 16.5]: truncation is the floor.
        let code = |x: f32| ((x * inverse + 8.5) as u8).min(15);
        block.d = d;
        let (low, high) = values.split_at(16);
        for ((byte, &low), &high) in block.qs.iter_mut().zip(low).zip(high) {
            *byte = code(low) | (code(high) << 4);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_equal_extremes_gives_the_scale_its_sign() {
        let mut values = [0.0; 32];
        values[3] = 8.0;
        values[20] = -8.0;
        let mut block = BlockQ4_0::zeroed();
        Q4_0::quantize(&values, &mut block).expect("finite values quantize");
        assert_eq!(block.d, F16Le::from_f32(-1.0));
        // The first is code 0 exactly; the other would be code 16 and is capped.
        assert_eq!((block.qs[3], block.qs[4], block.qs[0]), (0x80, 0xf8, 0x88));
        values[3] = -8.0;
        values[20] = 8.0;
        Q4_0::quantize(&values, &mut block).expect("finite values quantize");
        assert_eq!(block.d, F16Le::from_f32(1.0));
    }
}
