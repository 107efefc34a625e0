// Products of one vector at a time. A workgroup has ROWS rows for each of its GROUPS groups of PARTS
// invocations; the vector goes through the workgroup's memory, STAGED_RUNS runs at a time.

const GROUP_ROWS: u32 = GROUPS * ROWS;

// By four of the run, then by run: neighbors read neighbors.
var<workgroup> staged: array<vec4<f32>, STAGED_RUNS * FOURS>;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let g = group_index(group, groups);
    let row_groups = (p.n_rows + GROUP_ROWS - 1u) / GROUP_ROWS;
    let item = g / row_groups;
    if item >= p.n_items {
        return;
    }
    prepare(lane);
    let first_row = g % row_groups * GROUP_ROWS;
    let part = lane % PARTS;
    let matrix = matrix_of(item);
    let source = source_of(item);
    // Rows past the last one are the last one, and are not written.
//repeat k ROWS
    let row_{k} = matrix + min(first_row + {k}u * GROUPS + lane / PARTS, p.n_rows - 1u) * p.row_bytes;
    var sum_{k} = 0.0;
//end
    let n_runs = (p.n_in + RUN - 1u) / RUN;
    for (var first = 0u; first < n_runs; first += STAGED_RUNS) {
        let n = min(STAGED_RUNS, n_runs - first);
        workgroupBarrier();
        for (var i = lane; i < n * FOURS; i += THREADS) {
            let q = i % FOURS;
            let four = four_of(source, 4u * (first * FOURS + i));
            staged[q * STAGED_RUNS + i / FOURS] = scaled(four, q);
        }
        workgroupBarrier();
        for (var r = part; r < n; r += PARTS) {
            var e: Elements;
            var total = 0.0;
//repeat q FOURS
            e.c{q} = staged[{q}u * STAGED_RUNS + r];
            total = add_four(total, e.c{q});
//end
//repeat k ROWS
            sum_{k} = add_run(sum_{k}, whole_run(row_{k}, first + r), e, total);
//end
        }
    }
//repeat k ROWS
    partials[{k}u * THREADS + lane] = sum_{k};
//end
    sum_parts(lane);
    for (var i = lane; i < GROUP_ROWS; i += THREADS) {
        let row = first_row + i;
        if row < p.n_rows {
            y[target_of(item) * p.n_out + p.first_row + row] = partials[i * PARTS];
        }
    }
}
