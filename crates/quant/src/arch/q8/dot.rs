//! The portable integer kernel: the reference of the others.
//!
//! Owns how blocks become codes (`dot_rows`) and the order of a row's sum (`each`, `add_*`). Does
//! not own the vectors, nor blocks of 256 weights that are taken whole (`blocks`).
//! Memory: the caller's slices; nothing is allocated.
//! Invariants: those of `arch::q8`.
//! Cost: weights are unpacked anew for every vector; plain loops.

use super::{Q8Vectors, RUN, Step, blocks};
use crate::QuantType;
use crate::formats::codebook::LEVELS_IQ4;
use crate::formats::{
    BlockIQ4_NL, BlockMXFP4, BlockQ2_0, BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1, BlockQ8_0,
    LEVELS_MXFP4, codes_q5, scale_mxfp4,
};

/// The weights of a step: codes times a scale.
struct Scaled<const RUNS: usize> {
    codes: [[i8; RUN]; RUNS],
    d: f32,
}

/// The weights of a run: codes times a scale, plus a minimum.
struct Shifted {
    codes: [i8; RUN],
    d: f32,
    m: f32,
}

/// `out[r, t] = row r . x[first + t]` for `n` vectors, in plain Rust; `false` if the format has no
/// integer kernel.
pub(crate) fn dot_rows(
    format: QuantType,
    rows: &[u8],
    x: &Q8Vectors,
    first: usize,
    n: usize,
    out: &mut [f32],
) -> bool {
    match format {
        QuantType::Q2_0 => each(rows, x.double(first, n), n, out, add_scaled, q2_0),
        QuantType::Q4_0 => each(rows, x.single(first, n), n, out, add_scaled, q4_0),
        QuantType::Q4_1 => each(rows, x.single(first, n), n, out, add_shifted, q4_1),
        QuantType::Q5_0 => each(rows, x.single(first, n), n, out, add_scaled, q5_0),
        QuantType::Q5_1 => each(rows, x.single(first, n), n, out, add_shifted, q5_1),
        QuantType::Q8_0 => each(rows, x.single(first, n), n, out, add_scaled, q8_0),
        QuantType::IQ4_NL => each(rows, x.single(first, n), n, out, add_scaled, iq4_nl),
        QuantType::MXFP4 => each(rows, x.single(first, n), n, out, add_scaled, mxfp4),
        QuantType::Q2_K => each(rows, x.block(first, n), n, out, blocks::add, blocks::q2_k),
        QuantType::Q3_K => each(rows, x.block(first, n), n, out, blocks::add, blocks::q3_k),
        QuantType::Q4_K => each(rows, x.block(first, n), n, out, blocks::add, blocks::q4_k),
        QuantType::Q5_K => each(rows, x.block(first, n), n, out, blocks::add, blocks::q5_k),
        QuantType::Q6_K => each(rows, x.block(first, n), n, out, blocks::add, blocks::q6_k),
        QuantType::IQ3_S => each(rows, x.block(first, n), n, out, blocks::add, blocks::iq3_s),
        QuantType::IQ4_XS => each(rows, x.block(first, n), n, out, blocks::add, blocks::iq4_xs),
        _ => return false,
    }
    true
}

/// The products of every row with every vector; `unpack(block, part)` gives a step's weights.
fn each<B: bytemuck::Pod, X, W>(
    rows: &[u8],
    x: &[X],
    n: usize,
    out: &mut [f32],
    add: impl Fn(&mut [f32; 8], &W, &X),
    unpack: impl Fn(&B, usize) -> W,
) {
    let per_token = x.len() / n.max(1);
    let blocks: &[B] = bytemuck::cast_slice(rows);
    let blocks_per_row = blocks.len() / (out.len() / n.max(1)).max(1);
    let parts = per_token.checked_div(blocks_per_row).unwrap_or(0);
    let rows = blocks.chunks_exact(blocks_per_row.max(1));
    for (row, out) in rows.zip(out.chunks_exact_mut(n)) {
        for (x, out) in x.chunks_exact(per_token.max(1)).zip(out) {
            let mut lanes = [0.0_f32; 8];
            for (i, step) in x.iter().enumerate() {
                add(&mut lanes, &unpack(&row[i / parts], i % parts), step);
            }
            for width in [4, 2, 1] {
                for l in 0..width {
                    lanes[l] += lanes[l + width];
                }
            }
            *out = lanes[0];
        }
    }
}

