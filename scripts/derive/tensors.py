"""Tensors out of a safetensors file, and their stored forms, with nothing but the standard library.

State: none. Callers: bert_onnx.py and bert_gguf.py. Every function is exact or rounds to nearest-even, so that what is
derived has one SHA-256 on every machine.
"""

import array
import json
import struct
import sys
from typing import NamedTuple

# Values converted at once: bounds the memory that Python's own numbers take.
CHUNK = 1 << 16


class Tensor(NamedTuple):
    """A row-major f32 tensor."""

    shape: tuple[int, ...]
    values: array.array

    def raw_f32(self) -> bytes:
        """Little-endian f32."""
        return self.values.tobytes()

    def raw_f16(self) -> bytes:
        """Little-endian f16, rounded to nearest, ties to even; a value beyond f16 raises OverflowError."""
        out = bytearray()
        for start in range(0, len(self.values), CHUNK):
            part = self.values[start : start + CHUNK]
            out += struct.pack(f"<{len(part)}e", *part)
        return bytes(out)

    def raw_i8(self) -> tuple[bytes, float]:
        """Signed bytes, and the step of one: the largest value is 127 of them, the rest rounded to nearest, ties to even."""
        (step,) = struct.unpack("<f", struct.pack("<f", max(max(self.values), -min(self.values)) / 127))
        whole = (max(-127, min(127, round(value / step))) for value in self.values)
        return array.array("b", whole).tobytes(), step

    def transposed(self) -> "Tensor":
        """Rows and columns of a matrix exchanged."""
        rows, columns = self.shape
        values = array.array("f")
        for column in range(columns):
            values.extend(self.values[column::columns])
        return Tensor((columns, rows), values)


def read_safetensors(data: bytes) -> dict[str, Tensor]:
    """Every tensor of a file that holds f32 alone."""
    if sys.byteorder != "little":
        sys.exit("derive: only little-endian machines are supported")
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    body = memoryview(data)[8 + length :]
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] == "I64":
            # A buffer of positions that some exports keep; it is no weight.
            continue
        if entry["dtype"] != "F32":
            sys.exit(f"derive: {name} is {entry['dtype']}, expected F32")
        begin, end = entry["data_offsets"]
        values = array.array("f")
        values.frombytes(body[begin:end])
        tensors[name] = Tensor(tuple(entry["shape"]), values)
    return tensors
