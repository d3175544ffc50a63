#!/usr/bin/env python3
"""onnxruntime as a benchmark peer: the protocol of src/owned.rs over stdin and stdout.

Usage: peer_onnxruntime.py TOOLS_FOLDER MODEL_ONNX. Its bulk is the best that was found for it on CPUs: items sorted by
length, four to a padded batch; mean pooling and L2 norm in numpy are inside the measured time, as in the engines that
it is compared with.
"""

import json
import sys
import time

sys.path.insert(0, sys.argv[1])
import numpy as np  # noqa: E402
import onnxruntime as ort  # noqa: E402

BATCH = 4


class Peer:
    """One model; one session per thread count, made at first use."""

    def __init__(self, model: str):
        self.model = model
        self.sessions = {}
        self.workloads = {}

    def session(self, threads: int) -> ort.InferenceSession:
        if threads not in self.sessions:
            options = ort.SessionOptions()
            options.intra_op_num_threads = threads
            options.inter_op_num_threads = 1
            self.sessions.clear()  # one pool of spinning threads at a time
            self.sessions[threads] = ort.InferenceSession(self.model, options, providers=["CPUExecutionProvider"])
        return self.sessions[threads]

    def embed(self, items: list[list[int]], threads: int) -> np.ndarray:
        length = max(map(len, items))
        ids = np.zeros((len(items), length), np.int64)
        mask = np.zeros_like(ids)
        for row, item in enumerate(items):
            ids[row, : len(item)] = item
            mask[row, : len(item)] = 1
        feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        hidden = self.session(threads).run(None, feed)[0]
        weight = mask[..., None].astype(np.float32)
        mean = (hidden * weight).sum(1) / weight.sum(1)
        return mean / np.linalg.norm(mean, axis=1, keepdims=True)

    def answer(self, command: dict) -> dict:
        operation = command["op"]
        if operation == "workload":
            self.workloads[command["name"]] = command["items"]
            return {}
        if operation == "vector":
            return {"vector": self.embed([command["ids"]], 1)[0].tolist()}
        items, threads = self.workloads[command["name"]], command["threads"]
        self.session(threads)
        if operation == "bulk":
            start = time.perf_counter()
            items = sorted(items, key=len)
            for first in range(0, len(items), BATCH):
                self.embed(items[first : first + BATCH], threads)
            return {"seconds": time.perf_counter() - start, "tokens": sum(map(len, items))}
        if operation == "single":
            taken = []
            for item in items:
                start = time.perf_counter()
                self.embed([item], threads)
                taken.append((time.perf_counter() - start) * 1e3)
            return {"milliseconds": taken}
        raise SystemExit(f"unknown operation {operation}")


def main() -> None:
    peer = Peer(sys.argv[2])
    print(json.dumps({"version": ort.__version__}), flush=True)
    for line in sys.stdin:
        print(json.dumps(peer.answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
