// out[t, c] = silu(sum_j kernel[c, j] row(t + dilation j)[c]), where row(r) is row r of the history
// followed by the chunk; next becomes the last rows of that. One invocation an element of either.

struct Params {
    n_tokens: u32,
    channels: u32,
    taps: u32,
    dilation: u32,
    history: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> kernel: array<f32>;
@group(0) @binding(3) var<storage, read> past: array<f32>;
@group(0) @binding(4) var<storage, read_write> next: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

fn value(row: u32, c: u32) -> f32 {
    if row < p.history {
        return past[row * p.channels + c];
    }
    return x[(row - p.history) * p.channels + c];
}

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups) * LANES + lane;
    let row = i / p.channels;
    let c = i % p.channels;
    if row < p.n_tokens {
        var sum = 0.0;
        for (var j = 0u; j < p.taps; j++) {
            sum = fma(kernel[c * p.taps + j], value(row + j * p.dilation, c), sum);
        }
        out[i] = silu(sum);
    } else if row < p.n_tokens + p.history {
        // The history's row h is row n_tokens + h of all.
        next[i - p.n_tokens * p.channels] = value(row, c);
    }
}
