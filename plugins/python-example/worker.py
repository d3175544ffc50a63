#!/usr/bin/env python3
"""A Synapse worker: describes its bundle, or serves it to the daemon over worker protocol 3.

    worker.py --plugin DIR --describe
    worker.py --plugin DIR --socket PATH --nonce HEX --settings JSON

The rules are WP-01 to WP-74 of docs/worker-protocol.md; each is named where it is kept. `protocol.py` has the socket,
`engine.py` the computing; this file connects the two and holds the loaded models.
"""

import argparse
import hashlib
import json
import os
import sys
import time
import traceback

# The staged copy of the bundle is not ours to change (WP-01): no __pycache__ beside these files.
sys.dont_write_bytecode = True

import engine  # noqa: E402  (after the line above, on purpose)
from protocol import GONE, Link, ProtocolFault, Refused  # noqa: E402

PROTOCOL = 3
ID, VERSION = "python-example", "0.1.0"
# The numeric identity. ENGINE_VERSION changes exactly when a bit of the output can; numpy is no build flag, because the
# sums are exact in whole numbers and the same without it.
ENGINE, ENGINE_VERSION, BUILD_FLAGS = "hashed", "1", []
SETTINGS = {"site_packages"}
PROGRESS_EVERY = 0.1


def descriptor() -> dict:
    """What --describe prints; needs no device, no numpy and no model (WP-02, WP-03)."""
    return {
        "form": 1,
        "id": ID,
        "package_version": VERSION,
        "engine": ENGINE,
        "engine_version": ENGINE_VERSION,
        "build_flags": BUILD_FLAGS,
        "supports": [
            {
                "kind": "embed",
                "format": "hashed",
                "dtype": "f32",
                "preempt": "quantum",
                "thread_invariant": True,
                "f32_exact": True,
            }
        ],
    }


def hello(nonce: str) -> dict:
    """The first message (WP-10 to WP-14)."""
    row = {"kind": "embed", "engine": ENGINE, "version": ENGINE_VERSION, "build_flags": BUILD_FLAGS}
    return {
        "type": "HELLO",
        "v": PROTOCOL,
        "nonce": nonce,
        "bundle": {"id": ID, "version": VERSION},
        "engines": [row],
        "pid": os.getpid(),
        "max_frame": 64 * 1024 * 1024,
    }


class Call:
    """One running request: its cancellation and deadline in, its progress out (WP-40 to WP-45)."""

    def __init__(self, link: Link, request: dict, phase: str, total: int):
        self.link, self.req_id, self.phase, self.total = link, request["req_id"], phase, total
        limit = request.get("deadline_ms")
        self.deadline = None if limit is None else time.monotonic() + limit / 1000
        self.reported, self.reported_at = 0, time.monotonic()

    def checkpoint(self, done: int) -> None:
        """Says how far the work is, and ends it where nobody wants it any more."""
        if self.link.is_cancelled(self.req_id):
            raise Refused("cancelled", "the daemon cancelled this exchange")
        now = time.monotonic()
        if self.deadline is not None and now >= self.deadline:
            raise Refused("deadline_exceeded", "the deadline passed before the work was done")
        if self.reported < done <= self.total and now - self.reported_at >= PROGRESS_EVERY:
            self.reported, self.reported_at = done, now
            report = {"type": "PROGRESS", "req_id": self.req_id, "phase": self.phase}
            self.link.send({**report, "completed": done, "total": self.total})


