// Runs of BF16: eight upper halves of f32.
const RUN: u32 = 8u;
const HAS_LOW: bool = false;

fn run_at(row: u32, r: u32) -> Run {
    let words = four_words_at(row + 16u * r);
    let low = words << vec4<u32>(16u);
    let high = words & vec4<u32>(0xffff0000u);
    return Run(
        bitcast<vec4<f32>>(vec4<u32>(low.x, high.x, low.y, high.y)),
        bitcast<vec4<f32>>(vec4<u32>(low.z, high.z, low.w, high.w)),
        1.0, 0.0,
    );
}
