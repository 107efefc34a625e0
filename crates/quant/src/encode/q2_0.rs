//! Q2_0: the exact signed fit, and Lloyd's iteration to compare it with.
//!
//! Owns the walk over all scales of a block of 64. Does not own the choice among what it passes
//! (`candidates.rs`) nor the layout (`formats/q2_0.rs`). Memory: 10 KiB of stack a block.
//! Invariant: (1) the best codes of a scale are the nearest levels, so the best pair is among the
//! code vectors that nearest levels pass through while the scale falls from infinity to zero, once
//! for each sign.
//! Cost: one sort of 64 magnitudes, at most 128 code vectors a sign; no branch depends on the
//! values but for the choice among the best.

use bytemuck::Zeroable;

use super::candidates::Candidates;
use super::{ONES, check_importance, check_values};
use crate::formats::{BlockQ2_0, F16Le};
use crate::{Error, Result};

/// The levels of Q2_0: a weight is one of them times the scale. Code `c` is level `c - 1`.
pub const LEVELS_Q2_0: [i8; 4] = [-1, 0, 1, 2];

/// Elements of a block.
const LEN: usize = 64;
/// Code vectors of one sign: each magnitude may step from 0 to 1 and from 1 to 2.
const STEPS: usize = 2 * LEN;

/// A scale, before it is rounded to a half, and what it is worth.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Q2Fit {
    /// The scale; either sign, 0 if nothing is better than zeros.
    pub scale: f64,
    /// By how much the fit's codes lower the weighted error: the error is `sum w x^2 - gain`.
    pub gain: f64,
}

/// The best scale of up to 64 values over all real scales of either sign and all codes.
///
/// Exact: no other scale and codes give a smaller `sum w (x - scale * level)^2`. If both signs do
/// equally well, the scale is positive. [`encode_row`](super::encode_row) goes one step further and
/// chooses among scales that are halves.
///
/// # Errors
/// [`Error::ElementCount`] if `values` are more than 64 or `importance` has another length;
/// [`Error::NonFinite`] and [`Error::Importance`] as [`encode_row`](super::encode_row).
pub fn fit_exact(values: &[f32], importance: Option<&[f32]>) -> Result<Q2Fit> {
    let (values, weights) = padded(values, importance)?;
    let best = sweep(&values, &weights).best();
    Ok(Q2Fit {
        scale: best.scale(),
        gain: best.gain(),
    })
}

/// Lloyd's iteration from `start`: nearest levels, best scale for them, until the levels repeat or
/// `max_rounds` are over.
///
/// It stops in local optima; [`fit_exact`] is never worse. Returns a scale of 0 and no gain if the
/// levels are all 0, as they are for a `start` of 0, NaN or an infinity.
///
/// # Errors
/// As [`fit_exact`].
pub fn fit_lloyd(
    values: &[f32],
    importance: Option<&[f32]>,
    start: f64,
    max_rounds: usize,
) -> Result<Q2Fit> {
    let (values, weights) = padded(values, importance)?;
    let (mut levels, mut previous) = ([0; LEN], [0; LEN]);
    let mut fit = Q2Fit {
        scale: start,
        gain: 0.0,
    };
    for round in 0..max_rounds.max(1) {
        nearest_levels(&values, fit.scale, &mut levels);
        if round > 0 && levels == previous {
            break;
        }
        let (mut a, mut b) = (0.0, 0.0);
        for ((&x, &w), &q) in values.iter().zip(&weights).zip(&levels) {
            let (x, w, q) = (f64::from(x), f64::from(w), f64::from(q));
            a += w * x * q;
            b += w * q * q;
        }
        fit = if b > 0.0 {
            Q2Fit {
                scale: a / b,
                gain: a * a / b,
            }
        } else {
            Q2Fit {
                scale: 0.0,
                gain: 0.0,
            }
        };
        previous = levels;
    }
    Ok(fit)
}

/// The level nearest to `value / scale` for each value, halves away from zero; 0 where the scale is
/// 0 or not finite. Stops at the end of the shorter slice.
pub fn nearest_levels(values: &[f32], scale: f64, levels: &mut [i8]) {
    for (level, &x) in levels.iter_mut().zip(values) {
        let x = f64::from(x) * scale.signum();
        let d = scale.abs();
        *level = if d > 0.0 && d.is_finite() {
            (x > -0.5 * d) as i8 + (x >= 0.5 * d) as i8 + (x >= 1.5 * d) as i8 - 1
        } else {
            0
        };
    }
}

/// The block of least weighted error, over all halves of either sign and all codes.
pub(super) fn encode(values: &[f32; LEN], weights: &[f32; LEN]) -> BlockQ2_0 {
    pack(values, sweep(values, weights).best_half())
}

