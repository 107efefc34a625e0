#!/usr/bin/env python3
"""Writes the seeds: small inputs from which the fuzzer starts. Standard library only.

    python3 make_seeds.py
"""
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))


def seed(target, name, data):
    with open(os.path.join(HERE, "seeds", target, name), "wb") as file:
        file.write(data)


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


# The version that the body puts in front is left out.
def gguf(tensors, keys):
    out = struct.pack("<QQ", len(tensors), len(keys))
    for key, kind, value in keys:
        out += text(key) + struct.pack("<I", kind) + value
    for name, shape, ty, offset in tensors:
        out += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        out += struct.pack("<IQ", ty, offset)
    return out


KEYS = [
    ("general.architecture", 8, text("x")),
    ("general.alignment", 4, struct.pack("<I", 32)),
    ("a", 9, struct.pack("<IQ", 4, 3) + struct.pack("<3I", 1, 2, 3)),
    ("s", 9, struct.pack("<IQ", 8, 2) + text("one") + text("two")),
    ("f", 6, struct.pack("<f", 1e-6)),
    ("b", 7, b"\1"),
]
seed("gguf", "empty", gguf([], []))
seed("gguf", "keys", gguf([], KEYS))
seed("gguf", "tensors", gguf([("t", [64, 2], 42, 0), ("u", [3], 0, 64)], KEYS))
seed("gguf", "version_2", b"GGUF" + struct.pack("<I", 2) + gguf([("t", [4], 0, 0)], KEYS[:1]))

# Each header: three pairs (value, kind of the key), number of tensors, their names.
seed("splits", "two_of_two", bytes([2, 0, 6, 2, 6, 3, 5, 2, 1, 2, 1, 6, 2, 6, 3, 5, 1, 3]))
seed("splits", "one", bytes([1, 0, 6, 1, 6, 1, 5, 1, 7]))
seed("splits", "no_keys", bytes([1, 0, 0, 0, 0, 0, 0, 2, 1, 2]))

# Format, a wrong length, blocks.
for kind in range(27):
    seed("quant_rows", f"format_{kind}", bytes([kind, kind % 8]) + bytes(range(1, 256)) + bytes(40))
seed("quant_rows", "floats", bytes([0, 0]) + struct.pack("<6f", 0, 1, -2.5, 1e-40, 3e38, float("nan")))

TEMPLATES = {
    "chatml": "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
              "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "tools": "{%- if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}{% endif -%}"
             "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ m.content.strip() }}{% endfor %}",
    "raise": "{{ raise_exception('no') if messages | length > 9 else bos_token }}{{ strftime_now('%d %b %Y') }}",
    "macro": "{% macro f(x) %}{{ x.items() | list }}{% endmacro %}{% generation %}{{ f(messages[0]) }}{% endgeneration %}",
}
for name, template in TEMPLATES.items():
    seed("chat_template", name, template.encode() + b"\0Hello <|im_end|> there")

# Two bytes of a stop string, then (length - 1, bytes) repeated.
def pieces(stop, *parts):
    return stop + b"".join(bytes([len(part) - 1]) + part for part in parts)


seed("detokenizer", "emoji", pieces(b"ab", b"\xf0\x9f", b"\x98\x80ok"))
seed("detokenizer", "broken", pieces(b"\n\n", b"\xe2", b"A\xe1\x80", b"A\xff\xed", b"\xa0\x80"))
seed("detokenizer", "stop", pieces(b"aa", b"bab", b"aac"))
seed("detokenizer", "marker", pieces(b"zz", b"<|im_", b"end|>"))


def trace(flags, n_layer, n_expert, k, m, tokens, docs, json, layer_bytes):
    head = b"MOTR" + struct.pack("<HHIIHHQI", 1, flags, n_layer, n_expert, k, m, len(tokens), docs) + bytes(32)
    body = b"".join(struct.pack("<QII", 0, 1, 0) for _ in range(docs)) + struct.pack("<I", len(json)) + json
    for token in tokens:
        body += struct.pack("<I", token) + layer_bytes * n_layer
    # The body of the target computes the checksum.
    return head + body + bytes(8)


seed("trace", "ids", trace(0, 2, 8, 2, 0, [5, 6], 1, b"{}", struct.pack("<2H", 3, 1)))
weights = struct.pack("<2H2H", 3, 1, 0x3A00, 0x3400)
seed("trace", "weights", trace(1, 1, 8, 2, 0, [5], 1, b"{}", weights))
logits = struct.pack("<2H8e", 3, 1, *[1, 3, 0, 4, -1, -2, 0.5, 0])
seed("trace", "logits", trace(6, 1, 8, 2, 0, [5], 1, b"{}", logits))



# The body of the target computes the checksum.
def profile(version, n_layer, n_expert, slots, ranking, hits):
    out = b"STRP" + struct.pack("<5I", version, n_layer, n_expert, slots, len(ranking))
    out += b"".join(struct.pack("<2H", *pair) for pair in ranking)
    ranks = {pair: rank for rank, pair in enumerate(ranking)}
    pairs = ((layer, expert) for layer in range(n_layer) for expert in range(n_expert))
    out += b"".join(struct.pack("<i", ranks.get(pair, -1)) for pair in pairs)
    return out + b"".join(struct.pack("<f", hit) for hit in hits) + bytes(4 * (version - 1))


