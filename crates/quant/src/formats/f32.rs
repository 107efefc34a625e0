//! F32: weights stored as they are.
//!
//! Block of 1 weight, 4 bytes, little endian.

use bytemuck::{Pod, Zeroable};

use super::{block_in, block_out};
use crate::{BlockFormat, Result};

/// Plain single precision.
#[derive(Debug, Clone, Copy)]
pub struct F32;

/// One weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockF32 {
    /// The little-endian bytes of the value.
    pub value: [u8; 4],
}

const _: () = assert!(size_of::<BlockF32>() == 4);

impl BlockFormat for F32 {
    type Block = BlockF32;
    const NAME: &'static str = "F32";
    const GGML_TYPE: u32 = 0;
    const BLOCK_LEN: usize = 1;
    const CAN_QUANTIZE: bool = true;

    #[inline]
    fn decode(block: &BlockF32, out: &mut [f32]) {
        *block_out(out) = [f32::from_le_bytes(block.value)];
    }

    fn first_non_finite(block: &BlockF32) -> Option<usize> {
        (!f32::from_le_bytes(block.value).is_finite()).then_some(0)
    }

    fn decode_blocks(blocks: &[BlockF32], out: &mut [f32]) {
        for (block, out) in blocks.iter().zip(out) {
            *out = f32::from_le_bytes(block.value);
        }
    }

    fn quantize(values: &[f32], block: &mut BlockF32) -> Result<()> {
        let [value] = block_in::<Self, 1>(values)?;
        block.value = value.to_le_bytes();
        Ok(())
    }
}
