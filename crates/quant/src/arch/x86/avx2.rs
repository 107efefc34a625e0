//! AVX2: sixteen lanes are two registers.
//!
//! Owns the vectors of each format's block. Codes of two bits pick from a table of products
//! `level * scale`; wider ones become integers, then f32, then are scaled, as decode does.
//! Memory: loads from the block alone; nothing is written.
//! Invariants: those of `x86`.
//! Cost: about four instructions for eight weights of Q2_0, the product's two included; five for
//! formats of four bits.

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

/// The proof that the processor has AVX2, FMA and F16C.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Avx2(());

impl Avx2 {
    /// A value, if this processor and operating system have the instructions.
    #[must_use]
    pub fn new() -> Option<Self> {
        (is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c"))
        .then_some(Self(()))
    }
}

/// Lanes 0 to 7 and 8 to 15.
type V = [__m256; 2];

drivers!(Avx2, "avx2,fma,f16c", tile 2 x 2);

macro_rules! functions {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),*) $(-> $out:ty)? $body:block)+) => { $(
        $(#[$meta])*
        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        fn $name($($arg: $ty),*) $(-> $out)? $body
    )+ };
}

functions! {
    fn zero() -> V {
        [_mm256_setzero_ps(); 2]
    }

    fn load(x: &[f32; 16]) -> V {
        let [low, high]: &[[f32; 8]; 2] = bytemuck::cast_ref(x);
        // SAFETY: the array is the eight elements that are read; no alignment is asked for.
        let low = unsafe { _mm256_loadu_ps(low.as_ptr()) };
        // SAFETY: as above.
        let high = unsafe { _mm256_loadu_ps(high.as_ptr()) };
        [low, high]
    }

    fn store(out: &mut [f32; 16], v: V) {
        let [low, high]: &mut [[f32; 8]; 2] = bytemuck::cast_mut(out);
        // SAFETY: the array is the eight elements that are written; no alignment is asked for.
        unsafe { _mm256_storeu_ps(low.as_mut_ptr(), v[0]) };
        // SAFETY: as above.
        unsafe { _mm256_storeu_ps(high.as_mut_ptr(), v[1]) };
    }

    fn load_bytes(bytes: &[u8; 16]) -> __m128i {
        // SAFETY: the array is the sixteen bytes that are read; no alignment is asked for.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }

    /// A product and a sum, each rounded.
    fn add_product(lanes: V, a: V, b: V) -> V {
        [
            _mm256_add_ps(lanes[0], _mm256_mul_ps(a[0], b[0])),
            _mm256_add_ps(lanes[1], _mm256_mul_ps(a[1], b[1])),
        ]
    }

    /// The pairwise tree of `Lanes::sum`.
    fn sum(v: V) -> f32 {
        let eight = _mm256_add_ps(v[0], v[1]);
        let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }

    fn half(d: F16Le) -> f32 {
        _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(d.to_bits()))))
    }

    fn f32s(block: &[u8; 64]) -> V {
        let [low, high]: &[[u8; 32]; 2] = bytemuck::cast_ref(block);
        // SAFETY: the array is the 32 bytes that are read; no alignment is asked for.
        let low = unsafe { _mm256_loadu_ps(low.as_ptr().cast()) };
        // SAFETY: as above.
        let high = unsafe { _mm256_loadu_ps(high.as_ptr().cast()) };
        [low, high]
    }

    fn f16s(block: &[u8; 32]) -> V {
        [
            _mm256_cvtph_ps(load_bytes(part::<0, 16, 32>(block))),
            _mm256_cvtph_ps(load_bytes(part::<16, 16, 32>(block))),
        ]
    }

    fn bf16s(block: &[u8; 32]) -> V {
        let low = _mm256_cvtepu16_epi32(load_bytes(part::<0, 16, 32>(block)));
        let high = _mm256_cvtepu16_epi32(load_bytes(part::<16, 16, 32>(block)));
        [
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
        ]
    }

    fn q2_0(block: &BlockQ2_0) -> [V; 4] {
        let low = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
        let high = _mm256_setr_epi32(16, 18, 20, 22, 24, 26, 28, 30);
        let levels = _mm256_setr_ps(-1.0, 0.0, 1.0, 2.0, -1.0, 0.0, 1.0, 2.0);
        let levels = _mm256_mul_ps(levels, _mm256_set1_ps(half(block.d)));
        let mut out = [zero(); 4];
        for (out, &codes) in out.iter_mut().zip(block.qs.as_chunks().0) {
            // Four bytes hold the codes of sixteen weights; the permutation reads two bits.
            let codes = _mm256_set1_epi32(i32::from_le_bytes(codes));
            *out = [
                _mm256_permutevar_ps(levels, _mm256_srlv_epi32(codes, low)),
                _mm256_permutevar_ps(levels, _mm256_srlv_epi32(codes, high)),
            ];
        }
        out
    }

    /// The low nibbles of sixteen bytes, then the high ones.
    fn nibbles(qs: &[u8; 16]) -> [__m128i; 2] {
        let (qs, mask) = (load_bytes(qs), _mm_set1_epi8(15));
        [_mm_and_si128(qs, mask), _mm_and_si128(_mm_srli_epi16::<4>(qs), mask)]
    }

    /// Sixteen signed bytes as f32.
    fn to_f32(bytes: __m128i) -> V {
        let high = _mm_unpackhi_epi64(bytes, bytes);
        [
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high)),
        ]
    }

    fn scaled(v: V, scale: f32) -> V {
        let scale = _mm256_set1_ps(scale);
        [_mm256_mul_ps(v[0], scale), _mm256_mul_ps(v[1], scale)]
    }

    fn shifted(v: V, by: f32) -> V {
        let by = _mm256_set1_ps(by);
        [_mm256_add_ps(v[0], by), _mm256_add_ps(v[1], by)]
    }

    fn q4_0(block: &BlockQ4_0) -> [V; 2] {
        let ([low, high], eight) = (nibbles(&block.qs), _mm_set1_epi8(8));
        let d = half(block.d);
        [scaled(to_f32(_mm_sub_epi8(low, eight)), d), scaled(to_f32(_mm_sub_epi8(high, eight)), d)]
    }

    fn q4_1(block: &BlockQ4_1) -> [V; 2] {
        let [low, high] = nibbles(&block.qs);
        let (d, m) = (half(block.d), half(block.m));
        [shifted(scaled(to_f32(low), d), m), shifted(scaled(to_f32(high), d), m)]
    }

    /// `scale * levels[code]` for 32 codes of four bits.
    fn look_up(qs: &[u8; 16], levels: &[i8; 16], scale: f32) -> [V; 2] {
        let ([low, high], levels) = (nibbles(qs), load_bytes(bytemuck::cast_ref(levels)));
        [
            scaled(to_f32(_mm_shuffle_epi8(levels, low)), scale),
            scaled(to_f32(_mm_shuffle_epi8(levels, high)), scale),
        ]
    }

    fn iq4_nl(block: &BlockIQ4_NL) -> [V; 2] {
        look_up(&block.qs, &LEVELS_IQ4, half(block.d))
    }

    fn iq4_xs(block: &BlockIQ4_XS, run: usize) -> [V; 2] {
        let scale = half(block.d) * block.scale(run);
        look_up(&block.qs.as_chunks().0[run], &LEVELS_IQ4, scale)
    }

    fn mxfp4(block: &BlockMXFP4) -> [V; 2] {
        look_up(&block.qs, &LEVELS_MXFP4, scale_mxfp4(block.e))
    }

    /// Sixteen codes of five bits: nibbles and the bits above them.
    fn with_fifth(low: __m128i, fifth: u16) -> __m128i {
        // Byte `i` of the result is -1 where bit `i` is set.
        let spread = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
        let bits = _mm_set1_epi64x(i64::from_le_bytes([1, 2, 4, 8, 16, 32, 64, 128]));
        let fifth = _mm_shuffle_epi8(_mm_cvtsi32_si128(i32::from(fifth)), spread);
        let set = _mm_cmpeq_epi8(_mm_and_si128(fifth, bits), bits);
        _mm_or_si128(low, _mm_and_si128(set, _mm_set1_epi8(16)))
    }

    fn five_bits(qs: &[u8; 16], qh: [u8; 4]) -> [__m128i; 2] {
        let [low, high] = nibbles(qs);
        [
            with_fifth(low, u16::from_le_bytes([qh[0], qh[1]])),
            with_fifth(high, u16::from_le_bytes([qh[2], qh[3]])),
        ]
    }

    fn q5_0(block: &BlockQ5_0) -> [V; 2] {
        let ([low, high], sixteen) = (five_bits(&block.qs, block.qh), _mm_set1_epi8(16));
        let d = half(block.d);
        [
            scaled(to_f32(_mm_sub_epi8(low, sixteen)), d),
            scaled(to_f32(_mm_sub_epi8(high, sixteen)), d),
        ]
    }

    fn q5_1(block: &BlockQ5_1) -> [V; 2] {
        let [low, high] = five_bits(&block.qs, block.qh);
        let (d, m) = (half(block.d), half(block.m));
        [shifted(scaled(to_f32(low), d), m), shifted(scaled(to_f32(high), d), m)]
    }

    fn q8_0(block: &BlockQ8_0) -> [V; 2] {
        let qs: &[u8; 32] = bytemuck::cast_ref(&block.qs);
        let d = half(block.d);
        [
            scaled(to_f32(load_bytes(part::<0, 16, 32>(qs))), d),
            scaled(to_f32(load_bytes(part::<16, 16, 32>(qs))), d),
        ]
    }

    /// Eight magnitudes times a scale, negative where a bit of `signs` is set.
    fn signed(grid: __m128i, scale: f32, signs: u8) -> __m256 {
        let values = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(grid));
        let values = _mm256_mul_ps(_mm256_set1_ps(scale), values);
        // Bit `j` moves to the top of lane `j`.
        let to_top = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
        let signs = _mm256_sllv_epi32(_mm256_set1_epi32(i32::from(signs)), to_top);
        let signs = _mm256_and_si256(signs, _mm256_set1_epi32(i32::MIN));
        _mm256_xor_ps(values, _mm256_castsi256_ps(signs))
    }

    fn iq3_s(block: &BlockIQ3_S, run: usize) -> [V; 2] {
        let scale = half(block.d) * block.scale(run);
        let magnitudes = iq3_s_magnitudes(block, run);
        let low = _mm256_castsi256_si128(magnitudes);
        let high = _mm256_extracti128_si256::<1>(magnitudes);
        let signs: &[u8; 4] = &block.signs.as_chunks().0[run];
        let second = |half| _mm_unpackhi_epi64(half, half);
        [
            [signed(low, scale, signs[0]), signed(second(low), scale, signs[1])],
            [signed(high, scale, signs[2]), signed(second(high), scale, signs[3])],
        ]
    }
}
