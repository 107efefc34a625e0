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

# Operation and key alternate.
seed("cache_ops", "serve", bytes(b for i in range(40) for b in (11 + i % 4, i * 5 % 12)))
seed("cache_ops", "mixed", bytes(b for i in range(60) for b in (i * 7 % 16, i * 5 % 13)))

# Slots of two layers, policy, two seeds, number of faults with theirs; then layer, number, experts.
steps = bytes(b for i in range(20) for b in (i % 2, 2, i % 8, (i + 3) % 8))
seed("arena_ops", "smallest", bytes([0, 0, 0, 1, 1, 0]) + steps)
seed("arena_ops", "faults", bytes([1, 2, 3, 1, 1, 3, 0, 2, 1, 5, 2, 7]) + steps)
for policy in range(14):
    seed("arena_ops", f"policy_{policy}", bytes([1, 3, policy, 1, 1, 0]) + steps)

# Row length (two bytes), offset, cache; then number of rows, each of two bytes.
for cache in range(4):
    seed("table_rows", f"cache_{cache}", bytes([99, 0, 3, cache]) + bytes(i * 37 % 256 for i in range(80)))
seed("table_rows", "long_rows", bytes([199, 29, 0, 1]) + bytes(range(60)))
