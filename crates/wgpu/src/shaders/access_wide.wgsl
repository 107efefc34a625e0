// Rows of whole runs that begin at multiples of sixteen bytes: four words at a time.

@group(0) @binding(1) var<storage, read> stored_fours: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>;

fn four_words_at(address: u32) -> vec4<u32> {
    return stored_fours[address >> 4u];
}

fn whole_run(row: u32, r: u32) -> Run {
    return run_at(row, r);
}

// Elements `i` to `i + 3` of vector `v`.
fn four_of(v: u32, i: u32) -> vec4<f32> {
    return x[(v * p.n_in + i) >> 2u];
}
