//! The portable integer kernel of formats with blocks of 256 weights.
//!
//! Owns how such blocks become codes, scales and minima, and the order in which a block is added.
//! Memory: its arguments; nothing is allocated.
//! Invariants: those of `arch::q8`; codes and scales are what the formats' decode multiplies, but
//! that Q3_K, Q6_K and IQ3_S keep their codes positive and take the offset for a minimum.
//! Cost: plain loops.

use super::dot::products;
use super::{BlockStep, RUN};
use crate::formats::codebook::{IQ3S, LEVELS_IQ4};
use crate::formats::{
    BlockIQ3_S, BlockIQ4_XS, BlockQ2_K, BlockQ3_K, BlockQ4_K, BlockQ5_K, BlockQ6_K,
    scales_and_mins, scales_q3_k,
};

/// The weights of a block: codes times a scale, plus a minimum.
pub(super) struct Weights {
    codes: [[i8; RUN]; 8],
    /// Of the first halves of the runs, then of the second ones.
    scales: [[f32; 8]; 2],
    minima: Minima,
}

enum Minima {
    None,
    Runs([f32; 8]),
    /// Of the first halves of the runs, then of the second ones.
    Halves([[f32; 8]; 2]),
}

pub(super) fn add(lanes: &mut [f32; 8], w: &Weights, x: &BlockStep) {
    let [first, second] = &x.sums;
    match &w.minima {
        Minima::None => {}
        Minima::Runs(minima) => {
            for (r, lane) in lanes.iter_mut().enumerate() {
                let sum = f32::from(first[r] + second[r]);
                *lane = sum.mul_add(minima[r] * x.scales[r], *lane);
            }
        }
        Minima::Halves(minima) => {
            for (minima, sums) in minima.iter().zip(&x.sums) {
                for (r, lane) in lanes.iter_mut().enumerate() {
                    *lane = f32::from(sums[r]).mul_add(minima[r] * x.scales[r], *lane);
                }
            }
        }
    }
    for r in 0..8 {
        let sums = products(&w.codes[r], &x.codes[r]);
        for (l, (lane, sum)) in lanes.iter_mut().zip(sums).enumerate() {
            *lane = (sum as f32).mul_add(w.scales[l / 4][r] * x.scales[r], *lane);
        }
    }
}

pub(super) fn q2_k(block: &BlockQ2_K, _: usize) -> Weights {
    let (d, dmin) = (block.d.to_f32(), block.dmin.to_f32());
    Weights {
        codes: codes(|r, l| two_bits(&block.qs, r, l)),
        scales: halves(|i| d * f32::from(block.scales[i] & 15)),
        minima: Minima::Halves(halves(|i| -dmin * f32::from(block.scales[i] >> 4))),
    }
}

pub(super) fn q3_k(block: &BlockQ3_K, _: usize) -> Weights {
    let (d, scales) = (block.d.to_f32(), scales_q3_k(&block.scales));
    let third = |r: usize, l: usize| ((block.hmask[l] >> r) & 1) << 2;
    let scales = halves(|i| d * f32::from(scales[i]));
    Weights {
        codes: codes(|r, l| two_bits(&block.qs, r, l) | third(r, l)),
        scales,
        minima: Minima::Halves(scales.map(|half| half.map(|scale| scale * -4.0))),
    }
}

pub(super) fn q4_k(block: &BlockQ4_K, _: usize) -> Weights {
    let (scales, minima) = scales_and_minima(block.d.to_f32(), block.dmin.to_f32(), &block.scales);
    Weights {
        codes: codes(|r, l| four_bits(&block.qs, r, l)),
        scales,
        minima,
    }
}

pub(super) fn q5_k(block: &BlockQ5_K, _: usize) -> Weights {
    let (scales, minima) = scales_and_minima(block.d.to_f32(), block.dmin.to_f32(), &block.scales);
    let fifth = |r: usize, l: usize| ((block.qh[l] >> r) & 1) << 4;
    Weights {
        codes: codes(|r, l| four_bits(&block.qs, r, l) | fifth(r, l)),
        scales,
        minima,
    }
}

pub(super) fn q6_k(block: &BlockQ6_K, _: usize) -> Weights {
    let low =
        |h: usize, r: usize, l: usize| (block.ql[64 * h + 32 * (r % 2) + l] >> (4 * (r / 2))) & 15;
    let high = |h: usize, r: usize, l: usize| (block.qh[32 * h + l] >> (2 * r)) & 3;
    let d = block.d.to_f32();
    let scales = halves(|i| d * f32::from(block.scales[i]));
    Weights {
        codes: codes(|r, l| low(r / 4, r % 4, l) | (high(r / 4, r % 4, l) << 4)),
        scales,
        minima: Minima::Halves(scales.map(|half| half.map(|scale| scale * -32.0))),
    }
}

pub(super) fn iq3_s(block: &BlockIQ3_S, _: usize) -> Weights {
    let code = |r: usize, l: usize| {
        let magnitude = IQ3S[block.index(r, l / 4)][l % 4];
        if block.signs[4 * r + l / 8] & (1 << (l % 8)) == 0 {
            16 + magnitude
        } else {
            16 - magnitude
        }
    };
    let d = block.d.to_f32();
    let scales: [f32; 8] = std::array::from_fn(|r| d * block.scale(r));
    Weights {
        codes: codes(code),
        scales: [scales; 2],
        minima: Minima::Runs(scales.map(|scale| scale * -16.0)),
    }
}

pub(super) fn iq4_xs(block: &BlockIQ4_XS, _: usize) -> Weights {
    let code = |r: usize, l: usize| (block.qs[16 * r + l % 16] >> (4 * (l / 16))) & 15;
    let d = block.d.to_f32();
    Weights {
        codes: codes(|r, l| LEVELS_IQ4[usize::from(code(r, l))].cast_unsigned()),
        scales: [std::array::from_fn(|r| d * block.scale(r)); 2],
        minima: Minima::None,
    }
}

/// The codes by run and place in it, as two's complement.
fn codes(of: impl Fn(usize, usize) -> u8) -> [[i8; RUN]; 8] {
    std::array::from_fn(|r| std::array::from_fn(|l| of(r, l).cast_signed()))
}

/// Values of the sixteen halves of runs: those of the first halves, then of the second ones.
fn halves(of: impl Fn(usize) -> f32) -> [[f32; 8]; 2] {
    std::array::from_fn(|half| std::array::from_fn(|r| of(2 * r + half)))
}

/// Fields of two bits, as Q2_K and Q3_K place them.
fn two_bits(qs: &[u8; 64], r: usize, l: usize) -> u8 {
    (qs[32 * (r / 4) + l] >> (2 * (r % 4))) & 3
}

/// Nibbles, as Q4_K and Q5_K place them.
fn four_bits(qs: &[u8; 128], r: usize, l: usize) -> u8 {
    (qs[32 * (r / 2) + l] >> (4 * (r % 2))) & 15
}

/// The scales and minima of Q4_K and Q5_K.
fn scales_and_minima(d: f32, dmin: f32, packed: &[u8; 12]) -> ([[f32; 8]; 2], Minima) {
    let (scales, minima) = scales_and_mins(packed);
    let scales = scales.map(|scale| d * f32::from(scale));
    let minima = minima.map(|min| -dmin * f32::from(min));
    ([scales; 2], Minima::Runs(minima))
}
