//! Q4_K: eight runs of 32 codes of four bits, each with a scale and an offset of six bits.
//!
//! Owns the search: first a real scale and offset for each run, then the two halves that they are
//! multiples of, then each pair of multiples and both halves once more. Does not own the layout
//! (`formats/q4_k.rs`). Memory: 8 KiB of stack a block.
//! Not exact: runs share both halves, and their scales are found among candidates. Invariants:
//! (1) every choice is made by the weighted error of what would be stored, and kept only if it is
//! lower; (2) offsets of a block have one sign, that of the half they are multiples of, because
//! multiples are not negative.
//! Cost: about a hundred passes over the block.

use bytemuck::Zeroable;

use super::{half_of, nearest_integer};
use crate::formats::{BlockQ4_K, F16Le};

const LEN: usize = 256;
const RUN: usize = 32;
const N_RUNS: usize = LEN / RUN;
const MAX_CODE: f64 = 15.0;
const MAX_MULTIPLE: f64 = 63.0;

/// The real scale and offset of a run: a weight is `scale * code + offset`.
#[derive(Clone, Copy, Default)]
struct Line {
    scale: f64,
    offset: f64,
}

/// What is stored, before packing: weight `i` of run `r` is `d * scale[r] * code - dmin * min[r]`.
struct Choice {
    d: F16Le,
    dmin: F16Le,
    scales: [f64; N_RUNS],
    mins: [f64; N_RUNS],
    codes: [[f64; RUN]; N_RUNS],
    error: f64,
}

/// The block of the least weighted error that the search finds.
pub(super) fn encode(values: &[f32; LEN], weights: &[f32; LEN]) -> BlockQ4_K {
    let x = values.map(f64::from);
    let w = weights.map(f64::from);
    let (x, w) = (x.as_chunks::<RUN>().0, w.as_chunks::<RUN>().0);
    let mut best: Option<Choice> = None;
    // Offsets below zero, as usual, or above it: for blocks far from zero.
    for sign in [-1.0, 1.0] {
        let mut lines = [Line::default(); N_RUNS];
        for (line, (x, w)) in lines.iter_mut().zip(x.iter().zip(w)) {
            *line = run_line(x, w, sign);
        }
        let largest = |of: fn(&Line) -> f64| lines.iter().map(of).fold(0.0, f64::max);
        let mut d = half_of(largest(|line| line.scale) / MAX_MULTIPLE);
        let mut dmin = half_of(-sign * largest(|line| line.offset.abs()) / MAX_MULTIPLE);
        // Halves that suit the chosen multiples better, as long as there are some.
        for _ in 0..4 {
            let choice = choose(x, w, &lines, d, dmin);
            (d, dmin) = refit(x, w, &choice);
            match &best {
                Some(best) if best.error <= choice.error => break,
                _ => best = Some(choice),
            }
        }
    }
    best.map_or_else(BlockQ4_K::zeroed, |choice| pack(&choice))
}

/// A scale and an offset of the sign `sign` for one run, whatever the others need.
///
/// Codes are those of lines that cover the range of values, a little more or less; for them the
/// best line follows from least squares, and once more for the nearest codes of that line.
fn run_line(x: &[f64; RUN], w: &[f64; RUN], sign: f64) -> Line {
    let lowest = x.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    // Where the sign forbids the offset that the values ask for, the line starts at zero.
    let start = if sign < 0.0 {
        lowest.min(0.0)
    } else {
        lowest.max(0.0)
    };
    let range = highest - start;
    if range <= 0.0 {
        // All values on one side of zero and none above the start: one level or none.
        return Line {
            scale: 0.0,
            offset: if start * sign > 0.0 { start } else { 0.0 },
        };
    }
    let mut best = Line {
        scale: range / MAX_CODE,
        offset: start,
    };
    let mut least = f64::INFINITY;
    for step in -12..=12 {
        let mut line = Line {
            scale: range / (MAX_CODE + f64::from(step) / 4.0),
            offset: start,
        };
        for _ in 0..2 {
            line = least_squares(x, w, line, sign);
            let error = error(x, w, line);
            if error < least {
                (least, best) = (error, line);
            }
        }
    }
    best
}

fn codes(x: &[f64; RUN], line: Line) -> [f64; RUN] {
    let inverse = if line.scale > 0.0 {
        1.0 / line.scale
    } else {
        0.0
    };
    x.map(|x| nearest_integer((x - line.offset) * inverse, 0.0, MAX_CODE))
}

fn error(x: &[f64; RUN], w: &[f64; RUN], line: Line) -> f64 {
    let codes = codes(x, line);
    let terms = x.iter().zip(w).zip(&codes);
    terms
        .map(|((x, w), code)| {
            let off = x - (line.scale * code + line.offset);
            w * off * off
        })
        .sum()
}

