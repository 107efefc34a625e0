// The product of matmul.wgsl for many matrices of one shape and format at once: picks are pairs of
// a matrix (by its first byte in the bound buffer) and a row of x; each has a row of y.

struct Params {
    n_in: u32,
    n_out: u32,
    row_bytes: u32,
    n_picks: u32,
}
// What one pick multiplies, and where the result goes.
struct Pick {
    matrix: u32, // first byte
    source: u32,   // row of x
    to: u32,     // row of y
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(3) var<storage, read> x: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
@group(0) @binding(5) var<storage, read> picks: array<Pick>;

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let g = group_index(group, groups);
    if g / p.n_out >= p.n_picks {
        return;
    }
    let pick = picks[g / p.n_out];
    let row = g % p.n_out;
    let start = pick.source * p.n_in;
    var sum = 0.0;
    for (var i = 4u * lane; i < p.n_in; i += 4u * LANES) {
        let w = weights_at(pick.matrix + row * p.row_bytes, i, p.n_in);
        sum = fma(w.x, x[start + i], sum);
        if i + 1u < p.n_in { sum = fma(w.y, x[start + i + 1u], sum); }
        if i + 2u < p.n_in { sum = fma(w.z, x[start + i + 2u], sum); }
        if i + 3u < p.n_in { sum = fma(w.w, x[start + i + 3u], sum); }
    }
    sum = sum_lanes(lane, sum);
    if lane == 0u {
        y[pick.to * p.n_out + row] = sum;
    }
}
