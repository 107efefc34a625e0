//! Blocks as bytes in registers of 256 bits, in the order of the vectors' codes.
//!
//! Owns a function for each format, and the loads that the loops share. Everything asks for AVX2
//! alone and is inlined into callers that are compiled for more.
//! Memory: the block that is given; nothing is written.
//! Invariants: what `arch::q8` unpacks, plus the offset of the format's kind where the name of a
//! function says so.
//! Cost: two to ten instructions for a run.

use std::arch::x86_64::*;

use crate::formats::codebook::LEVELS_IQ4;
use crate::formats::{BlockQ2_0, F16Le, LEVELS_MXFP4};

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load(bytes: &[i8; 32]) -> __m256i {
    // SAFETY: the array is the 32 bytes that are read; no alignment is asked for.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_sums(sums: &[i32; 8]) -> __m256i {
    // SAFETY: the array is the eight elements that are read; no alignment is asked for.
    unsafe { _mm256_loadu_si256(sums.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_scales(scales: &[f32; 8]) -> __m256 {
    // SAFETY: the array is the eight elements that are read; no alignment is asked for.
    unsafe { _mm256_loadu_ps(scales.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_half(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: the array is the sixteen bytes that are read; no alignment is asked for.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// Sixteen bytes, twice.
#[inline]
#[target_feature(enable = "avx2")]
fn load_twice(bytes: &[u8; 16]) -> __m256i {
    _mm256_broadcastsi128_si256(load_half(bytes))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn half(d: F16Le) -> f32 {
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(d.to_bits()))))
}

/// Fields 0 and 1 of the block's bytes, then 2 and 3.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn q2_0(block: &BlockQ2_0) -> [__m256i; 2] {
    let bytes = load_twice(&block.qs);
    let mask = _mm256_set1_epi8(3);
    // What a shift brings in from the next byte, the mask removes.
    let low = _mm256_srlv_epi32(bytes, _mm256_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2));
    let high = _mm256_srli_epi32::<4>(low);
    [_mm256_and_si256(low, mask), _mm256_and_si256(high, mask)]
}

/// The low nibbles of sixteen bytes, then the high ones.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn nibbles(qs: &[u8; 16]) -> __m256i {
    let low = load_half(qs);
    let both = _mm256_set_m128i(_mm_srli_epi16::<4>(low), low);
    _mm256_and_si256(both, _mm256_set1_epi8(15))
}

/// Codes of five bits.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn five_bits(qs: &[u8; 16], qh: [u8; 4]) -> __m256i {
    let fifth = _mm256_and_si256(bits(qh), _mm256_set1_epi8(16));
    _mm256_or_si256(nibbles(qs), fifth)
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn iq4_nl(qs: &[u8; 16]) -> __m256i {
    let levels = load_twice(bytemuck::cast_ref(&LEVELS_IQ4));
    _mm256_shuffle_epi8(levels, nibbles(qs))
}

/// Weights plus 12.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn mxfp4(qs: &[u8; 16]) -> __m256i {
    let levels = LEVELS_MXFP4.map(|level| (level + 12).cast_unsigned());
    _mm256_shuffle_epi8(load_twice(&levels), nibbles(qs))
}

/// Byte `i` is -1 where bit `i` is set.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn bits(of: [u8; 4]) -> __m256i {
    // Byte `i` of eight takes byte `i / 8`, of which it keeps bit `i % 8`.
    let spread = _mm256_setr_epi64x(
        0,
        0x0101_0101_0101_0101,
        0x0202_0202_0202_0202,
        0x0303_0303_0303_0303,
    );
    let bits = _mm256_set1_epi64x(i64::from_le_bytes([1, 2, 4, 8, 16, 32, 64, 128]));
    let bytes = _mm256_set1_epi32(i32::from_le_bytes(of));
    let kept = _mm256_and_si256(_mm256_shuffle_epi8(bytes, spread), bits);
    _mm256_cmpeq_epi8(kept, bits)
}
