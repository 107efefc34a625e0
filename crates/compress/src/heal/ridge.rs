//! The change of a matrix that explains a residual best without growing much, and how much of it to
//! take.
//!
//! Owns ridge regression in f64 with its choice by leaving blocks of tokens out. Does not own where
//! the data comes from. Memory: the design and the residual as f64, and square matrices of the
//! smaller of tokens and width.
//! Formula: with the design `A [n_tokens, width]` and the residual `R [n_tokens, n_out]`,
//! `dW = (A^T A + mu I)^-1 A^T R`, `mu = ridge_rel * trace(A^T A) / width`; where tokens are fewer than
//! the width, `dW = A^T (A A^T + mu I)^-1 R`, which is the same. Then `A (eta dW)` is taken off `R`: for
//! `eta` from 0 to 1 that never makes `R` larger.

use std::ops::Range;

use faer::linalg::solvers::{Llt, Solve};
use faer::{Mat, Side};

use crate::{Error, Result};

/// Singular values squared below this share of the largest count as zero.
const RANK_TOLERANCE: f64 = 1e-10;

/// How strongly a change is held back, and how much of it is taken.
#[derive(Debug, Clone, Copy, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "callers write it as a literal")]
pub struct Step {
    /// Share of the change that is taken, 0 to 1.
    pub eta: f64,
    /// Ridge, in means of the diagonal of `A^T A`; above 0.
    pub ridge_rel: f64,
}

impl Default for Step {
    fn default() -> Self {
        Self {
            eta: 0.15,
            ridge_rel: 6.0,
        }
    }
}

/// A regression problem.
#[derive(Debug, Clone)]
pub struct Ridge {
    /// `[n_tokens, width]`.
    a: Mat<f64>,
    /// `[n_tokens, n_out]`.
    r: Mat<f64>,
}

impl Ridge {
    /// From rows of tokens: `a` is `[n_tokens, width]`, `r` is `[n_tokens, n_out]`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if lengths do not fit or a value is not finite.
    pub fn new(width: usize, n_out: usize, a: &[f64], r: &[f64]) -> Result<Self> {
        let n = a.len().checked_div(width).unwrap_or(0);
        if n == 0 || n_out == 0 || n * width != a.len() {
            let expected = format!("a positive multiple of {width}");
            return Err(Error::out_of_range(
                "length of the design",
                a.len(),
                expected,
            ));
        }
        if r.len() != n * n_out {
            return Err(Error::out_of_range(
                "length of the residual",
                r.len(),
                n * n_out,
            ));
        }
        if let Some(odd) = a.iter().chain(r).find(|v| !v.is_finite()) {
            return Err(Error::out_of_range("an activation", odd, "finite"));
        }
        Ok(Self {
            a: Mat::from_fn(n, width, |t, i| a[t * width + i]),
            r: Mat::from_fn(n, n_out, |t, o| r[t * n_out + o]),
        })
    }

    /// Sum of squares of the residual.
    #[must_use]
    pub fn energy(&self) -> f64 {
        squares(&self.r)
    }

    /// How many directions the design has: singular values above 1e-5 of the largest.
    ///
    /// # Errors
    /// [`Error::Unsolvable`].
    pub fn rank(&self) -> Result<usize> {
        let gram = match self.a.nrows() < self.a.ncols() {
            true => &self.a * self.a.transpose(),
            false => self.a.transpose() * &self.a,
        };
        let values = gram.self_adjoint_eigenvalues(Side::Lower);
        let values = values.map_err(|_| Error::Unsolvable {
            what: "eigenvalues",
        })?;
        let largest = values.iter().copied().fold(0.0, f64::max);
        Ok(values
            .iter()
            .filter(|v| **v > RANK_TOLERANCE * largest)
            .count())
    }

    /// The change `dW^T`, row by row `[width, n_out]`, of which a step takes its share.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a ridge that is not above 0; [`Error::Unsolvable`].
    pub fn change(&self, ridge_rel: f64) -> Result<Vec<f64>> {
        let dw = solve(&self.a, &self.r, ridge_rel)?;
        let (width, n_out) = (dw.nrows(), dw.ncols());
        let cells = (0..width).flat_map(|i| (0..n_out).map(move |o| (i, o)));
        Ok(cells.map(|cell| dw[cell]).collect())
    }

