//! Vectors quantized to eight bits, and integer dot products with rows of weights.
//!
//! Owns [`Q8Vectors`] and the portable kernel, which is the reference of the integer path. Does not
//! own the choice to use it: results differ from those of f32 vectors by the rounding of the
//! vectors.
//! Memory: [`Q8Vectors`] owns 3 or 2 bytes an element; kernels touch the caller's slices alone.
//! Invariants: (1) a step's sums are exact integers; (2) lane `l` takes the steps in rising order,
//! each by one fused multiply-add, so every instruction set gives the same bits; (3) the result for
//! one row and one token does not depend on what shares the call.
//! Cost: an element is quantized once per product of a matrix.
//!
//! # The sum
//!
//! A vector is cut into runs of 32 elements, `x = s q` with `s = max|x| / 127` and whole `q`. A step
//! is a run, or two runs for Q2_0 whose blocks are so long. The codes of a step lie in the order in
//! which a kernel unpacks the weights; lane `l` of eight takes the codes `4 l..4 l + 4` (of both
//! halves for two runs). With `S` the integer sum of a lane's products, `d` the weights' scale and
//! `s` the vector's, `lane = fma(S, d s, lane)`. At the end lane `l` takes lane `l + 4`, then
//! `l + 2`, `l + 1`.

use super::scalar::round_half_away;
use crate::formats::codebook::{IQ3S, LEVELS_IQ4};
use crate::formats::{BlockIQ3_S, BlockIQ4_NL, BlockQ2_0, BlockQ4_0, BlockQ8_0};
use crate::{Error, Kernels, QuantType, Result};

/// Elements of a run.
const RUN: usize = 32;

/// What one step of a kernel reads of a vector: `RUNS` runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step<const RUNS: usize> {
    /// The codes, in the order of the kernel.
    pub(crate) codes: [[i8; RUN]; RUNS],
    /// What a lane's sum starts from when weights are stored with an offset: minus the offset times
    /// the sum of the lane's codes.
    pub(crate) start: [i32; 8],
    /// The scale of each lane's run.
    pub(crate) scales: [f32; 8],
}

impl<const RUNS: usize> Step<RUNS> {
    const EMPTY: Self = Self {
        codes: [[0; RUN]; RUNS],
        start: [0; 8],
        scales: [0.0; 8],
    };
}

/// Vectors of one matrix product, quantized to eight bits in the order that a weight format's
/// kernels read.
///
/// ```
/// use thalweg_quant::{Kernels, Q8Vectors, QuantType};
///
/// // One row of 64 weights, 0.5 each: the scale 0.5 as a half, then the code 2 (which is +1).
/// let mut row = vec![0x00, 0x38];
/// row.resize(18, 0b10_10_10_10);
/// let kernels = Kernels::best();
/// let x = Q8Vectors::new(kernels, QuantType::Q2_0, &[1.0; 64], 1)?;
/// let mut out = [0.0];
/// kernels.matmul_q8(QuantType::Q2_0, &row, &x, 0..1, &mut out)?;
/// assert!((out[0] - 32.0_f32).abs() < 1e-4);
/// # Ok::<(), thalweg_quant::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Q8Vectors {
    kind: Kind,
    n_in: usize,
    n_tokens: usize,
    steps: Steps,
}

#[derive(Debug, Clone)]
enum Steps {
    One(Vec<Step<1>>),
    Two(Vec<Step<2>>),
}

/// How a format's kernels read vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kind {
    /// Runs of a step.
    runs: usize,
    /// What is added to a weight's code so that it is not negative.
    offset: i32,
}

/// The kind of a format that has integer kernels.
const fn kind(format: QuantType) -> Option<Kind> {
    let (runs, offset) = match format {
        QuantType::Q2_0 => (2, 1),
        QuantType::Q4_0 => (1, 8),
        QuantType::Q8_0 | QuantType::IQ4_NL => (1, 128),
        QuantType::IQ3_S => (1, 16),
        _ => return None,
    };
    Some(Kind { runs, offset })
}

