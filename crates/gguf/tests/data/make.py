"""Writes the reference files of this folder with the Python package `gguf` (made with 0.19.0).

    python3 make.py ../../../../models/demo.gguf

quant_sizes.tsv      id, name, elements and bytes of a block, from the package's own table
demo_directory.json  what the package's reader finds in models/demo.gguf
"""

import json
import pathlib
import sys

import gguf
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

HERE = pathlib.Path(__file__).parent


def write_quant_sizes():
    rows = sorted((int(ty), ty.name, *size) for ty, size in GGML_QUANT_SIZES.items())
    text = "".join("\t".join(map(str, row)) + "\n" for row in rows)
    (HERE / "quant_sizes.tsv").write_text("id\tname\tblock_len\tblock_bytes\n" + text)


def teach(id, name, block_len, block_bytes):
    """Adds a type that the package does not know yet, so that its reader can go past it."""
    ty = int.__new__(GGMLQuantizationType, id)
    ty._name_, ty._value_ = name, id
    GGMLQuantizationType._member_map_[name] = ty
    GGMLQuantizationType._value2member_map_[id] = ty
    GGML_QUANT_SIZES[ty] = (block_len, block_bytes)


def summary(field):
    """The value; of arrays only the element type, the length, the first and the last element."""
    kind = [ty.name.lower() for ty in field.types]
    value = field.contents()
    if kind[0] == "array":
        return kind + [len(value), value[0], value[-1]]
    return kind + [value]


def write_demo_directory(path):
    teach(42, "Q2_0", 64, 18)
    reader = gguf.GGUFReader(path)
    out = {
        "data_start": reader.data_offset,
        "metadata": {
            key: summary(field)
            for key, field in reader.fields.items()
            if not key.startswith("GGUF.")
        },
        # name: type, shape with the contiguous dimension first, offset in the file, bytes
        "tensors": {
            t.name: [t.tensor_type.name, [int(n) for n in t.shape], t.data_offset, int(t.n_bytes)]
            for t in reader.tensors
        },
    }
    lines = []
    for key, value in out.items():
        if isinstance(value, dict):
            rows = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
            lines.append(f" {json.dumps(key)}: {{\n{rows}\n }}")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(int(value))}")
    (HERE / "demo_directory.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    write_quant_sizes()
    write_demo_directory(sys.argv[1])
