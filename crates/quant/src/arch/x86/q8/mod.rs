//! Integer dot products: AVX2 multiplies pairs of bytes and adds them in two instructions, AVX-512
//! VNNI multiplies and adds four in one.
//!
//! Owns the loop over rows and vectors (`q8_functions!`), stamped for both sets; `unpack` owns how
//! blocks become bytes in registers of 256 bits, on which both sets work, since eight lanes are what
//! `arch::q8` defines. Does not own the vectors.
//! Memory: blocks and vectors, and unpacked rows on the stack (48 KiB); nothing is allocated.
//! Invariants: those of `arch::q8`. Where pairs of products are added in 16 bits nothing saturates:
//! vectors' codes are at most 127, weights at most 128, so a pair is at most 32,512.
//! Cost: about ten instructions for a step of one or two runs of a row; four to eight for each run
//! of a step of eight, more for IQ3_S.

mod blocks;
mod iq3_s;
mod quantize;
mod unpack;
mod wide;

use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use bytemuck::Pod;

use self::blocks::BlockWeights;
use self::unpack::*;
use super::{Avx2, Avx512, prefetch_behind, prefetched_at_once};
use crate::QuantType;
use crate::arch::q8::{BlockStep, Q8Vectors, Step};
use crate::formats::{
    BlockIQ3_S, BlockIQ4_NL, BlockIQ4_XS, BlockMXFP4, BlockQ2_0, BlockQ2_K, BlockQ3_K, BlockQ4_0,
    BlockQ4_1, BlockQ4_K, BlockQ5_0, BlockQ5_1, BlockQ5_K, BlockQ6_K, BlockQ8_0, scale_mxfp4,
};

/// The proof that the processor has AVX-512 VNNI beside what [`Avx512`] proves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Vnni(());

impl Vnni {
    pub(crate) fn new(_: Avx512) -> Option<Self> {
        is_x86_feature_detected!("avx512vnni").then_some(Self(()))
    }
}

/// The weights of a step: codes times a scale.
#[derive(Clone, Copy)]
struct Scaled<const RUNS: usize> {
    codes: [__m256i; RUNS],
    d: f32,
}

/// The weights of a run: codes times a scale, plus a minimum.
#[derive(Clone, Copy)]
struct Shifted {
    codes: __m256i,
    d: f32,
    m: f32,
}

/// Steps of rows that are unpacked at a time; longer rows are unpacked for every vector.
const RUNS_HELD: usize = 512;

/// As [`RUNS_HELD`], for steps of a whole block.
const BLOCKS_HELD: usize = 64;

/// Vectors for which a row is unpacked once: what leaves half of the first-level cache free.
const VECTOR_BYTES: usize = 16 << 10;

impl Avx2 {
    /// AVX2 has no wider registers.
    fn dot_rows_wide(
        self,
        _: QuantType,
        _: &[u8],
        _: &Q8Vectors,
        _: usize,
        _: usize,
        _: &mut [f32],
    ) -> bool {
        false
    }
}

/// Writes a tile of results, rows `n` apart.
#[inline]
fn put<const R: usize, const T: usize>(sums: [[f32; T]; R], out: &mut [f32], n: usize) {
    for (r, sums) in sums.iter().enumerate() {
        out[r * n..r * n + T].copy_from_slice(sums);
    }
}