impl Q8Vectors {
    /// Quantizes `x` (`[n_tokens, n]`) for products with rows of `format`.
    ///
    /// A run that holds a NaN or an infinity gets the scale NaN, so that products with it are NaN.
    ///
    /// # Errors
    /// [`Error::NoIntegerKernel`] for a format without one; [`Error::ElementCount`] if `n_tokens`
    /// divides `x` with a remainder; [`Error::PartialBlock`] if the row length is not whole blocks.
    ///
    /// # Cost
    /// One allocation; one pass over `x`.
    pub fn new(kernels: Kernels, format: QuantType, x: &[f32], n_tokens: usize) -> Result<Self> {
        let kind = kind(format).ok_or_else(|| Error::NoIntegerKernel {
            format: format.name(),
        })?;
        let n_in = x.len().checked_div(n_tokens).unwrap_or(0);
        format.check_elements(n_in.saturating_mul(n_tokens), x.len())?;
        format.row_bytes(n_in)?;
        let steps = match kind.runs {
            2 => {
                let mut steps = vec![Step::EMPTY; x.len() / (2 * RUN)];
                kernels.quantize_double(x.as_chunks().0, kind.offset, &mut steps);
                Steps::Two(steps)
            }
            _ => {
                let mut steps = vec![Step::EMPTY; x.len() / RUN];
                kernels.quantize_single(x.as_chunks().0, kind.offset, &mut steps);
                Steps::One(steps)
            }
        };
        Ok(Self {
            kind,
            n_in,
            n_tokens,
            steps,
        })
    }

    /// Whether products with rows of `format` have integer kernels.
    #[must_use]
    pub const fn supports(format: QuantType) -> bool {
        kind(format).is_some()
    }

    /// Whether these vectors may meet rows of `format`.
    #[must_use]
    pub fn fits(&self, format: QuantType) -> bool {
        kind(format) == Some(self.kind)
    }

    /// Vectors.
    #[must_use]
    pub const fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Elements of a vector.
    #[must_use]
    pub const fn n_in(&self) -> usize {
        self.n_in
    }

    /// The steps of vectors `first` to `first + n`, for the kernels of a format with one run a step.
    pub(crate) fn single(&self, first: usize, n: usize) -> &[Step<1>] {
        let per_token = self.n_in / RUN;
        match &self.steps {
            Steps::One(steps) => &steps[first * per_token..(first + n) * per_token],
            Steps::Two(_) => &[],
        }
    }

