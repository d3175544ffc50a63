#!/usr/bin/env python3
"""`make bench`: engines and daemon against named peers, workers against the same bundle in a process, queries and small
jobs against a large job, a flood of connections; for docs/bench.

Usage: run.py [--rounds N] [--scale F] [--skip-daemon] [--profile P] [--only foundation|workers|scheduling]. Peers run one
after another within a round, so that what else the machine does hits all of them; a round's ratio is what counts, absolute
figures only show the scale.
"""

import argparse
import datetime
import pathlib
import statistics
import subprocess
import sys

import daemon
import flood
import peers
import places
import plot
import probe
import scheduling
import workers
import workloads
from report import Report, machine, ratio, spread

PAGES = places.ROOT / "docs" / "bench"
#: What the Foundation demands of owned ÷ onnxruntime in bulk.
REQUIRED_RATIO = 0.5
#: The rows of the engines' tables: workload, title, place in a sample, digits.
ROWS = (
    ("w3", "W3 tokens/s", None, 0),
    ("w4", "W4 tokens/s", None, 0),
    ("w1", "W1 p50 ms", 0, 2),
    ("w1", "W1 p99 ms", 1, 2),
    ("w2", "W2 p50 ms", 0, 2),
    ("w2", "W2 p99 ms", 1, 2),
)


def build(profile: str) -> pathlib.Path:
    """Builds the peers and returns the folder of binaries."""
    command = ["cargo", "build", "--locked", "--profile", profile, "-p", "synapse-bench"]
    subprocess.run(command, cwd=places.ROOT, check=True)
    return places.target() / profile


def measure(running: list[peers.Peer], work: dict, rounds: int) -> dict:
    """Samples by (workload, threads, peer): tokens per second in bulk, else (p50, p99) in milliseconds."""
    for peer in running:
        for name, items in work.items():
            peer.ask(op="workload", name=name, items=items)
        peer.ask(op="single", name="w1", threads=2)
    samples = {}
    for number in range(rounds):
        print(f"bench: round {number + 1} of {rounds}", flush=True)
        for threads in (2, 1):
            for name in work:
                for peer in running if number % 2 == 0 else reversed(running):
                    operation = "bulk" if name in ("w3", "w4") else "single"
                    answer = peer.ask(op=operation, name=name, threads=threads)
                    if operation == "bulk":
                        sample = answer["tokens"] / answer["seconds"]
                    else:
                        taken = sorted(answer["milliseconds"])
                        sample = (statistics.median(taken), taken[int(len(taken) * 0.99)])
                    samples.setdefault((name, threads, peer.name), []).append(sample)
    return samples


def column(samples: dict, work: str, threads: int, place: int | None, names: list[str]) -> dict[str, list[float]]:
    """One row's samples by peer."""
    of = {name: samples[work, threads, name] for name in names}
    return of if place is None else {name: [pair[place] for pair in pairs] for name, pairs in of.items()}


def engine_tables(report: Report, samples: dict, names: list[str]) -> bool:
    """Writes the engines' tables; says whether the required ratio was met (true without a peer)."""
    met = True
    ours = [name for name in names if name != "onnxruntime"] if "onnxruntime" in names else []
    for threads in (2, 1):
        rows = []
        for work, title, place, digits in ROWS:
            of = column(samples, work, threads, place, names)
            factors = {name: ratio(of[name], of["onnxruntime"]) for name in ours}
            if threads == 2 and place is None and factors:
                met = met and factors["owned"] >= REQUIRED_RATIO
            spreads = (spread(of[name], digits) for name in names)
            rows.append([title, *spreads, *(f"{factor:.2f} ×" for factor in factors.values())])
        report.text(f"## {threads} thread{'s' if threads > 1 else ''}")
        report.table(["", *names, *(f"{name} ÷ onnxruntime" for name in ours)], rows)
    return met


def picture(samples: dict, names: list[str]) -> str:
    """The same figures on two threads, as an SVG picture."""
    groups = [
        (title, column(samples, work, 2, place, names), digits) for work, title, place, digits in ROWS if place != 1
    ]
    return plot.bars(f"all-MiniLM-L6-v2, 2 threads, {machine()}", groups)


