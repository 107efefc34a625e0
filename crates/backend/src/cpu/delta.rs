//! The gated delta rule in its recurrent form, one value head at a time.
//!
//! The recurrence is kept for every chunk size, so that a chunk gives the same bits as its tokens
//! one by one. Temporary space: `n_tokens * Hv * dv` floats for the heads' outputs.
//!
//! Source: Gated Delta Networks, arXiv 2412.06464; constants as in Qwen's implementation.

use thalweg_quant::dot_f32;

use super::norm::inverse_rms;
use super::{CpuBuffer, Team, sigmoid, take, take_mut};
use crate::Result;
use crate::contract::{DeltaInput, DeltaShape};

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
    let DeltaShape { n_tokens, n_head_k, n_head_v, head_dim, eps } = shape;
    let channels = shape.channels();
    let width = n_head_v * head_dim;
    let state_len = head_dim * head_dim;
    let op = "delta_rule";
    let u = take(op, "u", input.u, n_tokens * channels)?;
    let b = take(op, "b", input.b, n_tokens * n_head_v)?;
    let a = take(op, "a", input.a, n_tokens * n_head_v)?;
    let z = take(op, "z", input.z, n_tokens * width)?;
    let a_log = take(op, "a_log", input.a_log, n_head_v)?;
    let dt = take(op, "dt", input.dt, n_head_v)?;
    let gamma = take(op, "gamma", input.gamma, head_dim)?;
    let past = take(op, "past", past, shape.state_len())?;
    let next = take_mut(op, "next", next, shape.state_len())?;
    let out = take_mut(op, "out", out, n_tokens * width)?;

    // One row a head: its state, then its outputs, so that a head is one thread's work.
    let row_len = state_len + n_tokens * head_dim;
    let mut heads = vec![0.0; n_head_v * row_len];
    team.blocks(&mut heads, row_len, n_tokens * 3 * state_len, |first, heads| {
        let mut q = vec![0.0; head_dim];
        let mut k = vec![0.0; head_dim];
        let mut e = vec![0.0; head_dim];
        for (i, head) in heads.chunks_exact_mut(row_len).enumerate() {
            let g = first + i;
            let key = g % n_head_k;
            let (state, o) = head.split_at_mut(state_len);
            state.copy_from_slice(&past[g * state_len..(g + 1) * state_len]);
            for (t, o) in o.chunks_exact_mut(head_dim).enumerate() {
                let u = &u[t * channels..(t + 1) * channels];
                unit(&u[key * head_dim..(key + 1) * head_dim], &mut q);
                unit(&u[(n_head_k + key) * head_dim..(n_head_k + key + 1) * head_dim], &mut k);
                for q in &mut q {
                    *q /= (head_dim as f32).sqrt();
                }
                let v = &u[(2 * n_head_k + g) * head_dim..(2 * n_head_k + g + 1) * head_dim];
                let beta = sigmoid(b[t * n_head_v + g]);
                let decay = (a_log[g] * softplus(a[t * n_head_v + g] + dt[g])).exp();
                step(state, &q, &k, v, beta, decay, &mut e, o);
            }
        }
        Ok(())
    })?;
    for (head, next) in heads.chunks_exact(row_len).zip(next.chunks_exact_mut(state_len)) {
        next.copy_from_slice(&head[..state_len]);
    }

    team.rows(out, width, 16 * width, |t, out| {
        for (g, out) in out.chunks_exact_mut(head_dim).enumerate() {
            let at = g * row_len + state_len + t * head_dim;
            let o = &heads[at..at + head_dim];
            let scale = inverse_rms(o, eps);
            let z = &z[t * width + g * head_dim..];
            for (((out, o), gamma), z) in out.iter_mut().zip(o).zip(gamma).zip(z) {
                *out = o * scale * gamma * sigmoid(*z);
            }
        }
    });
    Ok(())
}

/// One token: `M *= decay; e = beta (v - k^T M); M += k e^T; o = q^T M`.
#[allow(clippy::too_many_arguments)] // The symbols of the formula.
fn step(
    state: &mut [f32],
    q: &[f32],
    k: &[f32],
    v: &[f32],
    beta: f32,
    decay: f32,
    e: &mut [f32],
    o: &mut [f32],
) {
    let n = e.len();
    e.fill(0.0);
    for (row, k) in state.chunks_exact_mut(n).zip(k) {
        for (m, e) in row.iter_mut().zip(e.iter_mut()) {
            *m *= decay;
            *e += k * *m;
        }
    }
    for (e, v) in e.iter_mut().zip(v) {
        *e = beta * (v - *e);
    }
    o.fill(0.0);
    for ((row, k), q) in state.chunks_exact_mut(n).zip(k).zip(q) {
        for ((m, e), o) in row.iter_mut().zip(e.iter()).zip(o.iter_mut()) {
            *m += k * e;
            *o += q * *m;
        }
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
    if x > SOFTPLUS_LINEAR { x } else { x.exp().ln_1p() }
}
