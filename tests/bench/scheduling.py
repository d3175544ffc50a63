"""Queries and small jobs while a large job runs: the starvation case, through the scheduler and through one queue.

Owns one daemon at a time in a temporary data dir, and the threads of its clients. A run is: queries to an idle daemon;
the large job alone; the large job with small ones and queries until the last small one has ended; and that load again
where the daemon has one queue for everything. Whatever is timed is timed at the socket, by the client: a query from the
moment that it is due, so that one slow answer does not hide the waits behind it.
"""

import contextlib
import itertools
import json
import math
import pathlib
import random
import socket
import statistics
import tempfile
import threading
import time

import places
from daemon import MODEL, TEXT, Daemon
from report import Report

#: The load (fault report 93).
ITEMS, SMALL_JOBS, SMALL_ITEMS, QUERIES_PER_SECOND = 20_000, 20, 10, 5
#: Threads of the daemon.
THREADS = 2
#: Seconds between two small jobs: they come while the large one runs, not all with the first.
SPACING = 1.5
#: Queries to the idle daemon, and how many a second.
IDLE, IDLE_PER_SECOND = 200, 10
#: Seconds of the large job alone, and the most that a load may take: through one queue the small jobs may never end.
ALONE, LIMIT = 30.0, 60.0
#: Texts of one append.
APPEND = 1_000
#: What is required: query p99 by its idle p99 on the owned engine; bulk tokens a second by those of the job alone; and
#: how far the large job may be when the last small one ends.
FACTOR, BULK, QUARTER = 3.0, 0.85, 0.25
#: Lanes by name: the selector, and what is required of its queries.
LANES = {
    "owned, in the daemon": ("@owned:f32", f"at most {FACTOR:g} × idle p99"),
    "llama-cpp, in a worker": ("@llama-cpp:f16", "at most p95 quantum + 2 × idle p99"),
}
WORDS = (
    "the lock file index query thread memory disk page socket worker engine model vector daemon request answer queue "
    "token text search note river harbour winter bridge letter garden engineer market history system number"
).split()


def measure(report: Report, binaries: pathlib.Path, model: pathlib.Path, scale: float) -> bool:
    """Measures every lane, adds a table each, and says whether the required figures were met."""
    met = True
    derived = places.onnx()
    for name, (selector, required) in LANES.items():
        source = model if "@owned" in selector else derived and derived.parent
        if not source or ("@llama" in selector and not (source / "model-f16.gguf").exists()):
            report.text(f"## {name}")
            report.text("Not measured: there is no GGUF form of the model; run: make setup-derived")
            met = False
            continue
        figures = {}
        for queue in ("scheduler", "one queue"):
            print(f"bench: {name}, {queue}", flush=True)
            figures[queue] = run(binaries, source, MODEL + selector, scale, queue, figures.get("scheduler"))
        met = table(report, name, required, figures) and met
    return met


def table(report: Report, name: str, required: str, figures: dict[str, dict]) -> bool:
    """Writes a lane's table; whether the required figures were met through the scheduler."""
    ours = figures["scheduler"]
    by_quantum = "quantum" in required
    bound = ours["quantum_p95"] + 2 * ours["idle"][1] if by_quantum else FACTOR * ours["idle"][1]
    small_ended = [done for done in ours["ended_at"] if done < QUARTER]
    checks = {
        "query": ours["load"][1] <= bound and not ours["refused"],
        "small": len(small_ended) == SMALL_JOBS,
        "bulk": ours["bulk"] >= BULK * ours["alone"],
    }
    verdict = {key: "met" if met else "NOT MET" for key, met in checks.items()}

    def row(title: str, cell, wanted: str = "") -> list[str]:
        return [title, *(cell(figures[queue]) for queue in figures), wanted]

    def ends(run: dict) -> str:
        if not run["ended_at"]:
            return f"none of {SMALL_JOBS} ended in {run['seconds']:.0f} s"
        return f"{len(run['ended_at'])} of {SMALL_JOBS} ended, the last at {100 * max(run['ended_at']):.1f} %"

    report.text(f"## {name}")
    report.table(
        ["", "scheduler", "one queue (bench only)", "required"],
        [
            row("query when idle, p50 / p99 ms", lambda run: f"{run['idle'][0]:.1f} / {run['idle'][1]:.1f}"),
            row(
                "query under load, p50 / p99 ms",
                lambda run: f"{run['load'][0]:.1f} / {run['load'][1]:.1f}",
                f"p99 {required}: {bound:.1f}, {verdict['query']}",
            ),
            row("queries answered / refused", lambda run: f"{run['answered']} / {run['refused']}", "none refused"),
            row("quantum of bulk work, p95 ms", lambda run: f"{run['quantum_p95']:.0f}"),
            row("small jobs, by the large job's progress", ends, f"all before {100 * QUARTER:.0f} %, {verdict['small']}"),
            row("small job, median seconds to its end", lambda run: f"{run['small_seconds']:.1f}"),
            row("bulk tokens/s, the large job alone", lambda run: f"{run['alone']:.0f}"),
            row(
                "bulk tokens/s, all jobs under load",
                lambda run: f"{run['bulk']:.0f} ({100 * run['bulk'] / run['alone']:.0f} %)",
                f"at least {100 * BULK:.0f} % of alone, {verdict['bulk']}",
            ),
        ],
    )
    return all(checks.values())


