// Q2_0: d f16, qs u8[16]; weight j has bits 2 (j % 4) of byte j / 4: d * (code - 1).
const BLOCK_LEN: u32 = 64u;
const BLOCK_BYTES: u32 = 18u;

fn decode(block: u32, j: u32) -> vec4<f32> {
    let four = byte_at(block + 2u + j / 4u);
    let codes = (vec4<u32>(four) >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(3u);
    return (vec4<f32>(codes) - 1.0) * scale_at(block);
}
