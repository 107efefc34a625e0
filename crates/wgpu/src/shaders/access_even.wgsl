// Rows of whole runs that begin anywhere, at an even address.

@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>;

fn four_words_at(address: u32) -> vec4<u32> {
    return words_at(address);
}

fn whole_run(row: u32, r: u32) -> Run {
    return run_at(row, r);
}

// Elements `i` to `i + 3` of vector `v`.
fn four_of(v: u32, i: u32) -> vec4<f32> {
    return x[(v * p.n_in + i) >> 2u];
}
