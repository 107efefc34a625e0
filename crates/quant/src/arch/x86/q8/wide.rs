//! Products of rows with many vectors in registers of 512 bits, two vectors side by side.
//!
//! Owns the loop for formats whose weights are codes times a scale. Lanes 0 to 7 are those of one
//! vector, lanes 8 to 15 those of the next; a row's weights are broadcast to both. Does not own how
//! blocks become bytes (`unpack`), nor single vectors, which are read as they are.
//! Memory: blocks and vectors, and on the stack unpacked weights (at most 192 KiB), paired steps
//! (at most 32 KiB) and sums (128 KiB); nothing is allocated.
//! Invariants: those of `arch::q8`: a lane takes its steps in rising order, however they are cut.
//! Cost: six instructions for a step of a row and two vectors, five where a step is one run; rows
//! are unpacked once for 64 vectors, vectors paired once for 64 rows.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use bytemuck::Pod;

use super::unpack::*;
use super::{Scaled, Vnni};
use crate::QuantType;
use crate::arch::q8::{Q8Vectors, RUN, Step};
use crate::formats::{
    BlockIQ4_NL, BlockMXFP4, BlockQ2_0, BlockQ4_0, BlockQ5_0, BlockQ8_0, scale_mxfp4,
};

/// Rows that are unpacked at a time.
const ROWS: usize = 64;
/// Pairs of vectors that these meet before they are unpacked anew.
const PAIRS: usize = 32;
/// Runs of rows and vectors that are taken at a time, so that four pairs and four rows of them stay
/// in the first-level cache.
const RUNS_AT_ONCE: usize = 32;
/// Rows, and pairs, whose sums are held in registers.
const TILE: usize = 4;

/// Steps of two vectors, lane by lane side by side.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Pair<const RUNS: usize> {
    codes: [[[i8; RUN]; 2]; RUNS],
    start: [[i32; 8]; 2],
    scales: [[f32; 8]; 2],
}

impl Vnni {
    /// As [`dot_rows`](crate::arch::q8::dot_rows) of `arch::q8`, for formats whose weights are codes
    /// times a scale; `false` for others.
    pub(super) fn dot_rows_wide(
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

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
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
        ($steps:ident, $block:ty, $codes:expr, $scale:expr) => {
            many(rows, x.$steps(first, n), n, out, |b: &$block| Scaled {
                codes: $codes(b),
                d: $scale(b),
            })
        };
    }
    match format {
        QuantType::Q2_0 => scaled!(double, BlockQ2_0, |b| q2_0(b), |b: &BlockQ2_0| half(b.d)),
        QuantType::Q4_0 => scaled!(
            single,
            BlockQ4_0,
            |b: &BlockQ4_0| [nibbles(&b.qs)],
            |b: &BlockQ4_0| half(b.d)
        ),
        QuantType::Q5_0 => scaled!(
            single,
            BlockQ5_0,
            |b: &BlockQ5_0| [five_bits(&b.qs, b.qh)],
            |b: &BlockQ5_0| half(b.d)
        ),
        QuantType::Q8_0 => scaled!(
            single,
            BlockQ8_0,
            |b: &BlockQ8_0| [plus_128(load(&b.qs))],
            |b: &BlockQ8_0| half(b.d)
        ),
        QuantType::IQ4_NL => scaled!(
            single,
            BlockIQ4_NL,
            |b: &BlockIQ4_NL| [plus_128(iq4_nl(&b.qs))],
            |b: &BlockIQ4_NL| half(b.d)
        ),
        QuantType::MXFP4 => scaled!(
            single,
            BlockMXFP4,
            |b: &BlockMXFP4| [mxfp4(&b.qs)],
            |b: &BlockMXFP4| scale_mxfp4(b.e)
        ),
        _ => return false,
    }
    true
}

/// Signed bytes plus 128: the top bit flips.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn plus_128(codes: __m256i) -> __m256i {
    _mm256_xor_si256(codes, _mm256_set1_epi8(i8::MIN))
}

