// Access to weights in their stored format, bound as words.
//
// A format's file defines BLOCK_LEN, BLOCK_BYTES and `decode(block, j)`: the four weights from `j`
// on (a multiple of four) of the block at byte `block`. Formats of single numbers count as blocks
// of four; then a row may end within a block.

@group(0) @binding(1) var<storage, read> stored: array<u32>;

fn byte_at(address: u32) -> u32 {
    return (stored[address >> 2u] >> (8u * (address & 3u))) & 0xffu;
}

// Address even.
fn half_at(address: u32) -> u32 {
    return (stored[address >> 2u] >> (8u * (address & 2u))) & 0xffffu;
}

// Address even.
fn word_at(address: u32) -> u32 {
    let at = address >> 2u;
    if (address & 2u) == 0u {
        return stored[at];
    }
    return (stored[at] >> 16u) | (stored[at + 1u] << 16u);
}

// An IEEE half by integer operations: devices may flush subnormal halves, scales among them.
fn half_to_float(bits: u32) -> f32 {
    let sign = (bits & 0x8000u) << 16u;
    let magnitude = bits & 0x7fffu;
    if magnitude < 0x400u {
        let value = f32(magnitude) * 5.9604644775390625e-8;
        return bitcast<f32>(bitcast<u32>(value) | sign);
    }
    // Infinity and NaN have the largest exponent in both formats.
    let rebias = select(112u << 23u, 224u << 23u, magnitude >= 0x7c00u);
    return bitcast<f32>(((magnitude << 13u) + rebias) | sign);
}

fn scale_at(address: u32) -> f32 {
    return half_to_float(half_at(address));
}

// The four bytes of a word, each shifted right by `shift` and masked.
fn fields(word: u32, shift: u32, mask: u32) -> vec4<u32> {
    return (vec4<u32>(word, word >> 8u, word >> 16u, word >> 24u) >> vec4<u32>(shift))
        & vec4<u32>(mask);
}

// The four bytes of a word as signed numbers.
fn signed_bytes(word: u32) -> vec4<f32> {
    let shifted = vec4<u32>(word << 24u, word << 16u, word << 8u, word);
    return vec4<f32>(bitcast<vec4<i32>>(shifted) >> vec4<u32>(24u));
}

// Weights `i` to `i + 3` of the row at byte `row`; zeros from `n_in` on.
fn weights_at(row: u32, i: u32, n_in: u32) -> vec4<f32> {
    let four = decode(row + i / BLOCK_LEN * BLOCK_BYTES, i % BLOCK_LEN);
    let index = vec4<u32>(i) + vec4<u32>(0u, 1u, 2u, 3u);
    return select(vec4<f32>(), four, index < vec4<u32>(n_in));
}
