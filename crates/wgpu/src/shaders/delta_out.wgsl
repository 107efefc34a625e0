// out = o / sqrt(mean(o^2) + eps) * gamma * sigmoid(z) for each (token, value head).

struct Params {
    n: u32,
    head_dim: u32,
    eps: f32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> o: array<f32>;
@group(0) @binding(2) var<storage, read> gamma: array<f32>;
@group(0) @binding(3) var<storage, read> z: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let g = group_index(group, groups);
    if g >= p.n {
        return;
    }
    let start = g * p.head_dim;
    var sum = 0.0;
    for (var i = lane; i < p.head_dim; i += LANES) {
        sum = fma(o[start + i], o[start + i], sum);
    }
    let scale = 1.0 / sqrt(sum_lanes(lane, sum) / f32(p.head_dim) + p.eps);
    for (var i = lane; i < p.head_dim; i += LANES) {
        out[start + i] = o[start + i] * scale * gamma[i] * sigmoid(z[start + i]);
    }
}
