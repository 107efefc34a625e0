// Runs of Q6_K: the sixteen weights of a scale.
const RUN: u32 = 16u;
const HAS_LOW: bool = false;

fn run_at(row: u32, r: u32) -> Run {
    let block = row + r / 16u * 210u;
    let s = r % 16u;
    // Half of the block, its run of 32 weights, and half of that.
    let half = s / 8u;
    let run = (s / 2u) % 4u;
    let i = 16u * (s & 1u);
    let lows = words_at(block + 64u * half + 32u * (run & 1u) + i);
    let highs = words_at(block + 128u + 32u * half + i);
    let low = (lows >> vec4<u32>(4u * (run / 2u))) & vec4<u32>(0x0f0f0f0fu);
    let high = (highs >> vec4<u32>(2u * run)) & vec4<u32>(0x03030303u);
    let codes = low | (high << vec4<u32>(4u));
    let scale = bitcast<i32>(byte_at(block + 192u + s) << 24u) >> 24u;
    return Run(
        bytes_less(codes.x, 32.0), bytes_less(codes.y, 32.0),
        bytes_less(codes.z, 32.0), bytes_less(codes.w, 32.0),
        scale_of(half_at(block + 208u)) * f32(scale), 0.0,
    );
}
