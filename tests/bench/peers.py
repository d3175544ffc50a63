"""Benchmark peers: processes that hold one model and answer JSON lines (the protocol of src/owned.rs).

Owns the processes that it starts. Only one peer computes at a time; the others wait in a read.
"""

import json
import math
import subprocess
import sys

import places


class Peer:
    """A running peer."""

    def __init__(self, name: str, command: list):
        self.name = name
        self.process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.about = self._read()

    def ask(self, **command) -> dict:
        """Sends a command and waits for its answer."""
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self._read()

    def stop(self) -> None:
        """Ends the peer by closing its input."""
        self.process.stdin.close()
        self.process.wait(timeout=30)

    def _read(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"bench: peer {self.name} ended; its message is above")
        return json.loads(line)


def owned(binary, model) -> Peer:
    """The owned engine, in a process of its own."""
    return Peer("owned", [binary, model / "config.json", model / "model.safetensors"])


def owned_fast(binary, model, isa: str) -> Peer:
    """The owned engine's fast mode, on the instruction set of the other."""
    return Peer("owned s16", [binary, model / "config.json", model / "model.safetensors", isa, "s16"])


def onnxruntime(onnx) -> Peer:
    """onnxruntime from its wheel, in a Python process of its own."""
    script = places.HERE / "peer_onnxruntime.py"
    return Peer("onnxruntime", [sys.executable, script, places.onnxruntime_tools(), onnx])


def agree(one: Peer, other: Peer, ids: list[int]) -> float:
    """The largest difference between the two peers' vectors of a text: both must run the same model."""
    pairs = zip(one.ask(op="vector", ids=ids)["vector"], other.ask(op="vector", ids=ids)["vector"], strict=True)
    return max(abs(a - b) for a, b in pairs)


def least_cosine(one: Peer, other: Peer, items: list[list[int]]) -> float:
    """The smallest cosine between the two peers' vectors of these texts."""
    least = 1.0
    for ids in items:
        mine, theirs = (peer.ask(op="vector", ids=ids)["vector"] for peer in (one, other))
        product = sum(a * b for a, b in zip(mine, theirs, strict=True))
        norms = math.sqrt(sum(a * a for a in mine) * sum(b * b for b in theirs))
        least = min(least, product / norms)
    return least
