// Rows that end within a run, in formats whose scale is one: zeros follow the last weight and the
// last element, since what lies there belongs to others and may be infinite.

@group(0) @binding(3) var<storage, read> x: array<f32>;

fn four_words_at(address: u32) -> vec4<u32> {
    return words_at(address);
}

fn whole_run(row: u32, r: u32) -> Run {
    var run = run_at(row, r);
    let index = vec4<u32>(RUN * r) + vec4<u32>(0u, 1u, 2u, 3u);
//repeat q FOURS
    run.c{q} = select(vec4<f32>(), run.c{q}, index + vec4<u32>(4u * {q}u) < vec4<u32>(p.n_in));
//end
    return run;
}

// Elements `i` to `i + 3` of vector `v`.
fn four_of(v: u32, i: u32) -> vec4<f32> {
    var four = vec4<f32>();
    let at = v * p.n_in + i;
    if i < p.n_in { four.x = x[at]; }
    if i + 1u < p.n_in { four.y = x[at + 1u]; }
    if i + 2u < p.n_in { four.z = x[at + 2u]; }
    if i + 3u < p.n_in { four.w = x[at + 3u]; }
    return four;
}
