//! What kernels read of a vector, step by step, and how vectors become that.
//!
//! Owns the layout of steps and the portable quantization, which is the reference. Does not own
//! which format reads which kind (`arch::q8`).
//! Memory: the caller's slices; a step is 3, 2 or 1.25 bytes an element.
//! Invariants: (1) a code is `x / scale` to the nearest whole number, halves away from zero, from
//! -127 to 127; (2) what shares a scale with a value that is not finite has the scale NaN.
//! Cost: one pass over the elements.

use crate::arch::scalar::round_half_away;

/// Elements of a run.
pub(crate) const RUN: usize = 32;

/// What one step of a kernel reads of a vector: `RUNS` runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step<const RUNS: usize> {
    /// The codes, in the order of the kernel.
    pub(crate) codes: [[i8; RUN]; RUNS],
    /// Minus the offset times the sum of the lane's codes. Where weights are stored with an offset,
    /// it is what a lane's sum starts from; where they have a minimum, the offset is -1 and this is
    /// what the minimum is multiplied with.
    pub(crate) start: [i32; 8],
    /// The scale of each lane's codes.
    pub(crate) scales: [f32; 8],
}

impl<const RUNS: usize> Step<RUNS> {
    pub(super) const EMPTY: Self = Self {
        codes: [[0; RUN]; RUNS],
        start: [0; 8],
        scales: [0.0; 8],
    };
}

/// What a kernel reads of a vector for a block of 256 weights: eight runs in their order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockStep {
    /// The codes.
    pub(crate) codes: [[i8; RUN]; 8],
    /// The sums of the codes: those of the first halves of the eight runs, then of the second ones.
    pub(crate) sums: [[i16; 8]; 2],
    /// The scales of the eight runs.
    pub(crate) scales: [f32; 8],
}

impl BlockStep {
    pub(super) const EMPTY: Self = Self {
        codes: [[0; RUN]; 8],
        sums: [[0; 8]; 2],
        scales: [0.0; 8],
    };
}

/// Quantizes runs for kernels of one run a step.
pub(crate) fn quantize_single(x: &[[f32; RUN]], offset: i32, steps: &mut [Step<1>]) {
    for (x, step) in x.iter().zip(steps) {
        one_run(x, offset, step);
    }
}

/// Quantizes pairs of runs for kernels of two runs a step.
pub(crate) fn quantize_double(x: &[[f32; 2 * RUN]], offset: i32, steps: &mut [Step<2>]) {
    for (x, step) in x.iter().zip(steps) {
        two_runs(x, offset, step);
    }
}

/// Quantizes runs for kernels of eight runs a step.
pub(crate) fn quantize_blocks(x: &[[f32; 8 * RUN]], steps: &mut [BlockStep]) {
    for (x, step) in x.iter().zip(steps) {
        for (r, x) in x.as_chunks().0.iter().enumerate() {
            let (codes, scale) = quantize(x);
            let (first, second) = codes.split_at(RUN / 2);
            step.codes[r] = codes.map(|code| code as i8);
            // At most 16 * 127.
            step.sums[0][r] = first.iter().sum::<i32>() as i16;
            step.sums[1][r] = second.iter().sum::<i32>() as i16;
            step.scales[r] = scale;
        }
    }
}

/// The scale of a group of magnitudes up to `max`, and its reciprocal.
#[inline]
pub(crate) fn scale_and_inverse(max: f32) -> (f32, f32) {
    let inverse = 127.0 / max;
    // The reciprocal of a subnormal may be infinite: such a group counts as zeros.
    let inverse = if inverse.is_finite() { inverse } else { 0.0 };
    let scale = if max.is_finite() {
        max / 127.0
    } else {
        f32::NAN
    };
    (scale, inverse)
}

/// The codes of a group and its scale.
fn quantize<const N: usize>(x: &[f32; N]) -> ([i32; N], f32) {
    // Magnitudes are ordered as their bits are, with infinity and NaN on top.
    let mut max = 0;
    for x in x {
        max = max.max(x.to_bits() & 0x7fff_ffff);
    }
    let (scale, inverse) = scale_and_inverse(f32::from_bits(max));
    let mut codes = [0; N];
    for (code, x) in codes.iter_mut().zip(x) {
        // |x * inverse| <= 127 but for rounding far below one half.
        *code = round_half_away(x * inverse);
    }
    (codes, scale)
}

fn one_run(x: &[f32; RUN], offset: i32, step: &mut Step<1>) {
    let mut codes = [0; RUN];
    let lanes = codes.as_chunks_mut().0.iter_mut().zip(x.as_chunks().0);
    for ((codes, x), scale) in lanes.zip(&mut step.scales) {
        let lane: ([i32; 4], f32) = quantize(x);
        (*codes, *scale) = lane;
    }
    step.start = starts([codes], offset);
    step.codes = [codes.map(|code| code as i8)];
}

/// The order of Q2_0's kernels: byte `i` of a block holds weights `4 i..4 i + 4` as fields, and
/// field `k` of all bytes is unpacked at once. So lane `l` has fields 0 and 2 of four bytes, and lane
/// `l + 4` fields 1 and 3 of the same.
fn two_runs(x: &[f32; 2 * RUN], offset: i32, step: &mut Step<2>) {
    let mut codes = [[0; RUN]; 2];
    for (l, x) in x.as_chunks::<16>().0.iter().enumerate() {
        for parity in 0..2 {
            let lane = l + 4 * parity;
            let group: [f32; 8] = std::array::from_fn(|i| x[2 * i + parity]);
            let (group, scale) = quantize(&group);
            step.scales[lane] = scale;
            for (i, code) in group.into_iter().enumerate() {
                codes[i % 2][4 * lane + i / 2] = code;
            }
        }
    }
    step.start = starts(codes, offset);
    step.codes = codes.map(|codes| codes.map(|code| code as i8));
}

/// Minus the offset times the sum of each lane's codes.
fn starts<const RUNS: usize>(codes: [[i32; RUN]; RUNS], offset: i32) -> [i32; 8] {
    let mut start = [0; 8];
    for codes in codes {
        for (start, four) in start.iter_mut().zip(codes.as_chunks::<4>().0) {
            *start -= offset * (four[0] + four[1] + four[2] + four[3]);
        }
    }
    start
}
