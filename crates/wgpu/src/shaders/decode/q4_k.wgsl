// Q4_K: d f16, dmin f16, scales u8[12], qs u8[128]. Group g of 64 weights owns 32 bytes of qs: low
// nibbles are run 2 g, high ones run 2 g + 1. The value is d * scale * code - dmin * min.
const BLOCK_LEN: u32 = 256u;
const BLOCK_BYTES: u32 = 144u;

fn decode(block: u32, j: u32) -> vec4<f32> {
    let run = j / 32u;
    let packed = block + 4u;
    var scale: u32;
    var low: u32;
    if run < 4u {
        scale = byte_at(packed + run) & 63u;
        low = byte_at(packed + 4u + run) & 63u;
    } else {
        let both = byte_at(packed + 4u + run);
        scale = (both & 15u) | ((byte_at(packed + run - 4u) >> 6u) << 4u);
        low = (both >> 4u) | ((byte_at(packed + run) >> 6u) << 4u);
    }
    let codes = fields(word_at(block + 16u + run / 2u * 32u + j % 32u), (run % 2u) * 4u, 15u);
    // Not fused: both products are rounded, as in the definition.
    let product = scale_at(block) * f32(scale) * vec4<f32>(codes);
    return product - scale_at(block + 2u) * f32(low);
}
