//! Kernels for x86-64: one file an instruction set, over one set of drivers.
//!
//! Owns the loops (`drivers!`) and the list of formats that are unpacked in registers
//! (`unpack_with!`). `avx2` and `avx512` own how sixteen lanes are held and how a block becomes
//! vectors. Formats that are not in the list take the portable decode.
//! Memory: the caller's slices, padded copies of tails on the stack; nothing is allocated.
//! Invariants: (1) a function compiled for an instruction set is reached only through a value whose
//! constructor found that set on this machine; (2) lane `i % 16` takes product `i`, multiplied and
//! then added, as in `dot_f32`, so results have the bits of the reference.
//! Cost: a row is read once; a vector is read once for every four rows.

mod avx2;
mod avx512;
mod q8;

use std::arch::x86_64::*;

use crate::formats::BlockIQ3_S;
use crate::formats::codebook::IQ3S;

pub use avx2::Avx2;
pub use avx512::Avx512;
pub(crate) use q8::Vnni;

/// Calls `$run::<Block, VECTORS, PARTS>($args.., unpack)` for the format, or returns `false`.
///
/// `unpack(block, part)` gives the `VECTORS` vectors of part `part`; a block is `PARTS` such parts.
/// Where a block is one weight, sixteen of them are taken as one.
macro_rules! unpack_with {
    ($format:expr, $run:ident($($arg:expr),*)) => {
        match $format {
            QuantType::F32 => $run::<[u8; 64], 1, 1>($($arg),*, |block, _| [f32s(block)]),
            QuantType::F16 => $run::<[u8; 32], 1, 1>($($arg),*, |block, _| [f16s(block)]),
            QuantType::BF16 => $run::<[u8; 32], 1, 1>($($arg),*, |block, _| [bf16s(block)]),
            QuantType::Q2_0 => $run::<BlockQ2_0, 4, 1>($($arg),*, |block, _| q2_0(block)),
            QuantType::Q4_0 => $run::<BlockQ4_0, 2, 1>($($arg),*, |block, _| q4_0(block)),
            QuantType::Q4_1 => $run::<BlockQ4_1, 2, 1>($($arg),*, |block, _| q4_1(block)),
            QuantType::Q5_0 => $run::<BlockQ5_0, 2, 1>($($arg),*, |block, _| q5_0(block)),
            QuantType::Q5_1 => $run::<BlockQ5_1, 2, 1>($($arg),*, |block, _| q5_1(block)),
            QuantType::Q8_0 => $run::<BlockQ8_0, 2, 1>($($arg),*, |block, _| q8_0(block)),
            QuantType::IQ4_NL => $run::<BlockIQ4_NL, 2, 1>($($arg),*, |block, _| iq4_nl(block)),
            QuantType::IQ4_XS => $run::<BlockIQ4_XS, 2, 8>($($arg),*, |block, b| iq4_xs(block, b)),
            QuantType::IQ3_S => $run::<BlockIQ3_S, 2, 8>($($arg),*, |block, b| iq3_s(block, b)),
            QuantType::MXFP4 => $run::<BlockMXFP4, 2, 1>($($arg),*, |block, _| mxfp4(block)),
            _ => return false,
        }
    };
}

