// Runs of F32: four numbers.
const RUN: u32 = 4u;
const HAS_LOW: bool = false;

fn run_at(row: u32, r: u32) -> Run {
    return Run(bitcast<vec4<f32>>(four_words_at(row + 16u * r)), 1.0, 0.0);
}