    /// Sum of squares of what is left of the residual after a change, `[width, n_out]`, of which
    /// `eta` is taken.
    ///
    /// # Panics
    /// If the change has another size.
    #[must_use]
    pub fn left(&self, change: &[f64], eta: f64) -> f64 {
        let n_out = self.r.ncols();
        assert_eq!(change.len(), self.a.ncols() * n_out, "one change a weight");
        let dw = Mat::from_fn(self.a.ncols(), n_out, |i, o| change[i * n_out + o]);
        after(&self.a, &self.r, &dw, eta)
    }

    /// The sum over blocks of tokens of what is left in a block by the change that the others ask
    /// for, for each step. Steps that share a ridge share the work.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for fewer than two blocks, or blocks that do not cover all tokens once, in
    /// order; as [`change`](Self::change).
    pub fn left_out(&self, blocks: &[Range<usize>], steps: &[Step]) -> Result<Vec<f64>> {
        let n = self.a.nrows();
        let follows = blocks.windows(2).all(|pair| pair[0].end == pair[1].start);
        let ends = (
            blocks.first().map_or(1, |b| b.start),
            blocks.last().map_or(0, |b| b.end),
        );
        if blocks.len() < 2 || !follows || ends != (0, n) || blocks.iter().any(Range::is_empty) {
            let expected = format!("two or more in a row over {n} tokens");
            return Err(Error::out_of_range(
                "blocks",
                format!("{blocks:?}"),
                expected,
            ));
        }
        let mut left = vec![0.0; steps.len()];
        for block in blocks {
            let rest = |m: &Mat<f64>| {
                let skip = |t: usize| t + if t >= block.start { block.len() } else { 0 };
                Mat::from_fn(n - block.len(), m.ncols(), |t, i| m[(skip(t), i)])
            };
            let own =
                |m: &Mat<f64>| Mat::from_fn(block.len(), m.ncols(), |t, i| m[(block.start + t, i)]);
            let (a, r) = (rest(&self.a), rest(&self.r));
            let (own_a, own_r) = (own(&self.a), own(&self.r));
            let mut solved: Vec<(f64, Mat<f64>)> = Vec::new();
            for (left, step) in left.iter_mut().zip(steps) {
                let same =
                    |(ridge, _): &&(f64, Mat<f64>)| ridge.to_bits() == step.ridge_rel.to_bits();
                if solved.iter().find(same).is_none() {
                    solved.push((step.ridge_rel, solve(&a, &r, step.ridge_rel)?));
                }
                if let Some((_, dw)) = solved.iter().find(same) {
                    *left += after(&own_a, &own_r, dw, step.eta);
                }
            }
        }
        Ok(left)
    }
}

fn solve(a: &Mat<f64>, r: &Mat<f64>, ridge_rel: f64) -> Result<Mat<f64>> {
    if !(ridge_rel > 0.0 && ridge_rel.is_finite()) {
        return Err(Error::out_of_range("ridge_rel", ridge_rel, "above 0"));
    }
    let mu = ridge_rel * squares(a) / a.ncols() as f64;
    if mu <= 0.0 {
        // Nothing was active: nothing can be explained.
        return Ok(Mat::zeros(a.ncols(), r.ncols()));
    }
    let is_dual = a.nrows() < a.ncols();
    let mut gram = match is_dual {
        true => a * a.transpose(),
        false => a.transpose() * a,
    };
    for i in 0..gram.nrows() {
        gram[(i, i)] += mu;
    }
    let factors = Llt::new(gram.as_ref(), Side::Lower);
    let factors = factors.map_err(|_| Error::Unsolvable {
        what: "Cholesky factors",
    })?;
    Ok(match is_dual {
        true => a.transpose() * factors.solve(r),
        false => factors.solve(a.transpose() * r),
    })
}

fn after(a: &Mat<f64>, r: &Mat<f64>, dw: &Mat<f64>, eta: f64) -> f64 {
    let explained = a * dw;
    squares(&Mat::from_fn(r.nrows(), r.ncols(), |t, o| {
        r[(t, o)] - eta * explained[(t, o)]
    }))
}

