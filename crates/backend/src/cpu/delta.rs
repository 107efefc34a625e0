//! The gated delta rule in its recurrent form, one value head at a time.
//!
//! The recurrence is kept for every chunk size, so that a chunk gives the same bits as its tokens
//! one by one. Temporary space: `n_tokens * Hv * dv` floats for the heads' outputs.
//!
//! Source: Gated Delta Networks, arXiv 2412.06464; constants as in Qwen's implementation.

use thalweg_quant::dot_f32;

use super::columns::{self, Columns};
use super::math::exp;
use super::norm::inverse_rms;
use super::{CpuBuffer, Team, require, sigmoid, take, take_mut};
use crate::Result;
use crate::contract::{DeltaInput, DeltaShape, volume};

/// Added to the sum of squares when q and k are normalized.
const L2_EPS: f32 = 1e-6;

/// Above this, `ln(1 + e^x)` is `x` in f32.
const SOFTPLUS_LINEAR: f32 = 20.0;

pub(super) fn delta_rule(
    team: &Team,
    shape: DeltaShape,
    input: &DeltaInput<'_, CpuBuffer>,
    past: &CpuBuffer,
    next: &mut CpuBuffer,
    out: &mut CpuBuffer,
) -> Result<()> {
    let DeltaShape {
        n_tokens,
        n_head_k,
        n_head_v,
        head_dim,
        eps,
    } = shape;
    let op = "delta_rule";
    let grouped = n_head_k > 0 && n_head_v.is_multiple_of(n_head_k);
    require(grouped, op, "n_head_v", n_head_v, "a multiple of n_head_k")?;
    let channels = shape.channels();
    let width = volume([n_head_v, head_dim]);
    let state_len = volume([head_dim, head_dim]);
    let u = take(op, "u", input.u, [n_tokens, channels])?;
    let b = take(op, "b", input.b, [n_tokens, n_head_v])?;
    let a = take(op, "a", input.a, [n_tokens, n_head_v])?;
    let z = take(op, "z", input.z, [n_tokens, width])?;
    let a_log = take(op, "a_log", input.a_log, [n_head_v])?;
    let dt = take(op, "dt", input.dt, [n_head_v])?;
    let gamma = take(op, "gamma", input.gamma, [head_dim])?;
    let past = take(op, "past", past, [n_head_v, state_len])?;
    let next = take_mut(op, "next", next, [n_head_v, state_len])?;
    let out = take_mut(op, "out", out, [n_tokens, width])?;
    if width == 0 || n_tokens == 0 {
        next.copy_from_slice(past);
        return Ok(());
    }

    // `o [Hv, n_tokens, dv]`, so that a head with its state is one thread's work.
    let o_len = n_tokens * head_dim;
    let mut o = vec![0.0; n_head_v * o_len];
    let work = volume([n_tokens, 3, state_len]);
    team.pairs((next, state_len), (&mut o, o_len), work, |g, state, o| {
        let key = g % n_head_k;
        let past = &past[g * state_len..(g + 1) * state_len];
        let [mut q, mut k] = [(); 2].map(|()| vec![0.0; head_dim]);
        for (t, o) in o.chunks_exact_mut(head_dim).enumerate() {
            let head = |h: usize| &u[t * channels + h * head_dim..][..head_dim];
            unit(head(key), &mut q);
            unit(head(n_head_k + key), &mut k);
            for q in &mut q {
                *q /= (head_dim as f32).sqrt();
            }
            let v = head(2 * n_head_k + g);
            let beta = sigmoid(b[t * n_head_v + g]);
            let decay = exp(a_log[g] * softplus(a[t * n_head_v + g] + dt[g]));
            let step = Step {
                past: (t == 0).then_some(past),
                state,
                q: &q,
                k: &k,
                v,
                beta,
                decay,
                o,
            };
            columns::run(team.kernels(), step);
        }
    });

    team.rows(out, width, volume([16, width]), |t, out| {
        for (g, out) in out.chunks_exact_mut(head_dim).enumerate() {
            let o = &o[g * o_len + t * head_dim..][..head_dim];
            let scale = inverse_rms(o, eps);
            let z = &z[t * width + g * head_dim..];
            for (((out, o), gamma), z) in out.iter_mut().zip(o).zip(gamma).zip(z) {
                *out = o * scale * gamma * sigmoid(*z);
            }
        }
    });
    Ok(())
}

/// One token of a head: `M *= decay; e = beta (v - k^T M); M += k e^T; o = q^T M`.
///
/// `M` is `state`, or `past` where it is given: the first token reads the old state as it writes
/// the new one, which saves a copy.
struct Step<'a> {
    past: Option<&'a [f32]>,
    state: &'a mut [f32],
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    beta: f32,
    decay: f32,
    o: &'a mut [f32],
}

impl Columns for Step<'_> {
    fn n_columns(&self) -> usize {
        self.o.len()
    }

    #[inline(always)]
    fn columns<const W: usize>(&mut self, c: usize) {
        let (n, decay) = (self.o.len(), self.decay);
        let mut e = [0.0_f32; W];
        match self.past {
            Some(past) => {
                let rows = self.state.chunks_exact_mut(n).zip(past.chunks_exact(n));
                for ((row, past), k) in rows.zip(self.k) {
                    let (row, past) = (&mut row[c..c + W], &past[c..c + W]);
                    for j in 0..W {
                        row[j] = past[j] * decay;
                        e[j] += k * row[j];
                    }
                }
            }
            None => {
                for (row, k) in self.state.chunks_exact_mut(n).zip(self.k) {
                    let row = &mut row[c..c + W];
                    for j in 0..W {
                        row[j] *= decay;
                        e[j] += k * row[j];
                    }
                }
            }
        }
        for (e, v) in e.iter_mut().zip(&self.v[c..]) {
            *e = self.beta * (v - *e);
        }
        let mut sums = [0.0_f32; W];
        for ((row, k), q) in self.state.chunks_exact_mut(n).zip(self.k).zip(self.q) {
            let row = &mut row[c..c + W];
            for j in 0..W {
                row[j] += k * e[j];
                sums[j] += q * row[j];
            }
        }
        self.o[c..c + W].copy_from_slice(&sums);
    }
}

/// `out = x / sqrt(sum x^2 + 1e-6)`.
fn unit(x: &[f32], out: &mut [f32]) {
    let norm = (dot_f32(x, x) + L2_EPS).sqrt();
    for (o, x) in out.iter_mut().zip(x) {
        *o = x / norm;
    }
}

/// `ln(1 + e^x)`.
fn softplus(x: f32) -> f32 {
    if x > SOFTPLUS_LINEAR {
        x
    } else {
        exp(x).ln_1p()
    }
}