/// Up to 64 values and their weights, with zeros behind them, which no sum notices.
fn padded(values: &[f32], importance: Option<&[f32]>) -> Result<([f32; LEN], [f32; LEN])> {
    const NAME: &str = "Q2_0";
    if values.len() > LEN {
        return Err(Error::ElementCount {
            format: NAME,
            expected: LEN,
            found: values.len(),
        });
    }
    check_values(NAME, values)?;
    check_importance(NAME, values.len(), importance)?;
    let n = values.len();
    let weights = match importance {
        Some(weights) if weights.iter().any(|&w| w > 0.0) => weights,
        _ => &ONES[..n],
    };
    let (mut x, mut w) = ([0.0; LEN], [0.0; LEN]);
    x[..n].copy_from_slice(values);
    w[..n].copy_from_slice(weights);
    Ok((x, w))
}

/// Walks down the scales.
///
/// With y = sign * x, a level changes from 0 to 1 or -1 where the scale falls below 2 |y|, and
/// from 1 to 2 for y > 0 where it falls below y / 1.5. Both are in the order of falling |x|, so
/// one sort serves both signs, and a merge of two sorted lists gives the order of all steps:
/// the first kind comes first while 3 |x_first| >= |x_second|, which f64 compares exactly.
fn sweep(values: &[f32; LEN], weights: &[f32; LEN]) -> Candidates<STEPS> {
    /// One past the last first step: its place holds a key that loses to everything.
    const SECOND: usize = LEN + 1;
    let order = by_falling_magnitude(values);
    // [first steps, end, second steps, end]; keys are the bits of positive f64, whose order is
    // that of integers.
    let mut key = [[-1_i64; 2 * LEN + 2]; 2];
    // The end of the first list loses even to that of the second: a walk that is over idles in
    // the zeros behind its second steps while the other sign's goes on.
    key[0][LEN] = -2;
    key[1][LEN] = -2;
    let mut da = [[0.0; 2 * LEN + 2]; 2];
    let mut db = [[0.0; 2 * LEN + 2]; 2];
    let mut n_second = [0; 2];
    for (slot, &i) in order.iter().enumerate() {
        let i = usize::from(i);
        let (x, w) = (values[i], f64::from(weights[i]));
        let magnitude = f64::from(x.abs());
        let s = usize::from(x.is_sign_negative());
        for s in 0..2 {
            key[s][slot] = (3.0 * magnitude).to_bits().cast_signed();
            da[s][slot] = w * magnitude;
            db[s][slot] = w;
        }
        let second = SECOND + n_second[s];
        key[s][second] = magnitude.to_bits().cast_signed();
        da[s][second] = w * magnitude;
        db[s][second] = 3.0 * w;
        n_second[s] += 1;
    }
    let n_steps = LEN + n_second[0].max(n_second[1]);
    let mut candidates = Candidates::new();
    let (mut first, mut second) = ([0; 2], [SECOND; 2]);
    let (mut a, mut b) = ([0.0; 2], [0.0; 2]);
    for step in 0..n_steps {
        // Two independent chains: one waits for its loads while the other runs.
        for s in 0..2 {
            let is_first = usize::from(key[s][first[s]] >= key[s][second[s]]);
            let at = second[s] ^ ((first[s] ^ second[s]) & is_first.wrapping_neg());
            a[s] += da[s][at];
            b[s] += db[s][at];
            candidates.put(s, step, a[s], b[s]);
            first[s] += is_first;
            second[s] += 1 - is_first;
        }
    }
    candidates
}

/// Indices by falling magnitude, equal ones by index.
fn by_falling_magnitude(values: &[f32; LEN]) -> [u8; LEN] {
    // Without the sign bit the order of bits is that of magnitudes, also as i32.
    let keys = values.map(|x| x.abs().to_bits().cast_signed());
    let mut order = [0; LEN];
    let mut n_equal = [0_u8; LEN];
    for (i, &key) in keys.iter().enumerate() {
        // 4096 comparisons without a branch beat a sort of so few elements.
        let rank = keys
            .iter()
            .map(|&other| i32::from(other > key))
            .sum::<i32>() as usize
            % LEN;
        order[(rank + usize::from(n_equal[rank])) % LEN] = i as u8;
        n_equal[rank] += 1;
    }
    order
}

/// The block of nearest codes for a scale.
fn pack(values: &[f32; LEN], half: F16Le) -> BlockQ2_0 {
    const ALL_ZERO: u8 = 0b01_01_01_01;
    let mut block = BlockQ2_0::zeroed();
    block.d = half;
    let d = half.to_f32();
    if d.abs() <= 0.0 {
        block.d = F16Le::default();
        block.qs = [ALL_ZERO; 16];
        return block;
    }
    // A half times 0.5 or 1.5 is exact in f32: the comparisons are those of real numbers.
    let (below, above, far) = (-0.5 * d.abs(), 0.5 * d.abs(), 1.5 * d.abs());
    let code = |x: f32| {
        let y = x * d.signum();
        u8::from(y > below) + u8::from(y >= above) + u8::from(y >= far)
    };
    for (byte, &[a, b, c, d]) in block.qs.iter_mut().zip(values.as_chunks::<4>().0) {
        *byte = code(a) | (code(b) << 2) | (code(c) << 4) | (code(d) << 6);
    }
    block
}
