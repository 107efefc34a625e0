//! Blocks of IQ3_S as bytes in registers.
//!
//! Owns the look-up of the codebook for AVX2, which loads entry by entry, and for AVX-512, which
//! holds all 512 entries in registers as words of four nibbles (magnitudes are at most 15) and
//! permutes them. Both give weights plus 16.
//! Memory: the block that is given, and 2 KiB or 1 KiB of codebook; nothing is written.
//! Invariants: as `blocks`.
//! Cost: about sixty instructions for a run with AVX2, ten with AVX-512.

use std::arch::x86_64::*;

use super::blocks::{BlockWeights, times};
use super::unpack::{bits, half, load};
use crate::arch::x86::iq3_s_magnitudes;
use crate::formats::BlockIQ3_S;
use crate::formats::codebook::IQ3S;

/// The codebook: magnitude `j` of an entry is nibble `j` of its word.
static NIBBLES: [[u16; 32]; 16] = nibbles(&IQ3S);

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn with_avx2(block: &BlockIQ3_S) -> BlockWeights<1, 1> {
    let mut codes = [_mm256_setzero_si256(); 8];
    for (run, codes) in codes.iter_mut().enumerate() {
        let magnitudes = iq3_s_magnitudes(block, run);
        let negative = bits(block.signs.as_chunks().0[run]);
        let signed = _mm256_sub_epi8(_mm256_xor_si256(magnitudes, negative), negative);
        *codes = _mm256_add_epi8(signed, _mm256_set1_epi8(16));
    }
    with_scales(codes, block)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx2,f16c")]
pub(super) fn with_avx512(block: &BlockIQ3_S) -> BlockWeights<1, 1> {
    let mut codes = [_mm256_setzero_si256(); 8];
    let qs: &[[i8; 32]; 2] = bytemuck::cast_ref(&block.qs);
    let signs = block.signs.as_chunks::<8>().0;
    for (h, codes) in codes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let ninths = u32::from_le_bytes(block.qh.as_chunks().0[h]);
        let indices = _mm512_cvtepu8_epi16(load(&qs[h]));
        let indices = _mm512_mask_add_epi16(indices, ninths, indices, _mm512_set1_epi16(0x100));
        let words = look_up(indices);
        let low = signed(_mm512_castsi512_si256(words), signs[2 * h]);
        let high = signed(_mm512_extracti64x4_epi64::<1>(words), signs[2 * h + 1]);
        *codes = [low[0], low[1], high[0], high[1]];
    }
    with_scales(codes, block)
}

/// The words at 32 indices: bits 0 to 5 permute two registers of the codebook, the others choose
/// among the results.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn look_up(indices: __m512i) -> __m512i {
    let bit = |i: i16| _mm512_test_epi16_mask(indices, _mm512_set1_epi16(1 << i));
    let pick = |i: usize| {
        let [a, b] = [load_words(&NIBBLES[2 * i]), load_words(&NIBBLES[2 * i + 1])];
        _mm512_permutex2var_epi16(a, indices, b)
    };
    let (six, seven, eight) = (bit(6), bit(7), bit(8));
    let two = |i: usize| _mm512_mask_blend_epi16(six, pick(i), pick(i + 1));
    let four = |i: usize| _mm512_mask_blend_epi16(seven, two(i), two(i + 2));
    _mm512_mask_blend_epi16(eight, four(0), four(4))
}

/// The weights of two runs plus 16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn signed(words: __m256i, signs: [u8; 8]) -> [__m256i; 2] {
    let words = _mm512_cvtepu16_epi32(words);
    let bytes = _mm512_or_si512(words, _mm512_slli_epi32::<8>(words));
    let bytes = _mm512_and_si512(bytes, _mm512_set1_epi32(0x00ff_00ff));
    let nibbles = _mm512_or_si512(bytes, _mm512_slli_epi32::<4>(bytes));
    let magnitudes = _mm512_and_si512(nibbles, _mm512_set1_epi32(0x0f0f_0f0f));
    let sixteen = _mm512_set1_epi8(16);
    let positive = _mm512_add_epi8(sixteen, magnitudes);
    let signs = u64::from_le_bytes(signs);
    let weights = _mm512_mask_sub_epi8(positive, signs, sixteen, magnitudes);
    [
        _mm512_castsi512_si256(weights),
        _mm512_extracti64x4_epi64::<1>(weights),
    ]
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn with_scales(codes: [__m256i; 8], block: &BlockIQ3_S) -> BlockWeights<1, 1> {
    let packed = _mm256_set1_epi32(i32::from_le_bytes(block.scales));
    let nibbles = _mm256_srlv_epi32(packed, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    let nibbles = _mm256_and_si256(nibbles, _mm256_set1_epi32(15));
    let odd = _mm256_or_si256(_mm256_slli_epi32::<1>(nibbles), _mm256_set1_epi32(1));
    let scales = times(half(block.d), odd);
    BlockWeights {
        codes,
        scales: [scales],
        minima: [_mm256_mul_ps(scales, _mm256_set1_ps(-16.0))],
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_words(words: &[u16; 32]) -> __m512i {
    // SAFETY: the array is the 64 bytes that are read; no alignment is asked for.
    unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
}

const fn nibbles(codebook: &[[u8; 4]; 512]) -> [[u16; 32]; 16] {
    let mut words = [[0; 32]; 16];
    // Iterators are not const.
    let mut i = 0;
    while i < 512 {
        let [a, b, c, d] = codebook[i];
        assert!(a < 16 && b < 16 && c < 16 && d < 16);
        words[i / 32][i % 32] = u16::from_le_bytes([a | (b << 4), c | (d << 4)]);
        i += 1;
    }
    words
}
