// Q4_0: d f16, qs u8[16]; low nibbles are weights 0 to 15, high ones 16 to 31: d * (code - 8).
const BLOCK_LEN: u32 = 32u;
const BLOCK_BYTES: u32 = 18u;

fn decode(block: u32, j: u32) -> vec4<f32> {
    let codes = fields(word_at(block + 2u + (j & 15u)), (j >> 4u) * 4u, 15u);
    return (vec4<f32>(codes) - 8.0) * scale_at(block);
}
