#!/usr/bin/env python3
"""Writes tiny-*.motr by the description in docs/formats/trace.md, without the crate's code.

Three tokens, two layers, six experts, two of them chosen; two documents. One file for each kind of
logits. Run it in this folder; the output is committed.
"""
import json
import struct


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


N_LAYER, N_EXPERT, K, M, N_TOKENS = 2, 6, 2, 4, 3


def row(token, layer):
    """Distinct logits that half precision holds exactly."""
    return [((7 * e + 5 * token + 3 * layer) % 11) / 4 - 1 for e in range(N_EXPERT)]


def ranked(z):
    return sorted(range(N_EXPERT), key=lambda e: (-z[e], e))


def build(flags, m):
    docs = [(0, 1, 0), (2, 1, 3)]
    text = json.dumps({"domains": ["en", "ja", "code", "chat"]}).encode()
    out = b"MOTR" + struct.pack("<HHIIHHQI", 1, flags, N_LAYER, N_EXPERT, K, m, N_TOKENS, len(docs))
    out += bytes(range(32))
    for first, prompt, domain in docs:
        out += struct.pack("<QII", first, prompt, domain)
    out += struct.pack("<I", len(text)) + text
    for token in range(N_TOKENS):
        out += struct.pack("<I", 1000 + token)
        for layer in range(N_LAYER):
            z = row(token, layer)
            order = ranked(z)
            out += struct.pack(f"<{K}H", *order[:K])
            if flags & 1:
                out += struct.pack(f"<{K}e", 0.75, 0.25)
            if flags & 2 and flags & 4:
                out += struct.pack(f"<{N_EXPERT}{'f' if flags & 8 else 'e'}", *z)
            elif flags & 2:
                for e in order[:m]:
                    out += struct.pack("<He", e, z[e])
                out += struct.pack("<f", min(z))
    return out + struct.pack("<I", crc32c(out)) + b"RTOM"


for name, flags, m in [("none", 0, 0), ("f16", 1 | 2 | 4, 0), ("f32", 2 | 4 | 8, 0), ("top", 1 | 2, M)]:
    with open(f"tiny-{name}.motr", "wb") as f:
        f.write(build(flags, m))
