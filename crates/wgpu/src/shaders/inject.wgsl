// x[t, s, d] += 2 sigmoid(w[t, s] / S) y[t, d].

struct Params {
    n_tokens: u32,
    n_streams: u32,
    n_embd: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> w: array<f32>;
@group(0) @binding(2) var<storage, read> y: array<f32>;
@group(0) @binding(3) var<storage, read_write> x: array<f32>;

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups) * LANES + lane;
    let row = i / p.n_embd;
    if row >= p.n_tokens * p.n_streams {
        return;
    }
    let share = 2.0 * sigmoid(w[row] / f32(p.n_streams));
    x[i] = fma(share, y[row / p.n_streams * p.n_embd + i % p.n_embd], x[i]);
}
