//! Norms over groups and heads, the rotary embedding, and the n-gram gate that is built on them.

use thalweg_quant::dot_f32;

use super::{CpuBuffer, Team, sigmoid, take, take_mut};
use crate::contract::{HeadLayout, NormShape, Rope, StreamShape};
use crate::{Error, Result};

/// `1 / sqrt(mean(x^2) + eps)`, the sum in the order of `dot_f32`.
pub(super) fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (dot_f32(x, x) / x.len() as f32 + eps).sqrt()
}

/// `out = x / rms(x) * gamma`.
pub(super) fn norm_into(x: &[f32], gamma: &[f32], eps: f32, out: &mut [f32]) {
    let scale = inverse_rms(x, eps);
    for ((o, x), g) in out.iter_mut().zip(x).zip(gamma) {
        *o = x * scale * g;
    }
}

pub(super) fn rms_norm(
    team: &Team,
    shape: NormShape,
    x: &CpuBuffer,
    gamma: &CpuBuffer,
    out: &mut CpuBuffer,
) -> Result<()> {
    let NormShape { n_rows, n_groups, width, eps } = shape;
    let row = n_groups * width;
    let x = take("rms_norm", "x", x, n_rows * row)?;
    let gamma = take("rms_norm", "gamma", gamma, row)?;
    let out = take_mut("rms_norm", "out", out, n_rows * row)?;
    team.rows(out, row, 2 * row, |r, out| {
        let groups = x[r * row..(r + 1) * row].chunks_exact(width);
        for ((out, x), gamma) in
            out.chunks_exact_mut(width).zip(groups).zip(gamma.chunks_exact(width))
        {
            norm_into(x, gamma, eps, out);
        }
    });
    Ok(())
}

/// Rotates the first `n_rot` elements of a head to position `position`.
///
/// Frequencies and angles are f32 products, as in the reference implementation.
pub(super) fn rotate(rope: Rope, position: usize, head: &mut [f32]) {
    let half = rope.n_rot / 2;
    for i in 0..half {
        let inverse_frequency = 1.0 / rope.base.powf((2 * i) as f32 / rope.n_rot as f32);
        let (sin, cos) = (position as f32 * inverse_frequency).sin_cos();
        let (a, b) = (head[i], head[i + half]);
        head[i] = a * cos - b * sin;
        head[i + half] = b * cos + a * sin;
    }
}

#[allow(clippy::too_many_arguments)] // The operands of the contract's operation.
pub(super) fn norm_rope(
    team: &Team,
    from: HeadLayout,
    rope: Rope,
    n_tokens: usize,
    x: &CpuBuffer,
    gamma: &CpuBuffer,
    out: &mut CpuBuffer,
    first_row: usize,
) -> Result<()> {
    let HeadLayout { row_len, offset, stride, n_head, head_dim, eps } = from;
    let reach = offset + n_head.saturating_sub(1) * stride + head_dim;
    if reach > row_len || rope.n_rot > head_dim {
        let found = row_len.min(head_dim);
        return Err(Error::Shape { op: "norm_rope", what: "layout", expected: reach, found });
    }
    let x = take("norm_rope", "x", x, n_tokens * row_len)?;
    let gamma = take("norm_rope", "gamma", gamma, head_dim)?;
    let width = n_head * head_dim;
    let out = take_mut("norm_rope", "out", out, (first_row + n_tokens) * width)?;
    team.rows(&mut out[first_row * width..], width, 8 * width, |t, out| {
        for (h, out) in out.chunks_exact_mut(head_dim).enumerate() {
            let at = t * row_len + offset + h * stride;
            norm_into(&x[at..at + head_dim], gamma, eps, out);
            rotate(rope, rope.first_position + t, out);
        }
    });
    Ok(())
}

pub(super) fn ngram_gate(
    team: &Team,
    shape: StreamShape,
    eps: f32,
    (key, gamma_key): (&CpuBuffer, &CpuBuffer),
    (query, gamma_query): (&CpuBuffer, &CpuBuffer),
    value: &CpuBuffer,
    out: &mut CpuBuffer,
) -> Result<()> {
    let StreamShape { n_tokens, n_streams, n_embd } = shape;
    let wide = n_streams * n_embd;
    let key = take("ngram_gate", "key", key, n_tokens * wide)?;
    let query = take("ngram_gate", "query", query, n_tokens * wide)?;
    let gamma_key = take("ngram_gate", "gamma_key", gamma_key, wide)?;
    let gamma_query = take("ngram_gate", "gamma_query", gamma_query, wide)?;
    let value = take("ngram_gate", "value", value, n_tokens * n_embd)?;
    let out = take_mut("ngram_gate", "out", out, n_tokens * wide)?;
    team.blocks(out, wide, 4 * wide, |first, out| {
        let mut kn = vec![0.0; n_embd];
        let mut qn = vec![0.0; n_embd];
        for (i, out) in out.chunks_exact_mut(wide).enumerate() {
            let t = first + i;
            for (s, out) in out.chunks_exact_mut(n_embd).enumerate() {
                let (at, g) = (t * wide + s * n_embd, s * n_embd);
                norm_into(&key[at..at + n_embd], &gamma_key[g..g + n_embd], eps, &mut kn);
                norm_into(&query[at..at + n_embd], &gamma_query[g..g + n_embd], eps, &mut qn);
                let dot = dot_f32(&kn, &qn) / (n_embd as f32).sqrt();
                // sign(0) is 0: an exact zero stays in the middle of the sigmoid.
                let sign = if dot > 0.0 { 1.0 } else if dot < 0.0 { -1.0 } else { dot };
                let gate = sigmoid(sign * dot.abs().max(1e-6).sqrt());
                for (o, v) in out.iter_mut().zip(&value[t * n_embd..(t + 1) * n_embd]) {
                    *o = gate * v;
                }
            }
        }
        Ok(())
    })
}
