//! Operations over time with state: the short convolution and the gated delta rule.

use thalweg_backend::{ConvShape, DeltaInput, DeltaShape, Result};

use crate::check::{holds, require, volume, word};
use crate::pipeline::{Key, Op};
use crate::recorder::Arg::Device;
use crate::{WgpuBuffer, WgpuRecorder};

pub(crate) fn causal_conv(
    rec: &mut WgpuRecorder,
    shape: ConvShape,
    x: &WgpuBuffer,
    kernel: &WgpuBuffer,
    past: &WgpuBuffer,
    next: &WgpuBuffer,
    out: &WgpuBuffer,
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
    holds(op, "x", x, [n_tokens, channels])?;
    holds(op, "kernel", kernel, [channels, taps])?;
    holds(op, "past", past, [history, channels])?;
    holds(op, "next", next, [history, channels])?;
    holds(op, "out", out, [n_tokens, channels])?;
    if channels == 0 {
        return Ok(());
    }
    let params = [n_tokens, channels, taps, dilation, history].map(word);
    let args = [
        (1, Device(x.raw())),
        (2, Device(kernel.raw())),
        (3, Device(past.raw())),
        (4, Device(next.raw())),
        (5, Device(out.raw())),
    ];
    let n = volume([n_tokens + history, channels]);
    rec.each(Key::new(Op::CausalConv), &params, &args, n)
}

pub(crate) fn delta_rule(
    rec: &mut WgpuRecorder,
    shape: DeltaShape,
    input: &DeltaInput<'_, WgpuBuffer>,
    past: &WgpuBuffer,
    next: &WgpuBuffer,
    out: &WgpuBuffer,
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
    holds(op, "u", input.u, [n_tokens, shape.channels()])?;
    holds(op, "b", input.b, [n_tokens, n_head_v])?;
    holds(op, "a", input.a, [n_tokens, n_head_v])?;
    holds(op, "z", input.z, [n_tokens, n_head_v, head_dim])?;
    holds(op, "a_log", input.a_log, [n_head_v])?;
    holds(op, "dt", input.dt, [n_head_v])?;
    holds(op, "gamma", input.gamma, [head_dim])?;
    let state_len = shape.state_len();
    holds(op, "past", past, [state_len])?;
    holds(op, "next", next, [state_len])?;
    holds(op, "out", out, [n_tokens, n_head_v, head_dim])?;
    if volume([n_tokens, n_head_v, head_dim]) == 0 {
        return rec.copy((past.raw(), 0), (next.raw(), 0), 4 * state_len as u64);
    }

    let params = [n_tokens, n_head_k, n_head_v, head_dim].map(word);
    let n_keys = volume([n_tokens, 2, n_head_k]);
    let n_values = volume([n_tokens, n_head_v]);
    let qk = rec.scratch(0, volume([n_keys, head_dim]))?;
    let gates = rec.scratch(1, volume([n_values, 2]))?;
    let o = rec.scratch(2, volume([n_values, head_dim]))?;
    let args = [
        (1, Device(input.u.raw())),
        (2, Device(input.b.raw())),
        (3, Device(input.a.raw())),
        (4, Device(input.a_log.raw())),
        (5, Device(input.dt.raw())),
        (6, Device(&qk)),
        (7, Device(&gates)),
    ];
    rec.dispatch(Key::new(Op::DeltaPrepare), &params, &args, n_keys)?;
    let args = [
        (1, Device(input.u.raw())),
        (2, Device(&qk)),
        (3, Device(&gates)),
        (4, Device(past.raw())),
        (5, Device(next.raw())),
        (6, Device(&o)),
    ];
    let n = volume([n_head_v, head_dim]);
    rec.each(Key::new(Op::DeltaRule), &params, &args, n)?;
    let params = [word(n_values), word(head_dim), eps.to_bits()];
    let args = [
        (1, Device(&o)),
        (2, Device(input.gamma.raw())),
        (3, Device(input.z.raw())),
        (4, Device(out.raw())),
    ];
    rec.dispatch(Key::new(Op::DeltaOut), &params, &args, n_values)
}
