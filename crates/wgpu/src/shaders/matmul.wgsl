// y[t, o] = sum_i W[o, i] x[t, i]. A workgroup computes one row for up to TOKENS tokens.
//
// Lane l adds the products of elements 4 (l + n LANES) to 4 (l + n LANES) + 3 for rising n; the
// lanes' sums are added as a tree. So a result does not depend on the tokens beside it.

struct Params {
    n_in: u32,
    n_rows: u32,     // rows of this part of the matrix
    row_bytes: u32,
    first_row: u32,  // of this part, among the rows of the matrix
    n_out: u32,      // rows of the matrix
    n_tokens: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(3) var<storage, read> x: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let g = group_index(group, groups);
    let first_token = g / p.n_rows * TOKENS;
    if first_token >= p.n_tokens {
        return;
    }
    let row = g % p.n_rows;
    let n = min(TOKENS, p.n_tokens - first_token);
    var sums: array<f32, TOKENS>;
    for (var i = 4u * lane; i < p.n_in; i += 4u * LANES) {
        let w = weights_at(row * p.row_bytes, i, p.n_in);
        for (var t = 0u; t < n; t++) {
            let at = (first_token + t) * p.n_in + i;
            var sum = sums[t];
            sum = fma(w.x, x[at], sum);
            // Beyond the row are other tokens, which may be infinite.
            if i + 3u < p.n_in {
                sum = fma(w.y, x[at + 1u], sum);
                sum = fma(w.z, x[at + 2u], sum);
                sum = fma(w.w, x[at + 3u], sum);
            } else {
                if i + 1u < p.n_in { sum = fma(w.y, x[at + 1u], sum); }
                if i + 2u < p.n_in { sum = fma(w.z, x[at + 2u], sum); }
            }
            sums[t] = sum;
        }
    }
    for (var t = 0u; t < n; t++) {
        let sum = sum_lanes(lane, sums[t]);
        if lane == 0u {
            y[(first_token + t) * p.n_out + p.first_row + row] = sum;
        }
    }
}
