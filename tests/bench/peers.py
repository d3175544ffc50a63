"""Benchmark peers: processes that hold one model and answer JSON lines (the protocol of src/owned.rs).

Owns the processes that it starts. Only one peer computes at a time; the others wait in a read.
"""

import json
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


def onnxruntime(onnx) -> Peer:
    """onnxruntime from its wheel, in a Python process of its own."""
    script = places.HERE / "peer_onnxruntime.py"
    return Peer("onnxruntime", [sys.executable, script, places.onnxruntime_tools(), onnx])


def agree(one: Peer, other: Peer, ids: list[int]) -> float:
    """The largest difference between the two peers' vectors of a text: both must run the same model."""
    pairs = zip(one.ask(op="vector", ids=ids)["vector"], other.ask(op="vector", ids=ids)["vector"], strict=True)
    return max(abs(a - b) for a, b in pairs)
