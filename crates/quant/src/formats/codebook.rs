//! The codebooks of the IQ formats, expanded at compile time, and the sign words.
//!
//! Owns the tables that decode reads: `u8` magnitudes (or `i8` values for IQ1) in element order.
//! Does not own the numbers, which `grids.rs` holds as packed code words.
//! Memory: 34 KiB of read-only data in all; a format touches its own table alone (1 to 16 KiB).

use super::grids;
use crate::arch::scalar::with_sign;

/// Magnitudes of a digit in the IQ2 codebooks.
const LEVELS_IQ2: [u8; 3] = [8, 25, 43];
/// Magnitudes of a digit in the IQ3_XXS codebook.
const LEVELS_IQ3_XXS: [u8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];
/// Magnitudes of a digit in the IQ3_S codebook.
const LEVELS_IQ3_S: [u8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];
/// Values of a digit in the IQ1 codebook, as two's complement.
const LEVELS_IQ1: [u8; 3] = [0xff, 0, 1];

pub(super) static IQ2XXS: [[u8; 8]; 256] = expand(&grids::IQ2XXS, &LEVELS_IQ2, 2);
pub(super) static IQ2XS: [[u8; 8]; 512] = expand(&grids::IQ2XS, &LEVELS_IQ2, 2);
pub(super) static IQ2S: [[u8; 8]; 1024] = expand(&grids::IQ2S, &LEVELS_IQ2, 2);
pub(super) static IQ3XXS: [[u8; 4]; 256] = expand(&grids::IQ3XXS, &LEVELS_IQ3_XXS, 3);
pub(crate) static IQ3S: [[u8; 4]; 512] = expand(&grids::IQ3S, &LEVELS_IQ3_S, 3);
/// Entries are `i8` in two's complement.
pub(super) static IQ1S: [[u8; 8]; 2048] = expand(&grids::IQ1S, &LEVELS_IQ1, 2);

/// The sixteen levels of IQ4_NL and IQ4_XS.
pub(crate) const LEVELS_IQ4: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// Eight signs from the seven bits that IQ2_XXS, IQ2_XS and IQ3_XXS store: the eighth makes the
/// number of minus signs even.
#[inline]
pub(super) fn even_signs(low_bits: u32) -> u8 {
    let low_bits = (low_bits & 0x7f) as u8;
    low_bits | ((low_bits.count_ones() as u8 & 1) << 7)
}

/// Writes `scale * grid[j]`, negative where bit `j` of `signs` is set.
#[inline]
pub(super) fn put_signed<const N: usize>(
    out: &mut [f32; N],
    scale: f32,
    grid: &[u8; N],
    signs: u8,
) {
    for (j, (out, &magnitude)) in out.iter_mut().zip(grid).enumerate() {
        *out = with_sign(scale * f32::from(magnitude), signs & (1 << j) != 0);
    }
}

/// Writes `scale * (grid[j] + delta)` for an entry of the IQ1 codebook.
#[inline]
pub(super) fn put_shifted(out: &mut [f32; 8], scale: f32, grid: &[u8; 8], delta: f32) {
    for (out, &value) in out.iter_mut().zip(grid) {
        *out = scale * (f32::from(value.cast_signed()) + delta);
    }
}

/// Code words to entries: digit `j` of a word, `bits` wide, picks the level of element `j`.
const fn expand<const ENTRIES: usize, const WIDTH: usize, const LEVELS: usize>(
    words: &[u16; ENTRIES],
    levels: &[u8; LEVELS],
    bits: usize,
) -> [[u8; WIDTH]; ENTRIES] {
    let mut entries = [[0; WIDTH]; ENTRIES];
    // Iterators are not const.
    let mut i = 0;
    while i < ENTRIES {
        let mut j = 0;
        while j < WIDTH {
            let digit = (words[i] >> (bits * j)) as usize & ((1 << bits) - 1);
            entries[i][j] = levels[digit];
            j += 1;
        }
        i += 1;
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_signs_always_have_even_parity_and_keep_the_low_bits() {
        for low in 0..128 {
            let signs = even_signs(low);
            assert_eq!(u32::from(signs & 0x7f), low);
            assert_eq!(signs.count_ones() % 2, 0, "{low}");
        }
    }

    /// Rows of ggml-common.h, as printed there: bytes of a little-endian word.
    #[test]
    fn codebooks_start_and_end_as_in_ggml() {
        assert_eq!(u64::from_le_bytes(IQ2XXS[0]), 0x0808_0808_0808_0808);
        assert_eq!(u64::from_le_bytes(IQ2XXS[1]), 0x0808_0808_0808_082b);
        assert_eq!(u64::from_le_bytes(IQ2XXS[255]), 0x2b2b_2b19_0808_1908);
        assert_eq!(u64::from_le_bytes(IQ2XS[511]), 0x2b2b_2b2b_2b2b_2b2b);
        assert_eq!(u64::from_le_bytes(IQ2S[1023]), 0x2b2b_2b2b_2b2b_2b2b);
        assert_eq!(u32::from_le_bytes(IQ3XXS[0]), 0x0404_0404);
        assert_eq!(u32::from_le_bytes(IQ3XXS[255]), 0x3e34_1c04);
        assert_eq!(u32::from_le_bytes(IQ3S[0]), 0x0101_0101);
        assert_eq!(u32::from_le_bytes(IQ3S[511]), 0x0f0f_0101);
        assert_eq!(u64::from_le_bytes(IQ1S[0]), 0xffff_ffff_ffff_ffff);
        assert_eq!(u64::from_le_bytes(IQ1S[2047]), 0x0101_0101_0101_0101);
    }
}
