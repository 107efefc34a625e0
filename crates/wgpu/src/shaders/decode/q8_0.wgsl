// Q8_0: d f16, qs i8[32]; weight j is d * qs[j].
const BLOCK_LEN: u32 = 32u;
const BLOCK_BYTES: u32 = 34u;

fn decode(block: u32, j: u32) -> vec4<f32> {
    return signed_bytes(word_at(block + 2u + j)) * scale_at(block);
}
