//! F16: weights as IEEE halves.
//!
//! Block of 1 weight, 2 bytes. Rounding is to nearest, ties to even.

use bytemuck::{Pod, Zeroable};

use super::{F16Le, block_in, block_out};
use crate::{BlockFormat, Error, Result};

/// IEEE half precision.
#[derive(Debug, Clone, Copy)]
pub struct F16;

/// One weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockF16 {
    /// The value.
    pub value: F16Le,
}

const _: () = assert!(size_of::<BlockF16>() == 2);

impl BlockFormat for F16 {
    type Block = BlockF16;
    const NAME: &'static str = "F16";
    const GGML_TYPE: u32 = 1;
    const BLOCK_LEN: usize = 1;
    const CAN_QUANTIZE: bool = true;

    #[inline]
    fn decode(block: &BlockF16, out: &mut [f32]) {
        *block_out(out) = [block.value.to_f32()];
    }

    fn first_non_finite(block: &BlockF16) -> Option<usize> {
        (!block.value.is_finite()).then_some(0)
    }

    fn decode_blocks(blocks: &[BlockF16], out: &mut [f32]) {
        for (block, out) in blocks.iter().zip(out) {
            *out = block.value.to_f32();
        }
    }

    fn quantize(values: &[f32], block: &mut BlockF16) -> Result<()> {
        let &[value] = block_in::<Self, 1>(values)?;
        let stored = F16Le::from_f32(value);
        if !stored.is_finite() {
            return Err(Error::OutOfRange {
                format: Self::NAME,
                index: 0,
                value,
            });
        }
        block.value = stored;
        Ok(())
    }
}
