// Runs of Q2_0: a word of a block.
//
// A code is left where it is, at bit 2 i of its half word, and put into the lowest bits of 2^23:
// less 2^23 + 4^i that is (code - 1) 4^i, exactly. Elements are scaled by 4^-i instead, so that a
// weight costs two operations and the fma.
const RUN: u32 = 16u;
const HAS_LOW: bool = false;

fn scaled(x: vec4<f32>, q: u32) -> vec4<f32> {
    let scale = select(1.0, 0.00390625, (q & 1u) != 0u);
    return x * (scale * vec4<f32>(1.0, 0.25, 0.0625, 0.015625));
}

fn run_at(row: u32, r: u32) -> Run {
    let block = row + r / 4u * 18u;
    let low = word_at(block + 2u + 4u * (r & 3u));
    let high = low >> 16u;
    let magic = vec4<u32>(0x4b000000u);
    let first = vec4<u32>(0x3u, 0xcu, 0x30u, 0xc0u);
    let second = vec4<u32>(0x300u, 0xc00u, 0x3000u, 0xc000u);
    let less = vec4<f32>(8388609.0, 8388612.0, 8388624.0, 8388672.0);
    let less_second = vec4<f32>(8388864.0, 8389632.0, 8392704.0, 8404992.0);
    return Run(
        bitcast<vec4<f32>>((vec4<u32>(low) & first) | magic) - less,
        bitcast<vec4<f32>>((vec4<u32>(low) & second) | magic) - less_second,
        bitcast<vec4<f32>>((vec4<u32>(high) & first) | magic) - less,
        bitcast<vec4<f32>>((vec4<u32>(high) & second) | magic) - less_second,
        scale_of(half_at(block)), 0.0,
    );
}