def foundation(options: argparse.Namespace, binaries: pathlib.Path, model: pathlib.Path) -> bool:
    """The engines and the daemon; whether the required figures were met."""
    work, source = workloads.load(options.scale)
    running = [peers.owned(binaries / "synapse-bench-owned", model)]
    isa = running[0].about["isa"]
    running.append(peers.owned_fast(binaries / "synapse-bench-owned", model, isa))
    report = Report("Foundation: measured figures")
    report.text(
        f"Machine: {machine()}. {datetime.date.today()}, {options.rounds} alternating rounds, medians with (lowest–highest).",
        f"Model: all-MiniLM-L6-v2, f32, and the owned engine's fast mode s16; token ids in, vectors out; {source} "
        f"(tests/bench/workloads.py). The owned engine ran on {isa}.",
        f"Written by `make bench` at scale {options.scale:g}; the ratio of one row is the median of the rounds' ratios.",
    )
    if onnx := places.onnx():
        running.append(peers.onnxruntime(onnx))
        difference = peers.agree(running[0], running[-1], work["w2"][0])
        if difference > 1e-5:
            sys.exit(f"bench: the peers' vectors differ by {difference:.1e}: they do not run the same model")
        report.text(f"onnxruntime {running[-1].about['version']}; the two vectors of a text differ by {difference:.1e}.")
    else:
        report.text("onnxruntime: not measured, there is no model.onnx; run: make setup-derived")
    cosine = peers.least_cosine(running[0], running[1], work["w2"] + work["w1"])
    report.text(f"The fast mode's smallest cosine with the f32 vectors of W1 and W2: 1 − {1 - cosine:.1e}.")
    names = [peer.name for peer in running]
    samples = measure(running, work, options.rounds)
    report.text("![tokens a second and milliseconds of the engines](foundation.svg)")
    (PAGES / "foundation.svg").write_text(picture(samples, names), encoding="utf-8")
    met = engine_tables(report, samples, names)
    if options.skip_daemon:
        report.text("The daemon was not measured (`--skip-daemon`).")
    else:
        met = daemon.measure(report, running[0], binaries, model, options.rounds) and met
    for peer in running:
        peer.stop()
    write(report, "foundation.md")
    return met


def workers_page(options: argparse.Namespace, binaries: pathlib.Path, model: pathlib.Path) -> bool:
    """Workers against the same bundles in a process; whether the required figures were met."""
    report = Report("Workers: measured figures")
    report.text(
        f"Machine: {machine()}. {datetime.date.today()}, {options.rounds} rounds, medians with (lowest–highest).",
        "Written by `make bench BENCH_ARGS=\"--only workers\"`. Model: all-MiniLM-L6-v2, f32, drawn ids; one bundle loaded",
        "twice, into the measuring process and into a worker, and called in turn through the trait that the scheduler",
        "calls. The added time is the difference of a round's two medians; every vector is the same bit for bit.",
    )
    met = workers.measure(report, binaries, model, options.rounds)
    write(report, "workers.md")
    return met


def scheduling_page(options: argparse.Namespace, binaries: pathlib.Path, model: pathlib.Path) -> bool:
    """Queries and small jobs beside a large job, and a flood; whether the required figures were met."""
    report = Report("Scheduling: measured figures")
    report.text(
        f"Machine: {machine()}. {datetime.date.today()}, profile {options.profile}, scale {options.scale:g}.",
        "Written by `make bench BENCH_ARGS=\"--only scheduling\"`. Model: all-MiniLM-L6-v2. The load: one job of",
        f"{scheduling.ITEMS} texts of 20 to 256 tokens, {scheduling.SMALL_JOBS} jobs of {scheduling.SMALL_ITEMS} such texts,",
        f"one each {scheduling.SPACING * options.scale:g} s, and {scheduling.QUERIES_PER_SECOND} queries a second until the",
        f"last small job has ended or {scheduling.LIMIT * options.scale:g} s have passed; {scheduling.THREADS} threads. A query's",
        "time runs from the moment when it is due. The one queue is the same daemon with one switch: work in order of",
        "arrival, a job with all of its work, and nothing held for a query.",
    )
    met = scheduling.measure(report, binaries, model, options.scale)
    met = probe.measure(report, binaries, model, options.scale) and met
    met = flood.measure(report, binaries, model, options.scale) and met
    write(report, "scheduling.md")
    return met


def write(report: Report, name: str) -> None:
    """Prints the page and puts it into the repository."""
    page = PAGES / name
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(report.render(), encoding="utf-8")
    print(report.render())
    print(f"bench: written to {page.relative_to(places.ROOT)}")


def main() -> None:
    """Measures, prints and writes the pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="alternations (default 7)")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the workloads (default 1)")
    parser.add_argument("--skip-daemon", action="store_true", help="measure the engines only")
    parser.add_argument("--profile", default="release", help="cargo profile of the binaries (default release)")
    parser.add_argument("--only", choices=list(SUBJECTS), help="one subject (default: all)")
    options = parser.parse_args()

    binaries = build(options.profile)
    model = places.model()
    # Every page is written before a missed figure ends the run with an error.
    met = [measure(options, binaries, model) for name, measure in SUBJECTS.items() if options.only in (None, name)]
    if not all(met):
        sys.exit("bench: a required figure was missed, see the page")


#: What can be measured, each on its own page.
SUBJECTS = {"foundation": foundation, "workers": workers_page, "scheduling": scheduling_page}

if __name__ == "__main__":
    main()
