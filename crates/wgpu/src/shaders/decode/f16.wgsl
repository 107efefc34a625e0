// F16: four IEEE halves.
const BLOCK_LEN: u32 = 4u;
const BLOCK_BYTES: u32 = 8u;

fn decode(block: u32, j: u32) -> vec4<f32> {
    let low = word_at(block);
    let high = word_at(block + 4u);
    return vec4<f32>(
        half_to_float(low & 0xffffu), half_to_float(low >> 16u),
        half_to_float(high & 0xffffu), half_to_float(high >> 16u),
    );
}