/// The line of least error for the nearest codes of `line`, with an offset of the sign `sign`.
fn least_squares(x: &[f64; RUN], w: &[f64; RUN], line: Line, sign: f64) -> Line {
    let codes = codes(x, line);
    let (mut sw, mut sq, mut sqq, mut sx, mut sxq) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for ((&x, &w), &q) in x.iter().zip(w).zip(&codes) {
        sw += w;
        sq += w * q;
        sqq += w * q * q;
        sx += w * x;
        sxq += w * x * q;
    }
    let determinant = sw * sqq - sq * sq;
    let free = Line {
        scale: (sw * sxq - sq * sx) / determinant,
        offset: (sqq * sx - sq * sxq) / determinant,
    };
    // One code only (0 / 0), a forbidden offset or a falling line: through zero instead.
    let allowed = free.scale > 0.0 && free.offset * sign >= 0.0;
    if allowed && free.scale.is_finite() && free.offset.is_finite() {
        return free;
    }
    let scale = sxq / sqq;
    Line {
        scale: if scale > 0.0 && scale.is_finite() {
            scale
        } else {
            line.scale
        },
        offset: 0.0,
    }
}

/// The multiples of `d` and `dmin` near the lines, and the codes, with the least error run by run.
fn choose(
    x: &[[f64; RUN]],
    w: &[[f64; RUN]],
    lines: &[Line; N_RUNS],
    d: F16Le,
    dmin: F16Le,
) -> Choice {
    let (scale, min) = (f64::from(d.to_f32()), f64::from(dmin.to_f32()));
    let mut choice = Choice {
        d,
        dmin,
        scales: [0.0; N_RUNS],
        mins: [0.0; N_RUNS],
        codes: [[0.0; RUN]; N_RUNS],
        error: 0.0,
    };
    for (r, (x, w)) in x.iter().zip(w).enumerate() {
        let near = |wanted: f64, step: f64| {
            let multiple = if step.abs() > 0.0 { wanted / step } else { 0.0 };
            nearest_integer(multiple, 0.0, MAX_MULTIPLE)
        };
        let (near_scale, near_min) = (near(lines[r].scale, scale), near(-lines[r].offset, min));
        let mut least = f64::INFINITY;
        for scale_step in [0.0, -1.0, 1.0] {
            for min_step in [0.0, -1.0, 1.0] {
                let scales = (near_scale + scale_step).clamp(0.0, MAX_MULTIPLE);
                let mins = (near_min + min_step).clamp(0.0, MAX_MULTIPLE);
                let line = Line {
                    scale: scale * scales,
                    offset: -min * mins,
                };
                let error = error(x, w, line);
                if error < least {
                    least = error;
                    choice.scales[r] = scales;
                    choice.mins[r] = mins;
                    choice.codes[r] = codes(x, line);
                }
            }
        }
        choice.error += least;
    }
    choice
}

/// The halves of least error for given multiples and codes; the old ones where nothing tells.
fn refit(x: &[[f64; RUN]], w: &[[f64; RUN]], choice: &Choice) -> (F16Le, F16Le) {
    // Normal equations of x = d p - dmin m.
    let (mut pp, mut pm, mut mm, mut xp, mut xm) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (r, (x, w)) in x.iter().zip(w).enumerate() {
        let m = choice.mins[r];
        for ((&x, &w), &code) in x.iter().zip(w).zip(&choice.codes[r]) {
            let p = choice.scales[r] * code;
            pp += w * p * p;
            pm += w * p * m;
            mm += w * m * m;
            xp += w * x * p;
            xm += w * x * m;
        }
    }
    let determinant = pp * mm - pm * pm;
    let d = (xp * mm - xm * pm) / determinant;
    let dmin = (xp * pm - xm * pp) / determinant;
    if d > 0.0 && d.is_finite() && dmin.is_finite() {
        (half_of(d), half_of(dmin))
    } else if mm <= 0.0 && xp > 0.0 {
        (half_of(xp / pp), choice.dmin)
    } else {
        (choice.d, choice.dmin)
    }
}

fn pack(choice: &Choice) -> BlockQ4_K {
    let mut block = BlockQ4_K::zeroed();
    block.d = choice.d;
    block.dmin = choice.dmin;
    for (r, (&scale, &min)) in choice.scales.iter().zip(&choice.mins).enumerate() {
        let (scale, min) = (scale as u8, min as u8);
        // The last four have their low nibbles apart and their high bits on top of the first four.
        if r < 4 {
            block.scales[r] |= scale;
            block.scales[r + 4] |= min;
        } else {
            block.scales[r + 4] = (scale & 15) | (min & 15) << 4;
            block.scales[r - 4] |= (scale >> 4) << 6;
            block.scales[r] |= (min >> 4) << 6;
        }
        for (byte, &code) in block.qs[32 * (r / 2)..].iter_mut().zip(&choice.codes[r]) {
            *byte |= (code as u8) << (4 * (r % 2));
        }
    }
    block
}
