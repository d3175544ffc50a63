#!/usr/bin/env python3
"""Writes the model of this bundle: make_model.py FOLDER makes FOLDER/table.bin and FOLDER/tokenizer.json.

Both are made of a seed and an alphabet, and always have the same bytes: catalog/hashed.toml names their digests.
"""

import json
import pathlib
import struct
import sys

ROWS, DIMS, SEED = 2048, 64, 20_261_130
ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def split_mix(seed: int):
    """SplitMix64 (Steele, Lea and Flood 2014): 64-bit numbers without end."""
    mask = (1 << 64) - 1
    while True:
        seed = (seed + 0x9E3779B97F4A7C15) & mask
        mixed = seed
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
        yield mixed ^ (mixed >> 31)


def table() -> bytes:
    """The projection: each value is a signed byte, the lowest one of a number of the stream."""
    numbers = split_mix(SEED)
    values = bytes(next(numbers) & 0xFF for _ in range(ROWS * DIMS))
    return struct.pack("<8sII", b"HASHED01", ROWS, DIMS) + values


def tokenizer() -> dict:
    """Lower-case characters: one id where a word begins, another one inside it."""
    words = [*SPECIAL, *ALPHABET, *("##" + letter for letter in ALPHABET)]
    special = [
        {
            "id": number,
            "content": word,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for number, word in enumerate(SPECIAL)
    ]
    mark = {name: {"id": name, "ids": [SPECIAL.index(name)], "tokens": [name]} for name in ("[CLS]", "[SEP]")}

    def piece(name: str, segment: int) -> dict:
        return {"SpecialToken": {"id": name, "type_id": segment}}

    def text(name: str, segment: int) -> dict:
        return {"Sequence": {"id": name, "type_id": segment}}

    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": True,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [piece("[CLS]", 0), text("A", 0), piece("[SEP]", 0)],
            "pair": [piece("[CLS]", 0), text("A", 0), piece("[SEP]", 0), text("B", 1), piece("[SEP]", 1)],
            "special_tokens": mark,
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 1000,
            "vocab": {word: number for number, word in enumerate(words)},
        },
    }


def main() -> None:
    """Writes both files."""
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.bin").write_bytes(table())
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
