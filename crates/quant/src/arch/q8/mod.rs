//! Vectors quantized to eight bits, and integer dot products with rows of weights.
//!
//! Owns [`Q8Vectors`] and which format reads them how; `steps` owns their layout, `dot` the portable
//! kernel, which is the reference of the integer path. Does not own the choice to use it: results
//! differ from those of f32 vectors by the rounding of the vectors.
//! Memory: [`Q8Vectors`] owns 3, 2 or 1.25 bytes an element; kernels touch the caller's slices alone.
//! Invariants: (1) sums of products and of codes are exact integers; (2) lane `l` takes the steps in
//! rising order, each by fused multiply-adds, so every instruction set gives the same bits; (3) the
//! result for one row and one token does not depend on what shares the call.
//! Cost: an element is quantized once per product of a matrix.
//!
//! # The sum
//!
//! A vector is cut into runs of 32 elements. A step is a run, or two runs for Q2_0 whose blocks are so
//! long. The codes of a step lie in the order in which a kernel unpacks the weights; lane `l` of eight
//! takes the codes `4 l..4 l + 4` (of both halves for two runs). Elements of a lane share a scale,
//! `x = s q` with `s = max|x| / 127` and whole `q`: that costs no more than one scale for all lanes,
//! and the error is half of it. With `S` the integer sum of a lane's products, `d` the weights' scale
//! and `s` the vector's, `lane = fma(S, d s, lane)`. Weights with a minimum `m` add
//! `lane = fma(Q, m s, lane)` before, `Q` being the sum of the lane's codes. At the end lane `l`
//! takes lane `l + 4`, then `l + 2`, `l + 1`.
//!
//! Formats with blocks of 256 weights take the eight runs of a block in one step, in their order; a
//! run has one scale, `s`.
//! Minima come first, all eight runs at once: lane `r` takes `fma(Q, m s, lane)` of run `r`, or of
//! its first and then its second half where halves have minima of their own. Then the runs follow
//! with `fma(S, d s, lane)`, where lanes 0 to 3 have the `d` of the first half and lanes 4 to 7 that
//! of the second.

mod blocks;
mod dot;
mod steps;

use crate::{Error, Kernels, QuantType, Result};

pub(crate) use dot::dot_rows;
pub(crate) use steps::RUN;
#[cfg(target_arch = "x86_64")]
pub(crate) use steps::scale_and_inverse;
pub(crate) use steps::{BlockStep, Step, quantize_blocks, quantize_double, quantize_single};

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
    Block(Vec<BlockStep>),
}

/// How a format's kernels read vectors. An offset is what is added to a weight's code so that it is
/// not negative; -1 for weights with a minimum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A run a step.
    One { offset: i32 },
    /// Two runs a step.
    Two { offset: i32 },
    /// Eight runs a step.
    Block,
}

/// The kind of a format that has integer kernels.
const fn kind(format: QuantType) -> Option<Kind> {
    Some(match format {
        QuantType::Q2_0 => Kind::Two { offset: 1 },
        QuantType::Q4_0 => Kind::One { offset: 8 },
        QuantType::Q4_1 | QuantType::Q5_1 => Kind::One { offset: -1 },
        QuantType::Q8_0 | QuantType::IQ4_NL => Kind::One { offset: 128 },
        QuantType::Q5_0 => Kind::One { offset: 16 },
        QuantType::MXFP4 => Kind::One { offset: 12 },
        QuantType::Q2_K
        | QuantType::Q3_K
        | QuantType::Q4_K
        | QuantType::Q5_K
        | QuantType::Q6_K
        | QuantType::IQ3_S
        | QuantType::IQ4_XS => Kind::Block,
        _ => return None,
    })
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
        let steps = match kind {
            Kind::One { offset } => {
                let mut steps = vec![Step::EMPTY; x.len() / RUN];
                kernels.quantize_single(x.as_chunks().0, offset, &mut steps);
                Steps::One(steps)
            }
            Kind::Two { offset } => {
                let mut steps = vec![Step::EMPTY; x.len() / (2 * RUN)];
                kernels.quantize_double(x.as_chunks().0, offset, &mut steps);
                Steps::Two(steps)
            }
            Kind::Block => {
                let mut steps = vec![BlockStep::EMPTY; x.len() / (8 * RUN)];
                kernels.quantize_blocks(x.as_chunks().0, &mut steps);
                Steps::Block(steps)
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
            Steps::Two(_) | Steps::Block(_) => &[],
        }
    }

    /// As `single`, with two runs a step.
    pub(crate) fn double(&self, first: usize, n: usize) -> &[Step<2>] {
        let per_token = self.n_in / (2 * RUN);
        match &self.steps {
            Steps::Two(steps) => &steps[first * per_token..(first + n) * per_token],
            Steps::One(_) | Steps::Block(_) => &[],
        }
    }

    /// As `single`, with eight runs a step.
    pub(crate) fn block(&self, first: usize, n: usize) -> &[BlockStep] {
        let per_token = self.n_in / (8 * RUN);
        match &self.steps {
            Steps::Block(steps) => &steps[first * per_token..(first + n) * per_token],
            Steps::One(_) | Steps::Two(_) => &[],
        }
    }
}
