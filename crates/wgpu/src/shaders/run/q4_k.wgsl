// Runs of Q4_K: half of the nibbles that share a scale and a minimum.
const RUN: u32 = 16u;
const HAS_LOW: bool = true;

fn run_at(row: u32, r: u32) -> Run {
    let block = row + r / 16u * 144u;
    // Of the block: the run of 32 weights, and which half of it.
    let run = r % 16u / 2u;
    let half = r & 1u;
    // d and dmin, then twelve bytes of scales and minimums of six bits.
    let head = four_words_at(block);
    let shift = 8u * (run & 3u);
    let packed = (head.yzw >> vec3<u32>(shift)) & vec3<u32>(0xffu);
    var scale = packed.x & 63u;
    var low = packed.y & 63u;
    if run >= 4u {
        scale = (packed.z & 15u) | ((packed.x >> 6u) << 4u);
        low = (packed.z >> 4u) | ((packed.y >> 6u) << 4u);
    }
    let words = four_words_at(block + 16u + run / 2u * 32u + 16u * half);
    let codes = (words >> vec4<u32>(4u * (run & 1u))) & vec4<u32>(0x0f0f0f0fu);
    return Run(
        bytes_less(codes.x, 0.0), bytes_less(codes.y, 0.0),
        bytes_less(codes.z, 0.0), bytes_less(codes.w, 0.0),
        scale_of(head.x & 0xffffu) * f32(scale),
        -(scale_of(head.x >> 16u) * f32(low)),
    );
}
