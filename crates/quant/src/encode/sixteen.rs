//! Formats of 32 weights with one scale and sixteen levels: IQ4_NL and Q4_0, fitted exactly.
//!
//! Owns the walk over all scales for any sixteen rising levels. Does not own the layouts, which
//! both formats share (`formats/iq4_nl.rs`, `formats/q4_0.rs`). Memory: 16 KiB of stack a block.
//! Invariants: (1) the walk passes through the nearest codes of every scale of its sign, up to
//! scales that differ by less than 2^-42 of themselves; (2) thresholds lie between neighboring
//! levels, negative ones below the level nearest to zero.
//! Cost: at most 256 steps a sign, sorted.

use super::candidates::Candidates;
use crate::formats::codebook::LEVELS_IQ4;
use crate::formats::{BlockIQ4_NL, BlockQ4_0, F16Le};

/// Weights of a block.
const LEN: usize = 32;
/// The start and up to eight steps for each weight, rounded up to whole lanes.
const STEPS: usize = 8 * LEN + 8;
/// Both sets have seven levels above and eight below the one nearest to zero.
const NEAREST_ZERO: usize = 8;

const LEVELS_Q4_0: [i8; 16] = [-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7];

/// The block of least weighted error over all halves of either sign and all codes.
pub(super) fn encode_iq4_nl(values: &[f32; LEN], weights: &[f32; LEN]) -> BlockIQ4_NL {
    let (d, qs) = encode(values, weights, &LEVELS_IQ4);
    BlockIQ4_NL { d, qs }
}

/// As [`encode_iq4_nl`], with even levels.
pub(super) fn encode_q4_0(values: &[f32; LEN], weights: &[f32; LEN]) -> BlockQ4_0 {
    let (d, qs) = encode(values, weights, &LEVELS_Q4_0);
    BlockQ4_0 { d, qs }
}

fn encode(values: &[f32; LEN], weights: &[f32; LEN], levels: &[i8; 16]) -> (F16Le, [u8; LEN / 2]) {
    let half = sweep(values, weights, levels).best_half();
    let d = half.to_f32();
    let mut qs = [0x88; LEN / 2];
    if d.abs() <= 0.0 {
        return (F16Le::default(), qs);
    }
    // A half has 11 bits and a threshold 8: their product is exact in f32.
    let thresholds = thresholds(levels).map(|threshold| threshold * d.abs());
    let code = |x: f32| {
        let y = x * d.signum();
        thresholds
            .iter()
            .map(|&threshold| u8::from(y >= threshold))
            .sum::<u8>()
    };
    let (low, high) = values.split_at(LEN / 2);
    for ((byte, &low), &high) in qs.iter_mut().zip(low).zip(high) {
        *byte = code(low) | (code(high) << 4);
    }
    (half, qs)
}

/// The middles between neighboring levels.
fn thresholds(levels: &[i8; 16]) -> [f32; 15] {
    std::array::from_fn(|k| (f32::from(levels[k]) + f32::from(levels[k + 1])) / 2.0)
}

/// Walks down the scales, once for each sign.
///
/// At an infinite scale every code is the one nearest to zero. With y = sign * x, a positive y
/// steps up to the level above threshold t where the scale falls below y / t, a negative one down.
fn sweep(values: &[f32; LEN], weights: &[f32; LEN], levels: &[i8; 16]) -> Candidates<STEPS> {
    let thresholds = thresholds(levels).map(f64::from);
    let levels = levels.map(f64::from);
    let mut candidates = Candidates::new();
    for (s, sign) in [(0, 1.0), (1, -1.0)] {
        let y = values.map(|x| sign * f64::from(x));
        // Bits of a positive f64, which sort as the number does; the last nine are the element and
        // the level it steps to.
        let mut steps = [0_u64; 8 * LEN];
        let mut n_steps = 0;
        for (i, &y) in y.iter().enumerate() {
            let levels = match y {
                y if y > 0.0 => NEAREST_ZERO + 1..16,
                y if y < 0.0 => 0..NEAREST_ZERO,
                _ => 0..0,
            };
            for level in levels {
                let threshold = thresholds[if y > 0.0 { level - 1 } else { level }];
                let scale = (y / threshold).to_bits() & !0x1ff;
                steps[n_steps] = scale | (i as u64) << 4 | level as u64;
                n_steps += 1;
            }
        }
        let steps = &mut steps[..n_steps];
        steps.sort_unstable_by(|one, other| other.cmp(one));

        let start = levels[NEAREST_ZERO];
        let (mut a, mut b) = (0.0, 0.0);
        for (&y, &w) in y.iter().zip(weights) {
            a += f64::from(w) * y * start;
            b += f64::from(w) * start * start;
        }
        candidates.put(s, 0, a, b);
        for (at, &step) in steps.iter().enumerate() {
            let (i, level) = ((step >> 4 & 31) as usize, (step & 15) as usize);
            let left = if level > NEAREST_ZERO {
                level - 1
            } else {
                level + 1
            };
            let (w, level, left) = (f64::from(weights[i]), levels[level], levels[left]);
            a += w * y[i] * (level - left);
            b += w * (level * level - left * left);
            candidates.put(s, at + 1, a, b);
        }
    }
    candidates
}
