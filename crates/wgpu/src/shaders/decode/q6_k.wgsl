// Q6_K: ql u8[128], qh u8[64], scales i8[16], d f16. Half h of 128 weights owns 64 bytes of ql and
// 32 of qh; of its four runs of 32, runs 0 and 1 take the low nibbles of the two halves of ql, runs
// 2 and 3 the high ones; run r takes bits 2 r of qh on top. The value is d * scale * (code - 32).
const BLOCK_LEN: u32 = 256u;
const BLOCK_BYTES: u32 = 210u;

fn decode(block: u32, j: u32) -> vec4<f32> {
    let half = j / 128u;
    let run = (j / 32u) % 4u;
    let i = j % 32u;
    let low = fields(word_at(block + 64u * half + 32u * (run % 2u) + i), 4u * (run / 2u), 15u);
    let high = fields(word_at(block + 128u + 32u * half + i), 2u * run, 3u);
    let codes = low | (high << vec4<u32>(4u));
    let scale = bitcast<i32>(byte_at(block + 192u + j / 16u) << 24u) >> 24u;
    return (scale_at(block + 208u) * f32(scale)) * (vec4<f32>(codes) - 32.0);
}
