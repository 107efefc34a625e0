// Runs of Q4_0: the low nibbles of a block, or the high ones.
const RUN: u32 = 16u;
const HAS_LOW: bool = false;

fn run_at(row: u32, r: u32) -> Run {
    let block = row + r / 2u * 18u;
    let codes = (words_at(block + 2u) >> vec4<u32>(4u * (r & 1u))) & vec4<u32>(0x0f0f0f0fu);
    return Run(
        bytes_less(codes.x, 8.0), bytes_less(codes.y, 8.0),
        bytes_less(codes.z, 8.0), bytes_less(codes.w, 8.0),
        scale_of(half_at(block)), 0.0,
    );
}