def run(
    binaries: pathlib.Path, source: pathlib.Path, lane: str, scale: float, queue: str, before: dict | None
) -> dict:
    """One daemon: idle, alone and under load. What does not depend on the queue is taken from the run `before`."""
    draw = random.Random(93)
    with tempfile.TemporaryDirectory(prefix="synapse-bench-") as name:
        variables = {"SYNAPSE_BENCH_QUEUE": "fifo"} if queue == "one queue" else {}
        daemon = Daemon(binaries, pathlib.Path(name), {"schedule": {"compute_threads": THREADS}}, variables)
        daemon.connect()
        daemon.finish(daemon.call("models.pull", model=lane, source="local", path=str(source))["job_id"])
        daemon.call("embed.query", model=lane, text=TEXT)
        figures = {}
        if before:
            figures |= {key: before[key] for key in ("idle", "alone")}
        else:
            queries = Queries(daemon, lane, IDLE_PER_SECOND)
            queries.join(round(IDLE * scale))
            figures["idle"] = queries.percentiles()
            figures["alone"] = alone(daemon, lane, draw, ALONE * scale)
        figures |= under_load(daemon, lane, draw, scale)
        daemon.stop()
    return figures


def alone(daemon: Daemon, lane: str, draw: random.Random, seconds: float) -> float:
    """Tokens a second of the large job when nothing else is there."""
    large = start(daemon, lane, texts(draw, ITEMS))
    settle(daemon, large)
    first, begin = pages(daemon, large), time.perf_counter()
    time.sleep(seconds)
    last, taken = pages(daemon, large), time.perf_counter() - begin
    cancel(daemon, large)
    return tokens(daemon, large, first, last) / taken


def under_load(daemon: Daemon, lane: str, draw: random.Random, scale: float) -> dict:
    """The large job with small ones and queries, until the last small one has ended."""
    large = start(daemon, lane, texts(draw, ITEMS))
    settle(daemon, large)
    queries = Queries(daemon, lane, QUERIES_PER_SECOND)
    first, begin = pages(daemon, large), time.perf_counter()
    live, small, ended_at, took = {}, [], [], []
    while (now := time.perf_counter() - begin) < LIMIT * scale and len(ended_at) < SMALL_JOBS:
        if len(small) < SMALL_JOBS and now >= len(small) * SPACING * scale:
            job = start(daemon, lane, texts(draw, SMALL_ITEMS))
            live[job], small = now, [*small, job]
        for job, since in list(live.items()):
            if daemon.call("job.status", job_id=job)["state"] == "done":
                progress = daemon.call("job.status", job_id=large)["progress"]
                ended_at.append(progress["done"] / progress["total"])
                took.append(time.perf_counter() - begin - since)
                del live[job]
        time.sleep(0.02)
    last, seconds = pages(daemon, large), time.perf_counter() - begin
    queries.join()
    quantum = quantum_p95(daemon, lane)
    for job in [large, *live]:
        cancel(daemon, job)
    done = tokens(daemon, large, first, last)
    # The pages of a small job that did not end are work that was done, too.
    done += sum(tokens(daemon, job, 0, pages(daemon, job)) for job in small)
    return {
        "load": queries.percentiles(),
        "answered": len(queries.milliseconds),
        "refused": sum(queries.refused.values()),
        "quantum_p95": quantum,
        "ended_at": ended_at,
        "small_seconds": statistics.median(took) if took else math.nan,
        "bulk": done / seconds,
        "seconds": seconds,
    }


