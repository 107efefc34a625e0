// Norm of each head, then rotation of its first n_rot dimensions in pairs (i, i + n_rot/2).
//
// Cosines and sines come from the host: a shader's are not accurate at large angles.

struct Params {
    n_tokens: u32,
    row_len: u32,
    offset: u32,
    stride: u32,
    n_head: u32,
    head_dim: u32,
    half_rot: u32,
    first_row: u32,
    eps: f32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> gamma: array<f32>;
@group(0) @binding(3) var<storage, read> angles: array<vec2<f32>>; // [n_tokens, half_rot]: cos, sin
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let g = group_index(group, groups);
    let t = g / p.n_head;
    if t >= p.n_tokens {
        return;
    }
    let start = t * p.row_len + p.offset + g % p.n_head * p.stride;
    let to = (p.first_row * p.n_head + g) * p.head_dim;
    var sum = 0.0;
    for (var i = lane; i < p.head_dim; i += LANES) {
        sum = fma(x[start + i], x[start + i], sum);
    }
    let scale = 1.0 / sqrt(sum_lanes(lane, sum) / f32(p.head_dim) + p.eps);
    for (var i = lane; i < p.half_rot; i += LANES) {
        let j = i + p.half_rot;
        let a = x[start + i] * scale * gamma[i];
        let b = x[start + j] * scale * gamma[j];
        let turn = angles[t * p.half_rot + i];
        out[to + i] = fma(a, turn.x, -(b * turn.y));
        out[to + j] = fma(b, turn.x, a * turn.y);
    }
    for (var i = 2u * p.half_rot + lane; i < p.head_dim; i += LANES) {
        out[to + i] = x[start + i] * scale * gamma[i];
    }
}
