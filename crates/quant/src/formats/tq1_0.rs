//! TQ1_0: one scale and 256 ternary digits, five to a byte.
//!
//! Block of 256 weights, 54 bytes: `qs` u8[48], `qh` u8[4], `d` f16. A byte is a fraction of 256
//! in base 3: digit `n` of byte `v` is `((v * 3^n mod 256) * 3) >> 8`, and the value
//! `d * (digit - 1)`. Order: five digits of bytes 0..32 of `qs`, digit by digit,
//! then of bytes 32..48, then four digits of `qh`.

use bytemuck::{Pod, Zeroable};

use super::{F16Le, block_out, scales_non_finite};
use crate::BlockFormat;

/// 1.6875 bits a weight, ternary.
#[derive(Debug, Clone, Copy)]
pub struct TQ1_0;

/// 256 weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockTQ1_0 {
    /// The first 240 digits, five a byte.
    pub qs: [u8; 48],
    /// The last 16 digits, four a byte.
    pub qh: [u8; 4],
    /// The scale.
    pub d: F16Le,
}

const _: () = assert!(size_of::<BlockTQ1_0>() == 54);

impl BlockFormat for TQ1_0 {
    type Block = BlockTQ1_0;
    const NAME: &'static str = "TQ1_0";
    const GGML_TYPE: u32 = 34;
    const BLOCK_LEN: usize = 256;

    fn decode(block: &BlockTQ1_0, out: &mut [f32]) {
        let out: &mut [f32; 256] = block_out(out);
        let d = block.d.to_f32();
        let (first, last) = out.split_at_mut(5 * 32);
        put_digits(first, d, &block.qs[..32]);
        let (second, last) = last.split_at_mut(5 * 16);
        put_digits(second, d, &block.qs[32..]);
        put_digits(last, d, &block.qh);
    }

    fn first_non_finite(block: &BlockTQ1_0) -> Option<usize> {
        scales_non_finite([block.d])
    }
}

/// Writes `d * (digit - 1)` for the leading digits of all `bytes`, one digit place after the other,
/// until `out` is full.
#[inline]
fn put_digits(out: &mut [f32], d: f32, bytes: &[u8]) {
    for (out, power) in out.chunks_exact_mut(bytes.len()).zip([1_u8, 3, 9, 27, 81]) {
        for (out, &byte) in out.iter_mut().zip(bytes) {
            let digit = (u32::from(byte.wrapping_mul(power)) * 3) >> 8;
            *out = (digit.cast_signed() - 1) as f32 * d;
        }
    }
}