class Worker:
    """The loaded models and the answer to every request."""

    def __init__(self, link: Link, settings: dict):
        self.link, self.settings = link, settings
        self.models, self.given = {}, 0

    def answer(self, request: dict, raw: bytes) -> None:
        """Answers one request once, whatever happens (WP-30)."""
        kind = request["type"]
        try:
            handler = getattr(self, kind.lower())
            reply, raw = handler(request, raw)
        except Refused as refused:
            self.refuse(request["req_id"], refused.code, str(refused))
        except MemoryError:
            self.refuse(request["req_id"], "oom", "no memory for this request", "model_bad")
        except Exception as error:  # A defect of this program: say so, and do not serve with what it left (WP-51).
            traceback.print_exc()
            self.refuse(request["req_id"], "panic", f"{kind}: {error!r}", "engine_bad")
        else:
            self.link.send({**reply, "req_id": request["req_id"]}, raw)

    def refuse(self, req_id: int, code: str, message: str, state: str = "usable") -> None:
        """ERR with what may still be used (WP-50)."""
        self.link.send({"type": "ERR", "req_id": req_id, "code": code, "state": state, "msg": message})

    def load(self, request: dict, _raw: bytes):
        """Measures the files again (WP-31), refuses what is not served (WP-32), and opens the table."""
        started = time.monotonic()
        if unknown := sorted(set(self.settings) - SETTINGS):
            raise Refused("config_invalid", f"unknown setting {unknown[0]!r}; known are: {', '.join(sorted(SETTINGS))}")
        config = request["runtime_config"]
        if request["engine"] != "embed":
            raise Refused("unsupported", f"this bundle embeds; it has no engine for {request['engine']!r}")
        for field, served in (("format", "hashed"), ("dtype", "f32"), ("pooling", "none")):
            if config[field] != served:
                raise Refused("unsupported", f"{field}: expected {served!r}, found {config[field]!r}")
        if extra := sorted(config.get("extra", {})):
            raise Refused("config_invalid", f"unknown key {extra[0]!r} in extra; this engine knows none")
        files = request["files"]
        if [file["role"] for file in files] != ["weights"]:
            raise Refused("artifact_invalid", "expected one file, of the role weights")
        content = measured(files[0], Call(self.link, request, "setup", files[0]["size"]))
        table = engine.Table(content, self.settings.get("site_packages"))
        print(f"table of {table.rows} rows and {table.dims} values loaded; computing with {table.means}", flush=True)
        self.given += 1
        max_tokens = min(config["max_tokens"], engine.MAX_TOKENS)
        self.models[self.given] = (table, max_tokens)
        reply = {
            "type": "LOADED",
            "model_ref": self.given,
            "dims": table.dims,
            "max_tokens": max_tokens,
            "memory_bytes": table.memory_bytes,
            "cold_load_ms": int((time.monotonic() - started) * 1000),
        }
        return reply, None

    def embed_batch(self, request: dict, raw: bytes):
        """One vector an item, in order, before the L2 norm (WP-34)."""
        table, max_tokens = self.model(request, "embed")
        counts = [item["n_tokens"] for item in request["items"]]
        total = sum(counts)
        if len(raw) != 4 * total * (2 if request["type_ids"] else 1):
            raise Refused("invalid_argument", f"{len(raw)} bytes of ids do not hold {total} tokens")
        if counts and max(counts) > max_tokens:
            raise Refused("input_too_long", f"an item has {max(counts)} tokens, at most {max_tokens} are served")
        if 4 * len(counts) * table.dims > self.link.max_frame:
            raise Refused("invalid_argument", f"{len(counts)} vectors do not fit into one frame")
        call = Call(self.link, request, "inference", total)
        ids, vectors, start = engine.token_ids(raw)[:total], [], 0
        for count in counts:
            done = start
            vectors.append(table.embed(ids[start : start + count], lambda part: call.checkpoint(done + part)))
            start += count
        raw = b"".join(vectors)
        return {"type": "VECTORS", "dims": table.dims, "n": len(counts), "raw_bytes": len(raw)}, raw

    def rerank(self, request: dict, _raw: bytes):
        """No model here is loaded for it (WP-38)."""
        return self.model(request, "rerank"), None

    def generate(self, request: dict, _raw: bytes):
        """No model here is loaded for it (WP-38)."""
        return self.model(request, "generate"), None

    def unload(self, request: dict, _raw: bytes):
        """Forgets a model (WP-39)."""
        self.model(request, "embed")
        del self.models[request["model_ref"]]
        return {"type": "UNLOADED"}, None

    def ping(self, _request: dict, _raw: bytes):
        """How this process does."""
        return {"type": "PONG", "rss_mb": resident_mb(), "models_loaded": len(self.models)}, None

    def model(self, request: dict, kind: str):
        """A loaded model, for the one kind of work that this bundle does."""
        model = self.models.get(request["model_ref"])
        if model is None:
            raise Refused("invalid_argument", f"model {request['model_ref']} is not loaded")
        if kind != "embed":
            raise Refused("invalid_argument", f"model {request['model_ref']} was loaded to embed, not to {kind}")
        return model


def measured(file: dict, call: Call) -> bytes:
    """The bytes of a file, if they are still those that the daemon verified (WP-31)."""
    state, parts, done = hashlib.sha256(), [], 0
    try:
        with open(file["path"], "rb") as source:
            while part := source.read(1 << 20):
                state.update(part)
                parts.append(part)
                done += len(part)
                call.checkpoint(done)
    except OSError as error:
        raise Refused("artifact_invalid", f"{file['role']}: cannot be read: {error}") from error
    if (state.hexdigest(), done) != (file["sha256"], file["size"]):
        raise Refused("artifact_invalid", f"{file['role']}: the file is not the one that was verified")
    return b"".join(parts)


def resident_mb() -> int:
    """Resident memory of this process in MiB; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
    except OSError:
        return 0


def serve(socket_path: str, nonce: str, settings: dict) -> int:
    """Serves until SHUTDOWN (WP-60) or until the daemon is gone (WP-61)."""
    link = Link(socket_path)
    link.begin(hello(nonce), PROTOCOL)
    worker = Worker(link, settings)
    while True:
        request, raw = link.next()
        if request is GONE or request["type"] == "SHUTDOWN":
            return 0
        if request["type"] == "?":
            worker.refuse(request["req_id"], "unknown_type", f"this worker has no {request['name']}")
        else:
            worker.answer(request, raw)


def settings_of(text: str) -> dict:
    """The settings: one object of strings."""
    settings = json.loads(text)
    if not isinstance(settings, dict) or not all(isinstance(value, str) for value in settings.values()):
        raise ValueError("expected a JSON object of strings")
    return settings


def main() -> int:
    """Reads the arguments and does the one thing that they say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--plugin", required=True, metavar="DIR")
    parser.add_argument("--describe", action="store_true")
    parser.add_argument("--socket", metavar="PATH")
    parser.add_argument("--nonce", metavar="HEX")
    parser.add_argument("--settings", metavar="JSON", type=settings_of, default={})
    arguments = parser.parse_args()
    if arguments.describe:
        print(json.dumps(descriptor()))
        return 0
    if not arguments.socket or not arguments.nonce:
        parser.error("--socket and --nonce go together, unless --describe is asked for")
    try:
        return serve(arguments.socket, arguments.nonce, arguments.settings)
    except (ProtocolFault, OSError) as fault:
        print(f"the exchange with the daemon cannot go on: {fault}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
