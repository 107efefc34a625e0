//! Sums, activations, streams of the wide residual, and the ordered sum of a layer's parts.

use bytemuck::cast_slice;
use thalweg_backend::{Error, MoeShape, Result, StreamShape};

use crate::check::{enough, holds, require, volume, word};
use crate::pipeline::{Key, Op};
use crate::recorder::Arg::{Device, Host};
use crate::{WgpuBuffer, WgpuRecorder};

pub(crate) fn add(
    rec: &mut WgpuRecorder,
    x: &WgpuBuffer,
    y: &WgpuBuffer,
    len: usize,
) -> Result<()> {
    holds("add", "y", y, [len])?;
    holds("add", "x", x, [len])?;
    let args = [(1, Device(x.raw())), (2, Device(y.raw()))];
    rec.each(Key::new(Op::Add), &[word(len)], &args, len)
}

pub(crate) fn silu(rec: &mut WgpuRecorder, x: &WgpuBuffer, divisor: f32, len: usize) -> Result<()> {
    holds("silu", "x", x, [len])?;
    let params = [word(len), divisor.to_bits()];
    rec.each(Key::new(Op::Silu), &params, &[(1, Device(x.raw()))], len)
}

pub(crate) fn swiglu(
    rec: &mut WgpuRecorder,
    gate: &WgpuBuffer,
    up: &WgpuBuffer,
    len: usize,
) -> Result<()> {
    holds("swiglu", "up", up, [len])?;
    holds("swiglu", "gate", gate, [len])?;
    let args = [(1, Device(gate.raw())), (2, Device(up.raw()))];
    rec.each(Key::new(Op::Swiglu), &[word(len)], &args, len)
}

pub(crate) fn gate_streams(
    rec: &mut WgpuRecorder,
    shape: StreamShape,
    g: &WgpuBuffer,
    n: &WgpuBuffer,
    out: &WgpuBuffer,
) -> Result<()> {
    let StreamShape {
        n_tokens,
        n_streams,
        n_embd,
    } = shape;
    let op = "gate_streams";
    require(n_streams > 0, op, "n_streams", n_streams, "at least 1")?;
    holds(op, "g", g, [n_tokens, n_streams, n_embd])?;
    holds(op, "n", n, [n_tokens, n_streams, n_embd])?;
    holds(op, "out", out, [n_tokens, n_embd])?;
    let args = [
        (1, Device(g.raw())),
        (2, Device(n.raw())),
        (3, Device(out.raw())),
    ];
    let key = Key::new(Op::GateStreams);
    rec.each(key, &stream_words(shape), &args, volume([n_tokens, n_embd]))
}

pub(crate) fn inject(
    rec: &mut WgpuRecorder,
    shape: StreamShape,
    w: &WgpuBuffer,
    y: &WgpuBuffer,
    x: &WgpuBuffer,
) -> Result<()> {
    let StreamShape {
        n_tokens,
        n_streams,
        n_embd,
    } = shape;
    holds("inject", "w", w, [n_tokens, n_streams])?;
    holds("inject", "y", y, [n_tokens, n_embd])?;
    holds("inject", "x", x, [n_tokens, n_streams, n_embd])?;
    let args = [
        (1, Device(w.raw())),
        (2, Device(y.raw())),
        (3, Device(x.raw())),
    ];
    let n = volume([n_tokens, n_streams, n_embd]);
    rec.each(Key::new(Op::Inject), &stream_words(shape), &args, n)
}

#[allow(clippy::too_many_arguments)] // The operands of the contract's operation.
pub(crate) fn combine(
    rec: &mut WgpuRecorder,
    shape: MoeShape,
    rows: &[u32],
    weights: &[f32],
    partial: &WgpuBuffer,
    shared: &WgpuBuffer,
    shared_gate: &WgpuBuffer,
    out: &WgpuBuffer,
) -> Result<()> {
    let MoeShape {
        n_tokens,
        k,
        n_embd,
    } = shape;
    let op = "combine";
    let n_picks = volume([n_tokens, k]);
    enough(op, "rows", rows.len(), n_picks)?;
    enough(op, "weights", weights.len(), n_picks)?;
    let limit = partial.len() / n_embd.max(1);
    if let Some(&id) = rows[..n_picks].iter().find(|r| **r as usize >= limit) {
        return Err(Error::Id {
            op,
            id: id.into(),
            limit: limit as u64,
        });
    }
    holds(op, "shared", shared, [n_tokens, n_embd])?;
    holds(op, "shared_gate", shared_gate, [n_tokens])?;
    holds(op, "out", out, [n_tokens, n_embd])?;
    let args = [
        (1, Host(cast_slice(&rows[..n_picks]))),
        (2, Host(cast_slice(&weights[..n_picks]))),
        (3, Device(partial.raw())),
        (4, Device(shared.raw())),
        (5, Device(shared_gate.raw())),
        (6, Device(out.raw())),
    ];
    let params = [n_tokens, k, n_embd].map(word);
    rec.each(
        Key::new(Op::Combine),
        &params,
        &args,
        volume([n_tokens, n_embd]),
    )
}

fn stream_words(shape: StreamShape) -> [u32; 3] {
    [shape.n_tokens, shape.n_streams, shape.n_embd].map(word)
}
