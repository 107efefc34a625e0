//! Sums, activations, streams of the wide residual, and the short convolution over time.

use super::{CpuBuffer, Team, require, sigmoid, silu, take, take_mut};
use crate::Result;
use crate::contract::{ConvShape, StreamShape, volume};

/// Elements handed to a thread at once where there are no rows.
const BLOCK: usize = 4096;

/// Work of an exponential, in multiply-adds of a dot product.
const EXP: usize = 16;

pub(super) fn add(team: &Team, x: &mut CpuBuffer, y: &CpuBuffer, len: usize) -> Result<()> {
    let y = take("add", "y", y, [len])?;
    let x = take_mut("add", "x", x, [len])?;
    each_block(team, x, 1, |at, x| {
        for (x, y) in x.iter_mut().zip(&y[at..]) {
            *x += y;
        }
    });
    Ok(())
}

pub(super) fn silu_in_place(
    team: &Team,
    x: &mut CpuBuffer,
    divisor: f32,
    len: usize,
) -> Result<()> {
    each_block(team, take_mut("silu", "x", x, [len])?, EXP, |_, x| {
        for x in x {
            *x = silu(*x / divisor);
        }
    });
    Ok(())
}

pub(super) fn swiglu(team: &Team, gate: &mut CpuBuffer, up: &CpuBuffer, len: usize) -> Result<()> {
    let up = take("swiglu", "up", up, [len])?;
    each_block(
        team,
        take_mut("swiglu", "gate", gate, [len])?,
        EXP,
        |at, gate| {
            for (g, u) in gate.iter_mut().zip(&up[at..]) {
                *g = silu(*g) * u;
            }
        },
    );
    Ok(())
}

pub(super) fn gate_streams(
    team: &Team,
    shape: StreamShape,
    g: &CpuBuffer,
    n: &CpuBuffer,
    out: &mut CpuBuffer,
) -> Result<()> {
    let StreamShape {
        n_tokens,
        n_streams,
        n_embd,
    } = shape;
    let op = "gate_streams";
    require(n_streams > 0, op, "n_streams", n_streams, "at least 1")?;
    let wide = volume([n_streams, n_embd]);
    let g = take(op, "g", g, [n_tokens, wide])?;
    let n = take(op, "n", n, [n_tokens, wide])?;
    let out = take_mut(op, "out", out, [n_tokens, n_embd])?;
    team.rows(out, n_embd, volume([EXP, wide]), |t, out| {
        out.fill(0.0);
        for s in 0..n_streams {
            let at = t * wide + s * n_embd;
            for ((o, g), n) in out.iter_mut().zip(&g[at..]).zip(&n[at..]) {
                *o += sigmoid(*g) * n;
            }
        }
        for o in out {
            *o /= n_streams as f32;
        }
    });
    Ok(())
}

pub(super) fn inject(
    team: &Team,
    shape: StreamShape,
    w: &CpuBuffer,
    y: &CpuBuffer,
    x: &mut CpuBuffer,
) -> Result<()> {
    let StreamShape {
        n_tokens,
        n_streams,
        n_embd,
    } = shape;
    let wide = volume([n_streams, n_embd]);
    let w = take("inject", "w", w, [n_tokens, n_streams])?;
    let y = take("inject", "y", y, [n_tokens, n_embd])?;
    let x = take_mut("inject", "x", x, [n_tokens, wide])?;
    team.rows(x, wide, volume([2, wide]), |t, x| {
        let y = &y[t * n_embd..(t + 1) * n_embd];
        for (s, x) in x.chunks_exact_mut(n_embd).enumerate() {
            let w = 2.0 * sigmoid(w[t * n_streams + s] / n_streams as f32);
            for (x, y) in x.iter_mut().zip(y) {
                *x += w * y;
            }
        }
    });
    Ok(())
}

pub(super) fn causal_conv(
    team: &Team,
    shape: ConvShape,
    x: &CpuBuffer,
    kernel: &CpuBuffer,
    past: &CpuBuffer,
    next: &mut CpuBuffer,
    out: &mut CpuBuffer,
) -> Result<()> {
    let ConvShape {
        n_tokens,
        channels,
        taps,
        dilation,
    } = shape;
    let history = shape.history();
    let op = "causal_conv";
    require(taps > 0, op, "taps", taps, "at least 1")?;
    let x = take(op, "x", x, [n_tokens, channels])?;
    let kernel = take(op, "kernel", kernel, [channels, taps])?;
    let past = take(op, "past", past, [history, channels])?;
    let next = take_mut(op, "next", next, [history, channels])?;
    let out = take_mut(op, "out", out, [n_tokens, channels])?;
    if channels == 0 {
        return Ok(());
    }
    // Row `r` of the history followed by the chunk.
    let row = |r: usize| match r.checked_sub(history) {
        None => &past[r * channels..(r + 1) * channels],
        Some(t) => &x[t * channels..(t + 1) * channels],
    };
    team.rows(
        out,
        channels,
        volume([EXP.saturating_add(taps), channels]),
        |t, out| {
            out.fill(0.0);
            for j in 0..taps {
                let x = row(t + j * dilation);
                for (c, (o, x)) in out.iter_mut().zip(x).enumerate() {
                    *o += kernel[c * taps + j] * x;
                }
            }
            for o in out {
                *o = silu(*o);
            }
        },
    );
    for (h, next) in next.chunks_exact_mut(channels).enumerate() {
        next.copy_from_slice(row(n_tokens + h));
    }
    Ok(())
}

/// Calls `f(first_element, block)` over blocks of elements.
fn each_block(team: &Team, x: &mut [f32], work: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
    let whole = x.len() / BLOCK * BLOCK;
    let (blocks, rest) = x.split_at_mut(whole);
    team.rows(blocks, BLOCK, BLOCK * work, |b, block| f(b * BLOCK, block));
    f(whole, rest);
}
