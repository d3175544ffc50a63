"""The file of a model's independent results: a header of text lines, an empty line, little-endian f32 values.

State: none. Callers: the scripts beside it. host/certify/src/references.rs reads the file. A value that was computed in
float64 is rounded once to f32, which moves it by at most 2^-24 of itself.
"""

import hashlib
import pathlib
import struct
import tomllib

CORPUS = pathlib.Path(__file__).resolve().parent.parent.parent / "catalog" / "references" / "corpus.toml"


def corpus() -> dict:
    """The corpus: `texts` and then `queries` in the file's order, `rerank` sets, `prompts`."""
    table = tomllib.loads(CORPUS.read_text(encoding="utf-8"))
    return {
        "texts": [text for group in table["texts"] for text in group["items"]],
        "queries": table["queries"]["items"],
        "rerank": [(entry["query"], entry["documents"]) for entry in table["rerank"]],
        "prompts": table["prompts"]["items"],
    }


def corpus_digest() -> str:
    """SHA-256 of the corpus file."""
    return hashlib.sha256(CORPUS.read_bytes()).hexdigest()


def write(path: pathlib.Path, kind: str, made_by: str, facts: dict[str, object], body: bytes) -> None:
    """Writes the file and prints the table that the record needs."""
    lines = ["synapse-references 1", f"corpus {corpus_digest()}", f"kind {kind}", f"made_by {made_by}"]
    lines += [f"{key} {value}" for key, value in facts.items()]
    data = "\n".join(lines).encode() + b"\n\n" + body
    path.write_bytes(data)
    print(f'[references]\npath = "{path.name}"\nsha256 = "{hashlib.sha256(data).hexdigest()}"\nsize = {len(data)}')


def floats(values) -> bytes:
    """Little-endian f32."""
    values = list(values)
    return struct.pack(f"<{len(values)}f", *values)
