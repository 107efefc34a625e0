// Runs of F16: eight halves.
const RUN: u32 = 8u;
const HAS_LOW: bool = false;

fn run_at(row: u32, r: u32) -> Run {
    let words = four_words_at(row + 16u * r);
    return Run(halves_of(words.xy), halves_of(words.zw), 1.0, 0.0);
}
