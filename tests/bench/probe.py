"""Queries while their own lane is probed: what a probe costs them, and what they cost the probe.

Owns one daemon at a time in a temporary data dir. A query is timed at the socket from the moment that it is due. A query
that comes in the middle of a step waits for that step and no other one, so what a probe adds to it is at most a step; and
a step takes its lane for no longer than bulk work does: the bound is the p95 of the lane's quanta, as the scheduler
measured them over a job of the same run. The steps are timed by the daemon, whose log says how long each had its lane.
"""

import math
import pathlib
import random
import re
import tempfile
import time

import places
from daemon import MODEL, Daemon
from report import Report
from scheduling import Queries, quantum_p95, start, texts

#: Queries a second, and how many to the idle daemon.
PER_SECOND, IDLE = 10, 200
#: Texts of the job whose quanta are the measure.
BULK_TEXTS = 500
#: Lanes by name.
LANES = {"owned, in the daemon": "@owned:f32", "llama-cpp, in a worker": "@llama-cpp:f16"}
#: A step in the daemon's log.
STEP = re.compile(r"probe step .*elapsed_ms=([0-9.]+)")


def measure(report: Report, binaries: pathlib.Path, model: pathlib.Path, scale: float) -> bool:
    """Measures every lane, adds the section, and says whether the required figures were met."""
    met, rows = True, []
    derived = places.onnx()
    for name, selector in LANES.items():
        source = model if "@owned" in selector else derived and derived.parent
        if not source or ("@llama" in selector and not (source / "model-f16.gguf").exists()):
            report.text(f"{name}: not measured, there is no GGUF form of the model; run: make setup-derived")
            met = False
            continue
        print(f"bench: probe, {name}", flush=True)
        figures = run(binaries, source, MODEL + selector, scale)
        held = figures["worst"] <= figures["quantum_p95"] and not figures["refused"]
        met = met and held
        rows.append(
            [
                name,
                f"{figures['idle']:.1f}",
                f"{figures['p50']:.1f} / {figures['p99']:.1f}",
                f"{figures['worst']:.1f}",
                f"{figures['quantum_p95']:.1f}",
                f"{figures['step_p95']:.1f} / {figures['longest']:.1f}",
                f"{figures['answered']} / {figures['refused']}",
                f"{figures['seconds']:.0f}",
                "met" if held else "NOT MET",
            ]
        )
    report.text("## A probe under queries")
    report.table(
        [
            "",
            "query when idle, p99 ms",
            "query under the probe, p50 / p99 ms",
            "the most that the probe added, ms",
            "quantum of bulk work, p95 ms",
            "step of the probe, p95 / longest ms",
            "queries answered / refused",
            "probe, s",
            "required: added at most the p95 quantum",
        ],
        rows,
    )
    return met


def run(binaries: pathlib.Path, source: pathlib.Path, lane: str, scale: float) -> dict:
    """One daemon: certified and idle, then probed again under queries."""
    with tempfile.TemporaryDirectory(prefix="synapse-bench-") as name:
        folder = pathlib.Path(name)
        daemon = Daemon(binaries, folder, {}, {"SYNAPSE_LOG": "debug"})
        daemon.connect()
        daemon.finish(daemon.call("models.pull", model=lane, source="local", path=str(source))["job_id"])
        daemon.finish(daemon.call("probe.start", models=[lane])["job_id"])
        daemon.finish(daemon.call("model.load", model=lane)["job_id"])
        queries = Queries(daemon, lane, PER_SECOND)
        queries.join(round(IDLE * scale))
        idle = queries.percentiles()[1]
        daemon.finish(start(daemon, lane, texts(random.Random(93), round(BULK_TEXTS * scale))))
        quantum = quantum_p95(daemon, lane)
        before = len(steps(folder))
        queries, begin = Queries(daemon, lane, PER_SECOND), time.perf_counter()
        daemon.finish(daemon.call("probe.start", models=[lane])["job_id"])
        seconds = time.perf_counter() - begin
        queries.join()
        taken = sorted(steps(folder)[before:])
        daemon.stop()
    p50, p99 = queries.percentiles()
    return {
        "idle": idle,
        "p50": p50,
        "p99": p99,
        "worst": max(queries.milliseconds, default=math.nan) - idle,
        "quantum_p95": quantum,
        "step_p95": taken[int(len(taken) * 0.95)] if taken else math.nan,
        "longest": taken[-1] if taken else math.nan,
        "answered": len(queries.milliseconds),
        "refused": sum(queries.refused.values()),
        "seconds": seconds,
    }


def steps(folder: pathlib.Path) -> list[float]:
    """The milliseconds of each step so far, by the daemon's log."""
    return [float(found) for found in STEP.findall((folder / "serve.log").read_text(encoding="utf-8"))]
