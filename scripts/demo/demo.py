#!/usr/bin/env python3
"""The main job of Synapse from nothing: serve, pull, index, ask. Prints DEMO OK when every answer was the right one.

Usage: demo.py PROFILE_DIR, after `make plugins`. Everything lives in a temporary data dir except the model's wheel,
which stays in the user's cache folder. The client below needs nothing but Python's standard library.
"""

import base64
import json
import operator
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
# What scripts/setup.py fetched, so that a pull of the model is the same each time and downloads nothing.
WHEELS = HERE.parent.parent / ".synapse" / "cache" / "wheels"
MODEL = "all-minilm-l6-v2"
BATCH = 64
SHOWN = 3


class Client:
    """One connection to the daemon: a JSON-RPC object a line."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.lines = self.socket.makefile("rw", encoding="utf-8", newline="\n")
        self.last = 0

    def call(self, method: str, **params: object) -> dict:
        """Calls one method; waits as the daemon says where an error is transient and safe to retry."""
        while True:
            self.last += 1
            request = {"jsonrpc": "2.0", "id": self.last, "method": method, "params": params}
            self.lines.write(json.dumps(request) + "\n")
            self.lines.flush()
            reply = json.loads(self.lines.readline())
            if "result" in reply:
                return reply["result"]
            data = reply["error"].get("data", {})
            if data.get("class") != "transient" or not data.get("safe_to_retry_same_request"):
                sys.exit(f"demo: {method}: {reply['error']['message']}")
            time.sleep(data.get("retry_after_ms", 100) / 1000)


def vectors(reply: dict) -> list[tuple[float, ...]]:
    """The vectors of a reply that asked for base64."""
    return [struct.unpack(f"<{reply['dims']}f", base64.b64decode(packed)) for packed in reply["vectors"]]


def read_lines(name: str) -> list[dict]:
    """The rows of one of the demo's files."""
    return [json.loads(line) for line in (HERE / name).read_text(encoding="utf-8").splitlines()]


def wait_for_socket(daemon: subprocess.Popen, path: str) -> None:
    """Returns when the daemon listens; ends the demo when it stopped instead."""
    for _ in range(600):
        if daemon.poll() is not None:
            said = pathlib.Path(path).with_name("daemon.log").read_text(errors="replace")
            sys.exit(f"demo: the daemon stopped at once with code {daemon.returncode}\n{said}")
        if os.path.exists(path):
            return
        time.sleep(0.05)
    sys.exit("demo: the daemon did not open its socket")


def index(client: Client, passages: list[dict]) -> list[tuple[float, ...]]:
    """Embeds every passage in batches and says how fast it went."""
    started, tokens, found = time.monotonic(), 0, []
    for first in range(0, len(passages), BATCH):
        items = [{"id": row["id"], "text": row["text"]} for row in passages[first : first + BATCH]]
        reply = client.call("embed.batch", model=MODEL, items=items, encoding="base64")
        tokens += sum(reply["real_token_counts"])
        found += vectors(reply)
    seconds = time.monotonic() - started
    print(f"indexed {len(passages)} passages, {tokens} tokens in {seconds:.2f} s ({tokens / seconds:.0f} tokens/s)")
    print(f"  fingerprint {reply['fingerprint']}")
    print(f"  {reply['dims']} dims, engine {reply['provenance']['engine']} {reply['provenance']['engine_version']}\n")
    return found


def ask(client: Client, question: dict, passages: list[dict], known: list[tuple[float, ...]]) -> bool:
    """Ranks the passages for one query; true when the expected one is first."""
    started = time.monotonic()
    reply = client.call("embed.query", model=MODEL, text=question["query"], encoding="base64")
    milliseconds = (time.monotonic() - started) * 1000
    (asked,) = vectors(reply)
    scores = [sum(map(operator.mul, asked, vector)) for vector in known]
    ranked = sorted(zip(scores, passages), key=lambda pair: -pair[0])
    print(f"? {question['query']}   [{reply['real_token_counts'][0]} tokens, {milliseconds:.1f} ms]")
    for score, row in ranked[:SHOWN]:
        print(f"  {score:.3f}  {row['id']:<20} {' '.join(row['text'].split())[:72]}")
    right = ranked[0][1]["id"] == question["expect"]
    print("" if right else f"  expected {question['expect']} first\n")
    return right


def main() -> None:
    """Runs the demo against the binaries of one profile folder."""
    built = pathlib.Path(sys.argv[1]).resolve()
    synapse = str(built / "synapse")
    passages, questions = read_lines("passages.jsonl"), read_lines("queries.jsonl")
    with tempfile.TemporaryDirectory(prefix="synapse-demo-") as home:
        path = os.path.join(home, "synapse.sock")
        serve = [synapse, "serve", "--data-dir", os.path.join(home, "data"), "--socket", path]
        serve += ["--plugin-dir", str(built / "bundles"), "--trust-file", str(built / "bundles" / "trust.toml")]
        log = open(os.path.join(home, "daemon.log"), "w+b")
        daemon = subprocess.Popen(serve, stderr=log, env={**os.environ, "SYNAPSE_WHEEL_DIR": str(WHEELS)})
        try:
            wait_for_socket(daemon, path)
            subprocess.run([synapse, "models", "pull", MODEL, "--socket", path], check=True)
            subprocess.run([synapse, "models", "load", MODEL, "--socket", path], check=True)
            client = Client(path)
            known = index(client, passages)
            answers = [ask(client, question, passages, known) for question in questions]
        finally:
            daemon.send_signal(signal.SIGTERM)
            try:
                code = daemon.wait(timeout=30)
            except subprocess.TimeoutExpired:
                daemon.kill()
                sys.exit("demo: the daemon did not stop within 30 s of SIGTERM")
        log.seek(0)
        said = log.read().decode(errors="replace")
        log.close()
    if not all(answers) or code != 0:
        print(said, file=sys.stderr)
        sys.exit(f"demo: {sum(answers)} of {len(answers)} answers were right, the daemon ended with {code}")
    print("DEMO OK")


if __name__ == "__main__":
    main()
