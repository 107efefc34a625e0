//! Blocks of 256 weights as bytes in registers, with their scales and minima.
//!
//! Owns a function for each format. Everything asks for AVX2 and F16C alone and is inlined into
//! callers that are compiled for more.
//! Memory: the block that is given; nothing is written.
//! Invariants: codes, scales and minima are those of `arch::q8::blocks`, by the same operations.
//! Cost: two to five instructions for a run, about twenty for the scales of a block.

use std::arch::x86_64::*;

use super::unpack::{half, iq4_nl, load, load_half};
use crate::formats::{BlockIQ4_XS, BlockQ2_K, BlockQ3_K, BlockQ4_K, BlockQ5_K, BlockQ6_K, F16Le};

/// The weights of a block: codes times a scale, plus a minimum. `SCALES` is 1 where runs have a
/// scale, 2 where their halves do; `MINIMA` likewise, or 0 if there are none.
#[derive(Clone, Copy)]
pub(super) struct BlockWeights<const SCALES: usize, const MINIMA: usize> {
    pub(super) codes: [__m256i; 8],
    /// Of the eight runs, or of their first and their second halves.
    pub(super) scales: [__m256; SCALES],
    pub(super) minima: [__m256; MINIMA],
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn q2_k(block: &BlockQ2_K) -> BlockWeights<2, 2> {
    let packed = _mm256_cvtepu16_epi32(load_half(&block.scales));
    let nibble = |i: i32| _mm256_and_si256(shifted(packed, 4 * i), _mm256_set1_epi32(15));
    let (d, dmin) = (half(block.d), -half(block.dmin));
    BlockWeights {
        codes: two_bits(&block.qs),
        scales: [times(d, nibble(0)), times(d, nibble(2))],
        minima: [times(dmin, nibble(1)), times(dmin, nibble(3))],
    }
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn q3_k(block: &BlockQ3_K) -> BlockWeights<2, 2> {
    let hmask = load(bytemuck::cast_ref(&block.hmask));
    let mut codes = two_bits(&block.qs);
    for (codes, r) in codes.iter_mut().zip(0..) {
        let third = _mm256_and_si256(shifted(hmask, r - 2), _mm256_set1_epi8(4));
        *codes = _mm256_or_si256(*codes, third);
    }
    let scales = q3_k_scales(&block.scales);
    let scales = _mm256_cvtepi8_epi16(_mm_sub_epi8(scales, _mm_set1_epi8(32)));
    let scales = of_halves(half(block.d), scales);
    let minus_four = _mm256_set1_ps(-4.0);
    BlockWeights {
        codes,
        scales,
        minima: [
            _mm256_mul_ps(scales[0], minus_four),
            _mm256_mul_ps(scales[1], minus_four),
        ],
    }
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn q4_k(block: &BlockQ4_K) -> BlockWeights<1, 1> {
    with_six_bits(four_bits(&block.qs), block.d, block.dmin, &block.scales)
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn q5_k(block: &BlockQ5_K) -> BlockWeights<1, 1> {
    let qh = load(bytemuck::cast_ref(&block.qh));
    let mut codes = four_bits(&block.qs);
    for (codes, r) in codes.iter_mut().zip(0..) {
        let fifth = _mm256_and_si256(shifted(qh, r - 4), _mm256_set1_epi8(16));
        *codes = _mm256_or_si256(*codes, fifth);
    }
    with_six_bits(codes, block.d, block.dmin, &block.scales)
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn q6_k(block: &BlockQ6_K) -> BlockWeights<2, 2> {
    let ql: &[[i8; 32]; 4] = bytemuck::cast_ref(&block.ql);
    let qh: &[[i8; 32]; 2] = bytemuck::cast_ref(&block.qh);
    let mut codes = [_mm256_setzero_si256(); 8];
    for (h, codes) in codes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let high = load(&qh[h]);
        for (r, codes) in codes.iter_mut().enumerate() {
            let low = shifted(load(&ql[2 * h + r % 2]), if r < 2 { 0 } else { 4 });
            let low = _mm256_and_si256(low, _mm256_set1_epi8(15));
            let high = shifted(high, 2 * r as i32 - 4);
            let high = _mm256_and_si256(high, _mm256_set1_epi8(0x30));
            *codes = _mm256_or_si256(low, high);
        }
    }
    let scales = _mm256_cvtepi8_epi16(load_half(bytemuck::cast_ref(&block.scales)));
    let scales = of_halves(half(block.d), scales);
    let offset = _mm256_set1_ps(-32.0);
    BlockWeights {
        codes,
        scales,
        minima: [
            _mm256_mul_ps(scales[0], offset),
            _mm256_mul_ps(scales[1], offset),
        ],
    }
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn iq4_xs(block: &BlockIQ4_XS) -> BlockWeights<1, 0> {
    let mut codes = [_mm256_setzero_si256(); 8];
    for (codes, qs) in codes.iter_mut().zip(block.qs.as_chunks().0) {
        *codes = iq4_nl(qs);
    }
    let low = _mm256_set1_epi32(i32::from_le_bytes(block.scales_l));
    let low = _mm256_srlv_epi32(low, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    let low = _mm256_and_si256(low, _mm256_set1_epi32(15));
    let high = _mm256_set1_epi32(i32::from(u16::from_le_bytes(block.scales_h)) << 4);
    let high = _mm256_srlv_epi32(high, _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
    let high = _mm256_and_si256(high, _mm256_set1_epi32(0x30));
    let scales = _mm256_sub_epi32(_mm256_or_si256(low, high), _mm256_set1_epi32(32));
    BlockWeights {
        codes,
        scales: [times(half(block.d), scales)],
        minima: [],
    }
}

/// Bits of a byte moved down by `by`, or up if that is negative; what comes in from the next byte
/// is for the caller's mask.
#[inline]
#[target_feature(enable = "avx2")]
fn shifted(bytes: __m256i, by: i32) -> __m256i {
    if by < 0 {
        _mm256_sllv_epi32(bytes, _mm256_set1_epi32(-by))
    } else {
        _mm256_srlv_epi32(bytes, _mm256_set1_epi32(by))
    }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn times(d: f32, values: __m256i) -> __m256 {
    _mm256_mul_ps(_mm256_set1_ps(d), _mm256_cvtepi32_ps(values))
}

/// `d` times sixteen values of halves of runs: those of the first halves, then of the second ones.
#[inline]
#[target_feature(enable = "avx2")]
fn of_halves(d: f32, values: __m256i) -> [__m256; 2] {
    // A lane of 32 bits holds the values of one run.
    let first = _mm256_srai_epi32::<16>(_mm256_slli_epi32::<16>(values));
    [times(d, first), times(d, _mm256_srai_epi32::<16>(values))]
}

/// Fields of two bits, as Q2_K and Q3_K place them.
#[inline]
#[target_feature(enable = "avx2")]
fn two_bits(qs: &[u8; 64]) -> [__m256i; 8] {
    let qs: &[[i8; 32]; 2] = bytemuck::cast_ref(qs);
    let mut codes = [_mm256_setzero_si256(); 8];
    for (codes, qs) in codes.as_chunks_mut::<4>().0.iter_mut().zip(qs) {
        let bytes = load(qs);
        for (codes, j) in codes.iter_mut().zip(0..) {
            *codes = _mm256_and_si256(shifted(bytes, 2 * j), _mm256_set1_epi8(3));
        }
    }
    codes
}

/// Nibbles, as Q4_K and Q5_K place them.
#[inline]
#[target_feature(enable = "avx2")]
fn four_bits(qs: &[u8; 128]) -> [__m256i; 8] {
    let qs: &[[i8; 32]; 4] = bytemuck::cast_ref(qs);
    let mut codes = [_mm256_setzero_si256(); 8];
    for (codes, qs) in codes.as_chunks_mut::<2>().0.iter_mut().zip(qs) {
        let bytes = load(qs);
        let mask = _mm256_set1_epi8(15);
        *codes = [
            _mm256_and_si256(bytes, mask),
            _mm256_and_si256(shifted(bytes, 4), mask),
        ];
    }
    codes
}

/// The scales and minima of Q4_K and Q5_K; see `formats::q4_k`.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn with_six_bits(
    codes: [__m256i; 8],
    d: F16Le,
    dmin: F16Le,
    packed: &[u8; 12],
) -> BlockWeights<1, 1> {
    let [a, b, c] = words(packed);
    let two_on_top = |of: u32| (of >> 2) & 0x3030_3030;
    let scales = [a & 0x3f3f_3f3f, (c & 0x0f0f_0f0f) | two_on_top(a)];
    let minima = [b & 0x3f3f_3f3f, ((c >> 4) & 0x0f0f_0f0f) | two_on_top(b)];
    let wide = |[low, high]: [u32; 2]| {
        let bytes = u64::from(low) | (u64::from(high) << 32);
        _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes.cast_signed()))
    };
    BlockWeights {
        codes,
        scales: [times(half(d), wide(scales))],
        minima: [times(-half(dmin), wide(minima))],
    }
}

/// Sixteen scales plus 32; see `formats::q3_k`.
#[inline]
#[target_feature(enable = "avx2")]
fn q3_k_scales(packed: &[u8; 12]) -> __m128i {
    let [a, b, c] = words(packed);
    let scales = |nibbles: u32, pairs: u32| {
        ((nibbles & 0x0f0f_0f0f) | ((pairs & 0x0303_0303) << 4)).cast_signed()
    };
    _mm_setr_epi32(
        scales(a, c),
        scales(b, c >> 2),
        scales(a >> 4, c >> 4),
        scales(b >> 4, c >> 6),
    )
}

fn words(packed: &[u8; 12]) -> [u32; 3] {
    let [a, b, c]: &[[u8; 4]; 3] = bytemuck::cast_ref(packed);
    [*a, *b, *c].map(u32::from_le_bytes)
}