    /// As `single`, with two runs a step.
    pub(crate) fn double(&self, first: usize, n: usize) -> &[Step<2>] {
        let per_token = self.n_in / (2 * RUN);
        match &self.steps {
            Steps::Two(steps) => &steps[first * per_token..(first + n) * per_token],
            Steps::One(_) => &[],
        }
    }
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

/// The scale of a run of magnitudes up to `max`, and its reciprocal.
#[inline]
pub(crate) fn scale_and_inverse(max: f32) -> (f32, f32) {
    let inverse = 127.0 / max;
    // The reciprocal of a subnormal may be infinite: such a run counts as zeros.
    let inverse = if inverse.is_finite() { inverse } else { 0.0 };
    let scale = if max.is_finite() {
        max / 127.0
    } else {
        f32::NAN
    };
    (scale, inverse)
}

/// The codes of a run and its scale.
fn quantize(x: &[f32; RUN]) -> ([i32; RUN], f32) {
    // Magnitudes are ordered as their bits are, with infinity and NaN on top.
    let mut max = 0;
    for x in x {
        max = max.max(x.to_bits() & 0x7fff_ffff);
    }
    let (scale, inverse) = scale_and_inverse(f32::from_bits(max));
    let mut codes = [0; RUN];
    for (code, x) in codes.iter_mut().zip(x) {
        // |x * inverse| <= 127 but for rounding far below one half.
        *code = round_half_away(x * inverse);
    }
    (codes, scale)
}

fn one_run(x: &[f32; RUN], offset: i32, step: &mut Step<1>) {
    let (codes, scale) = quantize(x);
    step.codes = [codes.map(|code| code as i8)];
    step.start = starts([codes], offset);
    step.scales = [scale; 8];
}

/// The order of Q2_0's kernels: byte `i` of a block holds weights `4 i..4 i + 4` as fields, and
/// field `k` of all bytes is unpacked at once.
fn two_runs(x: &[f32; 2 * RUN], offset: i32, step: &mut Step<2>) {
    let [first, second]: &[[f32; RUN]; 2] = bytemuck::cast_ref(x);
    let (first, a) = quantize(first);
    let (second, b) = quantize(second);
    let mut codes = [[0; RUN]; 2];
    for i in 0..8 {
        for k in 0..4 {
            codes[k / 2][k % 2 * 16 + i] = first[4 * i + k];
            codes[k / 2][k % 2 * 16 + 8 + i] = second[4 * i + k];
        }
    }
    step.codes = codes.map(|codes| codes.map(|code| code as i8));
    step.start = starts(codes, offset);
    step.scales = [a, a, b, b, a, a, b, b];
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
        QuantType::Q2_0 => each(rows, x.double(first, n), n, out, |block: &BlockQ2_0, _| {
            let mut codes = [[0; RUN]; 2];
            for (k, codes) in codes.as_flattened_mut().chunks_exact_mut(16).enumerate() {
                for (code, byte) in codes.iter_mut().zip(block.qs) {
                    *code = ((byte >> (2 * k)) & 3) as i8 - 1;
                }
            }
            (codes, block.d.to_f32())
        }),
        QuantType::Q4_0 => each(rows, x.single(first, n), n, out, |block: &BlockQ4_0, _| {
            let codes = nibbles(&block.qs).map(|code| code as i8 - 8);
            ([codes], block.d.to_f32())
        }),
        QuantType::Q8_0 => each(rows, x.single(first, n), n, out, |block: &BlockQ8_0, _| {
            ([block.qs], block.d.to_f32())
        }),
        QuantType::IQ4_NL => each(
            rows,
            x.single(first, n),
            n,
            out,
            |block: &BlockIQ4_NL, _| {
                let codes = nibbles(&block.qs).map(|code| LEVELS_IQ4[usize::from(code)]);
                ([codes], block.d.to_f32())
            },
        ),
        QuantType::IQ3_S => each(
            rows,
            x.single(first, n),
            n,
            out,
            |block: &BlockIQ3_S, run| {
                let mut codes = [0; RUN];
                for (i, codes) in codes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                    let signs = block.signs[4 * run + i / 2] >> (4 * (i % 2));
                    let entry = IQ3S[block.index(run, i)];
                    for (j, (code, magnitude)) in codes.iter_mut().zip(entry).enumerate() {
                        let magnitude = magnitude as i8;
                        *code = if signs & (1 << j) == 0 {
                            magnitude
                        } else {
                            -magnitude
                        };
                    }
                }
                ([codes], block.d.to_f32() * block.scale(run))
            },
        ),
        _ => return false,
    }
    true
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

/// The products of every row with every vector; `unpack(block, part)` gives a step's weights.
fn each<B: bytemuck::Pod, const RUNS: usize>(
    rows: &[u8],
    x: &[Step<RUNS>],
    n: usize,
    out: &mut [f32],
    unpack: impl Fn(&B, usize) -> ([[i8; RUN]; RUNS], f32),
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
                let (codes, d) = unpack(&row[i / parts], i % parts);
                for (l, lane) in lanes.iter_mut().enumerate() {
                    let mut sum = 0;
                    for (w, q) in codes.iter().zip(&step.codes) {
                        for j in 4 * l..4 * l + 4 {
                            sum += i32::from(w[j]) * i32::from(q[j]);
                        }
                    }
                    *lane = (sum as f32).mul_add(d * step.scales[l], *lane);
                }
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
