// out[t] = sum_r weights[t, r] partial[rows[t, r]] + sigmoid(shared_gate[t]) shared[t], in rank order.

struct Params {
    n_tokens: u32,
    k: u32,
    n_embd: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> rows: array<u32>;
@group(0) @binding(2) var<storage, read> weights: array<f32>;
@group(0) @binding(3) var<storage, read> partial: array<f32>;
@group(0) @binding(4) var<storage, read> shared_part: array<f32>;
@group(0) @binding(5) var<storage, read> shared_gate: array<f32>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups) * LANES + lane;
    let t = i / p.n_embd;
    if t >= p.n_tokens {
        return;
    }
    let d = i % p.n_embd;
    var sum = 0.0;
    for (var r = t * p.k; r < (t + 1u) * p.k; r++) {
        sum = fma(weights[r], partial[rows[r] * p.n_embd + d], sum);
    }
    out[i] = fma(sigmoid(shared_gate[t]), shared_part[i], sum);
}
