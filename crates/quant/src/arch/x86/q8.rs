//! Integer dot products: AVX2 multiplies pairs of bytes and adds them in two instructions, AVX-512
//! VNNI multiplies and adds four in one.
//!
//! Owns the loop and how blocks become bytes in registers of 256 bits (`q8_functions!`); both sets
//! work on those, since eight lanes are what `arch::q8` defines. Does not own the vectors.
//! Memory: loads from blocks and vectors alone; nothing is allocated.
//! Invariants: those of `arch::q8`. Where pairs of products are added in 16 bits nothing saturates:
//! vectors' codes are at most 127, weights at most 128, so a pair is at most 32,512.
//! Cost: about ten instructions for a step of a row, whatever its runs.

use std::arch::x86_64::*;

use bytemuck::Pod;

use super::{Avx2, Avx512, iq3_s_magnitudes};
use crate::QuantType;
use crate::arch::q8::{Q8Vectors, Step, scale_and_inverse};
use crate::formats::codebook::LEVELS_IQ4;
use crate::formats::{BlockIQ3_S, BlockIQ4_NL, BlockQ2_0, BlockQ4_0, BlockQ8_0, F16Le};

/// The proof that the processor has AVX-512 VNNI beside what [`Avx512`] proves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Vnni(());

impl Vnni {
    pub(crate) fn new(_: Avx512) -> Option<Self> {
        is_x86_feature_detected!("avx512vnni").then_some(Self(()))
    }
}

/// Steps of rows that are unpacked at a time; longer rows are unpacked for every vector.
const PANEL_STEPS: usize = 512;

/// Vectors for which a row is unpacked once: what leaves half of the first-level cache free.
const VECTOR_BYTES: usize = 16 << 10;

/// A step of a row, unpacked.
#[derive(Clone, Copy)]
struct Unpacked<const RUNS: usize> {
    weights: [[i8; 32]; RUNS],
    d: f32,
}

impl<const RUNS: usize> Unpacked<RUNS> {
    const EMPTY: Self = Self {
        weights: [[0; 32]; RUNS],
        d: 0.0,
    };
}

/// Writes a tile of results, rows `n` apart.
#[inline]
fn put<const R: usize, const T: usize>(sums: [[f32; T]; R], out: &mut [f32], n: usize) {
    for (r, sums) in sums.iter().enumerate() {
        out[r * n..r * n + T].copy_from_slice(sums);
    }
}

