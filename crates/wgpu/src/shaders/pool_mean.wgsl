// The mean of the raw keys of each block: mean [n_blocks, index_dim]. Norm and rotation follow.

struct Params {
    first_block: u32,
    n_blocks: u32,
    block_tokens: u32,
    index_dim: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> raw: array<f32>;
@group(0) @binding(2) var<storage, read_write> mean: array<f32>;

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups) * LANES + lane;
    let block = i / p.index_dim;
    if block >= p.n_blocks {
        return;
    }
    let first = (p.first_block + block) * p.block_tokens * p.index_dim + i % p.index_dim;
    var sum = 0.0;
    for (var j = 0u; j < p.block_tokens; j++) {
        sum = sum + raw[first + j * p.index_dim];
    }
    mean[i] = sum / f32(p.block_tokens);
}