fn squares(m: &Mat<f64>) -> f64 {
    let columns = m.col_iter();
    columns
        .map(|column| column.iter().map(|v| v * v).sum::<f64>())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worked() -> Ridge {
        Ridge::new(2, 1, &[1.0, 0.0, 1.0, 1.0, 0.0, 2.0], &[1.0, 2.0, 3.0]).expect("fits")
    }

    #[test]
    fn the_worked_example_comes_out() {
        let ridge = worked();
        let change = ridge.change(0.5).expect("solvable");
        assert!((change[0] - 0.503856).abs() < 1e-6 && (change[1] - 1.110540).abs() < 1e-6);
        assert!((ridge.energy() - 14.0).abs() < 1e-12);
        let left = ridge.left(&change, 0.15);
        assert!((left - 11.056584).abs() < 1e-6);
        assert!(((left / 14.0 - 1.0) * 100.0 + 21.024).abs() < 1e-3);
        assert!((ridge.left(&change, 1.0) - 1.001566).abs() < 1e-6);
        let step = Step {
            eta: 0.15,
            ridge_rel: 0.5,
        };
        let out = ridge.left_out(&[0..1, 1..2, 2..3], &[step]).expect("three");
        assert!((out[0] - 11.866738).abs() < 1e-6, "{out:?}");
        assert!(((out[0] / 14.0 - 1.0) * 100.0 + 15.238).abs() < 1e-3);
        assert_eq!(ridge.rank().expect("two"), 2);
    }

    /// Values that differ, without a pattern that matters.
    fn noise(n: usize, seed: u64) -> Vec<f64> {
        let mut x = seed;
        let step = |_| {
            x = x
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (x >> 11) as f64 / (1_u64 << 53) as f64 - 0.5
        };
        (0..n).map(step).collect()
    }

    #[test]
    fn both_forms_agree_and_no_step_makes_the_residual_larger() {
        let (n, width, n_out) = (7, 7, 3);
        let (a, r) = (noise(n * width, 1), noise(n * n_out, 2));
        let square = Ridge::new(width, n_out, &a, &r)
            .expect("fits")
            .change(0.3)
            .expect("solvable");
        // One more column, always zero, changes the mean of the diagonal, nothing else.
        let wide: Vec<f64> = a
            .chunks(width)
            .flat_map(|row| [row, &[0.0]].concat())
            .collect();
        let dual = Ridge::new(width + 1, n_out, &wide, &r).expect("fits");
        let ridge_rel = 0.3 * (width + 1) as f64 / width as f64;
        let dual = dual.change(ridge_rel).expect("solvable");
        for (a, b) in square.iter().zip(&dual) {
            assert!((a - b).abs() < 1e-9, "{a} {b}");
        }
        let ridge = Ridge::new(width, n_out, &a, &r).expect("fits");
        let mut last = ridge.energy();
        for eta in [0.0, 0.1, 0.5, 0.9, 1.0] {
            let left = ridge.left(&square, eta);
            assert!(left <= last + 1e-12);
            last = left;
        }
    }

    #[test]
    fn planted_dependences_lower_the_rank() {
        let mut a = noise(20 * 5, 3);
        for row in a.chunks_mut(5) {
            row[4] = row[0] - 2.0 * row[1];
        }
        let ridge = Ridge::new(5, 1, &a, &noise(20, 4)).expect("fits");
        assert_eq!(ridge.rank().expect("found"), 4);
        let few = Ridge::new(5, 1, &a[..15], &noise(3, 4)).expect("fits");
        assert_eq!(few.rank().expect("found"), 3);
    }

    #[test]
    fn what_cannot_be_solved_is_refused() {
        assert!(Ridge::new(2, 1, &[1.0, 2.0, 3.0], &[1.0]).is_err());
        assert!(Ridge::new(2, 1, &[1.0, 2.0], &[1.0, 2.0]).is_err());
        assert!(Ridge::new(1, 1, &[f64::NAN], &[1.0]).is_err());
        let ridge = worked();
        assert!(ridge.change(0.0).is_err() && ridge.change(f64::NAN).is_err());
        let step = [Step::default()];
        for blocks in [&[][..], &[const { 0..3 }], &[0..1, 2..3], &[0..1, 1..2]] {
            assert!(ridge.left_out(blocks, &step).is_err(), "{blocks:?}");
        }
        let none = Ridge::new(2, 1, &[0.0; 4], &[1.0, 2.0]).expect("fits");
        assert_eq!(none.change(1.0).expect("nothing"), [0.0, 0.0]);
    }
}
