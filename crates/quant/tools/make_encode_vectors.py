#!/usr/bin/env python3
"""Writes tests/data/encode: values with the blocks that ggml's own searches make of them.

    encode/NAME.bin     n * block_len values as little-endian f32, their n blocks without weights,
                        their n blocks with importance weights

The weight of element i of a row is 1 + (i * 7919 % 257) / 16, which f32 holds exactly. The blocks
are those of ggml's C code, which is compiled here (any C compiler; pip install numpy); its folder is
that of llama.cpp's `ggml`. The seed is fixed. Run from anywhere:

    python3 crates/quant/tools/make_encode_vectors.py PATH/llama.cpp/ggml
"""

import ctypes
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

DATA = Path(__file__).parent.parent / "tests" / "data" / "encode"
RNG = np.random.default_rng(20_240_643)


def library(ggml: Path, folder: Path) -> ctypes.CDLL:
    (folder / "ggml-version.h").write_text('#define GGML_VERSION "0"\n#define GGML_COMMIT "0"\n')
    out = folder / "libggml-quants.so"
    include = [f"-I{p}" for p in (folder, ggml / "include", ggml / "src", ggml / "src/ggml-cpu")]
    sources = [ggml / "src/ggml-quants.c", ggml / "src/ggml.c"]
    flags = ["-O2", "-ffp-contract=off", "-w", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, *include, "-o", out, *sources, "-lm"], check=True)
    # Symbols of the parts that are not compiled are never called.
    return ctypes.CDLL(str(out), mode=1)


def values(n_rows: int, n: int) -> np.ndarray:
    """Gaussian rows on several scales, then rows with heavy tails, with a shift, and sparse ones."""
    x = RNG.standard_normal((n_rows, n)).astype(np.float32)
    x *= np.float32(10.0) ** RNG.integers(-3, 3, (n_rows, 1)).astype(np.float32)
    x[n_rows // 2] *= np.abs(RNG.standard_normal(n)).astype(np.float32)
    x[n_rows // 2 + 1] = x[n_rows // 2 + 1] ** 3
    x[n_rows // 2 + 2] += np.abs(x[n_rows // 2 + 2]).max()
    x[n_rows - 1] = np.where(RNG.random(n) < 0.8, 0, x[n_rows - 1])
    return x


def main() -> None:
    DATA.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        ggml = library(Path(sys.argv[1]), Path(folder))
        for name, block_len, block_bytes, n_rows in [
            ("IQ4_NL", 32, 18, 32),
            ("Q4_K", 256, 144, 8),
            ("Q6_K", 256, 210, 8),
        ]:
            x = values(n_rows, block_len)
            weights = (1 + (np.arange(block_len) * 7919 % 257) / 16).astype(np.float32)
            quantize = getattr(ggml, f"quantize_{name.lower().replace('_k', '_K')}")
            quantize.restype = ctypes.c_size_t
            results = []
            for pointer in (None, ctypes.c_void_p(weights.ctypes.data)):
                out = np.zeros(n_rows * block_bytes, dtype=np.uint8)
                done = quantize(
                    ctypes.c_void_p(x.ctypes.data),
                    ctypes.c_void_p(out.ctypes.data),
                    ctypes.c_int64(n_rows),
                    ctypes.c_int64(block_len),
                    pointer,
                )
                assert done == out.size
                results.append(out.tobytes())
            (DATA / f"{name}.bin").write_bytes(x.tobytes() + b"".join(results))


if __name__ == "__main__":
    main()
