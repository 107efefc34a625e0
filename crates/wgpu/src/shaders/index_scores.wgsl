// Indexer scores of complete blocks: sum_h max(0, iq[t, h] . pooled[b]); one invocation a score.
//
// The contract divides by the root of the dimensions, which changes no rank. What is not a number
// counts as zero, because no comparison with it holds.

struct Params {
    n_tokens: u32,
    first_position: u32,
    block_tokens: u32,
    n_head: u32,
    index_dim: u32,
    n_blocks: u32, // of the last token
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> iq: array<f32>;
@group(0) @binding(2) var<storage, read> pooled: array<f32>;
@group(0) @binding(3) var<storage, read_write> scores: array<f32>; // [n_tokens, n_blocks]

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups) * LANES + lane;
    let t = i / p.n_blocks;
    let block = i % p.n_blocks;
    if t >= p.n_tokens || block >= (p.first_position + t + 1u) / p.block_tokens {
        return;
    }
    var score = 0.0;
    for (var h = 0u; h < p.n_head; h++) {
        var hit = 0.0;
        for (var d = 0u; d < p.index_dim; d++) {
            hit = fma(iq[(t * p.n_head + h) * p.index_dim + d], pooled[block * p.index_dim + d], hit);
        }
        if hit > 0.0 {
            score = score + hit;
        }
    }
    scores[i] = score;
}
