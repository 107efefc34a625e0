// out = x / sqrt(mean(x^2) + eps) * gamma for each group of `width` elements; one workgroup each.

struct Params {
    n: u32,        // groups in all rows
    n_groups: u32, // groups of a row
    width: u32,
    eps: f32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> gamma: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

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
    let start = g * p.width;
    let of_gamma = g % p.n_groups * p.width;
    var sum = 0.0;
    for (var i = lane; i < p.width; i += LANES) {
        sum = fma(x[start + i], x[start + i], sum);
    }
    let scale = 1.0 / sqrt(sum_lanes(lane, sum) / f32(p.width) + p.eps);
    for (var i = lane; i < p.width; i += LANES) {
        out[start + i] = x[start + i] * scale * gamma[of_gamma + i];
    }
}
