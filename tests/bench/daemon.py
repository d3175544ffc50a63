"""The daemon's own figures: what the socket adds to an engine call, cold start, resident memory.

Owns one daemon at a time in a temporary data dir. The client below needs Python's standard library only; the overhead
is timed by the Rust peer, which calls the engine and the socket in turn.
"""

import contextlib
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from report import Report, spread

MODEL = "all-minilm-l6-v2"
TEXT = "how long does it take to rent a cargo bike in winter without tools"  # 16 tokens
STARTS = 7
CALLS = 300
#: What the daemon's default, `knob: balanced`, gives a call. The call alone gets the same, or the difference would be
#: that of one thread to two.
THREADS = max(1, (os.cpu_count() or 1) // 2)
#: What is demanded: microseconds over the engine call, milliseconds from process start to first vector, and bytes beside
#: the weights.
OVERHEAD_US = 300
START_MS = 150
RSS_MB = 40


class Daemon:
    """A running `synapse serve`."""

    def __init__(
        self, binaries: pathlib.Path, folder: pathlib.Path, config: dict | None = None, variables: dict | None = None
    ):
        self.path = folder / "s"
        file = folder / "config.jsonc"
        # What is measured here serves as it is; what certification costs is measured by `probe.py`.
        file.write_text(json.dumps({"probe": {"allow_uncertified": True}} | (config or {})), encoding="utf-8")
        environment = dict(os.environ) | {"SYNAPSE_CONFIG_PATH": str(file)} | (variables or {})
        bundles = binaries / "bundles"
        command = [binaries / "synapse", "serve", "--data-dir", folder / "data", "--socket", self.path]
        command += ["--plugin-dir", bundles, "--trust-file", bundles / "trust.toml"]
        self.log = (folder / "serve.log").open("a+", encoding="utf-8")
        words = [str(word) for word in command]
        self.process = subprocess.Popen(words, stdout=self.log, stderr=self.log, env=environment)
        self.connection, self.lines, self.last = None, None, 0

    def connect(self) -> None:
        """Connects as soon as the socket listens."""
        while self.process.poll() is None:
            connection = socket.socket(socket.AF_UNIX)
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                connection.connect(str(self.path))
                self.connection, self.lines = connection, connection.makefile("rw", encoding="utf-8", newline="\n")
                return
            connection.close()
            time.sleep(0.002)
        self.log.seek(0)
        sys.exit(f"bench: the daemon ended with code {self.process.returncode}: {self.log.read()[-2000:]}")

    def once(self, method: str, **params) -> dict:
        """One request, one reply."""
        self.last += 1
        request = {"jsonrpc": "2.0", "id": self.last, "method": method, "params": params}
        self.lines.write(json.dumps(request) + "\n")
        self.lines.flush()
        return json.loads(self.lines.readline())

    def call(self, method: str, **params) -> dict:
        """A request, repeated while the daemon says that it will succeed later."""
        while True:
            reply = self.once(method, **params)
            if "result" in reply:
                return reply["result"]
            data = reply["error"].get("data", {})
            if data.get("class") != "transient":
                sys.exit(f"bench: {method}: {reply['error']}")
            time.sleep(min(data.get("retry_after_ms", 10), 10) / 1000)

    def finish(self, job: str) -> None:
        """Waits for a job."""
        while True:
            view = self.call("job.status", job_id=job)
            if view["state"] == "done":
                return
            if view["state"] not in ("open", "queued", "running"):
                sys.exit(f"bench: job {job} ended as {view['state']}: {view.get('error')}")
            time.sleep(0.02)

    def resident(self) -> int:
        """Resident bytes."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024

    def stop(self) -> None:
        """Ends the daemon as an operator would."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=30)


def measure(report: Report, engine, binaries: pathlib.Path, model: pathlib.Path, rounds: int) -> bool:
    """Measures, adds the section, and says whether the required figures were met."""
    with tempfile.TemporaryDirectory(prefix="synapse-bench-") as name:
        folder = pathlib.Path(name)
        daemon = Daemon(binaries, folder)
        daemon.connect()
        daemon.finish(daemon.call("models.pull", model=MODEL, source="local", path=str(model))["job_id"])
        ids = daemon.call("text.tokenize", model=MODEL, text=TEXT)["ids"]
        daemon.call("embed.query", model=MODEL, text=TEXT)
        params = {"model": MODEL, "text": TEXT, "encoding": "base64"}
        request = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "embed.query", "params": params})
        command = {"op": "socket", "path": str(daemon.path), "request": request, "ids": ids, "threads": THREADS}
        overheads, engine_ms, socket_ms = [], [], []
        for _ in range(rounds):
            answer = engine.ask(count=CALLS, **command)
            pair = statistics.median(answer["engine_ms"]), statistics.median(answer["socket_ms"])
            engine_ms.append(pair[0])
            socket_ms.append(pair[1])
            overheads.append((pair[1] - pair[0]) * 1000)
        daemon.stop()

        starts = []
        for _ in range(STARTS):
            begin = time.perf_counter()
            daemon = Daemon(binaries, folder)
            daemon.connect()
            daemon.call("embed.query", model=MODEL, text=TEXT)
            starts.append((time.perf_counter() - begin) * 1000)
            if len(starts) < STARTS:
                daemon.stop()
        time.sleep(3)
        resident = daemon.resident()
        daemon.stop()

    weights = (model / "model.safetensors").stat().st_size
    allowed = weights + RSS_MB * 1e6
    overhead = statistics.median(overheads)
    report.text("## The daemon")
    report.text(
        f"One client on the socket, one query of {len(ids)} tokens at a time, base64 vectors; release build. The call "
        "alone runs in a process of its own: where the overhead is below zero, the two processes differ by more than it."
    )
    rows = [
        ["`embed.query`, p50 ms", spread(socket_ms, 3), ""],
        [f"the engine call alone, {THREADS} thread(s) as in the daemon, p50 ms", spread(engine_ms, 3), ""],
        ["overhead of the daemon, µs", spread(overheads, 0), f"under {OVERHEAD_US}"],
        ["process start → first vector, ms (warm page cache)", spread(starts, 0), f"at most {START_MS}"],
        [
            "resident when idle with the model loaded, MB",
            f"{resident / 1e6:.0f}",
            f"under {allowed / 1e6:.0f} ({weights / 1e6:.0f} MB of weights + {RSS_MB} MB)",
        ],
    ]
    report.table(["", "median (lowest–highest)", "required"], rows)
    return overhead < OVERHEAD_US and resident < allowed and statistics.median(starts) <= START_MS
