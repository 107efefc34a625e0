//! Every operation in f64, written from the formula in the contract with no thought for speed.
//!
//! Shares nothing with any backend; angles alone are f32 products, because the contract's positions
//! and frequencies are.

use crate::contract::*;

pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub(super) fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

pub(super) fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub(super) fn matmul(w: &[f32], n_in: usize, n_out: usize, x: &[f32], n: usize) -> Vec<f64> {
    let mut y = vec![];
    for t in 0..n {
        for o in 0..n_out {
            let products =
                (0..n_in).map(|i| f64::from(w[o * n_in + i]) * f64::from(x[t * n_in + i]));
            y.push(products.sum());
        }
    }
    y
}

/// `x / sqrt(mean(x^2) + eps) * gamma`.
pub(super) fn norm(x: &[f64], gamma: &[f64], eps: f64) -> Vec<f64> {
    let mean = dot(x, x) / x.len() as f64;
    x.iter()
        .zip(gamma)
        .map(|(x, g)| x / (mean + eps).sqrt() * g)
        .collect()
}

pub(super) fn rms_norm(shape: NormShape, x: &[f32], gamma: &[f32]) -> Vec<f64> {
    let (x, gamma) = (wide(x), wide(gamma));
    let mut out = vec![];
    for r in 0..shape.n_rows {
        for g in 0..shape.n_groups {
            let at = (r * shape.n_groups + g) * shape.width;
            let gamma = &gamma[g * shape.width..(g + 1) * shape.width];
            out.extend(norm(&x[at..at + shape.width], gamma, f64::from(shape.eps)));
        }
    }
    out
}

pub(super) fn gate_streams(shape: StreamShape, g: &[f32], n: &[f32]) -> Vec<f64> {
    let StreamShape {
        n_tokens,
        n_streams,
        n_embd,
    } = shape;
    let mut out = vec![];
    for t in 0..n_tokens {
        for d in 0..n_embd {
            let stream = |s: usize| {
                let i = (t * n_streams + s) * n_embd + d;
                sigmoid(f64::from(g[i])) * f64::from(n[i])
            };
            out.push((0..n_streams).map(stream).sum::<f64>() / n_streams as f64);
        }
    }
    out
}

pub(super) fn inject(shape: StreamShape, w: &[f32], y: &[f32], x: &[f32]) -> Vec<f64> {
    let StreamShape {
        n_tokens,
        n_streams,
        n_embd,
    } = shape;
    let mut out = wide(x);
    for t in 0..n_tokens {
        for s in 0..n_streams {
            let w = 2.0 * sigmoid(f64::from(w[t * n_streams + s]) / n_streams as f64);
            for d in 0..n_embd {
                out[(t * n_streams + s) * n_embd + d] += w * f64::from(y[t * n_embd + d]);
            }
        }
    }
    out
}

/// Output and history.
pub(super) fn causal_conv(
    shape: ConvShape,
    x: &[f32],
    kernel: &[f32],
    past: &[f32],
) -> (Vec<f64>, Vec<f32>) {
    let ConvShape {
        n_tokens,
        channels,
        taps,
        dilation,
    } = shape;
    let history = (taps - 1) * dilation;
    let all = [past, x].concat();
    let mut out = vec![];
    for t in 0..n_tokens {
        for c in 0..channels {
            let mut sum = 0.0;
            for j in 0..taps {
                let row = history + t - dilation * (taps - 1 - j);
                sum += f64::from(kernel[c * taps + j]) * f64::from(all[row * channels + c]);
            }
            out.push(silu(sum));
        }
    }
    (out, all[all.len() - history * channels..].to_vec())
}

