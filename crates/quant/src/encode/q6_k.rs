//! Q6_K: sixteen runs of 16 codes of six bits, each with a scale of eight bits.
//!
//! Owns the search for the scales: first a real one for each run, then the half that they are
//! multiples of, then each multiple and the half once more. Does not own the layout
//! (`formats/q6_k.rs`). Memory: 6 KiB of stack a block.
//! Not exact: runs share a half, and their scales are found among candidates. Invariant: (1) every
//! choice is made by the weighted error of what would be stored, and kept only if it is lower.
//! Cost: about fifty passes over the block.

use bytemuck::Zeroable;

use super::{half_of, nearest_integer};
use crate::formats::{BlockQ6_K, F16Le};

const LEN: usize = 256;
const RUN: usize = 16;
const N_RUNS: usize = LEN / RUN;
const LOWEST: f64 = -32.0;
const HIGHEST: f64 = 31.0;

/// What is stored, before packing: weight `i` of run `r` is `half * scale[r] * code`.
struct Choice {
    half: F16Le,
    scales: [f64; N_RUNS],
    codes: [[f64; RUN]; N_RUNS],
    error: f64,
}

/// The block of the least weighted error that the search finds.
pub(super) fn encode(values: &[f32; LEN], weights: &[f32; LEN]) -> BlockQ6_K {
    let x = values.map(f64::from);
    let w = weights.map(f64::from);
    let (x, w) = (x.as_chunks::<RUN>().0, w.as_chunks::<RUN>().0);
    let mut scales = [0.0; N_RUNS];
    for (scale, (x, w)) in scales.iter_mut().zip(x.iter().zip(w)) {
        *scale = run_scale(x, w);
    }
    let extreme = extreme(&scales);
    let mut best: Option<Choice> = None;
    // Either end of the range of multiples may hold the largest scale; and a slightly larger half
    // may suit the other runs better.
    for multiple in [-128.0, 127.0, -126.0, -123.5, -121.0] {
        let mut half = half_of(extreme / multiple);
        // A half that suits the chosen multiples better, as long as there is one.
        for _ in 0..3 {
            let choice = choose(x, w, &scales, half);
            half = refit(x, w, &choice);
            match &best {
                Some(best) if best.error <= choice.error => break,
                _ => best = Some(choice),
            }
        }
    }
    best.map_or_else(BlockQ6_K::zeroed, |choice| pack(&choice))
}

/// A scale of either sign for one run, whatever the others need.
///
/// Codes are those of scales that put the extreme value near either end of the range; the scale
/// that is best for these codes is kept if no other lowers the error more.
fn run_scale(x: &[f64; RUN], w: &[f64; RUN]) -> f64 {
    let extreme = extreme(x);
    if extreme.abs() <= 0.0 {
        return 0.0;
    }
    let (mut best_gain, mut best) = (0.0, 0.0);
    for end in [LOWEST, HIGHEST] {
        for step in -9..=9 {
            let inverse = end * (1.0 + f64::from(step) / 320.0) / extreme;
            let (mut a, mut b) = (0.0, 0.0);
            for (&x, &w) in x.iter().zip(w) {
                let code = nearest_integer(x * inverse, LOWEST, HIGHEST);
                a += w * x * code;
                b += w * code * code;
            }
            // 0 / 0 is no gain.
            if a * a / b > best_gain {
                (best_gain, best) = (a * a / b, a / b);
            }
        }
    }
    best
}

/// The value farthest from zero; the first of equals.
fn extreme(values: &[f64]) -> f64 {
    let farther = |max: f64, x: &f64| if x.abs() > max.abs() { *x } else { max };
    values.iter().fold(0.0, farther)
}

/// The multiples of `half` near the scales, and the codes, with the least error run by run.
fn choose(x: &[[f64; RUN]], w: &[[f64; RUN]], scales: &[f64; N_RUNS], half: F16Le) -> Choice {
    let d = f64::from(half.to_f32());
    let mut choice = Choice {
        half,
        scales: [0.0; N_RUNS],
        codes: [[0.0; RUN]; N_RUNS],
        error: 0.0,
    };
    for (r, (x, w)) in x.iter().zip(w).enumerate() {
        let middle = if d.abs() > 0.0 { scales[r] / d } else { 0.0 };
        let middle = nearest_integer(middle, -128.0, 127.0);
        let mut least = f64::INFINITY;
        for multiple in [middle, middle - 1.0, middle + 1.0] {
            let multiple = multiple.clamp(-128.0, 127.0);
            let scale = d * multiple;
            let inverse = if scale.abs() > 0.0 { 1.0 / scale } else { 0.0 };
            let mut codes = [0.0; RUN];
            let mut error = 0.0;
            for (code, (&x, &w)) in codes.iter_mut().zip(x.iter().zip(w)) {
                *code = nearest_integer(x * inverse, LOWEST, HIGHEST);
                let off = x - scale * *code;
                error += w * off * off;
            }
            if error < least {
                least = error;
                choice.scales[r] = multiple;
                choice.codes[r] = codes;
            }
        }
        choice.error += least;
    }
    choice
}

/// The half of least error for given multiples and codes.
fn refit(x: &[[f64; RUN]], w: &[[f64; RUN]], choice: &Choice) -> F16Le {
    let (mut a, mut b) = (0.0, 0.0);
    for (r, (x, w)) in x.iter().zip(w).enumerate() {
        for ((&x, &w), &code) in x.iter().zip(w).zip(&choice.codes[r]) {
            let q = choice.scales[r] * code;
            a += w * x * q;
            b += w * q * q;
        }
    }
    if b > 0.0 { half_of(a / b) } else { choice.half }
}

fn pack(choice: &Choice) -> BlockQ6_K {
    let mut block = BlockQ6_K::zeroed();
    block.d = choice.half;
    for (run, (scale, codes)) in choice.scales.iter().zip(&choice.codes).enumerate() {
        block.scales[run] = *scale as i8;
        let (h, r, s) = (run / 8, run / 2 % 4, run % 2);
        for (i, code) in codes.iter().enumerate() {
            let code = (code - LOWEST) as u8;
            block.ql[64 * h + 32 * (r % 2) + 16 * s + i] |= (code & 15) << (4 * (r / 2));
            block.qh[32 * h + 16 * s + i] |= (code >> 4) << (2 * r);
        }
    }
    block
}
