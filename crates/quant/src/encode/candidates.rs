//! The code vectors that a walk over all scales passes through, and the choice among them.
//!
//! Owns [`Candidates`]: for each sign of the scale and each step of a walk the sums `A = sum w y q`
//! and `B = sum w q^2`, where y is a value times the sign. Does not own the walks.
//! Memory: three f64 a step and sign, on the stack.
//! Invariants: (1) for given codes the best scale is `A / B` and lowers the error by `A^2 / B`;
//! (2) for given codes the error is a parabola in the scale, so the best half is the one nearest to
//! `A / B`; hence the best half of all is among the nearest halves of all code vectors.

use super::MAX_HALF;
use crate::formats::F16Le;

/// Gains compared at a time.
const LANES: usize = 8;

/// The sums of one code vector, for a scale of the sign `sign`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    sign: f64,
    a: f64,
    b: f64,
}

impl Candidate {
    const ZERO: Self = Self {
        sign: 1.0,
        a: 0.0,
        b: 0.0,
    };

    pub(super) fn gain(self) -> f64 {
        if self.b > 0.0 {
            self.a * self.a / self.b
        } else {
            0.0
        }
    }

    pub(super) fn scale(self) -> f64 {
        if self.b > 0.0 {
            self.sign * (self.a / self.b)
        } else {
            0.0
        }
    }

    /// The half nearest to the best scale, and what is gained with it: no less than the sweep's
    /// codes gain, since nearest levels are no worse.
    fn rounded(self) -> (F16Le, f64) {
        let d = half::f16::from_f64(self.scale().clamp(-MAX_HALF, MAX_HALF));
        let magnitude = d.to_f64().abs();
        (
            F16Le::from_bits(d.to_bits()),
            magnitude * (2.0 * self.a - self.b * magnitude),
        )
    }
}

/// The sums of `STEPS` code vectors of either sign; `STEPS` is a multiple of eight.
pub(super) struct Candidates<const STEPS: usize> {
    /// `[sign][step]`, sign 0 being positive scales.
    a: [[f64; STEPS]; 2],
    b: [[f64; STEPS]; 2],
    /// `A^2 / B` with the sign of A; 0 or NaN where there is no code vector.
    gain: [[f64; STEPS]; 2],
}

impl<const STEPS: usize> Candidates<STEPS> {
    pub(super) fn new() -> Self {
        const { assert!(STEPS.is_multiple_of(LANES)) };
        Self {
            a: [[0.0; STEPS]; 2],
            b: [[0.0; STEPS]; 2],
            gain: [[0.0; STEPS]; 2],
        }
    }

    /// The sums of step `step` for the sign `s`.
    #[inline]
    pub(super) fn put(&mut self, s: usize, step: usize, a: f64, b: f64) {
        self.a[s][step] = a;
        self.b[s][step] = b;
        self.gain[s][step] = a * a.abs() / b;
    }

    /// The code vector of the largest gain; the first of equals, positive scales first.
    pub(super) fn best(&self) -> Candidate {
        let largest = self.largest_gain();
        let mut best = Candidate::ZERO;
        self.above(largest * (1.0 - f64::EPSILON), |candidate| {
            if candidate.gain() > best.gain() {
                best = candidate;
            }
        });
        best
    }

    /// The half with the largest gain: the one nearest to the best scale, unless another code
    /// vector meets a half so much better that it overtakes.
    pub(super) fn best_half(&self) -> F16Le {
        // Rounding to a normal half costs at most 2^-22 of the gain, so that these are nearly
        // always enough: a rounded gain is never above the one before rounding.
        let enough = self.largest_gain() * (1.0 - 2_f64.powi(-20));
        let (mut half, mut gain) = (F16Le::default(), 0.0);
        for threshold in [enough, 0.0] {
            self.above(threshold, |candidate| {
                let (other, its_gain) = candidate.rounded();
                if its_gain > gain {
                    (half, gain) = (other, its_gain);
                }
            });
            if gain > enough {
                break;
            }
        }
        half
    }

    /// The largest gain of all code vectors.
    fn largest_gain(&self) -> f64 {
        let mut lanes = [0.0_f64; LANES];
        for gains in &self.gain {
            for gains in gains.as_chunks::<LANES>().0 {
                for (lane, &gain) in lanes.iter_mut().zip(gains) {
                    // Also for NaN, the gain of nothing: 0 / 0.
                    *lane = if gain > *lane { gain } else { *lane };
                }
            }
        }
        lanes.into_iter().fold(0.0, f64::max)
    }

    /// Visits the code vectors with a gain above `threshold`, in order of steps.
    fn above(&self, threshold: f64, mut visit: impl FnMut(Candidate)) {
        for (s, sign) in [(0, 1.0), (1, -1.0)] {
            for (i, gains) in self.gain[s].as_chunks::<LANES>().0.iter().enumerate() {
                if gains
                    .iter()
                    .fold(false, |any, &gain| any | (gain > threshold))
                {
                    for (j, _) in gains
                        .iter()
                        .enumerate()
                        .filter(|(_, gain)| **gain > threshold)
                    {
                        let (a, b) = (self.a[s][i * LANES + j], self.b[s][i * LANES + j]);
                        visit(Candidate { sign, a, b });
                    }
                }
            }
        }
    }
}
