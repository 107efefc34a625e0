// Items of a product with many matrices of one shape and format: picks, each a pair of a matrix and
// a row of x, with a row of y of its own.

struct Params {
    n_in: u32,
    n_rows: u32,
    row_bytes: u32,
    first_row: u32, // zero
    n_out: u32,
    n_items: u32,
    n_tiles: u32,
}
// What one pick multiplies, and where the result goes.
struct Pick {
    matrix: u32,  // first byte
    source: u32,  // row of x
    to: u32,      // row of y
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
@group(0) @binding(5) var<storage, read> picks: array<Pick>;
// First pick and number of picks: those of a tile have one matrix.
@group(0) @binding(6) var<storage, read> tiles: array<vec2<u32>>;

fn matrix_of(item: u32) -> u32 {
    return picks[item].matrix;
}

fn source_of(item: u32) -> u32 {
    return picks[item].source;
}

fn target_of(item: u32) -> u32 {
    return picks[item].to;
}

// The first item of a tile, and how many there are.
fn items_of(tile: u32) -> vec2<u32> {
    return tiles[tile];
}
