// Table rows by id, each repeated: out [n_ids, copies, n_in]. An invocation decodes four weights.

struct Params {
    n_in: u32,
    row_bytes: u32,
    first_row: u32, // of this part, among the rows of the table
    n_rows: u32,    // of this part
    n_ids: u32,
    copies: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(3) var<storage, read> ids: array<u32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let fours = (p.n_in + 3u) / 4u;
    let index = group_index(group, groups) * LANES + lane;
    let row = index / fours;
    if row >= p.n_ids * p.copies {
        return;
    }
    let id = ids[row / p.copies];
    if id < p.first_row || id - p.first_row >= p.n_rows {
        return;
    }
    let i = index % fours * 4u;
    let four = weights_at((id - p.first_row) * p.row_bytes, i, p.n_in);
    for (var j = 0u; j < min(4u, p.n_in - i); j++) {
        out[row * p.n_in + i + j] = four[j];
    }
}
