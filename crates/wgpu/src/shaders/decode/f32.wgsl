// F32: four numbers of four bytes.
const BLOCK_LEN: u32 = 4u;
const BLOCK_BYTES: u32 = 16u;

fn decode(block: u32, j: u32) -> vec4<f32> {
    let at = block >> 2u;
    return bitcast<vec4<f32>>(vec4<u32>(stored[at], stored[at + 1u], stored[at + 2u], stored[at + 3u]));
}