fn add_scaled<const RUNS: usize>(lanes: &mut [f32; 8], w: &Scaled<RUNS>, x: &Step<RUNS>) {
    let mut sums = [0; 8];
    for (w, q) in w.codes.iter().zip(&x.codes) {
        for (sum, product) in sums.iter_mut().zip(products(w, q)) {
            *sum += product;
        }
    }
    for ((lane, sum), s) in lanes.iter_mut().zip(sums).zip(x.scales) {
        *lane = (sum as f32).mul_add(w.d * s, *lane);
    }
}

fn add_shifted(lanes: &mut [f32; 8], w: &Shifted, x: &Step<1>) {
    let sums = products(&w.codes, &x.codes[0]);
    for (l, lane) in lanes.iter_mut().enumerate() {
        let s = x.scales[l];
        *lane = (x.start[l] as f32).mul_add(w.m * s, *lane);
        *lane = (sums[l] as f32).mul_add(w.d * s, *lane);
    }
}

/// The sum of each lane's four products.
pub(super) fn products(w: &[i8; RUN], q: &[i8; RUN]) -> [i32; 8] {
    let mut sums = [0; 8];
    let fours = w.as_chunks::<4>().0.iter().zip(q.as_chunks::<4>().0);
    for (sum, (w, q)) in sums.iter_mut().zip(fours) {
        for (w, q) in w.iter().zip(q) {
            *sum += i32::from(*w) * i32::from(*q);
        }
    }
    sums
}

/// The low nibbles of sixteen bytes, then the high ones.
fn nibbles(qs: &[u8; 16]) -> [u8; RUN] {
    let mut codes = [0; RUN];
    let (low, high) = codes.split_at_mut(16);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(qs) {
        (*low, *high) = (byte & 15, byte >> 4);
    }
    codes
}

/// In the order of `steps::two_runs`.
fn q2_0(block: &BlockQ2_0, _: usize) -> Scaled<2> {
    let mut codes = [[0; RUN]; 2];
    for (k, codes) in codes.as_flattened_mut().chunks_exact_mut(16).enumerate() {
        for (code, byte) in codes.iter_mut().zip(block.qs) {
            *code = ((byte >> (2 * k)) & 3) as i8 - 1;
        }
    }
    let d = block.d.to_f32();
    Scaled { codes, d }
}

fn q4_0(block: &BlockQ4_0, _: usize) -> Scaled<1> {
    let codes = nibbles(&block.qs).map(|code| code as i8 - 8);
    one(codes, block.d.to_f32())
}

fn q4_1(block: &BlockQ4_1, _: usize) -> Shifted {
    Shifted {
        codes: nibbles(&block.qs).map(|code| code as i8),
        d: block.d.to_f32(),
        m: block.m.to_f32(),
    }
}

fn q5_0(block: &BlockQ5_0, _: usize) -> Scaled<1> {
    let codes = codes_q5(&block.qs, block.qh).map(|code| code as i8 - 16);
    one(codes, block.d.to_f32())
}

fn q5_1(block: &BlockQ5_1, _: usize) -> Shifted {
    Shifted {
        codes: codes_q5(&block.qs, block.qh).map(|code| code as i8),
        d: block.d.to_f32(),
        m: block.m.to_f32(),
    }
}

fn q8_0(block: &BlockQ8_0, _: usize) -> Scaled<1> {
    one(block.qs, block.d.to_f32())
}

fn iq4_nl(block: &BlockIQ4_NL, _: usize) -> Scaled<1> {
    let codes = nibbles(&block.qs).map(|code| LEVELS_IQ4[usize::from(code)]);
    one(codes, block.d.to_f32())
}

fn mxfp4(block: &BlockMXFP4, _: usize) -> Scaled<1> {
    let codes = nibbles(&block.qs).map(|code| LEVELS_MXFP4[usize::from(code)]);
    one(codes, scale_mxfp4(block.e))
}

/// A run of codes under one scale.
fn one(codes: [i8; RUN], d: f32) -> Scaled<1> {
    let codes = [codes];
    Scaled { codes, d }
}