ranking = [(1, 3), (0, 2), (1, 0)]
seed("profile", "first", profile(1, 2, 4, 2, ranking, []))
seed("profile", "second", profile(2, 2, 4, 2, ranking, [0.5, 0.5, 0.25]))


# The first byte asks the body to put what follows from the lengths in order; headers are not padded.
def sidecar(mend, n_expert, layers, checksums):
    strides = [-(-sum(lens) // 16384) * 16384 for _, lens in layers]
    classes = sorted(set(strides))
    out = b"MEXP" + struct.pack("<5I", 1, 16384, len(layers), n_expert, len(classes)) + bytes(range(32))
    for (types, lens), stride in zip(layers, strides):
        out += struct.pack("<8I", *types, *lens, classes.index(stride), stride)
    at = -(-(len(out) + 16 * len(layers) * n_expert) // 16384) * 16384
    for (_, lens), stride in zip(layers, strides):
        for expert in range(n_expert):
            out += struct.pack("<QII", at if stride else 0, sum(lens), checksums if stride else 0)
            at += stride
    return bytes([mend]) + out


seed("sidecar", "one_layer", sidecar(0, 2, [((0, 1, 2), (4, 8, 4))], 5))
seed("sidecar", "classes", sidecar(0, 3, [((8, 8, 14), (9000, 9000, 9)), ((0, 0, 0), (0, 0, 0)),
                                          ((42, 42, 42), (460800, 460800, 460800))], 7))
seed("sidecar", "mended", sidecar(1, 4, [((1, 1, 1), (300, 5, 70000))] * 3, 9))

# Operation and key alternate.
seed("cache_ops", "serve", bytes(b for i in range(40) for b in (11 + i % 4, i * 5 % 12)))
seed("cache_ops", "mixed", bytes(b for i in range(60) for b in (i * 7 % 16, i * 5 % 13)))

# Slots of two layers, transit slots, policy, seed, order, number of faults with theirs; then
# operations: kind, layer, number of experts, the experts, and how it goes on for all but 0, 1, 4, 5.
def operations(n_rounds):
    out = []
    for i in range(n_rounds):
        layer, e = i % 2, [(i + j) % 8 for j in range(8)]
        out += [4, layer, 3, *e[:3]]  # read ahead
        out += [2, layer, 2, e[1], e[4], i % 12]  # lease, waited for and ended somehow
        out += [5, 1 - layer, 2, e[2], e[6]]
        out += [0, layer, 2, e[0], e[5]]  # lease as a whole
        if i % 3 == 0:
            out += [6, layer, 7, *e[:7], [7, 2, 10][i // 3 % 3]]  # stream
        if i % 4 == 1:
            out += [7, layer, 4, *e[4:8], i % 3]  # fill or settle
    return bytes(out)


seed("arena_ops", "smallest", bytes([0, 0, 1, 0, 1, 0, 0]) + operations(6))
seed("arena_ops", "no_transit", bytes([1, 2, 0, 0, 1, 0, 0]) + operations(6))
seed("arena_ops", "faults", bytes([1, 2, 3, 3, 1, 1, 3, 0, 2, 1, 5, 2, 7]) + operations(8))
for policy in range(14):
    seed("arena_ops", f"policy_{policy}", bytes([1, 3, 1 + policy % 5, policy, 1, policy % 2, 0]) + operations(8))

# Row length (two bytes), offset, cache; then number of rows, each of two bytes.
for cache in range(4):
    seed("table_rows", f"cache_{cache}", bytes([99, 0, 3, cache]) + bytes(i * 37 % 256 for i in range(80)))
seed("table_rows", "long_rows", bytes([199, 29, 0, 1]) + bytes(range(60)))


# A file of log-probabilities: n_ctx, n_vocab, chunks; the codes climb from row to row.
def base_logits(n_ctx, n_vocab, n_chunks, scale=2.4414e-4, least=-16.3):
    out = b"_logits_" + struct.pack("<3i", n_ctx, n_vocab, n_chunks)
    out += struct.pack(f"<{n_ctx * n_chunks}i", *(i % n_vocab for i in range(n_ctx * n_chunks)))
    for row in range((n_ctx - 1 - n_ctx // 2) * n_chunks):
        codes = [min(65535, (i + row) * 9000 % 65536) for i in range(n_vocab)] + [0] * (n_vocab % 2)
        out += struct.pack(f"<2f{len(codes)}H", scale, least, *codes)
    return out


seed("base_logits", "whole", bytes([0]) + base_logits(6, 7, 2))
seed("base_logits", "flat", bytes([0]) + base_logits(3, 4, 1, 0.0, -1.386))
seed("base_logits", "bad_scale", bytes([0]) + base_logits(4, 3, 1, float("nan")))
seed("base_logits", "too_likely", bytes([0]) + base_logits(4, 3, 1, 1.0, 0.0))
seed("base_logits", "cut_short", bytes([0]) + base_logits(6, 7, 2)[:-5])
seed("base_logits", "huge", bytes([0]) + b"_logits_" + struct.pack("<3i", 2**31 - 1, 2**31 - 1, 2**31 - 1))
seed("base_logits", "mended", bytes([1, 4, 7, 1]) + bytes(12) + struct.pack("<2f", 2e-4, -14.0) * 20)
seed("base_logits", "logits", bytes([1]) + struct.pack("<8f", 0.0, 1.0, -20.0, 3e38, -3e38, 1e-40, float("-inf"), 0.5))
