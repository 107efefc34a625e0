// kn = rms(key) gamma_key, qn = rms(query) gamma_query, t = kn . qn / sqrt(D);
// out = sigmoid(sign(t) sqrt(max(|t|, 1e-6))) value; one workgroup for each (token, stream).

struct Params {
    n_tokens: u32,
    n_streams: u32,
    n_embd: u32,
    eps: f32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> key: array<f32>;
@group(0) @binding(2) var<storage, read> gamma_key: array<f32>;
@group(0) @binding(3) var<storage, read> query: array<f32>;
@group(0) @binding(4) var<storage, read> gamma_query: array<f32>;
@group(0) @binding(5) var<storage, read> value: array<f32>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let g = group_index(group, groups);
    let t = g / p.n_streams;
    if t >= p.n_tokens {
        return;
    }
    let start = g * p.n_embd;
    let of_gamma = g % p.n_streams * p.n_embd;
    let width = f32(p.n_embd);
    var sums = vec2<f32>();
    for (var i = lane; i < p.n_embd; i += LANES) {
        let pair = vec2<f32>(key[start + i], query[start + i]);
        sums = fma(pair, pair, sums);
    }
    let key_scale = 1.0 / sqrt(sum_lanes(lane, sums.x) / width + p.eps);
    let query_scale = 1.0 / sqrt(sum_lanes(lane, sums.y) / width + p.eps);
    var dot = 0.0;
    for (var i = lane; i < p.n_embd; i += LANES) {
        let kn = key[start + i] * key_scale * gamma_key[of_gamma + i];
        let qn = query[start + i] * query_scale * gamma_query[of_gamma + i];
        dot = fma(kn, qn, dot);
    }
    let aligned = sum_lanes(lane, dot) / sqrt(width);
    // The sign of zero is zero.
    let open = sigmoid(sign(aligned) * sqrt(max(abs(aligned), 1e-6)));
    for (var i = lane; i < p.n_embd; i += LANES) {
        out[start + i] = open * value[t * p.n_embd + i];
    }
}
