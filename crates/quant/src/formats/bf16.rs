//! BF16: the upper half of an f32.
//!
//! Block of 1 weight, 2 bytes, little endian. Rounding is to nearest, ties to even.

use bytemuck::{Pod, Zeroable};

use super::{block_in, block_out};
use crate::{BlockFormat, Error, Result};

/// Brain floating point: 8 bits of exponent, 7 of mantissa.
#[derive(Debug, Clone, Copy)]
pub struct BF16;

/// One weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockBF16 {
    /// The upper 16 bits of the value's f32, little endian.
    pub bits: [u8; 2],
}

const _: () = assert!(size_of::<BlockBF16>() == 2);

impl BlockBF16 {
    #[inline]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(u16::from_le_bytes(self.bits)) << 16)
    }
}

impl BlockFormat for BF16 {
    type Block = BlockBF16;
    const NAME: &'static str = "BF16";
    const GGML_TYPE: u32 = 30;
    const BLOCK_LEN: usize = 1;
    const CAN_QUANTIZE: bool = true;

    #[inline]
    fn decode(block: &BlockBF16, out: &mut [f32]) {
        *block_out(out) = [block.to_f32()];
    }

    fn first_non_finite(block: &BlockBF16) -> Option<usize> {
        (!block.to_f32().is_finite()).then_some(0)
    }

    fn decode_blocks(blocks: &[BlockBF16], out: &mut [f32]) {
        for (block, out) in blocks.iter().zip(out) {
            *out = block.to_f32();
        }
    }

    fn quantize(values: &[f32], block: &mut BlockBF16) -> Result<()> {
        let &[value] = block_in::<Self, 1>(values)?;
        let stored = half::bf16::from_f32(value);
        if !stored.is_finite() {
            return Err(Error::OutOfRange {
                format: Self::NAME,
                index: 0,
                value,
            });
        }
        block.bits = stored.to_le_bytes();
        Ok(())
    }
}
