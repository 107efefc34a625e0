//! Q8_0: one scale and 32 signed bytes.
//!
//! Block of 32 weights, 34 bytes: `d` f16, `qs` i8[32]. Weight `j` is `d * qs[j]`.

use bytemuck::{Pod, Zeroable};

use super::{F16Le, block_in, block_out, extreme, scale_and_inverse, scales_non_finite};
use crate::arch::scalar::round_half_away;
use crate::{BlockFormat, Error, Result};

/// 8.5 bits a weight, symmetric.
#[derive(Debug, Clone, Copy)]
pub struct Q8_0;

/// 32 weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ8_0 {
    /// The scale.
    pub d: F16Le,
    /// The codes.
    pub qs: [i8; 32],
}

const _: () = assert!(size_of::<BlockQ8_0>() == 34);

impl BlockFormat for Q8_0 {
    type Block = BlockQ8_0;
    const NAME: &'static str = "Q8_0";
    const GGML_TYPE: u32 = 8;
    const BLOCK_LEN: usize = 32;
    const CAN_QUANTIZE: bool = true;

    #[inline]
    fn decode(block: &BlockQ8_0, out: &mut [f32]) {
        let out: &mut [f32; 32] = block_out(out);
        let d = block.d.to_f32();
        for (out, &q) in out.iter_mut().zip(&block.qs) {
            *out = f32::from(q) * d;
        }
    }

    fn first_non_finite(block: &BlockQ8_0) -> Option<usize> {
        scales_non_finite([block.d])
    }

    /// The scale is `max|x| / 127`; a code is `x / scale`, rounded half away from zero.
    fn quantize(values: &[f32], block: &mut BlockQ8_0) -> Result<()> {
        let values = block_in::<Self, 32>(values)?;
        let (index, value) = extreme(values);
        let (d, inverse) = scale_and_inverse(value.abs() / 127.0).ok_or(Error::OutOfRange {
            format: Self::NAME,
            index,
            value,
        })?;
        block.d = d;
        for (q, x) in block.qs.iter_mut().zip(values) {
            // |x * inverse| <= 127 but for rounding far below one half.
            *q = round_half_away(x * inverse) as i8;
        }
        Ok(())
    }
}
