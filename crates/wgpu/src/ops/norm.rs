//! Norms over groups and heads, the rotary embedding, and the n-gram gate.

use bytemuck::cast_slice;
use thalweg_backend::{HeadLayout, NormShape, Result, Rope, StreamShape};

use crate::check::{self, holds, volume, word};
use crate::pipeline::{Key, Op};
use crate::recorder::Arg::{Device, Host};
use crate::{WgpuBuffer, WgpuRecorder};

pub(crate) fn rms_norm(
    rec: &mut WgpuRecorder,
    shape: NormShape,
    x: &WgpuBuffer,
    gamma: &WgpuBuffer,
    out: &WgpuBuffer,
) -> Result<()> {
    let NormShape {
        n_rows,
        n_groups,
        width,
        eps,
    } = shape;
    let op = "rms_norm";
    holds(op, "x", x, [n_rows, n_groups, width])?;
    holds(op, "gamma", gamma, [n_groups, width])?;
    holds(op, "out", out, [n_rows, n_groups, width])?;
    if volume([n_rows, n_groups, width]) == 0 {
        return Ok(());
    }
    let n = volume([n_rows, n_groups]);
    let params = [word(n), word(n_groups), word(width), eps.to_bits()];
    let args = [
        (1, Device(x.raw())),
        (2, Device(gamma.raw())),
        (3, Device(out.raw())),
    ];
    rec.dispatch(Key::new(Op::RmsNorm), &params, &args, n)
}

#[allow(clippy::too_many_arguments)] // The operands of the contract's operation.
pub(crate) fn norm_rope(
    rec: &mut WgpuRecorder,
    from: HeadLayout,
    rope: Rope,
    n_tokens: usize,
    x: &WgpuBuffer,
    gamma: &WgpuBuffer,
    out: &WgpuBuffer,
    first_row: usize,
) -> Result<()> {
    let op = "norm_rope";
    check::layout(op, from)?;
    check::rope(op, rope, from.head_dim)?;
    let HeadLayout {
        n_head, head_dim, ..
    } = from;
    holds(op, "x", x, [n_tokens, from.row_len])?;
    holds(op, "gamma", gamma, [head_dim])?;
    let n_rows = first_row.saturating_add(n_tokens);
    holds(op, "out", out, [n_rows, n_head, head_dim])?;
    let positions = (0..n_tokens).map(|t| rope.first_position.saturating_add(t));
    if volume([n_tokens, n_head, head_dim]) == 0 {
        return Ok(());
    }
    let angles = angles(rope, positions);
    rotate(rec, from, n_tokens, x.raw(), gamma, &angles, out, first_row)
}

/// Norm and rotation by given angles, `[n_tokens, n_rot / 2]` cosines and sines.
#[allow(clippy::too_many_arguments)] // The operands of the contract's operation.
pub(crate) fn rotate(
    rec: &mut WgpuRecorder,
    from: HeadLayout,
    n_tokens: usize,
    x: &wgpu::Buffer,
    gamma: &WgpuBuffer,
    angles: &[[f32; 2]],
    out: &WgpuBuffer,
    first_row: usize,
) -> Result<()> {
    let half_rot = angles.len() / n_tokens;
    let sizes = [
        n_tokens,
        from.row_len,
        from.offset,
        from.stride,
        from.n_head,
        from.head_dim,
        half_rot,
        first_row,
    ];
    let mut params: Vec<u32> = sizes.into_iter().map(word).collect();
    params.push(from.eps.to_bits());
    let args = [
        (1, Device(x)),
        (2, Device(gamma.raw())),
        (3, Host(cast_slice(angles))),
        (4, Device(out.raw())),
    ];
    let n = volume([n_tokens, from.n_head]);
    rec.dispatch(Key::new(Op::NormRope), &params, &args, n)
}

/// Cosine and sine of each pair's angle at each position, in f32 products as the reference has.
pub(crate) fn angles(rope: Rope, positions: impl Iterator<Item = usize>) -> Vec<[f32; 2]> {
    let pairs = 0..rope.n_rot / 2;
    let frequency = |i: usize| 1.0 / rope.base.powf((2 * i) as f32 / rope.n_rot as f32);
    let frequencies: Vec<f32> = pairs.map(frequency).collect();
    let turn = |position: usize| {
        let frequencies = frequencies.iter();
        frequencies.map(move |f| {
            let (sin, cos) = (position as f32 * f).sin_cos();
            [cos, sin]
        })
    };
    positions.flat_map(turn).collect()
}

#[allow(clippy::too_many_arguments)] // The operands of the contract's operation.
pub(crate) fn ngram_gate(
    rec: &mut WgpuRecorder,
    shape: StreamShape,
    eps: f32,
    (key, gamma_key): (&WgpuBuffer, &WgpuBuffer),
    (query, gamma_query): (&WgpuBuffer, &WgpuBuffer),
    value: &WgpuBuffer,
    out: &WgpuBuffer,
) -> Result<()> {
    let StreamShape {
        n_tokens,
        n_streams,
        n_embd,
    } = shape;
    let op = "ngram_gate";
    holds(op, "key", key, [n_tokens, n_streams, n_embd])?;
    holds(op, "query", query, [n_tokens, n_streams, n_embd])?;
    holds(op, "gamma_key", gamma_key, [n_streams, n_embd])?;
    holds(op, "gamma_query", gamma_query, [n_streams, n_embd])?;
    holds(op, "value", value, [n_tokens, n_embd])?;
    holds(op, "out", out, [n_tokens, n_streams, n_embd])?;
    if volume([n_tokens, n_streams, n_embd]) == 0 {
        return Ok(());
    }
    let params = [word(n_tokens), word(n_streams), word(n_embd), eps.to_bits()];
    let args = [
        (1, Device(key.raw())),
        (2, Device(gamma_key.raw())),
        (3, Device(query.raw())),
        (4, Device(gamma_query.raw())),
        (5, Device(value.raw())),
        (6, Device(out.raw())),
    ];
    let n = volume([n_tokens, n_streams]);
    rec.dispatch(Key::new(Op::NgramGate), &params, &args, n)
}
