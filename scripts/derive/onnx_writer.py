"""ONNX files as bytes: the few protobuf messages of a graph, written field by field.

State: none; [`Graph`] collects one graph. Caller: bert_onnx.py. The field numbers are those of onnx.proto (ONNX IR
version 8). Nothing here depends on the clock, on a set's order or on a library's version.
"""

from __future__ import annotations

import struct

FLOAT, INT8, INT64 = 1, 3, 7  # TensorProto.DataType
ATTRIBUTE_FLOAT, ATTRIBUTE_INT, ATTRIBUTE_INTS = 1, 2, 7  # AttributeProto.AttributeType
IR_VERSION, OPSET = 8, 17


def varint(value: int) -> bytes:
    """A protobuf varint; negative numbers as 64-bit two's complement."""
    value &= (1 << 64) - 1
    out = bytearray()
    while True:
        byte, value = value & 0x7F, value >> 7
        out.append(byte | (0x80 if value else 0))
        if not value:
            return bytes(out)


def number(field: int, value: int) -> bytes:
    """A field that holds an integer."""
    return varint(field << 3) + varint(value)


def message(field: int, content: bytes | str) -> bytes:
    """A field that holds bytes, a text or another message."""
    content = content.encode() if isinstance(content, str) else content
    return varint(field << 3 | 2) + varint(len(content)) + content


def attribute(name: str, value: int | float | list[int]) -> bytes:
    """One AttributeProto."""
    if isinstance(value, list):
        return message(1, name) + b"".join(number(8, item) for item in value) + number(20, ATTRIBUTE_INTS)
    if isinstance(value, float):
        return message(1, name) + varint(2 << 3 | 5) + struct.pack("<f", value) + number(20, ATTRIBUTE_FLOAT)
    return message(1, name) + number(3, value) + number(20, ATTRIBUTE_INT)


def port(name: str, kind: int, shape: list[int | str]) -> bytes:
    """One ValueInfoProto; a text in the shape names a free dimension."""
    dims = (message(1, number(1, size) if isinstance(size, int) else message(2, size)) for size in shape)
    tensor = number(1, kind) + message(2, b"".join(dims))
    return message(1, name) + message(2, message(1, tensor))


class Graph:
    """Nodes and weights in the order in which they are added."""

    def __init__(self) -> None:
        self.nodes: list[bytes] = []
        self.weights: list[bytes] = []
        self.count = 0

    def weight(self, name: str, kind: int, shape: tuple[int, ...], raw: bytes) -> str:
        """Adds a constant tensor and returns its name."""
        dims = b"".join(number(1, size) for size in shape)
        self.weights.append(dims + number(2, kind) + message(8, name) + message(9, raw))
        return name

    def scalar(self, name: str, value: float) -> str:
        """Adds one f32."""
        return self.weight(name, FLOAT, (), struct.pack("<f", value))

    def integers(self, name: str, values: list[int]) -> str:
        """Adds a list of i64."""
        return self.weight(name, INT64, (len(values),), struct.pack(f"<{len(values)}q", *values))

    def node(self, operator: str, inputs: list[str], output: str | None = None, **attributes) -> str:
        """Adds an operator with one output and returns that output's name."""
        output = output or f"{operator.lower()}_{self.count + 1}"
        self._add(operator, inputs, [output], attributes)
        return output

    def node_of(self, operator: str, inputs: list[str], outputs: list[str]) -> list[str]:
        """Adds an operator with several outputs, which are named for it, and returns their whole names."""
        names = [f"{operator.lower()}_{self.count + 1}_{output}" for output in outputs]
        self._add(operator, inputs, names, {})
        return names

    def _add(self, operator: str, inputs: list[str], outputs: list[str], attributes: dict) -> None:
        self.count += 1
        body = b"".join(message(1, name) for name in inputs) + b"".join(message(2, name) for name in outputs)
        body += message(3, f"node_{self.count}") + message(4, operator)
        body += b"".join(message(5, attribute(name, value)) for name, value in attributes.items())
        self.nodes.append(body)

    def model(self, name: str, producer: str, inputs: list[bytes], outputs: list[bytes]) -> bytes:
        """The whole file."""
        graph = b"".join(message(1, node) for node in self.nodes) + message(2, name)
        graph += b"".join(message(5, weight) for weight in self.weights)
        graph += b"".join(message(11, entry) for entry in inputs)
        graph += b"".join(message(12, entry) for entry in outputs)
        opset = message(1, "") + number(2, OPSET)
        return number(1, IR_VERSION) + message(2, producer) + message(7, graph) + message(8, opset)
