// Runs of IQ4_NL: the low nibbles of a block, or the high ones. Levels are looked up in the
// workgroup's memory.
const RUN: u32 = 16u;
const HAS_LOW: bool = false;

var<workgroup> levels: array<f32, 16>;

fn prepare(lane: u32) {
    for (var i = lane; i < 16u; i += THREADS) {
        levels[i] = level(i);
    }
    workgroupBarrier();
}

fn levels_of(word: u32) -> vec4<f32> {
    return vec4<f32>(
        levels[word & 15u], levels[(word >> 8u) & 15u],
        levels[(word >> 16u) & 15u], levels[(word >> 24u) & 15u],
    );
}

fn run_at(row: u32, r: u32) -> Run {
    let block = row + r / 2u * 18u;
    let codes = words_at(block + 2u) >> vec4<u32>(4u * (r & 1u));
    return Run(
        levels_of(codes.x), levels_of(codes.y), levels_of(codes.z), levels_of(codes.w),
        scale_of(half_at(block)), 0.0,
    );
}
