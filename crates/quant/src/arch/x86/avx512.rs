//! AVX-512: sixteen lanes are one register.
//!
//! Owns the vectors of each format's block. Codes of up to four bits pick from a table of products
//! `level * scale` that is made once a block: the same single multiplication that decode does per
//! weight, so the same bits.
//! Memory: loads from the block alone; nothing is written.
//! Invariants: those of `x86`.
//! Cost: about four instructions for sixteen weights of Q2_0 or Q4_0, the product's two included.

use std::arch::x86_64::*;

use bytemuck::Pod;

use super::{
    drivers, iq3_s_magnitudes, padded, padded_block, part, prefetch_behind, prefetched_at_once,
    unpack_with,
};
use crate::QuantType;
use crate::arch::Loops;
use crate::arch::scalar::{Lanes, TILE_ROWS};
use crate::formats::codebook::LEVELS_IQ4;
use crate::formats::{
    BlockIQ3_S, BlockIQ4_NL, BlockIQ4_XS, BlockMXFP4, BlockQ2_0, BlockQ4_0, BlockQ4_1, BlockQ5_0,
    BlockQ5_1, BlockQ8_0, F16Le, LEVELS_MXFP4, scale_mxfp4,
};

/// The proof that the processor has AVX-512 F, BW, DQ and VL, beside AVX2, FMA and F16C.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Avx512(());

impl Avx512 {
    /// A value, if this processor and operating system have the instructions.
    #[must_use]
    pub fn new() -> Option<Self> {
        (is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c"))
        .then_some(Self(()))
    }
}

type V = __m512;

drivers!(Avx512, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c", tile 4 x 4);

macro_rules! functions {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),*) $(-> $out:ty)? $body:block)+) => { $(
        $(#[$meta])*
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        fn $name($($arg: $ty),*) $(-> $out)? $body
    )+ };
}

