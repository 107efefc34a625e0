// The recurrence, token by token: M *= decay; e = beta (v - k^T M); M += k e^T; o = q^T M.
//
// Columns of M do not depend on each other: an invocation has one of them, for all tokens, and adds
// in the order of its rows.

struct Params {
    n_tokens: u32,
    n_head_k: u32,
    n_head_v: u32,
    head_dim: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> u: array<f32>;
@group(0) @binding(2) var<storage, read> qk: array<f32>;
@group(0) @binding(3) var<storage, read> gates: array<f32>;
@group(0) @binding(4) var<storage, read> past: array<f32>;
@group(0) @binding(5) var<storage, read_write> next: array<f32>;
@group(0) @binding(6) var<storage, read_write> o: array<f32>; // [n_tokens, Hv, dv]

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = group_index(group, groups) * LANES + lane;
    let n = p.head_dim;
    let g = index / n;
    if g >= p.n_head_v {
        return;
    }
    let column = index % n;
    let key = g % p.n_head_k;
    let state = g * n * n + column;
    for (var i = 0u; i < n; i++) {
        next[state + i * n] = past[state + i * n];
    }
    for (var t = 0u; t < p.n_tokens; t++) {
        let q = (t * 2u * p.n_head_k + key) * n;
        let k = q + p.n_head_k * n;
        let v = u[(t * (2u * p.n_head_k + p.n_head_v) + 2u * p.n_head_k + g) * n + column];
        let gate = 2u * (t * p.n_head_v + g);
        let decay = gates[gate + 1u];
        var sum = 0.0;
        for (var i = 0u; i < n; i++) {
            sum = fma(qk[k + i], next[state + i * n] * decay, sum);
        }
        let e = gates[gate] * (v - sum);
        sum = 0.0;
        for (var i = 0u; i < n; i++) {
            let m = fma(qk[k + i], e, next[state + i * n] * decay);
            next[state + i * n] = m;
            sum = fma(qk[q + i], m, sum);
        }
        o[(t * p.n_head_v + g) * n + column] = sum;
    }
}
