//! Vectors to eight bits with AVX2: eight elements a register, packed to bytes.
//!
//! Owns the same steps as `arch::q8::steps`, bit for bit.
//! Memory: the caller's slices; nothing is allocated.
//! Invariants: those of `arch::q8::steps`.
//! Cost: about one instruction an element.

use std::arch::x86_64::*;

use super::unpack::load_scales;
use crate::arch::q8::{BlockStep, Step, scale_and_inverse};
use crate::arch::x86::Avx2;

impl Avx2 {
    /// As [`quantize_single`](crate::arch::q8::quantize_single) of `arch::q8`.
    pub(crate) fn quantize_single(self, x: &[[f32; 32]], offset: i32, steps: &mut [Step<1>]) {
        // SAFETY: `self` exists only where the features were found.
        unsafe { single(x, offset, steps) }
    }

    /// As [`quantize_double`](crate::arch::q8::quantize_double) of `arch::q8`.
    pub(crate) fn quantize_double(self, x: &[[f32; 64]], offset: i32, steps: &mut [Step<2>]) {
        // SAFETY: `self` exists only where the features were found.
        unsafe { double(x, offset, steps) }
    }

    /// As [`quantize_blocks`](crate::arch::q8::quantize_blocks) of `arch::q8`.
    pub(crate) fn quantize_blocks(self, x: &[[f32; 256]], steps: &mut [BlockStep]) {
        // SAFETY: `self` exists only where the features were found.
        unsafe { blocks(x, steps) }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn single(x: &[[f32; 32]], offset: i32, steps: &mut [Step<1>]) {
    for (x, step) in x.iter().zip(steps) {
        let values = load_run(x);
        let (mut codes, mut scales) = ([_mm256_setzero_si256(); 4], [_mm256_setzero_ps(); 4]);
        for ((values, codes), scales) in values.into_iter().zip(&mut codes).zip(&mut scales) {
            // A lane is half a register of codes.
            let max = magnitudes(values);
            let max = _mm256_max_epu32(max, _mm256_shuffle_epi32::<0b01_00_11_10>(max));
            let max = _mm256_max_epu32(max, _mm256_shuffle_epi32::<0b10_11_00_01>(max));
            let (scale, inverse) = scales_and_inverses(max);
            (*codes, *scales) = (rounded(values, inverse), scale);
        }
        let codes = packed(codes);
        let start = _mm256_mullo_epi32(lane_sums(codes), _mm256_set1_epi32(-offset));
        step.codes = [bytemuck::cast(to_bytes(codes))];
        step.start = bytemuck::cast(to_bytes(start));
        // The first of four and the fifth of each register.
        let [a, b, c, d] = scales;
        let (ab, cd) = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
        let pairs = _mm256_shuffle_ps::<0b01_00_01_00>(ab, cd);
        let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        store_scales(&mut step.scales, _mm256_permutevar8x32_ps(pairs, order));
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn double(x: &[[f32; 64]], offset: i32, steps: &mut [Step<2>]) {
    // Fields together: bytes 0, 4, 8, 12 of sixteen, then 1, 5, 9, 13, and so on.
    let fields = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15,
    ));
    let order = _mm256_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7);
    for (x, step) in x.iter().zip(steps) {
        let runs: &[[f32; 32]; 2] = bytemuck::cast_ref(x);
        let mut codes = [_mm256_setzero_si256(); 2];
        let mut scales = [_mm_setzero_ps(); 4];
        for ((run, codes), scales) in runs.iter().zip(&mut codes).zip(scales.chunks_mut(2)) {
            let values = load_run(run);
            let mut wide = [_mm256_setzero_si256(); 4];
            for (i, scales) in scales.iter_mut().enumerate() {
                // A lane has every other of sixteen elements.
                let (a, b) = (values[2 * i], values[2 * i + 1]);
                let max = _mm256_max_epu32(magnitudes(a), magnitudes(b));
                let max = _mm256_max_epu32(max, _mm256_shuffle_epi32::<0b01_00_11_10>(max));
                let max = _mm256_max_epu32(max, _mm256_permute4x64_epi64::<0b01_00_11_10>(max));
                let (scale, inverse) = scales_and_inverses(max);
                *scales = _mm256_castps256_ps128(scale);
                wide[2 * i] = rounded(a, inverse);
                wide[2 * i + 1] = rounded(b, inverse);
            }
            // Fields 0 and 2 of eight bytes, then 1 and 3.
            let fields = _mm256_shuffle_epi8(packed(wide), fields);
            *codes = _mm256_permutevar8x32_epi32(fields, order);
        }
        let low = _mm256_unpacklo_epi64(codes[0], codes[1]);
        let high = _mm256_unpackhi_epi64(codes[0], codes[1]);
        let sums = _mm256_add_epi32(lane_sums(low), lane_sums(high));
        let start = _mm256_mullo_epi32(sums, _mm256_set1_epi32(-offset));
        step.codes = [low, high].map(|codes| bytemuck::cast(to_bytes(codes)));
        step.start = bytemuck::cast(to_bytes(start));
        let [a, b, c, d] = scales;
        let (ab, cd) = (_mm_unpacklo_ps(a, b), _mm_unpacklo_ps(c, d));
        let even = _mm_movelh_ps(ab, cd);
        store_scales(
            &mut step.scales,
            _mm256_set_m128(_mm_movehl_ps(cd, ab), even),
        );
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn blocks(x: &[[f32; 256]], steps: &mut [BlockStep]) {
    for (x, step) in x.iter().zip(steps) {
        for (r, x) in x.as_chunks().0.iter().enumerate() {
            let (codes, scale) = quantize(x);
            step.codes[r] = bytemuck::cast(to_bytes(codes));
            let sums = lane_sums(codes);
            let sums = _mm256_hadd_epi32(sums, sums);
            let sums = _mm256_hadd_epi32(sums, sums);
            // At most 16 * 127.
            step.sums[0][r] = _mm256_extract_epi32::<0>(sums) as i16;
            step.sums[1][r] = _mm256_extract_epi32::<4>(sums) as i16;
            step.scales[r] = scale;
        }
    }
}

/// The codes of a run in their order, and its scale.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn quantize(x: &[f32; 32]) -> (__m256i, f32) {
    let values = load_run(x);
    let mut max = _mm256_setzero_si256();
    for values in values {
        max = _mm256_max_epu32(max, magnitudes(values));
    }
    let max = _mm_max_epu32(
        _mm256_castsi256_si128(max),
        _mm256_extracti128_si256::<1>(max),
    );
    let max = _mm_max_epu32(max, _mm_shuffle_epi32::<0b01_00_11_10>(max));
    let max = _mm_max_epu32(max, _mm_shuffle_epi32::<0b10_11_00_01>(max));
    let max = f32::from_bits(_mm_cvtsi128_si32(max).cast_unsigned());
    let (scale, inverse) = scale_and_inverse(max);
    let inverse = _mm256_set1_ps(inverse);
    let mut codes = [_mm256_setzero_si256(); 4];
    for (codes, values) in codes.iter_mut().zip(values) {
        *codes = rounded(values, inverse);
    }
    (packed(codes), scale)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load_run(x: &[f32; 32]) -> [__m256; 4] {
    let eights: &[[f32; 8]; 4] = bytemuck::cast_ref(x);
    let mut values = [_mm256_setzero_ps(); 4];
    for (values, eight) in values.iter_mut().zip(eights) {
        *values = load_scales(eight);
    }
    values
}

/// The bits without the sign, which are ordered as magnitudes are.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn magnitudes(values: __m256) -> __m256i {
    _mm256_and_si256(_mm256_castps_si256(values), _mm256_set1_epi32(i32::MAX))
}

/// As [`scale_and_inverse`], for eight groups.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scales_and_inverses(max: __m256i) -> (__m256, __m256) {
    let max = _mm256_castsi256_ps(max);
    let infinity = _mm256_set1_ps(f32::INFINITY);
    let inverse = _mm256_div_ps(_mm256_set1_ps(127.0), max);
    let is_finite = _mm256_cmp_ps::<_CMP_LT_OQ>(inverse, infinity);
    let scale = _mm256_div_ps(max, _mm256_set1_ps(127.0));
    let has_scale = _mm256_cmp_ps::<_CMP_LT_OQ>(max, infinity);
    (
        _mm256_blendv_ps(_mm256_set1_ps(f32::NAN), scale, has_scale),
        _mm256_and_ps(inverse, is_finite),
    )
}

/// As `round_half_away`: the number below one half, with the sign of the value, then the whole part.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn rounded(values: __m256, inverse: __m256) -> __m256i {
    let almost_half = _mm256_set1_ps(f32::from_bits(0x3eff_ffff));
    let value = _mm256_mul_ps(values, inverse);
    let half = _mm256_or_ps(almost_half, _mm256_and_ps(value, _mm256_set1_ps(-0.0)));
    _mm256_cvttps_epi32(_mm256_add_ps(value, half))
}

/// Codes as bytes, in their order.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn packed(codes: [__m256i; 4]) -> __m256i {
    let low = _mm256_packs_epi32(codes[0], codes[1]);
    let high = _mm256_packs_epi32(codes[2], codes[3]);
    // Packing works on halves; dwords of four codes are put back in order.
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store_scales(out: &mut [f32; 8], scales: __m256) {
    // SAFETY: the array is the eight elements that are written; no alignment is asked for.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr(), scales) };
}

/// The sum of the four codes of each lane.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn lane_sums(codes: __m256i) -> __m256i {
    let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), codes);
    _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn to_bytes(v: __m256i) -> [u8; 32] {
    let mut bytes = [0; 32];
    // SAFETY: the array is the 32 bytes that are written; no alignment is asked for.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), v) };
    bytes
}