/// Output and state.
pub(super) fn delta_rule(
    shape: DeltaShape,
    input: &DeltaInput<'_, Vec<f32>>,
    past: &[f32],
) -> (Vec<f64>, Vec<f64>) {
    let DeltaShape {
        n_tokens,
        n_head_k: hk,
        n_head_v: hv,
        head_dim: d,
        eps,
    } = shape;
    let [u, b, a, z, a_log, dt, gamma] = [
        input.u,
        input.b,
        input.a,
        input.z,
        input.a_log,
        input.dt,
        input.gamma,
    ]
    .map(|v| wide(v));
    let mut state = wide(past);
    let mut out = vec![];
    for t in 0..n_tokens {
        for g in 0..hv {
            let head = |h: usize| &u[(t * (2 * hk + hv) + h) * d..][..d];
            let unit = |x: &[f64], over: f64| -> Vec<f64> {
                let length = (dot(x, x) + 1e-6).sqrt();
                x.iter().map(|x| x / length / over).collect()
            };
            let q = unit(head(g % hk), (d as f64).sqrt());
            let k = unit(head(hk + g % hk), 1.0);
            let v = head(2 * hk + g);
            let beta = sigmoid(b[t * hv + g]);
            let decay = (a_log[g] * (a[t * hv + g] + dt[g]).exp().ln_1p()).exp();

            let m = &mut state[g * d * d..(g + 1) * d * d];
            for m in m.iter_mut() {
                *m *= decay;
            }
            let column =
                |m: &[f64], j: usize| -> Vec<f64> { (0..d).map(|i| m[i * d + j]).collect() };
            let e: Vec<f64> = (0..d)
                .map(|j| beta * (v[j] - dot(&k, &column(m, j))))
                .collect();
            for i in 0..d {
                for j in 0..d {
                    m[i * d + j] += k[i] * e[j];
                }
            }
            let o: Vec<f64> = (0..d).map(|j| dot(&q, &column(m, j))).collect();
            let o = norm(&o, &gamma, f64::from(eps));
            out.extend((0..d).map(|j| o[j] * sigmoid(z[(t * hv + g) * d + j])));
        }
    }
    (out, state)
}

pub(super) fn norm_rope(
    from: HeadLayout,
    rope: Rope,
    n_tokens: usize,
    x: &[f32],
    gamma: &[f32],
) -> Vec<f64> {
    let mut out = vec![];
    for t in 0..n_tokens {
        for h in 0..from.n_head {
            let at = t * from.row_len + from.offset + h * from.stride;
            let head = norm(
                &wide(&x[at..at + from.head_dim]),
                &wide(gamma),
                f64::from(from.eps),
            );
            out.extend(rotate(rope, rope.first_position + t, head));
        }
    }
    out
}

pub(super) fn pool_key(
    shape: AttentionShape,
    block: usize,
    raw: &[f32],
    gamma: &[f32],
) -> Vec<f64> {
    let AttentionShape {
        block_tokens: c,
        index_dim,
        ..
    } = shape;
    let mean = |i: usize| {
        let members = (block * c..(block + 1) * c).map(|t| f64::from(raw[t * index_dim + i]));
        members.sum::<f64>() / c as f64
    };
    let mean: Vec<f64> = (0..index_dim).map(mean).collect();
    rotate(
        shape.rope,
        block * c,
        norm(&mean, &wide(gamma), f64::from(shape.eps)),
    )
}

fn rotate(rope: Rope, position: usize, head: Vec<f64>) -> Vec<f64> {
    let mut out = head.clone();
    let half = rope.n_rot / 2;
    for i in 0..half {
        let frequency = f64::from(rope.base).powf(2.0 * i as f64 / rope.n_rot as f64);
        let angle = f64::from(position as f32 * (1.0 / frequency) as f32);
        out[i] = head[i] * angle.cos() - head[i + half] * angle.sin();
        out[i + half] = head[i + half] * angle.cos() + head[i] * angle.sin();
    }
    out
}

/// Positions that the query at `position` sees, rising. `iq` is its indexer query.
pub(super) fn visible(
    shape: AttentionShape,
    position: usize,
    iq: &[f32],
    pooled: &[f32],
) -> Vec<usize> {
    let AttentionShape {
        block_tokens: c,
        budget_tokens,
        index_dim,
        n_head_index,
        ..
    } = shape;
    let n_blocks = (position + 1) / c;
    let n_selected = budget_tokens / c;
    if n_blocks <= n_selected {
        return (0..=position).collect();
    }
    let (iq, pooled) = (wide(iq), wide(pooled));
    let score = |b: usize| -> f64 {
        let key = &pooled[b * index_dim..(b + 1) * index_dim];
        let hit = |h: usize| dot(&iq[h * index_dim..(h + 1) * index_dim], key).max(0.0);
        (0..n_head_index).map(hit).sum::<f64>() / (index_dim as f64).sqrt()
    };
    let mut ranked: Vec<(f64, usize)> = (0..n_blocks).map(|b| (score(b), b)).collect();
    // A stable sort: equal scores stay in block order.
    ranked.sort_by(|a, b| b.0.partial_cmp(&a.0).expect("whole numbers"));
    let mut chosen: Vec<usize> = ranked[..n_selected].iter().map(|r| r.1).collect();
    chosen.sort_unstable();
    let members = chosen.into_iter().flat_map(|b| b * c..(b + 1) * c);
    members.chain(n_blocks * c..=position).collect()
}

