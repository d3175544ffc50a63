"""What a worker costs: one bundle in a process and in a worker, called in turn through the same trait.

Owns nothing; `run.py` calls it. A round is a number of alternating calls; its sample is the difference of the two
medians, since only calls of one round saw the same machine. Vectors must be the same bit for bit.
"""

import os
import pathlib
import random
import statistics
import sys

import daemon
import peers
import places
import workloads
from report import Report, spread

#: What the Workers issue demands: microseconds over a call of 1 × 16 tokens, and percent of one of 64 × 256.
SMALL_US, LARGE_PERCENT = 250, 3
#: Calls of a round for each side.
SMALL_CALLS, LARGE_CALLS = 200, 1


def bundles(model: pathlib.Path) -> dict[str, list]:
    """The arguments of each bundle that can be measured here: format and files by role."""
    found = {"owned": ["safetensors", f"config={model / 'config.json'}", f"weights={model / 'model.safetensors'}"]}
    if onnx := places.onnx():
        found["ort"] = ["onnx", f"weights={onnx}"]
    return found


def measure(report: Report, binaries: pathlib.Path, model: pathlib.Path, rounds: int) -> bool:
    """Measures, adds the tables, and says whether the required figures were met."""
    draw = random.Random(11)
    small = [workloads.ids(draw, 16)]
    large = [workloads.ids(draw, 256) for _ in range(64)]
    threads = {"1 × 16": daemon.THREADS, "64 × 256": os.cpu_count() or 1}
    met, rows = True, []
    for bundle, arguments in bundles(model).items():
        command = [binaries / "synapse-bench-workers", binaries / "bundles", binaries / "synapse-worker", bundle]
        pair = peers.Peer(bundle, [*command, *arguments])
        # The first calls of a process are not what is measured.
        ask(pair, bundle, small, threads["1 × 16"], 20)
        for shape, items, calls in (("1 × 16", small, SMALL_CALLS), ("64 × 256", large, LARGE_CALLS)):
            inside, worker = [], []
            for number in range(rounds):
                print(f"bench: {bundle}, {shape}, round {number + 1} of {rounds}", flush=True)
                answer = ask(pair, bundle, items, threads[shape], calls)
                inside.append(statistics.median(answer["in_process_us"]))
                worker.append(statistics.median(answer["worker_us"]))
            added = [w - i for w, i in zip(worker, inside, strict=True)]
            percent = [100 * (w / i - 1) for w, i in zip(worker, inside, strict=True)]
            is_small = items is small
            ok = statistics.median(added) < SMALL_US if is_small else statistics.median(percent) < LARGE_PERCENT
            met = met and ok
            rows.append(
                [
                    bundle,
                    shape,
                    str(threads[shape]),
                    spread([us / 1000 for us in inside], 3),
                    spread([us / 1000 for us in worker], 3),
                    spread(added, 0),
                    spread(percent, 2),
                    f"under {SMALL_US} µs" if is_small else f"under {LARGE_PERCENT} %",
                ]
            )
        pair.stop()
    report.table(
        ["bundle", "texts × tokens", "threads", "in process, ms", "worker, ms", "added, µs", "added, %", "required"],
        rows,
    )
    if "ort" not in bundles(model):
        report.text("ort: not measured, there is no model.onnx; run: make setup-derived")
    return met


def ask(pair: peers.Peer, bundle: str, items: list, threads: int, count: int) -> dict:
    """One round; ends the benchmark when a vector differs."""
    answer = pair.ask(items=items, threads=threads, count=count)
    if not answer["same_bits"]:
        sys.exit(f"bench: {bundle}: the worker's vectors are not those of the same bundle in a process")
    return answer