/// Stamps the kernels of one set. Its module provides `dot_small` for weights from 0 to 31, stored
/// with their offset, and `dot_wide` for signed ones; both add four products to each lane.
macro_rules! q8_functions {
    ($set:ident, $features:literal, rows $rows:literal) => {
        impl $set {
            /// As [`dot_rows`](crate::arch::q8::dot_rows) of `arch::q8`.
            pub(crate) fn dot_rows_q8(
                self,
                format: QuantType,
                rows: &[u8],
                x: &Q8Vectors,
                first: usize,
                n: usize,
                out: &mut [f32],
            ) -> bool {
                // SAFETY: `self` exists only where the features were found.
                unsafe { dot_rows(format, rows, x, first, n, out) }
            }
        }

        #[target_feature(enable = $features)]
        fn dot_rows(
            format: QuantType,
            rows: &[u8],
            x: &Q8Vectors,
            first: usize,
            n: usize,
            out: &mut [f32],
        ) -> bool {
            match format {
                QuantType::Q2_0 => {
                    let products = |block: &BlockQ2_0, _| {
                        let (w, d) = (q2_0(block), half(block.d));
                        (w, d)
                    };
                    each(rows, x.double(first, n), n, out, products, |s, w, q| {
                        dot_small(s, w, q)
                    });
                }
                QuantType::Q4_0 => {
                    let products = |block: &BlockQ4_0, _| ([nibbles(&block.qs)], half(block.d));
                    each(rows, x.single(first, n), n, out, products, |s, w, q| {
                        dot_small(s, w, q)
                    });
                }
                QuantType::Q8_0 => {
                    let products = |block: &BlockQ8_0, _| ([load(&block.qs)], half(block.d));
                    each(rows, x.single(first, n), n, out, products, |s, w, q| {
                        dot_wide(s, w, q)
                    });
                }
                QuantType::IQ4_NL => {
                    let products = |block: &BlockIQ4_NL, _| ([iq4_nl(block)], half(block.d));
                    each(rows, x.single(first, n), n, out, products, |s, w, q| {
                        dot_wide(s, w, q)
                    });
                }
                QuantType::IQ3_S => {
                    let products = |block: &BlockIQ3_S, run| {
                        ([iq3_s(block, run)], half(block.d) * block.scale(run))
                    };
                    each(rows, x.single(first, n), n, out, products, |s, w, q| {
                        dot_small(s, w, q)
                    });
                }
                _ => return false,
            }
            true
        }

        /// Rows in fours for one vector, else vectors in fours for one row: weights are unpacked
        /// once for four vectors, and four chains of additions hide the latency of one.
        #[inline]
        #[target_feature(enable = $features)]
        fn each<B: Pod, const RUNS: usize>(
            rows: &[u8],
            x: &[Step<RUNS>],
            n: usize,
            out: &mut [f32],
            unpack: impl Fn(&B, usize) -> ([__m256i; RUNS], f32),
            dot: impl Fn(__m256i, [__m256i; RUNS], [__m256i; RUNS]) -> __m256i,
        ) {
            let per_token = x.len() / n.max(1);
            let blocks: &[B] = bytemuck::cast_slice(rows);
            let per_row = blocks.len() / (out.len() / n.max(1)).max(1);
            let row = |r: usize| &blocks[r * per_row..(r + 1) * per_row];
            let vector = |t: usize| &x[t * per_token..(t + 1) * per_token];
            if n == 1 {
                let (fours, rest) = out.as_chunks_mut::<4>();
                for (i, out) in fours.iter_mut().enumerate() {
                    let rows = [row(4 * i), row(4 * i + 1), row(4 * i + 2), row(4 * i + 3)];
                    for (out, [y]) in out.iter_mut().zip(group(rows, [x], &unpack, &dot)) {
                        *out = y;
                    }
                }
                let first = 4 * fours.len();
                for (i, out) in rest.iter_mut().enumerate() {
                    [[*out]] = group([row(first + i)], [x], &unpack, &dot);
                }
                return;
            }
            if per_token > PANEL_STEPS {
                for (r, out) in out.chunks_exact_mut(n).enumerate() {
                    for (t, out) in out.iter_mut().enumerate() {
                        [[*out]] = group([row(r)], [vector(t)], &unpack, &dot);
                    }
                }
                return;
            }
            many(&row, per_row, x, n, out, &unpack, &dot);
        }

        /// As many vectors at a time as the first-level cache holds beside the rows, which are
        /// unpacked a few at a time for all of them.
        #[inline]
        #[target_feature(enable = $features)]
        fn many<'a, B: Pod, const RUNS: usize>(
            row: &impl Fn(usize) -> &'a [B],
            per_row: usize,
            x: &[Step<RUNS>],
            n: usize,
            out: &mut [f32],
            unpack: &impl Fn(&B, usize) -> ([__m256i; RUNS], f32),
            dot: &impl Fn(__m256i, [__m256i; RUNS], [__m256i; RUNS]) -> __m256i,
        ) {
            let steps = x.len() / n;
            let parts = steps.checked_div(per_row).unwrap_or(0);
            let n_rows = out.len() / n;
            let vector = |t: usize| &x[t * steps..(t + 1) * steps];
            let mut panel = [Unpacked::<RUNS>::EMPTY; PANEL_STEPS];
            // At least one of the groups below.
            let fitting = VECTOR_BYTES / size_of::<Step<RUNS>>() / steps.max(1);
            let tile = fitting.max(4) / 4 * 4;
            let most_rows = (PANEL_STEPS / steps.max(1)).clamp(1, $rows);
            for first in (0..n).step_by(tile) {
                let end = n.min(first + tile);
                let mut r = 0;
                while r < n_rows {
                    let rows = match most_rows >= $rows && n_rows - r >= $rows {
                        true => $rows,
                        false => 1,
                    };
                    for (i, unpacked) in panel.chunks_exact_mut(steps.max(1)).take(rows).enumerate()
                    {
                        let blocks = row(r + i);
                        for (unpacked, block) in unpacked.chunks_exact_mut(parts.max(1)).zip(blocks)
                        {
                            for (part, unpacked) in unpacked.iter_mut().enumerate() {
                                let (weights, d) = unpack(block, part);
                                for (stored, weights) in unpacked.weights.iter_mut().zip(weights) {
                                    store(stored, weights);
                                }
                                unpacked.d = d;
                            }
                        }
                    }
                    let unpacked = |i: usize| &panel[i * steps..(i + 1) * steps];
                    let mut t = first;
                    while t < end {
                        let out = &mut out[r * n..];
                        if rows == $rows && end - t >= 4 {
                            let x = [vector(t), vector(t + 1), vector(t + 2), vector(t + 3)];
                            let sums =
                                tile_of::<RUNS, $rows, 4>(std::array::from_fn(unpacked), x, dot);
                            put(sums, &mut out[t..], n);
                            t += 4;
                        } else if rows == $rows {
                            let sums = tile_of::<RUNS, $rows, 1>(
                                std::array::from_fn(unpacked),
                                [vector(t)],
                                dot,
                            );
                            put(sums, &mut out[t..], n);
                            t += 1;
                        } else if end - t >= 4 {
                            let x = [vector(t), vector(t + 1), vector(t + 2), vector(t + 3)];
                            put(tile_of([unpacked(0)], x, dot), &mut out[t..], n);
                            t += 4;
                        } else {
                            put(tile_of([unpacked(0)], [vector(t)], dot), &mut out[t..], n);
                            t += 1;
                        }
                    }
                    r += rows;
                }
            }
        }

        /// Products of unpacked rows and vectors, every one with every other.
        #[inline]
        #[target_feature(enable = $features)]
        fn tile_of<const RUNS: usize, const R: usize, const T: usize>(
            rows: [&[Unpacked<RUNS>]; R],
            x: [&[Step<RUNS>]; T],
            dot: &impl Fn(__m256i, [__m256i; RUNS], [__m256i; RUNS]) -> __m256i,
        ) -> [[f32; T]; R] {
            let mut lanes = [[_mm256_setzero_ps(); T]; R];
            let n = rows[0].len();
            let mut equal_rows = rows;
            for (equal, row) in equal_rows.iter_mut().zip(rows) {
                *equal = &row[..n];
            }
            let mut equal_x = x;
            for (equal, x) in equal_x.iter_mut().zip(x) {
                *equal = &x[..n];
            }
            for step in 0..n {
                let mut weights = [[_mm256_setzero_si256(); RUNS]; R];
                let mut scales = [_mm256_setzero_ps(); R];
                for ((weights, scale), row) in weights.iter_mut().zip(&mut scales).zip(equal_rows) {
                    let row = &row[step];
                    for (weights, stored) in weights.iter_mut().zip(&row.weights) {
                        *weights = load(stored);
                    }
                    *scale = _mm256_set1_ps(row.d);
                }
                for (t, x) in equal_x.iter().enumerate() {
                    let x = &x[step];
                    let mut codes = [_mm256_setzero_si256(); RUNS];
                    for (codes, x) in codes.iter_mut().zip(&x.codes) {
                        *codes = load(x);
                    }
                    let (start, s) = (load_sums(&x.start), load_scales(&x.scales));
                    for ((lanes, weights), d) in lanes.iter_mut().zip(weights).zip(scales) {
                        let sums = dot(start, weights, codes);
                        let scale = _mm256_mul_ps(d, s);
                        lanes[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), scale, lanes[t]);
                    }
                }
            }
            let mut out = [[0.0; T]; R];
            for (out, lanes) in out.as_flattened_mut().iter_mut().zip(lanes.as_flattened()) {
                *out = sum(*lanes);
            }
            out
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn group<B: Pod, const RUNS: usize, const R: usize, const T: usize>(
            rows: [&[B]; R],
            x: [&[Step<RUNS>]; T],
            unpack: &impl Fn(&B, usize) -> ([__m256i; RUNS], f32),
            dot: &impl Fn(__m256i, [__m256i; RUNS], [__m256i; RUNS]) -> __m256i,
        ) -> [[f32; T]; R] {
            let mut lanes = [[_mm256_setzero_ps(); T]; R];
            let n_blocks = rows[0].len();
            let parts = x[0].len().checked_div(n_blocks).unwrap_or(0);
            let mut equal_rows = rows;
            for (equal, row) in equal_rows.iter_mut().zip(rows) {
                *equal = &row[..n_blocks];
            }
            let mut equal_x = x;
            for (equal, x) in equal_x.iter_mut().zip(x) {
                *equal = &x[..n_blocks * parts];
            }
            for b in 0..n_blocks {
                for part in 0..parts {
                    let step = b * parts + part;
                    for (lanes, row) in lanes.iter_mut().zip(equal_rows) {
                        let (weights, d) = unpack(&row[b], part);
                        let d = _mm256_set1_ps(d);
                        for (lanes, x) in lanes.iter_mut().zip(equal_x) {
                            let x = &x[step];
                            let mut codes = [_mm256_setzero_si256(); RUNS];
                            for (codes, x) in codes.iter_mut().zip(&x.codes) {
                                *codes = load(x);
                            }
                            let sums = dot(load_sums(&x.start), weights, codes);
                            let scale = _mm256_mul_ps(d, load_scales(&x.scales));
                            *lanes = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), scale, *lanes);
                        }
                    }
                }
            }
            let mut out = [[0.0; T]; R];
            for (out, lanes) in out.as_flattened_mut().iter_mut().zip(lanes.as_flattened()) {
                *out = sum(*lanes);
            }
            out
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn load(bytes: &[i8; 32]) -> __m256i {
            // SAFETY: the array is the 32 bytes that are read; no alignment is asked for.
            unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn store(bytes: &mut [i8; 32], v: __m256i) {
            // SAFETY: the array is the 32 bytes that are written; no alignment is asked for.
            unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), v) }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn load_sums(sums: &[i32; 8]) -> __m256i {
            // SAFETY: the array is the eight elements that are read; no alignment is asked for.
            unsafe { _mm256_loadu_si256(sums.as_ptr().cast()) }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn load_scales(scales: &[f32; 8]) -> __m256 {
            // SAFETY: the array is the eight elements that are read; no alignment is asked for.
            unsafe { _mm256_loadu_ps(scales.as_ptr()) }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn load_half(bytes: &[u8; 16]) -> __m128i {
            // SAFETY: the array is the sixteen bytes that are read; no alignment is asked for.
            unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
        }

        /// Lane `l` takes lane `l + 4`, then `l + 2`, `l + 1`.
        #[inline]
        #[target_feature(enable = $features)]
        fn sum(lanes: __m256) -> f32 {
            let low = _mm256_castps256_ps128(lanes);
            let four = _mm_add_ps(low, _mm256_extractf128_ps::<1>(lanes));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn half(d: F16Le) -> f32 {
            _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(d.to_bits()))))
        }

        /// Fields 0 and 1 of the block's bytes, then 2 and 3.
        #[inline]
        #[target_feature(enable = $features)]
        fn q2_0(block: &BlockQ2_0) -> [__m256i; 2] {
            let bytes = _mm256_broadcastsi128_si256(load_half(&block.qs));
            let mask = _mm256_set1_epi8(3);
            // What a shift brings in from the next byte, the mask removes.
            let low = _mm256_srlv_epi32(bytes, _mm256_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2));
            let high = _mm256_srli_epi32::<4>(low);
            [_mm256_and_si256(low, mask), _mm256_and_si256(high, mask)]
        }

        /// The low nibbles of sixteen bytes, then the high ones.
        #[inline]
        #[target_feature(enable = $features)]
        fn nibbles(qs: &[u8; 16]) -> __m256i {
            let low = load_half(qs);
            let both = _mm256_set_m128i(_mm_srli_epi16::<4>(low), low);
            _mm256_and_si256(both, _mm256_set1_epi8(15))
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn iq4_nl(block: &BlockIQ4_NL) -> __m256i {
            let levels = load_half(bytemuck::cast_ref(&LEVELS_IQ4));
            let levels = _mm256_broadcastsi128_si256(levels);
            _mm256_shuffle_epi8(levels, nibbles(&block.qs))
        }

        /// Weights plus 16.
        #[inline]
        #[target_feature(enable = $features)]
        fn iq3_s(block: &BlockIQ3_S, run: usize) -> __m256i {
            let magnitudes = iq3_s_magnitudes(block, run);
            let signs: [u8; 4] = block.signs.as_chunks().0[run];
            let signs = _mm256_set1_epi32(i32::from_le_bytes(signs));
            // Byte `i` of eight takes sign byte `i / 8`, of which it keeps bit `i % 8`.
            let spread = _mm256_setr_epi64x(
                0,
                0x0101_0101_0101_0101,
                0x0202_0202_0202_0202,
                0x0303_0303_0303_0303,
            );
            let bits = _mm256_set1_epi64x(i64::from_le_bytes([1, 2, 4, 8, 16, 32, 64, 128]));
            let signs = _mm256_and_si256(_mm256_shuffle_epi8(signs, spread), bits);
            let negative = _mm256_cmpeq_epi8(signs, bits);
            let signed = _mm256_sub_epi8(_mm256_xor_si256(magnitudes, negative), negative);
            _mm256_add_epi8(signed, _mm256_set1_epi8(16))
        }
    };
}

