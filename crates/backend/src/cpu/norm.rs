//! Norms over groups and heads, the rotary embedding, and the n-gram gate that is built on them.

use thalweg_quant::dot_f32;

use super::{CpuBuffer, Team, require, sigmoid, take, take_mut};
use crate::Result;
use crate::contract::{HeadLayout, NormShape, Rope, StreamShape, volume};

pub(super) fn rms_norm(
    team: &Team,
    shape: NormShape,
    x: &CpuBuffer,
    gamma: &CpuBuffer,
    out: &mut CpuBuffer,
) -> Result<()> {
    let NormShape {
        n_rows,
        n_groups,
        width,
        eps,
    } = shape;
    let row = volume([n_groups, width]);
    let x = take("rms_norm", "x", x, [n_rows, row])?;
    let gamma = take("rms_norm", "gamma", gamma, [row])?;
    let out = take_mut("rms_norm", "out", out, [n_rows, row])?;
    team.rows(out, row, volume([2, row]), |r, out| {
        let groups = x[r * row..(r + 1) * row].chunks_exact(width);
        for ((out, x), gamma) in out
            .chunks_exact_mut(width)
            .zip(groups)
            .zip(gamma.chunks_exact(width))
        {
            norm_into(x, gamma, eps, out);
        }
    });
    Ok(())
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
    let HeadLayout {
        row_len,
        offset,
        stride,
        n_head,
        head_dim,
        eps,
    } = from;
    let op = "norm_rope";
    check_layout(op, from)?;
    check_rope(op, rope, head_dim)?;
    let x = take(op, "x", x, [n_tokens, row_len])?;
    let gamma = take(op, "gamma", gamma, [head_dim])?;
    let width = volume([n_head, head_dim]);
    let out = take_mut(op, "out", out, [first_row.saturating_add(n_tokens), width])?;
    let out = &mut out[volume([first_row, width])..];
    team.blocks(out, width, volume([8, width]), |first, out| {
        let mut rotation = Rotation::new(rope);
        for (i, out) in out.chunks_exact_mut(width).enumerate() {
            let t = first + i;
            rotation.turn_to(rope.first_position.saturating_add(t));
            for (h, out) in out.chunks_exact_mut(head_dim).enumerate() {
                let at = t * row_len + offset + h * stride;
                norm_into(&x[at..at + head_dim], gamma, eps, out);
                rotation.apply(out);
            }
        }
        Ok(())
    })
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
    let StreamShape {
        n_tokens,
        n_streams,
        n_embd,
    } = shape;
    let op = "ngram_gate";
    let wide = volume([n_streams, n_embd]);
    let key = take(op, "key", key, [n_tokens, wide])?;
    let query = take(op, "query", query, [n_tokens, wide])?;
    let gamma_key = take(op, "gamma_key", gamma_key, [wide])?;
    let gamma_query = take(op, "gamma_query", gamma_query, [wide])?;
    let value = take(op, "value", value, [n_tokens, n_embd])?;
    let out = take_mut(op, "out", out, [n_tokens, wide])?;
    team.blocks(out, wide, volume([4, wide]), |first, out| {
        let mut kn = vec![0.0; n_embd];
        let mut qn = vec![0.0; n_embd];
        for (i, out) in out.chunks_exact_mut(wide).enumerate() {
            let t = first + i;
            for (s, out) in out.chunks_exact_mut(n_embd).enumerate() {
                let (at, g) = (t * wide + s * n_embd, s * n_embd);
                norm_into(
                    &key[at..at + n_embd],
                    &gamma_key[g..g + n_embd],
                    eps,
                    &mut kn,
                );
                norm_into(
                    &query[at..at + n_embd],
                    &gamma_query[g..g + n_embd],
                    eps,
                    &mut qn,
                );
                let dot = dot_f32(&kn, &qn) / (n_embd as f32).sqrt();
                // sign(0) is 0: an exact zero stays in the middle of the sigmoid.
                let sign = if dot > 0.0 {
                    1.0
                } else if dot < 0.0 {
                    -1.0
                } else {
                    dot
                };
                let gate = sigmoid(sign * dot.abs().max(1e-6).sqrt());
                for (o, v) in out.iter_mut().zip(&value[t * n_embd..(t + 1) * n_embd]) {
                    *o = gate * v;
                }
            }
        }
        Ok(())
    })
}

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

/// Fails if a head reaches past its row.
pub(super) fn check_layout(op: &'static str, layout: HeadLayout) -> Result<()> {
    let HeadLayout {
        row_len,
        offset,
        stride,
        n_head,
        head_dim,
        ..
    } = layout;
    let last = n_head.saturating_sub(1).saturating_mul(stride);
    let reach = offset.saturating_add(last).saturating_add(head_dim);
    let holds = reach <= row_len || n_head == 0;
    require(holds, op, "end of the last head", reach, "within its row")
}

/// Fails unless a head of `dim` elements can be rotated.
pub(super) fn check_rope(op: &'static str, rope: Rope, dim: usize) -> Result<()> {
    let n_rot = rope.n_rot;
    require(n_rot.is_multiple_of(2), op, "n_rot", n_rot, "even")?;
    require(
        n_rot <= dim,
        op,
        "n_rot",
        n_rot,
        "at most the head's dimensions",
    )
}

/// The rotary embedding of one position at a time.
///
/// Frequencies and angles are f32 products, as in the reference implementation; sines are taken
/// once per position, not once per head.
pub(super) struct Rotation {
    /// `1 / base^(2i/n_rot)`.
    inverse_frequencies: Vec<f32>,
    /// Sine and cosine of each angle.
    angles: Vec<(f32, f32)>,
}

impl Rotation {
    pub(super) fn new(rope: Rope) -> Self {
        let frequency = |i: usize| rope.base.powf((2 * i) as f32 / rope.n_rot as f32);
        let pairs = 0..rope.n_rot / 2;
        Self {
            inverse_frequencies: pairs.map(|i| 1.0 / frequency(i)).collect(),
            angles: vec![],
        }
    }

    pub(super) fn turn_to(&mut self, position: usize) {
        let angles = self
            .inverse_frequencies
            .iter()
            .map(|f| (position as f32 * f).sin_cos());
        self.angles.clear();
        self.angles.extend(angles);
    }

    /// Rotates the pairs `(i, i + n_rot/2)` of a head.
    pub(super) fn apply(&self, head: &mut [f32]) {
        let half = self.angles.len();
        let (low, high) = head.split_at_mut(half);
        for ((a, b), (sin, cos)) in low.iter_mut().zip(high).zip(&self.angles) {
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}