/// The products of every row with `n` vectors; `unpack` gives a step's weights plus the offset of
/// the vectors' kind.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn many<B: Pod, const RUNS: usize>(
    rows: &[u8],
    x: &[Step<RUNS>],
    n: usize,
    out: &mut [f32],
    unpack: impl Fn(&B) -> Scaled<RUNS>,
) {
    let steps = x.len() / n;
    let blocks: &[B] = bytemuck::cast_slice(rows);
    let at_once = (RUNS_AT_ONCE / RUNS).min(steps);
    let mut weights = [const { MaybeUninit::uninit() }; ROWS * RUNS_AT_ONCE];
    let mut pairs = [const { MaybeUninit::uninit() }; TILE * RUNS_AT_ONCE];
    let mut sums = [const { MaybeUninit::uninit() }; ROWS * PAIRS];
    for (blocks, out) in blocks.chunks(ROWS * steps).zip(out.chunks_mut(ROWS * n)) {
        let n_rows = out.len() / n;
        for first in (0..n).step_by(2 * PAIRS) {
            let tokens = first..n.min(first + 2 * PAIRS);
            let n_pairs = tokens.len().div_ceil(2);
            let sums = zeros(&mut sums[..n_rows * n_pairs]);
            for at in (0..steps).step_by(at_once) {
                let len = at_once.min(steps - at);
                let weights = &mut weights[..n_rows * len];
                for (weights, row) in weights
                    .chunks_exact_mut(len)
                    .zip(blocks.chunks_exact(steps))
                {
                    for (weights, block) in weights.iter_mut().zip(&row[at..at + len]) {
                        weights.write(unpack(block));
                    }
                }
                // SAFETY: the loop above has written each step of each row.
                let weights = unsafe { weights.assume_init_ref() };
                for p in (0..n_pairs).step_by(TILE) {
                    let n_paired = TILE.min(n_pairs - p);
                    let pairs = &mut pairs[..n_paired * len];
                    for (i, pairs) in pairs.chunks_exact_mut(len).enumerate() {
                        let t = first + 2 * (p + i);
                        let a = &x[t * steps + at..][..len];
                        // An odd one out is its own neighbor.
                        let b = &x[(t + 1).min(tokens.end - 1) * steps + at..][..len];
                        for ((pair, a), b) in pairs.iter_mut().zip(a).zip(b) {
                            pair.write(paired(a, b));
                        }
                    }
                    // SAFETY: the loop above has written each step of each pair.
                    let pairs = unsafe { pairs.assume_init_ref() };
                    let sums = &mut sums[p * n_rows..(p + n_paired) * n_rows];
                    match n_paired {
                        4 => rows_with::<RUNS, 4>(weights, pairs, len, sums),
                        3 => rows_with::<RUNS, 3>(weights, pairs, len, sums),
                        2 => rows_with::<RUNS, 2>(weights, pairs, len, sums),
                        _ => rows_with::<RUNS, 1>(weights, pairs, len, sums),
                    }
                }
            }
            finish(sums, n_rows, out, n, tokens);
        }
    }
}

/// Adds the products of all rows with `P` pairs to `sums [rows, P]`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn rows_with<const RUNS: usize, const P: usize>(
    weights: &[Scaled<RUNS>],
    pairs: &[Pair<RUNS>],
    len: usize,
    sums: &mut [__m512],
) {
    let mut x = [&[] as &[Pair<RUNS>]; P];
    for (x, pair) in x.iter_mut().zip(pairs.chunks_exact(len)) {
        *x = pair;
    }
    let (tiles, rest) = sums.as_chunks_mut::<P>();
    let (tiles, rest) = (tiles.as_chunks_mut::<TILE>(), rest);
    debug_assert!(rest.is_empty());
    let (whole, single) = tiles;
    let mut rows = weights.chunks_exact(len);
    let mut next = || rows.next().unwrap_or(&[]);
    for sums in whole {
        tile([next(), next(), next(), next()], x, sums);
    }
    for sums in single {
        tile([next()], x, std::array::from_mut(sums));
    }
}

