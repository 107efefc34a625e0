// out[t, d] = (1/S) sum_s sigmoid(g[t, s, d]) n[t, s, d].

struct Params {
    n_tokens: u32,
    n_streams: u32,
    n_embd: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> g: array<f32>;
@group(0) @binding(2) var<storage, read> n: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups) * LANES + lane;
    if i >= p.n_tokens * p.n_embd {
        return;
    }
    let first = i / p.n_embd * p.n_streams * p.n_embd + i % p.n_embd;
    var sum = 0.0;
    for (var s = 0u; s < p.n_streams; s++) {
        let at = first + s * p.n_embd;
        sum = fma(sigmoid(g[at]), n[at], sum);
    }
    out[i] = sum / f32(p.n_streams);
}