def texts(draw: random.Random, count: int) -> list[str]:
    """Texts of 20 to 256 tokens, log-uniform; each word is one token."""
    lengths = (round(math.exp(draw.uniform(math.log(18), math.log(254)))) for _ in range(count))
    return [" ".join(draw.choices(WORDS, k=length)) for length in lengths]


def start(daemon: Daemon, lane: str, all_texts: list[str]) -> str:
    """A job over these texts, sealed."""
    job = daemon.call("job.create", operation="embed.batch", model=lane)["job_id"]
    for seq, at in enumerate(range(0, len(all_texts), APPEND)):
        items = [{"id": str(at + n), "text": text} for n, text in enumerate(all_texts[at : at + APPEND])]
        daemon.call("job.append", job_id=job, seq=seq, items=items)
    return daemon.call("job.seal", job_id=job)["job_id"]


def settle(daemon: Daemon, job: str) -> None:
    """Waits until the job has measured its quanta: some pages are there."""
    while pages(daemon, job) < 5:
        time.sleep(0.05)


def pages(daemon: Daemon, job: str) -> int:
    """How many pages the job has by now."""
    return daemon.call("job.result", job_id=job, page=1_000_000)["pages"]


def tokens(daemon: Daemon, job: str, first: int, last: int) -> int:
    """Tokens of the pages `first..last`."""
    read = (daemon.call("job.result", job_id=job, page=page, encoding="base64") for page in range(first, last))
    return sum(item["effective_tokens"] for page in read for item in page["content"]["items"])


def cancel(daemon: Daemon, job: str) -> None:
    """Stops a job and waits until it has."""
    daemon.call("job.cancel", job_id=job)
    while daemon.call("job.status", job_id=job)["state"] in ("queued", "running"):
        time.sleep(0.02)


def quantum_p95(daemon: Daemon, lane: str) -> float:
    """Milliseconds of the lane's quanta, 95th percentile, as the scheduler measured them."""
    status = daemon.call("admission.status")
    found = next(known for known in status["lanes"] if known["lane"] == lane)
    return found["quantum_us"]["p95"] / 1000


class Queries:
    """A client that sends queries at a fixed rate until it is told to stop.

    A query is sent when it is due, whether or not those before it are answered; its time runs from then to its answer.
    """

    def __init__(self, daemon: Daemon, lane: str, per_second: float):
        self.milliseconds, self.refused = [], {}
        self.lane, self.gap = lane, 1 / per_second
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.connect(str(daemon.path))
        self.due, self.sent, self.stop = {}, threading.Semaphore(0), threading.Event()
        self.sender = threading.Thread(target=self._send)
        self.reader = threading.Thread(target=self._read)
        self.sender.start()
        self.reader.start()

    def join(self, count: int = 0) -> None:
        """Stops once there are so many answers, and waits for all that were sent."""
        while len(self.milliseconds) + sum(self.refused.values()) < count:
            time.sleep(0.05)
        self.stop.set()
        self.sender.join()
        self.reader.join()
        self.connection.close()

    def percentiles(self) -> tuple[float, float]:
        """The median and the 99th percentile by the nearest rank."""
        ordered = sorted(self.milliseconds)
        return statistics.median(ordered), ordered[math.ceil(0.99 * len(ordered)) - 1]

    def _send(self) -> None:
        begin = time.perf_counter()
        for number in itertools.count():
            due = begin + number * self.gap
            if self.stop.wait(max(0.0, due - time.perf_counter())):
                break
            # No query is ever refused for its wait here: what it waited is what is measured.
            params = {"model": self.lane, "text": TEXT, "encoding": "base64"}
            params |= {"max_queue_ms": 60_000, "deadline_ms": 60_000}
            self.due[number] = due
            request = {"jsonrpc": "2.0", "id": number, "method": "embed.query", "params": params}
            self.connection.sendall(json.dumps(request).encode() + b"\n")
        # What was sent is answered before the daemon ends its side.
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)

    def _read(self) -> None:
        for line in self.connection.makefile("r", encoding="utf-8"):
            now = time.perf_counter()
            answer = json.loads(line)
            if "result" in answer:
                self.milliseconds.append((now - self.due[answer["id"]]) * 1000)
            else:
                code = answer["error"].get("data", {}).get("code", "?")
                self.refused[code] = self.refused.get(code, 0) + 1