/// Adds the products of `R` rows with `P` pairs, all sums in registers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn tile<const RUNS: usize, const R: usize, const P: usize>(
    rows: [&[Scaled<RUNS>]; R],
    x: [&[Pair<RUNS>]; P],
    sums: &mut [[__m512; P]; R],
) {
    let n = rows[0].len();
    let (mut equal_rows, mut equal_x) = (rows, x);
    for row in &mut equal_rows {
        *row = &row[..n];
    }
    for x in &mut equal_x {
        *x = &x[..n];
    }
    let mut lanes = *sums;
    for step in 0..n {
        for p in 0..P {
            let x = &equal_x[p][step];
            for r in 0..R {
                lanes[r][p] = add(lanes[r][p], &equal_rows[r][step], x);
            }
        }
    }
    *sums = lanes;
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn add<const RUNS: usize>(lanes: __m512, w: &Scaled<RUNS>, x: &Pair<RUNS>) -> __m512 {
    let mut sums = load_start(&x.start);
    for (weights, codes) in w.codes.iter().zip(&x.codes) {
        let weights = _mm512_broadcast_i64x4(*weights);
        sums = _mm512_dpbusd_epi32(sums, weights, load_codes(codes));
    }
    let scale = _mm512_mul_ps(_mm512_set1_ps(w.d), load_pair(&x.scales));
    _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), scale, lanes)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn paired<const RUNS: usize>(a: &Step<RUNS>, b: &Step<RUNS>) -> Pair<RUNS> {
    let mut codes = [[[0; RUN]; 2]; RUNS];
    for (codes, (a, b)) in codes.iter_mut().zip(a.codes.iter().zip(&b.codes)) {
        *codes = [*a, *b];
    }
    Pair {
        codes,
        start: [a.start, b.start],
        scales: [a.scales, b.scales],
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn zeros(sums: &mut [MaybeUninit<__m512>]) -> &mut [__m512] {
    for sum in &mut *sums {
        sum.write(_mm512_setzero_ps());
    }
    // SAFETY: the loop above has written all of them.
    unsafe { sums.assume_init_mut() }
}

/// The results of the vectors `tokens` of `n`, to `out [rows, n]`. Tiles of [`TILE`] pairs lie one
/// behind the other in `sums`, each `[rows, pairs]`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn finish(sums: &[__m512], n_rows: usize, out: &mut [f32], n: usize, tokens: Range<usize>) {
    for (i, tile) in sums.chunks(TILE * n_rows).enumerate() {
        let n_paired = tile.len() / n_rows;
        let first = tokens.start + 2 * TILE * i;
        let len = (tokens.end - first).min(2 * n_paired);
        for (sums, out) in tile.chunks_exact(n_paired).zip(out.chunks_exact_mut(n)) {
            let mut four = [_mm512_setzero_ps(); TILE];
            four[..n_paired].copy_from_slice(sums);
            let results = totals(four);
            out[first..first + len].copy_from_slice(&results[..len]);
        }
    }
}

/// The totals of eight vectors: lane `l` takes lane `l + 4`, then `l + 2`, `l + 1`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn totals([a, b, c, d]: [__m512; TILE]) -> [f32; 2 * TILE] {
    // Each quarter of `ab` is half the lanes of a vector: those of `a`, then those of `b`.
    let fours = |a, b| {
        let low = _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b);
        _mm512_add_ps(low, _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b))
    };
    let (ab, cd) = (fours(a, b), fours(c, d));
    let low = _mm512_shuffle_ps::<0b01_00_01_00>(ab, cd);
    let twos = _mm512_add_ps(low, _mm512_shuffle_ps::<0b11_10_11_10>(ab, cd));
    let ones = _mm512_add_ps(twos, _mm512_movehdup_ps(twos));
    let order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    let ordered = _mm512_castps512_ps256(_mm512_permutexvar_ps(order, ones));
    let mut totals = [0.0; 2 * TILE];
    // SAFETY: the array is the eight elements that are written; no alignment is asked for.
    unsafe { _mm256_storeu_ps(totals.as_mut_ptr(), ordered) };
    totals
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn load_codes(codes: &[[i8; RUN]; 2]) -> __m512i {
    // SAFETY: the array is the 64 bytes that are read; no alignment is asked for.
    unsafe { _mm512_loadu_si512(codes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn load_start(start: &[[i32; 8]; 2]) -> __m512i {
    // SAFETY: the array is the 64 bytes that are read; no alignment is asked for.
    unsafe { _mm512_loadu_si512(start.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn load_pair(scales: &[[f32; 8]; 2]) -> __m512 {
    // SAFETY: the array is the 64 bytes that are read; no alignment is asked for.
    unsafe { _mm512_loadu_ps(scales.as_ptr().cast()) }
}
