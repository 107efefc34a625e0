// BF16: four upper halves of f32.
const BLOCK_LEN: u32 = 4u;
const BLOCK_BYTES: u32 = 8u;

fn decode(block: u32, j: u32) -> vec4<f32> {
    let low = word_at(block);
    let high = word_at(block + 4u);
    return bitcast<vec4<f32>>(vec4<u32>(low << 16u, low & 0xffff0000u, high << 16u, high & 0xffff0000u));
}
