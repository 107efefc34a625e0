// Runs of Q8_0: half a block, sixteen bytes.
const RUN: u32 = 16u;
const HAS_LOW: bool = false;

fn run_at(row: u32, r: u32) -> Run {
    let block = row + r / 2u * 34u;
    // As numbers from 0 to 255, 128 too large.
    let codes = words_at(block + 2u + 16u * (r & 1u)) ^ vec4<u32>(0x80808080u);
    return Run(
        bytes_less(codes.x, 128.0), bytes_less(codes.y, 128.0),
        bytes_less(codes.z, 128.0), bytes_less(codes.w, 128.0),
        scale_of(half_at(block)), 0.0,
    );
}
