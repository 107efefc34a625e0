#!/usr/bin/env python3
"""Writes tests/data: blocks with the weights they stand for, and values with their blocks.

    decode/NAME.bin     n blocks, then their n * block_len weights as little-endian f32
    quantize/NAME.bin   n * block_len values as little-endian f32, then their n blocks

Expected results come from ggml's published Python package (pip install gguf==0.19.0 numpy), which
states each format in numpy, independently of the Rust code. Q1_0 and Q2_0 are not in the package
and are stated here. Scales are finite; the first blocks of each file are edge cases of them. The
seed is fixed, so a second run writes the same bytes. Run from anywhere:

    python3 crates/quant/tools/make_vectors.py
"""

from pathlib import Path

import gguf
import gguf.quants
import numpy as np

DATA = Path(__file__).parent.parent / "tests" / "data"
RNG = np.random.default_rng(20_240_642)

# Byte offsets of the f16 scales in a block (llama.cpp, ggml-common.h).
SCALE_OFFSETS = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0], "IQ1_S": [0],
    "IQ4_NL": [0], "IQ4_XS": [0], "TQ1_0": [52], "TQ2_0": [64], "Q1_0": [0], "Q2_0": [0],
}  # fmt: skip
# Zero, minus zero, subnormals of both signs, the smallest normals, ones, the extremes.
EDGE_SCALES = np.array(
    [0x0000, 0x8000, 0x0001, 0x03FF, 0x8001, 0x83A5]
    + [0x0400, 0x8400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF],
    dtype="<u2",
)


def scales(n: int) -> np.ndarray:
    """n finite halves as bits: the edge cases in random order, then random bits."""
    random = RNG.integers(0, 0x7C00, n) | (RNG.integers(0, 2, n) << 15)
    edge = RNG.permutation(EDGE_SCALES)
    return np.concatenate([edge, random])[:n].astype("<u2")


def blocks(name: str, n: int, block_bytes: int) -> np.ndarray:
    raw = RNG.integers(0, 256, (n, block_bytes), dtype=np.uint8)
    for offset in SCALE_OFFSETS.get(name, []):
        raw[:, offset : offset + 2] = scales(n).view(np.uint8).reshape(n, 2)
    if name == "IQ1_M":
        # The half lies in the top nibbles of four u16, lowest first.
        bits = scales(n)
        for i in range(4):
            nibble = ((bits >> (4 * i)) & 15).astype(np.uint8)
            raw[:, 49 + 2 * i] = (raw[:, 49 + 2 * i] & 15) | (nibble << 4)
    if name == "MXFP4":
        raw[:8, 0] = [0, 1, 2, 127, 128, 252, 253, 254]
    return raw


def decode_q1_0(raw: np.ndarray) -> np.ndarray:
    d = raw[:, :2].copy().view("<f2").astype(np.float32)
    bits = np.unpackbits(raw[:, 2:], axis=1, bitorder="little")
    return np.where(bits == 1, d, -d)


def decode_q2_0(raw: np.ndarray) -> np.ndarray:
    d = raw[:, :2].copy().view("<f2").astype(np.float32)
    codes = np.stack([(raw[:, 2:] >> shift) & 3 for shift in (0, 2, 4, 6)], axis=-1)
    return (codes.reshape(len(raw), 64).astype(np.float32) - 1) * d


def quantize_q2_0(values: np.ndarray) -> np.ndarray:
    """llama.cpp's quantize_row_q2_0_ref: d = max|x|, code = round(x / d) + 1."""
    d = np.abs(values).max(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        inverse = np.where(d > 0, np.float32(1) / d, np.float32(0))
    scaled = values * inverse
    rounded = np.sign(scaled) * np.floor(np.abs(scaled.astype(np.float64)) + 0.5)
    codes = np.clip(rounded + 1, 0, 3).astype(np.uint8).reshape(len(values), 16, 4)
    packed = codes[..., 0] | codes[..., 1] << 2 | codes[..., 2] << 4 | codes[..., 3] << 6
    return np.concatenate([d.astype("<f2").view(np.uint8), packed], axis=1)


def values(n: int, block_len: int) -> np.ndarray:
    """Values to quantize: magnitudes over many decades, ties, signs, zeros, an even ramp."""
    x = RNG.standard_normal((n, block_len)).astype(np.float32)
    x *= np.float32(10.0) ** RNG.integers(-6, 4, (n, 1)).astype(np.float32)
    x[0] = 0
    x[1] = np.where(np.arange(block_len) == 5, -3.0, 0.0)
    x[2] = np.arange(block_len) - np.float32(block_len // 2)
    x[3] = np.float32(1e-30)
    x[4] = RNG.integers(-8, 9, block_len) / np.float32(8)  # many exact halves of a step
    x[5] = RNG.integers(-254, 255, block_len) / np.float32(2)
    x[5, 7] = 127
    x[6] = -np.abs(x[6])
    x[7] *= np.float32(1e-5) / np.abs(x[7]).max()  # subnormal scales
    return x


def write(kind: str, name: str, first: np.ndarray, second: np.ndarray) -> None:
    path = DATA / kind / f"{name}.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(first.tobytes() + second.tobytes())


def main() -> None:
    sizes = {t.name: size for t, size in gguf.GGML_QUANT_SIZES.items()}
    sizes |= {"Q1_0": (128, 18), "Q2_0": (64, 18)}

    own = {"Q1_0": decode_q1_0, "Q2_0": decode_q2_0}
    names = [*SCALE_OFFSETS, "IQ1_M", "MXFP4", "F32", "F16", "BF16"]
    for name in names:
        block_len, block_bytes = sizes[name]
        n = {1: 256, 256: 16}.get(block_len, 24)
        raw = blocks(name, n, block_bytes)
        with np.errstate(over="ignore", invalid="ignore"):
            if name in own:
                weights = own[name](raw)
            elif name in ("F32", "F16"):
                weights = raw.view({"F32": "<f4", "F16": "<f2"}[name]).astype(np.float32)
            else:
                qtype = gguf.GGMLQuantizationType[name]
                weights = gguf.quants.dequantize(raw.reshape(-1), qtype)
        assert weights.size == n * block_len and weights.dtype == np.float32
        write("decode", name, raw, weights)

    for name in ["Q8_0", "Q4_0", "Q2_0", "F16", "BF16"]:
        block_len, block_bytes = sizes[name]
        x = values(64 if block_len == 1 else 24, max(block_len, 8))
        if block_len == 1:
            x = x.reshape(-1, 1)
        if name == "Q2_0":
            raw = quantize_q2_0(x)
        else:
            raw = gguf.quants.quantize(x, gguf.GGMLQuantizationType[name])
        raw = np.ascontiguousarray(raw).view(np.uint8)
        assert raw.size == x.size // block_len * block_bytes
        write("quantize", name, x, raw)

    total = sum(p.stat().st_size for p in DATA.rglob("*.bin"))
    print(f"{DATA}: {total} bytes")


if __name__ == "__main__":
    main()
