// Products of tiles of rows with tiles of vectors. A workgroup has ROW_GROUPS groups of rows by
// ITEM_GROUPS groups of vectors by PARTS invocations; an invocation has ROWS rows and COLUMNS
// vectors, all runs of its part, in registers. Weights are decoded once for the tile, into the
// workgroup's memory.

const TILE_ROWS: u32 = ROW_GROUPS * ROWS;
// Runs of a row in the workgroup's memory.
const TILE_RUNS: u32 = PARTS * STEPS;
const TILE_FOURS: u32 = TILE_RUNS * FOURS;

// By row or vector, step, four of the run, and part: neighbors read neighbors.
var<workgroup> codes: array<vec4<f32>, TILE_ROWS * TILE_FOURS>;
var<workgroup> scales: array<vec2<f32>, TILE_ROWS * TILE_RUNS>;
var<workgroup> elements: array<vec4<f32>, TILE_ITEMS * TILE_FOURS>;

// Where four `q` of run `r` is among those of its row or vector.
fn place(r: u32, q: u32) -> u32 {
    return (r / PARTS * FOURS + q) * PARTS + r % PARTS;
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let g = group_index(group, groups);
    let row_tiles = (p.n_rows + TILE_ROWS - 1u) / TILE_ROWS;
    if g / row_tiles >= p.n_tiles {
        return;
    }
    prepare(lane);
    let items = items_of(g / row_tiles);
    let matrix = matrix_of(items.x);
    let first_row = g % row_tiles * TILE_ROWS;
    let part = lane % PARTS;
    let own_row = lane / PARTS % ROW_GROUPS * ROWS;
    let own_item = lane / PARTS / ROW_GROUPS * COLUMNS;
//repeat k ROWS
//repeat j COLUMNS
    var sum_{k}_{j} = 0.0;
//end
//end
    let n_runs = (p.n_in + RUN - 1u) / RUN;
    for (var first = 0u; first < n_runs; first += TILE_RUNS) {
        workgroupBarrier();
        // Rows and items past the last one are the last one, and are not written.
        for (var i = lane; i < TILE_ROWS * TILE_RUNS; i += THREADS) {
            let r = i % TILE_RUNS;
            if first + r < n_runs {
                let row = min(first_row + i / TILE_RUNS, p.n_rows - 1u);
                let run = whole_run(matrix + row * p.row_bytes, first + r);
                let to = i / TILE_RUNS * TILE_FOURS;
//repeat q FOURS
                codes[to + place(r, {q}u)] = run.c{q};
//end
                scales[i] = vec2<f32>(run.scale, run.low);
            }
        }
        for (var i = lane; i < TILE_ITEMS * TILE_FOURS; i += THREADS) {
            let four = i % TILE_FOURS;
            let r = four / FOURS;
            let q = four % FOURS;
            if first + r < n_runs {
                let item = items.x + min(i / TILE_FOURS, items.y - 1u);
                let found = four_of(source_of(item), 4u * (first * FOURS + four));
                elements[i / TILE_FOURS * TILE_FOURS + place(r, q)] = scaled(found, q);
            }
        }
        workgroupBarrier();
        for (var step = 0u; step < STEPS; step++) {
            let r = step * PARTS + part;
            if first + r < n_runs {
//repeat j COLUMNS
                var total_{j} = 0.0;
//repeat k ROWS
                var dot_{k}_{j} = 0.0;
//end
//end
//repeat q FOURS
                let at_{q} = (step * FOURS + {q}u) * PARTS + part;
//repeat k ROWS
                let w_{q}_{k} = codes[(own_row + {k}u) * TILE_FOURS + at_{q}];
//end
//repeat j COLUMNS
                let x_{q}_{j} = elements[(own_item + {j}u) * TILE_FOURS + at_{q}];
                total_{j} = add_four(total_{j}, x_{q}_{j});
//repeat k ROWS
                dot_{k}_{j} = chain(dot_{k}_{j}, w_{q}_{k}, x_{q}_{j});
//end
//end
//end
//repeat k ROWS
                let scale_{k} = scales[(own_row + {k}u) * TILE_RUNS + r];
//repeat j COLUMNS
                sum_{k}_{j} = add_dot(sum_{k}_{j}, scale_{k}.x, dot_{k}_{j}, scale_{k}.y, total_{j});
//end
//end
            }
        }
    }
//repeat k ROWS
//repeat j COLUMNS
    partials[{j}u * THREADS + lane] = sum_{k}_{j};
//end
    sum_parts(lane);
    if part == 0u && first_row + own_row + {k}u < p.n_rows {
//repeat j COLUMNS
        if own_item + {j}u < items.y {
            let to = target_of(items.x + own_item + {j}u) * p.n_out + p.first_row;
            y[to + first_row + own_row + {k}u] = partials[{j}u * THREADS + lane];
        }
//end
    }
    workgroupBarrier();
//end
}
