// Items of a product with one matrix: its tokens.

struct Params {
    n_in: u32,
    n_rows: u32,    // rows of this part of the matrix
    row_bytes: u32,
    first_row: u32, // of this part, among the rows of the matrix
    n_out: u32,     // rows of the matrix
    n_items: u32,
    n_tiles: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

fn matrix_of(item: u32) -> u32 {
    return 0u;
}

fn source_of(item: u32) -> u32 {
    return item;
}

fn target_of(item: u32) -> u32 {
    return item;
}

// The first item of a tile, and how many there are.
fn items_of(tile: u32) -> vec2<u32> {
    let first = tile * TILE_ITEMS;
    return vec2<u32>(first, min(TILE_ITEMS, p.n_items - first));
}
