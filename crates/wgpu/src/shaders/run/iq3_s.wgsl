// Runs of IQ3_S: four entries of the codebook, which is copied to the workgroup's memory.
const RUN: u32 = 16u;
const HAS_LOW: bool = false;

var<workgroup> entries: array<u32, 512>;

fn prepare(lane: u32) {
    for (var i = lane; i < 512u; i += THREADS) {
        entries[i] = codebook[i];
    }
    workgroupBarrier();
}

// The weights of an entry; its sign bits are the lowest four of `signs`.
fn entry(index: u32, signs: u32) -> vec4<f32> {
    let size = bytes_less(entries[index], 0.0);
    let minus = (vec4<u32>(signs) << vec4<u32>(31u, 30u, 29u, 28u)) & vec4<u32>(0x80000000u);
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(size) ^ minus);
}

fn run_at(row: u32, r: u32) -> Run {
    let block = row + r / 16u * 110u;
    // Of the block: the run of 32 weights, and which half of it.
    let run = r % 16u / 2u;
    let half = r & 1u;
    let nibble = (byte_at(block + 106u + run / 2u) >> (4u * (run & 1u))) & 15u;
    let indices = word_at(block + 2u + 8u * run + 4u * half);
    let ninths = byte_at(block + 66u + run) >> (4u * half);
    let signs = half_at(block + 74u + 4u * run + 2u * half);
    return Run(
        entry((indices & 255u) | ((ninths & 1u) << 8u), signs),
        entry(((indices >> 8u) & 255u) | ((ninths & 2u) << 7u), signs >> 4u),
        entry(((indices >> 16u) & 255u) | ((ninths & 4u) << 6u), signs >> 8u),
        entry((indices >> 24u) | ((ninths & 8u) << 5u), signs >> 12u),
        scale_of(half_at(block)) * f32(1u + 2u * nibble), 0.0,
    );
}
