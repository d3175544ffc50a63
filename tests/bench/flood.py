"""A flood: two thousand connections, more requests than the lane can serve, deadlines of 1 ms, cancellations.

Owns one daemon in a temporary data dir and the client processes. Run as a program, this file is one client process. Every
request has to end as a result, a typed error or a closed connection; what became of how many is the table. `health` is
asked meanwhile from another process, and the daemon's memory is read from the system.
"""

import asyncio
import collections
import json
import pathlib
import random
import resource
import subprocess
import sys
import tempfile
import time

from daemon import MODEL, TEXT, Daemon
from report import Report

CONNECTIONS, PROCESSES, SECONDS = 2_000, 8, 15
#: Each connection sends one request in so many seconds, and waits so long for an answer before it counts as none.
GAP, PATIENCE = 1.0, 60.0
#: What is required: health p99 in ms, and MB that the daemon may take beyond what it has before the flood.
HEALTH_MS, GROWTH_MB = 50, 100
#: What is sent, in turn by a draw.
KINDS = ("query", "batch", "deadline of 1 ms", "cancelled at once", "left at once")
NOTHING = "no outcome"


def measure(report: Report, binaries: pathlib.Path, model: pathlib.Path, scale: float) -> bool:
    """Floods, adds the section, and says whether the required figures were met."""
    connections = round(CONNECTIONS * scale)
    _, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A connection that is half closed takes the daemon two descriptors.
    if allowed != resource.RLIM_INFINITY and allowed < 2 * connections + 500:
        print(f"bench: only {allowed} descriptors are allowed: {(allowed - 500) // 2} connections", flush=True)
        connections = (allowed - 500) // 2
    with tempfile.TemporaryDirectory(prefix="synapse-bench-") as name:
        daemon = Daemon(binaries, pathlib.Path(name), {"connection": {"max_connections": 2 * CONNECTIONS}})
        daemon.connect()
        daemon.finish(daemon.call("models.pull", model=MODEL, source="local", path=str(model))["job_id"])
        expected = daemon.call("embed.query", model=MODEL, text=TEXT, encoding="base64")["vectors"]
        before = daemon.resident()
        print(f"bench: flood of {connections} connections", flush=True)
        command = [sys.executable, __file__, str(daemon.path), str(connections // PROCESSES), str(SECONDS * scale)]
        clients = [
            subprocess.Popen([*command, str(seed)], stdout=subprocess.PIPE, text=True) for seed in range(PROCESSES)
        ]
        health, most = [], before
        while any(client.poll() is None for client in clients):
            begin = time.perf_counter()
            daemon.once("health")
            health.append((time.perf_counter() - begin) * 1000)
            most = max(most, daemon.resident())
            time.sleep(0.02)
        outcomes = collections.Counter()
        for client in clients:
            for kind, outcome, count in json.loads(client.communicate()[0]):
                outcomes[kind, outcome] += count
        same = daemon.call("embed.query", model=MODEL, text=TEXT, encoding="base64")["vectors"] == expected
        after = daemon.resident()
        daemon.stop()
    health.sort()
    p99 = health[int(0.99 * (len(health) - 1))]
    growth = (most - before) / 1e6
    unanswered = sum(count for (_, outcome), count in outcomes.items() if outcome == NOTHING)
    checks = {
        f"every request had an outcome: {unanswered} had none": unanswered == 0,
        f"`health` p99 {p99:.1f} ms, under {HEALTH_MS} ms": p99 < HEALTH_MS,
        f"memory {before / 1e6:.0f} MB before, {most / 1e6:.0f} at most, {after / 1e6:.0f} after: at most {GROWTH_MB} more": growth
        < GROWTH_MB,
        "a query afterwards has the same vector": same,
    }
    report.text("## A flood")
    report.text(
        f"{connections} connections of {PROCESSES} client processes for {SECONDS * scale:g} s, a request each {GAP:g} s on each;",
        "a query is of 16 tokens, a batch of 16 such texts. No limit of the daemon is raised but that of connections.",
    )
    columns = sorted({outcome for _, outcome in outcomes})
    rows = [[kind, *(str(outcomes[kind, outcome]) for outcome in columns)] for kind in KINDS]
    report.table(["requests", *columns], rows)
    report.text(*(f"- {words}: {'met' if met else 'NOT MET'}" for words, met in checks.items()))
    median = health[len(health) // 2]
    report.text(f"`health` was asked {len(health)} times: p50 {median:.1f} ms, the longest {health[-1]:.1f} ms.")
    return all(checks.values())


def request(kind: str, number: int) -> bytes:
    """The lines of one request."""
    params = {"model": MODEL, "encoding": "base64"}
    if kind == "batch":
        method, params = "embed.batch", params | {"items": [{"id": str(n), "text": TEXT} for n in range(16)]}
    else:
        method, params = "embed.query", params | {"text": TEXT}
    if kind == "deadline of 1 ms":
        params["deadline_ms"] = 1
    lines = [{"jsonrpc": "2.0", "id": number, "method": method, "params": params}]
    if kind == "cancelled at once":
        lines.append({"jsonrpc": "2.0", "id": -number, "method": "request.cancel", "params": {"id": number}})
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


async def answer(reader: asyncio.StreamReader, number: int) -> str:
    """What became of a request: `result`, the public code of its error, or `closed`."""
    while line := await reader.readline():
        reply = json.loads(line)
        if reply["id"] == number or reply["id"] is None:
            return "result" if "result" in reply else reply["error"]["data"]["code"]
    return "closed"


async def connection(path: str, draw: random.Random, until: float, outcomes: collections.Counter) -> None:
    """One connection after another, a request each [`GAP`]."""
    streams, number = None, 0
    await asyncio.sleep(draw.uniform(0, GAP))
    while time.monotonic() < until:
        kind = draw.choice(KINDS)
        number += 1
        try:
            reader, writer = streams = streams or await asyncio.open_unix_connection(path, limit=1 << 24)
            writer.write(request(kind, number))
            await writer.drain()
            if kind == "left at once":
                outcome = "closed"
            else:
                outcome = await asyncio.wait_for(answer(reader, number), PATIENCE)
        except TimeoutError:
            outcome = NOTHING
        except (ConnectionError, OSError):
            outcome = "closed"
        outcomes[kind, outcome] += 1
        if outcome == "closed" and streams:
            streams[1].close()
            streams = None
        await asyncio.sleep(draw.uniform(0, 2 * GAP))
    if streams:
        streams[1].close()


async def client(path: str, count: int, seconds: float, seed: int) -> None:
    """One client process with so many connections."""
    outcomes, until = collections.Counter(), time.monotonic() + seconds
    draws = [random.Random(1_000 * seed + n) for n in range(count)]
    await asyncio.gather(*(connection(path, draw, until, outcomes) for draw in draws))
    print(json.dumps([[kind, outcome, number] for (kind, outcome), number in outcomes.items()]))


if __name__ == "__main__":
    asyncio.run(client(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])))
