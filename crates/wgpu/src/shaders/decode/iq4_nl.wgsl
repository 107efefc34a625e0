// IQ4_NL: d f16, qs u8[16]; nibbles as in Q4_0, each the number of one of sixteen levels.
const BLOCK_LEN: u32 = 32u;
const BLOCK_BYTES: u32 = 18u;

// -127 -104 -83 -65, -49 -35 -22 -10, 1 13 25 38, 53 69 89 113: a byte each.
const LEVELS: vec4<u32> = vec4<u32>(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);

fn level(code: u32) -> f32 {
    let word = LEVELS[code >> 2u] << (24u - 8u * (code & 3u));
    return f32(bitcast<i32>(word) >> 24u);
}

fn decode(block: u32, j: u32) -> vec4<f32> {
    let codes = fields(word_at(block + 2u + (j & 15u)), (j >> 4u) * 4u, 15u);
    return vec4<f32>(level(codes.x), level(codes.y), level(codes.z), level(codes.w)) * scale_at(block);
}