/// Stamps the kernels of one set. Its module provides, for weights that are stored with an offset,
/// `dot_small` (0 to 31) and `dot_wide` (signed), which add four products to what each lane starts
/// from, and for others `dot_positive` (0 to 127) and `dot_signed`; and `iq3_s`, which unpacks a
/// block of that format.
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
                if n > 1 && self.dot_rows_wide(format, rows, x, first, n, out) {
                    return true;
                }
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
            // Closures, since functions that ask for a feature are not `Fn`.
            macro_rules! scaled {
                ($steps:ident, $dot:ident, $unpack:expr) => {
                    each::<_, _, _, RUNS_HELD>(
                        rows,
                        x.$steps(first, n),
                        n,
                        out,
                        $unpack,
                        |lanes, w, x| add_scaled(lanes, w, x, |s, w, q| $dot(s, w, q)),
                    )
                };
            }
            macro_rules! shifted {
                ($unpack:expr) => {
                    each::<_, _, _, RUNS_HELD>(
                        rows,
                        x.single(first, n),
                        n,
                        out,
                        $unpack,
                        |lanes, w, x| add_shifted(lanes, w, x),
                    )
                };
            }
            macro_rules! block {
                ($dot:ident, $unpack:expr) => {
                    each::<_, _, _, BLOCKS_HELD>(
                        rows,
                        x.block(first, n),
                        n,
                        out,
                        $unpack,
                        |lanes, w, x| add_block(lanes, w, x, |w, q| $dot(w, q)),
                    )
                };
            }
            match format {
                QuantType::Q2_0 => scaled!(double, dot_small, |b: &BlockQ2_0, _| Scaled {
                    codes: q2_0(b),
                    d: half(b.d),
                }),
                QuantType::Q4_0 => scaled!(single, dot_small, |b: &BlockQ4_0, _| Scaled {
                    codes: [nibbles(&b.qs)],
                    d: half(b.d),
                }),
                QuantType::Q4_1 => shifted!(|b: &BlockQ4_1, _| Shifted {
                    codes: nibbles(&b.qs),
                    d: half(b.d),
                    m: half(b.m),
                }),
                QuantType::Q5_0 => scaled!(single, dot_small, |b: &BlockQ5_0, _| Scaled {
                    codes: [five_bits(&b.qs, b.qh)],
                    d: half(b.d),
                }),
                QuantType::Q5_1 => shifted!(|b: &BlockQ5_1, _| Shifted {
                    codes: five_bits(&b.qs, b.qh),
                    d: half(b.d),
                    m: half(b.m),
                }),
                QuantType::Q8_0 => scaled!(single, dot_wide, |b: &BlockQ8_0, _| Scaled {
                    codes: [load(&b.qs)],
                    d: half(b.d),
                }),
                QuantType::IQ4_NL => scaled!(single, dot_wide, |b: &BlockIQ4_NL, _| Scaled {
                    codes: [iq4_nl(&b.qs)],
                    d: half(b.d),
                }),
                QuantType::MXFP4 => scaled!(single, dot_small, |b: &BlockMXFP4, _| Scaled {
                    codes: [mxfp4(&b.qs)],
                    d: scale_mxfp4(b.e),
                }),
                QuantType::IQ3_S => block!(dot_positive, |b: &BlockIQ3_S, _| iq3_s(b)),
                QuantType::Q2_K => block!(dot_positive, |b: &BlockQ2_K, _| blocks::q2_k(b)),
                QuantType::Q3_K => block!(dot_positive, |b: &BlockQ3_K, _| blocks::q3_k(b)),
                QuantType::Q4_K => block!(dot_positive, |b: &BlockQ4_K, _| blocks::q4_k(b)),
                QuantType::Q5_K => block!(dot_positive, |b: &BlockQ5_K, _| blocks::q5_k(b)),
                QuantType::Q6_K => block!(dot_positive, |b: &BlockQ6_K, _| blocks::q6_k(b)),
                QuantType::IQ4_XS => block!(dot_signed, |b: &BlockIQ4_XS, _| blocks::iq4_xs(b)),
                _ => return false,
            }
            true
        }

        /// Rows in fours for one vector: four chains of additions hide the latency of one.
        #[inline]
        #[target_feature(enable = $features)]
        fn each<B: Pod, X, W: Copy, const HELD: usize>(
            rows: &[u8],
            x: &[X],
            n: usize,
            out: &mut [f32],
            unpack: impl Fn(&B, usize) -> W,
            add: impl Fn(__m256, &W, &X) -> __m256,
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
                    for (out, [y]) in out.iter_mut().zip(group(rows, [x], &unpack, &add)) {
                        *out = y;
                    }
                }
                let first = 4 * fours.len();
                for (i, out) in rest.iter_mut().enumerate() {
                    [[*out]] = group([row(first + i)], [x], &unpack, &add);
                }
                return;
            }
            if per_token > HELD {
                for (r, out) in out.chunks_exact_mut(n).enumerate() {
                    for (t, out) in out.iter_mut().enumerate() {
                        [[*out]] = group([row(r)], [vector(t)], &unpack, &add);
                    }
                }
                return;
            }
            many::<_, _, _, HELD>(row, x, n, out, &unpack, &add);
        }

        /// As many vectors at a time as the first-level cache holds beside the rows, which are
        /// unpacked a few at a time for all of them.
        #[inline]
        #[target_feature(enable = $features)]
        fn many<'a, B: Pod, X, W: Copy, const HELD: usize>(
            row: impl Fn(usize) -> &'a [B],
            x: &[X],
            n: usize,
            out: &mut [f32],
            unpack: &impl Fn(&B, usize) -> W,
            add: &impl Fn(__m256, &W, &X) -> __m256,
        ) {
            let (steps, n_rows) = (x.len() / n, out.len() / n);
            let mut panel = [const { MaybeUninit::<W>::uninit() }; HELD];
            let fitting = VECTOR_BYTES / size_of::<X>() / steps.max(1);
            let tile = fitting.max(4) / 4 * 4;
            for first in (0..n).step_by(tile) {
                let tokens = first..n.min(first + tile);
                let mut r = 0;
                while r < n_rows {
                    let (row, out) = (|i| row(r + i), &mut out[r * n..]);
                    if n_rows - r >= $rows && $rows * steps <= HELD {
                        held::<_, _, _, $rows>(
                            &mut panel,
                            row,
                            x,
                            n,
                            tokens.clone(),
                            out,
                            unpack,
                            add,
                        );
                        r += $rows;
                    } else {
                        held::<_, _, _, 1>(&mut panel, row, x, n, tokens.clone(), out, unpack, add);
                        r += 1;
                    }
                }
            }
        }

        /// Unpacks `R` rows into `panel` and multiplies them by the vectors `tokens` of `x`, which
        /// has `n`; `out [R, n]`.
        #[allow(clippy::too_many_arguments)] // The state of one loop.
        #[inline]
        #[target_feature(enable = $features)]
        fn held<'a, B: Pod, X, W: Copy, const R: usize>(
            panel: &mut [MaybeUninit<W>],
            row: impl Fn(usize) -> &'a [B],
            x: &[X],
            n: usize,
            tokens: Range<usize>,
            out: &mut [f32],
            unpack: &impl Fn(&B, usize) -> W,
            add: &impl Fn(__m256, &W, &X) -> __m256,
        ) {
            let steps = x.len() / n;
            let vector = |t: usize| &x[t * steps..(t + 1) * steps];
            let mut rows: [&[W]; R] = [&[]; R];
            let panels = panel.chunks_exact_mut(steps.max(1));
            for (i, (held, panel)) in rows.iter_mut().zip(panels).enumerate() {
                fill(panel, row(i), unpack);
                // SAFETY: `fill` has written every element.
                *held = unsafe { panel.assume_init_ref() };
            }
            let whole = tokens.start + tokens.len() / 4 * 4;
            for t in (tokens.start..whole).step_by(4) {
                let x = [vector(t), vector(t + 1), vector(t + 2), vector(t + 3)];
                put(tile_of(rows, x, add), &mut out[t..], n);
            }
            for t in whole..tokens.end {
                put(tile_of(rows, [vector(t)], add), &mut out[t..], n);
            }
        }

        /// Unpacks a row: writes every element of `panel`, which is as long as the row has steps.
        #[inline]
        #[target_feature(enable = $features)]
        fn fill<B: Pod, W: Copy>(
            panel: &mut [MaybeUninit<W>],
            row: &[B],
            unpack: &impl Fn(&B, usize) -> W,
        ) {
            let parts = panel.len() / row.len().max(1);
            assert_eq!(parts * row.len(), panel.len(), "steps are whole blocks");
            for (panel, block) in panel.chunks_exact_mut(parts.max(1)).zip(row) {
                for (part, step) in panel.iter_mut().enumerate() {
                    step.write(unpack(block, part));
                }
            }
        }

        /// Products of unpacked rows and vectors, every one with every other.
        #[inline]
        #[target_feature(enable = $features)]
        fn tile_of<X, W, const R: usize, const T: usize>(
            rows: [&[W]; R],
            x: [&[X]; T],
            add: &impl Fn(__m256, &W, &X) -> __m256,
        ) -> [[f32; T]; R] {
            let mut lanes = [[_mm256_setzero_ps(); T]; R];
            let n = rows[0].len();
            let (mut equal_rows, mut equal_x) = (rows, x);
            for row in &mut equal_rows {
                *row = &row[..n];
            }
            for x in &mut equal_x {
                *x = &x[..n];
            }
            for step in 0..n {
                for (t, x) in equal_x.iter().enumerate() {
                    for (lanes, row) in lanes.iter_mut().zip(equal_rows) {
                        lanes[t] = add(lanes[t], &row[step], &x[step]);
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
        fn group<B: Pod, X, W, const R: usize, const T: usize>(
            rows: [&[B]; R],
            x: [&[X]; T],
            unpack: &impl Fn(&B, usize) -> W,
            add: &impl Fn(__m256, &W, &X) -> __m256,
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
                if b % prefetched_at_once::<B>() == 0 {
                    for row in equal_rows {
                        prefetch_behind(&row[b], R * size_of_val(row));
                    }
                }
                for part in 0..parts {
                    let step = b * parts + part;
                    for (lanes, row) in lanes.iter_mut().zip(equal_rows) {
                        let weights = unpack(&row[b], part);
                        for (lanes, x) in lanes.iter_mut().zip(equal_x) {
                            *lanes = add(*lanes, &weights, &x[step]);
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
        fn add_scaled<const RUNS: usize>(
            lanes: __m256,
            w: &Scaled<RUNS>,
            x: &Step<RUNS>,
            dot: impl Fn(__m256i, [__m256i; RUNS], [__m256i; RUNS]) -> __m256i,
        ) -> __m256 {
            let mut codes = [_mm256_setzero_si256(); RUNS];
            for (codes, x) in codes.iter_mut().zip(&x.codes) {
                *codes = load(x);
            }
            let sums = dot(load_sums(&x.start), w.codes, codes);
            let scale = _mm256_mul_ps(_mm256_set1_ps(w.d), load_scales(&x.scales));
            _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), scale, lanes)
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn add_shifted(lanes: __m256, w: &Shifted, x: &Step<1>) -> __m256 {
            let scales = load_scales(&x.scales);
            let m = _mm256_mul_ps(_mm256_set1_ps(w.m), scales);
            let d = _mm256_mul_ps(_mm256_set1_ps(w.d), scales);
            let of_codes = _mm256_cvtepi32_ps(load_sums(&x.start));
            let sums = dot_positive(w.codes, load(&x.codes[0]));
            let lanes = _mm256_fmadd_ps(of_codes, m, lanes);
            _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), d, lanes)
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn add_block<const SCALES: usize, const MINIMA: usize>(
            mut lanes: __m256,
            w: &BlockWeights<SCALES, MINIMA>,
            x: &BlockStep,
            dot: impl Fn(__m256i, __m256i) -> __m256i,
        ) -> __m256 {
            let s = load_scales(&x.scales);
            let [first, second] = x
                .sums
                .each_ref()
                .map(|sums| load_half(bytemuck::cast_ref(sums)));
            let sums = if MINIMA == 1 {
                [_mm_add_epi16(first, second), second]
            } else {
                [first, second]
            };
            for (minima, sums) in w.minima.into_iter().zip(sums) {
                let sums = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(sums));
                lanes = _mm256_fmadd_ps(sums, _mm256_mul_ps(minima, s), lanes);
            }
            // For halves: those of runs 0, 1, 4 and 5, and those of the others, side by side.
            let first = _mm256_mul_ps(w.scales[0], s);
            let second = _mm256_mul_ps(w.scales[SCALES - 1], s);
            let even = _mm256_unpacklo_ps(first, second);
            let odd = _mm256_unpackhi_ps(first, second);
            for (r, (w, q)) in (0..).zip(w.codes.into_iter().zip(&x.codes)) {
                let scale = if SCALES == 1 {
                    _mm256_permutevar8x32_ps(first, _mm256_set1_epi32(r))
                } else {
                    let (a, b) = ((r & 4) + 2 * (r & 1), (r & 4) + 2 * (r & 1) + 1);
                    let order = _mm256_setr_epi32(a, a, a, a, b, b, b, b);
                    _mm256_permutevar8x32_ps(if r & 2 == 0 { even } else { odd }, order)
                };
                let sums = _mm256_cvtepi32_ps(dot(w, load(q)));
                lanes = _mm256_fmadd_ps(sums, scale, lanes);
            }
            lanes
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
    };
}

mod avx2 {
    use super::*;

    use super::iq3_s::with_avx2 as iq3_s;

    q8_functions!(Avx2, "avx2,fma,f16c", rows 2);

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

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn dot_wide(_: __m256i, [weights]: [__m256i; 1], [codes]: [__m256i; 1]) -> __m256i {
        dot_signed(weights, codes)
    }

    /// At most 2 * 127 * 127 a pair.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn dot_positive(weights: __m256i, codes: __m256i) -> __m256i {
        let pairs = _mm256_maddubs_epi16(weights, codes);
        _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
    }

    /// Signs move from the weights to the codes; at most 2 * 128 * 127 a pair.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn dot_signed(weights: __m256i, codes: __m256i) -> __m256i {
        dot_positive(_mm256_abs_epi8(weights), _mm256_sign_epi8(codes, weights))
    }
}

mod vnni {
    use super::*;

    use super::iq3_s::with_avx512 as iq3_s;

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

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    fn dot_positive(weights: __m256i, codes: __m256i) -> __m256i {
        _mm256_dpbusd_epi32(_mm256_setzero_si256(), weights, codes)
    }

    /// Signs move from the weights to the codes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    fn dot_signed(weights: __m256i, codes: __m256i) -> __m256i {
        dot_positive(_mm256_abs_epi8(weights), _mm256_sign_epi8(codes, weights))
    }
}