/// One head of one query over `positions`, gated.
pub(super) fn attend(
    shape: AttentionShape,
    head: usize,
    positions: &[usize],
    q: &[f32],
    gate: &[f32],
    (k, v): (&[f32], &[f32]),
) -> Vec<f64> {
    let d = shape.head_dim;
    let kv = head / (shape.n_head / shape.n_head_kv);
    let row = |x: &[f32], p: usize| wide(&x[(p * shape.n_head_kv + kv) * d..][..d]);
    let q = wide(q);
    let score = |p: &usize| dot(&q, &row(k, *p)) / (d as f64).sqrt();
    let scores: Vec<f64> = positions.iter().map(score).collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = scores.iter().map(|s| (s - max).exp()).sum();
    let mut out = vec![0.0; d];
    for (p, s) in positions.iter().zip(&scores) {
        for (o, v) in out.iter_mut().zip(row(v, *p)) {
            *o += (s - max).exp() / total * v;
        }
    }
    out.iter()
        .zip(gate)
        .map(|(o, g)| o * sigmoid(f64::from(*g)))
        .collect()
}

/// `down(silu(gate x) * (up x))` of one token, the matrices being `[n_ff, n]`, `[n_ff, n]` and
/// `[n, n_ff]`.
pub(super) fn expert([gate, up, down]: [&[f32]; 3], n_ff: usize, x: &[f32]) -> Vec<f64> {
    let n = x.len();
    let (g, u) = (matmul(gate, n, n_ff, x, 1), matmul(up, n, n_ff, x, 1));
    let hidden: Vec<f64> = g.iter().zip(&u).map(|(g, u)| silu(*g) * u).collect();
    (0..n)
        .map(|o| dot(&wide(&down[o * n_ff..(o + 1) * n_ff]), &hidden))
        .collect()
}

pub(super) fn combine(
    shape: MoeShape,
    rows: &[u32],
    weights: &[f32],
    partial: &[f32],
    shared: &[f32],
    shared_gate: &[f32],
) -> Vec<f64> {
    let MoeShape {
        n_tokens,
        k,
        n_embd,
    } = shape;
    let mut out = vec![];
    for t in 0..n_tokens {
        for d in 0..n_embd {
            let part = |r: usize| {
                let p = partial[rows[t * k + r] as usize * n_embd + d];
                f64::from(weights[t * k + r]) * f64::from(p)
            };
            let shared = sigmoid(f64::from(shared_gate[t])) * f64::from(shared[t * n_embd + d]);
            out.push((0..k).map(part).sum::<f64>() + shared);
        }
    }
    out
}

pub(super) fn ngram_gate(
    shape: StreamShape,
    eps: f32,
    key: (&[f32], &[f32]),
    query: (&[f32], &[f32]),
    value: &[f32],
) -> Vec<f64> {
    let StreamShape {
        n_tokens,
        n_streams,
        n_embd,
    } = shape;
    let n_groups = n_streams;
    let norm = NormShape {
        n_rows: n_tokens,
        n_groups,
        width: n_embd,
        eps,
    };
    let (kn, qn) = (
        rms_norm(norm, key.0, key.1),
        rms_norm(norm, query.0, query.1),
    );
    let mut out = vec![];
    for (i, (kn, qn)) in kn.chunks(n_embd).zip(qn.chunks(n_embd)).enumerate() {
        let t = dot(kn, qn) / (n_embd as f64).sqrt();
        let sign = if t == 0.0 { 0.0 } else { t.signum() };
        let gate = sigmoid(sign * t.abs().max(1e-6).sqrt());
        let value = &value[i / n_streams * n_embd..][..n_embd];
        out.extend(value.iter().map(|v| gate * f64::from(*v)));
    }
    out
}