functions! {
    fn zero() -> V {
        _mm512_setzero_ps()
    }

    fn load(x: &[f32; 16]) -> V {
        // SAFETY: the array is the sixteen elements that are read; no alignment is asked for.
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }

    fn store(out: &mut [f32; 16], v: V) {
        // SAFETY: the array is the sixteen elements that are written; no alignment is asked for.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), v) }
    }

    fn load_bytes(bytes: &[u8; 16]) -> __m128i {
        // SAFETY: the array is the sixteen bytes that are read; no alignment is asked for.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }

    /// A product and a sum, each rounded.
    fn add_product(lanes: V, a: V, b: V) -> V {
        _mm512_add_ps(lanes, _mm512_mul_ps(a, b))
    }

    /// The pairwise tree of `Lanes::sum`.
    fn sum(v: V) -> f32 {
        let eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
        let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }

    fn half(d: F16Le) -> f32 {
        _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(d.to_bits()))))
    }

    fn f32s(block: &[u8; 64]) -> V {
        // SAFETY: the array is the 64 bytes that are read; no alignment is asked for.
        unsafe { _mm512_loadu_ps(block.as_ptr().cast()) }
    }

    fn f16s(block: &[u8; 32]) -> V {
        // SAFETY: the array is the 32 bytes that are read; no alignment is asked for.
        let halves = unsafe { _mm256_loadu_si256(block.as_ptr().cast()) };
        _mm512_cvtph_ps(halves)
    }

    fn bf16s(block: &[u8; 32]) -> V {
        // SAFETY: the array is the 32 bytes that are read; no alignment is asked for.
        let halves = unsafe { _mm256_loadu_si256(block.as_ptr().cast()) };
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
    }

    fn q2_0(block: &BlockQ2_0) -> [V; 4] {
        let shifts = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        let levels = _mm512_broadcast_f32x4(_mm_setr_ps(-1.0, 0.0, 1.0, 2.0));
        let levels = _mm512_mul_ps(levels, _mm512_set1_ps(half(block.d)));
        let mut out = [zero(); 4];
        for (out, &codes) in out.iter_mut().zip(block.qs.as_chunks().0) {
            // Four bytes hold the codes of sixteen weights; the permutation reads two bits.
            let codes = _mm512_set1_epi32(i32::from_le_bytes(codes));
            *out = _mm512_permutevar_ps(levels, _mm512_srlv_epi32(codes, shifts));
        }
        out
    }

    /// `table[code]` for 32 codes of four bits: low nibbles first, then high ones.
    fn look_up(qs: &[u8; 16], table: V) -> [V; 2] {
        // The permutation reads four bits: the high nibble need not be cleared.
        let codes = _mm512_cvtepu8_epi32(load_bytes(qs));
        [
            _mm512_permutexvar_ps(codes, table),
            _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(codes), table),
        ]
    }

    /// `level * scale` for sixteen levels.
    fn scaled(levels: &[i8; 16], scale: f32) -> V {
        let levels = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_bytes(bytemuck::cast_ref(levels))));
        _mm512_mul_ps(levels, _mm512_set1_ps(scale))
    }

    /// 0 to 15.
    fn codes() -> V {
        _mm512_setr_ps(
            0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0,
        )
    }

    fn q4_0(block: &BlockQ4_0) -> [V; 2] {
        let levels = _mm512_sub_ps(codes(), _mm512_set1_ps(8.0));
        look_up(&block.qs, _mm512_mul_ps(levels, _mm512_set1_ps(half(block.d))))
    }

    fn q4_1(block: &BlockQ4_1) -> [V; 2] {
        let table = _mm512_mul_ps(codes(), _mm512_set1_ps(half(block.d)));
        look_up(&block.qs, _mm512_add_ps(table, _mm512_set1_ps(half(block.m))))
    }

    fn iq4_nl(block: &BlockIQ4_NL) -> [V; 2] {
        look_up(&block.qs, scaled(&LEVELS_IQ4, half(block.d)))
    }

    fn iq4_xs(block: &BlockIQ4_XS, run: usize) -> [V; 2] {
        let scale = half(block.d) * block.scale(run);
        look_up(&block.qs.as_chunks().0[run], scaled(&LEVELS_IQ4, scale))
    }

    fn mxfp4(block: &BlockMXFP4) -> [V; 2] {
        look_up(&block.qs, scaled(&LEVELS_MXFP4, scale_mxfp4(block.e)))
    }

    /// `low[code]` or, where the fifth bit of a code is set, `high[code]`.
    fn look_up_five(qs: &[u8; 16], qh: [u8; 4], low: V, high: V) -> [V; 2] {
        let codes = _mm512_cvtepu8_epi32(load_bytes(qs));
        let upper = _mm512_srli_epi32::<4>(codes);
        let [fifth, fifth_upper] = [u16::from_le_bytes([qh[0], qh[1]]), u16::from_le_bytes([qh[2], qh[3]])];
        let first = _mm512_permutexvar_ps(codes, low);
        let second = _mm512_permutexvar_ps(upper, low);
        [
            _mm512_mask_permutexvar_ps(first, fifth, codes, high),
            _mm512_mask_permutexvar_ps(second, fifth_upper, upper, high),
        ]
    }

    fn q5_0(block: &BlockQ5_0) -> [V; 2] {
        let d = _mm512_set1_ps(half(block.d));
        let low = _mm512_sub_ps(codes(), _mm512_set1_ps(16.0));
        look_up_five(&block.qs, block.qh, _mm512_mul_ps(low, d), _mm512_mul_ps(codes(), d))
    }

    fn q5_1(block: &BlockQ5_1) -> [V; 2] {
        let (d, m) = (_mm512_set1_ps(half(block.d)), _mm512_set1_ps(half(block.m)));
        let high = _mm512_add_ps(codes(), _mm512_set1_ps(16.0));
        look_up_five(
            &block.qs,
            block.qh,
            _mm512_add_ps(_mm512_mul_ps(codes(), d), m),
            _mm512_add_ps(_mm512_mul_ps(high, d), m),
        )
    }

    fn q8_0(block: &BlockQ8_0) -> [V; 2] {
        let qs: &[u8; 32] = bytemuck::cast_ref(&block.qs);
        [scaled_bytes(part::<0, 16, 32>(qs), half(block.d)), scaled_bytes(part::<16, 16, 32>(qs), half(block.d))]
    }

    /// Sixteen signed bytes times a scale.
    fn scaled_bytes(bytes: &[u8; 16], scale: f32) -> V {
        let values = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_bytes(bytes)));
        _mm512_mul_ps(values, _mm512_set1_ps(scale))
    }

    fn iq3_s(block: &BlockIQ3_S, run: usize) -> [V; 2] {
        let scale = _mm512_set1_ps(half(block.d) * block.scale(run));
        let magnitudes = iq3_s_magnitudes(block, run);
        let halves = [_mm256_castsi256_si128(magnitudes), _mm256_extracti128_si256::<1>(magnitudes)];
        let signs: &[[u8; 2]; 2] = bytemuck::cast_ref(&block.signs.as_chunks::<4>().0[run]);
        let mut out = [zero(); 2];
        for ((out, &signs), grid) in out.iter_mut().zip(signs).zip(halves) {
            let values = _mm512_mul_ps(scale, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(grid)));
            let bits = _mm512_castps_si512(values);
            let sign = _mm512_set1_epi32(i32::MIN);
            *out = _mm512_castsi512_ps(_mm512_mask_xor_epi32(bits, u16::from_le_bytes(signs), bits, sign));
        }
        out
    }
}
