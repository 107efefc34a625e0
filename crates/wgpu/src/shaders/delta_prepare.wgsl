// What the delta rule needs of each (token, head) before its recurrence: unit q and k of the key
// heads, and beta and decay of the value heads. One workgroup each.

struct Params {
    n_tokens: u32,
    n_head_k: u32,
    n_head_v: u32,
    head_dim: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> u: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<f32>;
@group(0) @binding(3) var<storage, read> a: array<f32>;
@group(0) @binding(4) var<storage, read> a_log: array<f32>;
@group(0) @binding(5) var<storage, read> dt: array<f32>;
@group(0) @binding(6) var<storage, read_write> qk: array<f32>;   // [n_tokens, 2 Hk, dk]
@group(0) @binding(7) var<storage, read_write> gates: array<f32>; // [n_tokens, Hv, 2]

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let g = group_index(group, groups);
    let heads = 2u * p.n_head_k;
    let t = g / heads;
    let h = g % heads;
    if t >= p.n_tokens {
        return;
    }
    let start = (t * (heads + p.n_head_v) + h) * p.head_dim;
    let to = g * p.head_dim;
    var sum = 0.0;
    for (var i = lane; i < p.head_dim; i += LANES) {
        sum = fma(u[start + i], u[start + i], sum);
    }
    let norm = sqrt(sum_lanes(lane, sum) + 1e-6);
    // Only q is divided by the root of its dimensions as well.
    let divisor = select(1.0, sqrt(f32(p.head_dim)), h < p.n_head_k);
    for (var i = lane; i < p.head_dim; i += LANES) {
        qk[to + i] = u[start + i] / norm / divisor;
    }
    if h == 0u {
        for (var v = lane; v < p.n_head_v; v += LANES) {
            let at = t * p.n_head_v + v;
            gates[2u * at] = sigmoid(b[at]);
            gates[2u * at + 1u] = exp_of(a_log[v] * softplus(a[at] + dt[v]));
        }
    }
}
