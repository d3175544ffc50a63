#!/usr/bin/env python3
"""The reference engine's arithmetic, written from its definition in src/numbers.rs and independent of the Rust code.

Usage: reference.py > tests/golden/values.json
       reference.py references    writes catalog/references/*.refs and prints the records' tables

Python's float is IEEE 754 binary64 and struct packs to binary32 with one rounding to nearest even, which is all that
the definition needs. Each value is given as the hexadecimal bits of its binary32, so that a comparison is exact.
"""

import json
import pathlib
import struct
import sys

HERE = pathlib.Path(__file__).resolve().parent
# The writer of reference files is the repository's.
sys.path.insert(0, str(HERE.parent.parent / "scripts" / "references"))

U64 = (1 << 64) - 1
DIMS = 32
MODEL = b"The bytes of a toy model.\n" * 7


def seed_of(data):
    """Step 1: FNV-1a, 64 bits."""
    h = 0xCBF29CE484222325
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & U64
    return h


def mix(x):
    """Step 2: splitmix64's output."""
    x = (x + 0x9E3779B97F4A7C15) & U64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & U64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & U64
    return x ^ (x >> 31)


def token(seed, t, s):
    """Step 3."""
    key = mix(seed ^ ((s & 0xFFFFFFFF) << 32 | (t & 0xFFFFFFFF)))
    return [(mix((key + j) & U64) >> 40) / 2.0**23 - 1.0 for j in range(DIMS)]


def mean(seed, ids, types):
    """Step 4."""
    vectors = [token(seed, t, s) for t, s in zip(ids, types or [0] * len(ids))]
    return [sum(column) / max(len(ids), 1) for column in zip(*vectors)] or [0.0] * DIMS


def pool(seed, ids, types, pooling):
    """Step 5."""
    types = types or [0] * len(ids)
    m = mean(seed, ids, types)
    if pooling in ("mean", "none"):
        return m
    at = {"cls": 0, "last": len(ids) - 1}[pooling]
    return [(a + b) / 2.0 for a, b in zip(token(seed, ids[at], types[at]), m)]


def score(seed, ids, types, doc_start):
    """Step 6."""
    types = types or [0] * len(ids)
    q = mean(seed, ids[:doc_start], types[:doc_start])
    d = mean(seed, ids[doc_start:], types[doc_start:])
    total = 0.0
    for a, b in zip(q, d):
        total = total + a * b
    return total


def generate(seed, prompt, max_tokens, sampler_seed=None):
    """Step 7: the letters and whether the end token came."""
    h = seed if sampler_seed is None else mix(seed ^ sampler_seed)
    for t in prompt:
        h = mix(h ^ (t & 0xFFFFFFFF))
    letters = ""
    while len(letters) < max_tokens:
        h = mix(h)
        draw = h >> 32
        if draw % 64 == 0:
            return letters, True
        letter = 97 + draw % 26
        h = mix(h ^ letter)
        letters += chr(letter)
    return letters, False


def bits(x):
    """The bits of x rounded to binary32."""
    return struct.pack(">f", x).hex()


BEGIN, END = 256, 257
MAX_TOKENS = 64


def text_ids(text):
    """model/tokenizer.json: a token a byte, between two of its own; at most MAX_TOKENS."""
    return [BEGIN, *text.encode()[: MAX_TOKENS - 2], END]


def pair_ids(query, document):
    """Ids, segments and where the document begins; only the document is cut."""
    head = [BEGIN, *query.encode(), END]
    tail = [*document.encode()[: MAX_TOKENS - len(head) - 1], END]
    return head + tail, [0] * len(head) + [1] * len(tail), len(head)


def references():
    """The probe's corpus through the definition, with the model in model/weights.bin."""
    import reference_file

    seed = seed_of((HERE / "model" / "weights.bin").read_bytes())
    corpus = reference_file.corpus()
    rows = [pool(seed, text_ids(text), [], "mean") for text in corpus["texts"] + corpus["queries"]]
    scores = []
    for query, documents in corpus["rerank"]:
        scores += [score(seed, *pair_ids(query, document)) for document in documents]
    folder = HERE / "catalog" / "references"
    made_by = "plugins/reference/reference.py, float64"
    facts = {"items": len(rows), "dims": DIMS, "max_tokens": MAX_TOKENS, "normalized": "no"}
    body = reference_file.floats(value for row in rows for value in row)
    reference_file.write(folder / "toy-embed.refs", "embed", made_by, facts, body)
    facts = {"items": len(scores), "max_tokens": MAX_TOKENS}
    reference_file.write(folder / "toy-rerank.refs", "rerank", made_by, facts, reference_file.floats(scores))


def main():
    if sys.argv[1:] == ["references"]:
        references()
        return
    seed = seed_of(MODEL)
    items = [
        {"ids": [101, 102], "types": []},
        {"ids": [101, 7592, 2088, 999, 102], "types": []},
        {"ids": [101, 7592, 102, 2088, 102], "types": [0, 0, 0, 1, 1]},
        {"ids": [-1, 0, 2147483647, -2147483648], "types": [0, 1, -1, 2]},
        {"ids": [(i * 7919) % 30522 for i in range(511)], "types": []},
        {"ids": [42], "types": [1]},
    ]
    for item in items:
        for pooling in ("mean", "cls", "last"):
            item[pooling] = [bits(x) for x in pool(seed, item["ids"], item["types"], pooling)]
    pairs = []
    for ids, types, start in (
        ([101, 5, 6, 102, 7, 8, 102], [0, 0, 0, 0, 1, 1, 1], 4),
        ([101, 5, 102, 5, 102], [], 3),
        ([9, 9, 9], [], 0),
        ([9, 9, 9], [], 3),
    ):
        pairs.append({"ids": ids, "types": types, "doc_start": start, "score": bits(score(seed, ids, types, start))})
    prompts = []
    for ids, limit, sampler in (([1, 2, 3], 24, None), ([1, 2, 3], 24, 7), ([104, 105], 400, None), ([-5], 1, None)):
        letters, ended = generate(seed, ids, limit, sampler)
        prompts.append({"ids": ids, "max_tokens": limit, "seed": sampler, "text": letters, "ended": ended})
    golden = {"model": MODEL.decode(), "items": items, "pairs": pairs, "prompts": prompts}
    print(json.dumps(golden, indent=1))


if __name__ == "__main__":
    main()