/// Stamps the loops of one instruction set into its module.
///
/// The module provides `V` (sixteen f32 lanes), `zero`, `load`, `store`, `add_product` and `sum`,
/// and the functions that [`unpack_with!`] names. A macro and not a trait, since the methods of a
/// trait cannot be compiled for an instruction set.
///
/// Padding a tail with zeros changes no bits: a lane starts at `+0.0` and therefore never becomes
/// `-0.0`, so a product of zeros leaves it as it is.
macro_rules! drivers {
    ($set:ident, $features:literal, tile $tile_rows:literal x $tile_tokens:literal) => {
        impl $set {
            /// Runs `f` with the instruction set on, so that what is inlined into it is compiled
            /// for that set. Products and sums are not fused: results keep their bits.
            #[inline]
            pub fn vectorize<R>(self, f: impl FnOnce() -> R) -> R {
                #[target_feature(enable = $features)]
                fn enter<R>(f: impl FnOnce() -> R) -> R {
                    f()
                }
                // SAFETY: `self` exists only where `new` found the features.
                unsafe { enter(f) }
            }

            /// As `vectorize`, for loops too large to be inlined of the compiler's own accord.
            #[inline]
            pub(crate) fn run<L: Loops>(self, loops: L) -> L::Output {
                #[target_feature(enable = $features)]
                fn enter<L: Loops>(loops: L) -> L::Output {
                    loops.run()
                }
                // SAFETY: `self` exists only where `new` found the features.
                unsafe { enter(loops) }
            }

            /// As [`dot_f32`](crate::arch::scalar::dot_f32).
            #[inline]
            pub(crate) fn dot_f32(self, a: &[f32], b: &[f32]) -> f32 {
                // SAFETY: `self` exists only where `new` found the features.
                unsafe { dot_f32(a, b) }
            }

            /// Decodes a row whose lengths agree; `false` if the format has no kernel here.
            pub(crate) fn decode_row(self, format: QuantType, src: &[u8], out: &mut [f32]) -> bool {
                // SAFETY: `self` exists only where `new` found the features.
                unsafe { decode_row(format, src, out) }
            }

            /// Dot products of `out.len()` rows, which lie one after the other in `src`, with `x`;
            /// `false` if the format has no kernel here.
            pub(crate) fn dot_rows(
                self,
                format: QuantType,
                src: &[u8],
                x: &[f32],
                out: &mut [f32],
            ) -> bool {
                // SAFETY: `self` exists only where `new` found the features.
                unsafe { dot_rows(format, src, x, out) }
            }

            /// As [`add_tiles`](crate::arch::scalar::add_tiles).
            pub(crate) fn add_tiles(
                self,
                rows: [&[f32]; TILE_ROWS],
                x: &[f32],
                stride: usize,
                lanes: &mut [[Lanes; TILE_ROWS]],
            ) {
                // SAFETY: `self` exists only where `new` found the features.
                unsafe { add_tiles(rows, x, stride, lanes) }
            }

            /// The sums of row `r` of a tile for each token.
            pub(crate) fn sum_tiles(self, lanes: &[[Lanes; TILE_ROWS]], r: usize, out: &mut [f32]) {
                #[target_feature(enable = $features)]
                fn sums(lanes: &[[Lanes; TILE_ROWS]], r: usize, out: &mut [f32]) {
                    for (out, lanes) in out.iter_mut().zip(lanes) {
                        *out = sum(load(lanes[r].as_array()));
                    }
                }
                // SAFETY: `self` exists only where `new` found the features.
                unsafe { sums(lanes, r, out) }
            }
        }

        #[target_feature(enable = $features)]
        fn dot_f32(a: &[f32], b: &[f32]) -> f32 {
            let n = a.len().min(b.len());
            let (a, a_tail) = a[..n].as_chunks::<16>();
            let (b, b_tail) = b[..n].as_chunks::<16>();
            let mut lanes = zero();
            for (a, b) in a.iter().zip(b) {
                lanes = add_product(lanes, load(a), load(b));
            }
            if !a_tail.is_empty() {
                lanes = add_product(lanes, load(&padded(a_tail)), load(&padded(b_tail)));
            }
            sum(lanes)
        }

        #[target_feature(enable = $features)]
        fn decode_row(format: QuantType, src: &[u8], out: &mut [f32]) -> bool {
            unpack_with!(format, decode_blocks(src, out));
            true
        }

        #[target_feature(enable = $features)]
        fn dot_rows(format: QuantType, src: &[u8], x: &[f32], out: &mut [f32]) -> bool {
            unpack_with!(format, dot_blocks(src, x, out));
            true
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn decode_blocks<B: Pod, const VECTORS: usize, const PARTS: usize>(
            src: &[u8],
            out: &mut [f32],
            unpack: impl Fn(&B, usize) -> [V; VECTORS],
        ) {
            let (out, out_tail) = out.as_chunks_mut::<16>();
            let n_blocks = out.len() / (VECTORS * PARTS);
            let (src, src_tail) = src.split_at(n_blocks * size_of::<B>());
            let blocks: &[B] = bytemuck::cast_slice(src);
            for (block, out) in blocks.iter().zip(out.chunks_exact_mut(VECTORS * PARTS)) {
                for (part, out) in out.chunks_exact_mut(VECTORS).enumerate() {
                    let vectors = unpack(block, part);
                    for (out, vector) in out.iter_mut().zip(vectors) {
                        store(out, vector);
                    }
                }
            }
            if !out_tail.is_empty() {
                let mut weights = [0.0; 16];
                store(&mut weights, unpack(&padded_block(src_tail), 0)[0]);
                out_tail.copy_from_slice(&weights[..out_tail.len()]);
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn dot_blocks<B: Pod, const VECTORS: usize, const PARTS: usize>(
            src: &[u8],
            x: &[f32],
            out: &mut [f32],
            unpack: impl Fn(&B, usize) -> [V; VECTORS],
        ) {
            let row_bytes = src.len() / out.len().max(1);
            let row = |r: usize| &src[r * row_bytes..(r + 1) * row_bytes];
            let (fours, rest) = out.as_chunks_mut::<4>();
            for (i, out) in fours.iter_mut().enumerate() {
                let rows = [row(4 * i), row(4 * i + 1), row(4 * i + 2), row(4 * i + 3)];
                *out = dot_group::<B, VECTORS, PARTS, 4>(rows, x, &unpack);
            }
            let first = 4 * fours.len();
            for (i, out) in rest.iter_mut().enumerate() {
                [*out] = dot_group::<B, VECTORS, PARTS, 1>([row(first + i)], x, &unpack);
            }
        }

        /// The rows of a group are independent chains of additions: four of them hide the latency
        /// of one.
        #[inline]
        #[target_feature(enable = $features)]
        fn dot_group<B: Pod, const VECTORS: usize, const PARTS: usize, const R: usize>(
            rows: [&[u8]; R],
            x: &[f32],
            unpack: &impl Fn(&B, usize) -> [V; VECTORS],
        ) -> [f32; R] {
            let (x, x_tail) = x.as_chunks::<16>();
            let n_blocks = x.len() / (VECTORS * PARTS);
            let mut blocks = [&[] as &[B]; R];
            for (blocks, row) in blocks.iter_mut().zip(rows) {
                *blocks = bytemuck::cast_slice(&row[..n_blocks * size_of::<B>()]);
                *blocks = &blocks[..n_blocks];
            }
            let mut lanes = [zero(); R];
            for (b, x) in x.chunks_exact(VECTORS * PARTS).enumerate() {
                if b % prefetched_at_once::<B>() == 0 {
                    for (blocks, row) in blocks.iter().zip(rows) {
                        prefetch_behind(&blocks[b], R * row.len());
                    }
                }
                for (part, x) in x.chunks_exact(VECTORS).enumerate() {
                    let mut values = [zero(); VECTORS];
                    for (value, x) in values.iter_mut().zip(x) {
                        *value = load(x);
                    }
                    for (lanes, blocks) in lanes.iter_mut().zip(blocks) {
                        let weights = unpack(&blocks[b], part);
                        for (weight, value) in weights.into_iter().zip(values) {
                            *lanes = add_product(*lanes, weight, value);
                        }
                    }
                }
            }
            if !x_tail.is_empty() {
                let value = load(&padded(x_tail));
                for (lanes, row) in lanes.iter_mut().zip(rows) {
                    let block = padded_block(&row[n_blocks * size_of::<B>()..]);
                    *lanes = add_product(*lanes, unpack(&block, 0)[0], value);
                }
            }
            let mut sums = [0.0; R];
            for (total, lanes) in sums.iter_mut().zip(lanes) {
                *total = sum(lanes);
            }
            sums
        }

        #[target_feature(enable = $features)]
        fn add_tiles(
            rows: [&[f32]; TILE_ROWS],
            x: &[f32],
            stride: usize,
            lanes: &mut [[Lanes; TILE_ROWS]],
        ) {
            let n = rows[0].len();
            let token = |t: usize| &x[t * stride..][..n];
            let (groups, rest) = lanes.as_chunks_mut::<$tile_tokens>();
            for (g, lanes) in groups.iter_mut().enumerate() {
                let mut x = [&[] as &[f32]; $tile_tokens];
                for (t, x) in x.iter_mut().enumerate() {
                    *x = token(g * $tile_tokens + t);
                }
                for first in (0..TILE_ROWS).step_by($tile_rows) {
                    add_tile::<$tile_rows, $tile_tokens>(rows, first, x, lanes);
                }
            }
            let first = $tile_tokens * groups.len();
            for (t, lanes) in rest.iter_mut().enumerate() {
                let lanes = std::array::from_mut(lanes);
                add_tile::<TILE_ROWS, 1>(rows, 0, [token(first + t)], lanes);
            }
        }

        /// Products of rows `first..first + R` with `T` tokens, all in registers.
        #[inline]
        #[target_feature(enable = $features)]
        fn add_tile<const R: usize, const T: usize>(
            rows: [&[f32]; TILE_ROWS],
            first: usize,
            x: [&[f32]; T],
            lanes: &mut [[Lanes; TILE_ROWS]; T],
        ) {
            let whole = rows[0].len() / 16;
            let mut row_chunks = [&[] as &[[f32; 16]]; R];
            for (chunks, row) in row_chunks.iter_mut().zip(&rows[first..]) {
                *chunks = &row.as_chunks().0[..whole];
            }
            let mut x_chunks = [&[] as &[[f32; 16]]; T];
            for (chunks, x) in x_chunks.iter_mut().zip(x) {
                *chunks = &x.as_chunks().0[..whole];
            }
            let mut sums = [[zero(); R]; T];
            for (sums, lanes) in sums.iter_mut().zip(&*lanes) {
                for (sum, lanes) in sums.iter_mut().zip(&lanes[first..]) {
                    *sum = load(lanes.as_array());
                }
            }
            for i in 0..whole {
                let mut weights = [zero(); R];
                for (weight, row) in weights.iter_mut().zip(row_chunks) {
                    *weight = load(&row[i]);
                }
                for (sums, x) in sums.iter_mut().zip(x_chunks) {
                    let value = load(&x[i]);
                    for (sum, weight) in sums.iter_mut().zip(weights) {
                        *sum = add_product(*sum, weight, value);
                    }
                }
            }
            if rows[0].len() % 16 != 0 {
                for (sums, x) in sums.iter_mut().zip(x) {
                    let value = load(&padded(&x[16 * whole..]));
                    for (sum, row) in sums.iter_mut().zip(&rows[first..]) {
                        *sum = add_product(*sum, load(&padded(&row[16 * whole..])), value);
                    }
                }
            }
            for (sums, lanes) in sums.into_iter().zip(lanes) {
                for (sum, lanes) in sums.into_iter().zip(&mut lanes[first..]) {
                    store(lanes.as_array_mut(), sum);
                }
            }
        }
    };
}

use {drivers, unpack_with};

/// Bytes that one prefetch brings.
const LINE: usize = 64;

/// Blocks for which one call of [`prefetch_behind`] is enough.
const fn prefetched_at_once<B>() -> usize {
    if 2 * size_of::<B>() <= LINE { 2 } else { 1 }
}

/// Asks for the lines `distance` bytes behind those of `block`, and of its neighbors if they are
/// prefetched at once.
///
/// Rows are often shorter than a page, and several are read at a time, each a stream that ends
/// before the processor has learned to run ahead of it: decode of a model with 440 MB of weights a
/// token was 2.4 times as fast with this (Zen 5, Q8_0 and Q2_0).
#[inline]
#[target_feature(enable = "avx2")]
fn prefetch_behind<B>(block: &B, distance: usize) {
    let target = std::ptr::from_ref(block).cast::<i8>();
    for at in (0..size_of::<B>()).step_by(LINE) {
        // Safe for any address: where nothing is mapped it does nothing.
        _mm_prefetch::<_MM_HINT_T0>(target.wrapping_add(distance + at));
    }
}

/// The magnitudes of the 32 weights of a run of IQ3_S: eight entries of four bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn iq3_s_magnitudes(block: &BlockIQ3_S, run: usize) -> __m256i {
    let low = u64::from_le_bytes(block.qs.as_chunks().0[run]).cast_signed();
    let low = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(low));
    // Bit `i` of the byte moves to bit 8 of lane `i`.
    let high = _mm256_set1_epi32(i32::from(block.qh[run]));
    let high = _mm256_sllv_epi32(high, _mm256_setr_epi32(8, 7, 6, 5, 4, 3, 2, 1));
    let high = _mm256_and_si256(high, _mm256_set1_epi32(0x100));
    let indices = _mm256_or_si256(low, high);
    let mut index = [0_u32; 8];
    // SAFETY: the array is the 32 bytes that are written; no alignment is asked for.
    unsafe { _mm256_storeu_si256(index.as_mut_ptr().cast(), indices) };
    // A gather instruction was slower here (Zen 4). The mask tells the compiler what holds anyway.
    let entry = |i: usize| i32::from_le_bytes(IQ3S[index[i] as usize & 0x1ff]);
    _mm256_setr_epi32(
        entry(0),
        entry(1),
        entry(2),
        entry(3),
        entry(4),
        entry(5),
        entry(6),
        entry(7),
    )
}

/// At most sixteen values, followed by zeros.
fn padded(values: &[f32]) -> [f32; 16] {
    let mut out = [0.0; 16];
    out[..values.len()].copy_from_slice(values);
    out
}

/// The bytes of an incomplete block, followed by zeros.
fn padded_block<B: bytemuck::Pod>(bytes: &[u8]) -> B {
    let mut block = B::zeroed();
    bytemuck::bytes_of_mut(&mut block)[..bytes.len()].copy_from_slice(bytes);
    block
}

/// The elements of `bytes` from `AT` on as an array: the compiler checks the bounds.
#[inline]
const fn part<const AT: usize, const LEN: usize, const N: usize>(bytes: &[u8; N]) -> &[u8; LEN] {
    const { assert!(AT + LEN <= N) };
    let (_, rest) = bytes.split_at(AT);
    match rest.first_chunk() {
        Some(part) => part,
        None => unreachable!(),
    }
}
