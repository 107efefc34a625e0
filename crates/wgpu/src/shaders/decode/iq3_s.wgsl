// IQ3_S: d f16, qs u8[64], qh u8[8], signs u8[32], scales u8[4]. Run b of 32 weights has the scale
// d * (1 + 2 s), s being nibble b of scales. Four weights are an entry of the codebook: eight bits
// of its index in qs[8 b + i], the ninth in bit i of qh[b].
const BLOCK_LEN: u32 = 256u;
const BLOCK_BYTES: u32 = 110u;

// Entries of the codebook, a magnitude a byte.
@group(0) @binding(2) var<storage, read> codebook: array<u32, 512>;

fn decode(block: u32, j: u32) -> vec4<f32> {
    let run = j / 32u;
    let i = (j % 32u) / 4u;
    let nibble = (byte_at(block + 106u + run / 2u) >> (4u * (run % 2u))) & 15u;
    let scale = scale_at(block) * f32(1u + 2u * nibble);
    let ninth = (byte_at(block + 66u + run) >> i) & 1u;
    let index = byte_at(block + 2u + 8u * run + i) | (ninth << 8u);
    let size = scale * vec4<f32>(fields(codebook[index], 0u, 255u));
    let signs = byte_at(block + 74u + 4u * run + i / 2u) >> (4u * (i % 2u));
    let minus = (vec4<u32>(signs) << vec4<u32>(31u, 30u, 29u, 28u)) & vec4<u32>(0x80000000u);
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(size) ^ minus);
}