mod avx2 {
    use super::*;

    q8_functions!(Avx2, "avx2,fma,f16c", rows 2);

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
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    fn single(x: &[[f32; 32]], offset: i32, steps: &mut [Step<1>]) {
        for (x, step) in x.iter().zip(steps) {
            let (codes, scale) = quantize(x);
            let start = _mm256_mullo_epi32(lane_sums(codes), _mm256_set1_epi32(-offset));
            step.codes = [bytemuck::cast(to_bytes(codes))];
            step.start = bytemuck::cast(to_bytes(start));
            step.scales = [scale; 8];
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
            let [first, second]: &[[f32; 32]; 2] = bytemuck::cast_ref(x);
            let ((first, a), (second, b)) = (quantize(first), quantize(second));
            // Fields 0 and 2 of eight bytes, then 1 and 3.
            let first = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(first, fields), order);
            let second = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(second, fields), order);
            let low = _mm256_unpacklo_epi64(first, second);
            let high = _mm256_unpackhi_epi64(first, second);
            let sums = _mm256_add_epi32(lane_sums(low), lane_sums(high));
            let start = _mm256_mullo_epi32(sums, _mm256_set1_epi32(-offset));
            step.codes = [low, high].map(|codes| bytemuck::cast(to_bytes(codes)));
            step.start = bytemuck::cast(to_bytes(start));
            step.scales = [a, a, b, b, a, a, b, b];
        }
    }

    /// The codes of a run in their order, and its scale.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn quantize(x: &[f32; 32]) -> (__m256i, f32) {
        let eights: &[[f32; 8]; 4] = bytemuck::cast_ref(x);
        let mut values = [_mm256_setzero_ps(); 4];
        let mut max = _mm256_setzero_si256();
        for (values, eight) in values.iter_mut().zip(eights) {
            *values = load_scales(eight);
            let magnitudes =
                _mm256_and_si256(_mm256_castps_si256(*values), _mm256_set1_epi32(i32::MAX));
            max = _mm256_max_epu32(max, magnitudes);
        }
        let max = _mm_max_epu32(
            _mm256_castsi256_si128(max),
            _mm256_extracti128_si256::<1>(max),
        );
        let max = _mm_max_epu32(max, _mm_shuffle_epi32::<0b01_00_11_10>(max));
        let max = _mm_max_epu32(max, _mm_shuffle_epi32::<0b10_11_00_01>(max));
        let max = f32::from_bits(_mm_cvtsi128_si32(max).cast_unsigned());
        let (scale, inverse) = scale_and_inverse(max);
        // As `round_half_away`: the number below one half, with the sign of the value.
        let almost_half = _mm256_set1_ps(f32::from_bits(0x3eff_ffff));
        let sign = _mm256_set1_ps(-0.0);
        let mut codes = [_mm256_setzero_si256(); 4];
        for (codes, values) in codes.iter_mut().zip(values) {
            let value = _mm256_mul_ps(values, _mm256_set1_ps(inverse));
            let half = _mm256_or_ps(almost_half, _mm256_and_ps(value, sign));
            *codes = _mm256_cvttps_epi32(_mm256_add_ps(value, half));
        }
        let low = _mm256_packs_epi32(codes[0], codes[1]);
        let high = _mm256_packs_epi32(codes[2], codes[3]);
        // Packing works on halves; dwords of four codes are put back in order.
        let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        let codes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
        (codes, scale)
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

    /// At most 2 * 31 * 127 a pair and run.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn dot_small<const RUNS: usize>(
        start: __m256i,
        weights: [__m256i; RUNS],
        codes: [__m256i; RUNS],
    ) -> __m256i {
        let mut pairs = _mm256_setzero_si256();
        for (weights, codes) in weights.into_iter().zip(codes) {
            pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(weights, codes));
        }
        let sums = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
        _mm256_add_epi32(start, sums)
    }

    /// Signs move from the weights to the codes; at most 2 * 128 * 127 a pair.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn dot_wide(_: __m256i, [weights]: [__m256i; 1], [codes]: [__m256i; 1]) -> __m256i {
        let codes = _mm256_sign_epi8(codes, weights);
        let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), codes);
        _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
    }
}

mod vnni {
    use super::*;

    q8_functions!(
        Vnni,
        "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c",
        rows 4
    );

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    fn dot_small<const RUNS: usize>(
        start: __m256i,
        weights: [__m256i; RUNS],
        codes: [__m256i; RUNS],
    ) -> __m256i {
        let mut sums = start;
        for (weights, codes) in weights.into_iter().zip(codes) {
            sums = _mm256_dpbusd_epi32(sums, weights, codes);
        }
        sums
    }

    /// Flipping the top bit adds 128, for which `start` makes up.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    fn dot_wide(start: __m256i, [weights]: [__m256i; 1], [codes]: [__m256i; 1]) -> __m256i {
        let weights = _mm256_xor_si256(weights, _mm256_set1_epi8(i8::MIN));
        _mm256_dpbusd_epi32(start, weights, codes)
    }
}
