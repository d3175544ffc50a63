"""Worker protocol 3 on a socket: frames in, frames out. Knows nothing of engines.

A thread of its own reads the socket, so that CANCEL and the daemon's end are seen while the main thread computes
(WP-43, WP-61). Everything else is handed to the main thread in the order in which it came.
"""

import json
import os
import queue
import socket
import struct
import sys
import threading
import time

GONE = object()
"""The daemon's side of the socket has ended."""

SMALLEST_FRAME = 65_536
ORPHAN_GRACE = 1.0
LENGTH = struct.Struct("<I")

# The requests of version 3 and the fields that each must have (WP-25). Others are ignored (WP-70).
COMPUTE = {"req_id": int, "model_ref": int, "threads": int}
KNOWN = {
    "HELLO_ACK": {"v": int, "accept": bool, "max_frame": int},
    "LOAD": {"req_id": int, "engine": str, "files": list, "runtime_config": dict},
    "EMBED_BATCH": {**COMPUTE, "items": list, "type_ids": bool, "raw_bytes": int},
    "RERANK": {**COMPUTE, "items": list, "type_ids": bool, "raw_bytes": int},
    "GENERATE": {**COMPUTE, "max_tokens": int, "prompt": dict},
    "CANCEL": {"req_id": int},
    "UNLOAD": {"req_id": int, "model_ref": int},
    "PING": {"req_id": int},
    "SHUTDOWN": {},
}
# Fields inside the lists and objects of those.
INSIDE = {
    "files": {"role": str, "path": str, "sha256": str, "size": int},
    "items": {"n_tokens": int},
    "runtime_config": {"format": str, "dtype": str, "pooling": str, "max_tokens": int},
}


class ProtocolFault(Exception):
    """The stream's position is no longer known: this process ends (WP-25)."""


class Refused(Exception):
    """A request that is answered with ERR; the worker goes on (WP-50)."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


class Link:
    """The connection to the daemon."""

    def __init__(self, path: str):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(path)
        self.max_frame = SMALLEST_FRAME
        self.writing = threading.Lock()
        self.incoming = queue.SimpleQueue()
        self.running = self.cancelled = None
        self.gone = False

    def begin(self, hello: dict, version: int) -> None:
        """Says HELLO and waits for HELLO_ACK; from then on the reader runs (WP-10, WP-14, WP-16)."""
        self.send(hello)
        message, _ = self.read() or (None, None)
        if message is None:
            raise ProtocolFault("the daemon refused this worker")
        if message["type"] != "HELLO_ACK" or message["v"] != version or not message["accept"]:
            raise ProtocolFault(f"expected HELLO_ACK of version {version}, found {message}")
        self.max_frame = message["max_frame"]
        threading.Thread(target=self.read_all, name="reader", daemon=True).start()

    def next(self):
        """The next request with its raw frame. An unknown one comes as type "?"; after the end comes GONE."""
        request, raw = self.incoming.get()
        if isinstance(request, ProtocolFault):
            raise request
        return request, raw

    def send(self, message: dict, raw=None) -> None:
        """Writes a message and the raw frame that it declares, as one piece (WP-20 to WP-23)."""
        frames = [json.dumps(message, ensure_ascii=False).encode()]
        if raw:
            frames.append(raw)
        if max(map(len, frames)) > self.max_frame:
            raise ProtocolFault(f"a frame of more than the agreed {self.max_frame} bytes")
        with self.writing:
            self.socket.sendall(b"".join(LENGTH.pack(len(frame)) + frame for frame in frames))

    def is_cancelled(self, req_id: int) -> bool:
        """Whether the daemon wants this exchange no longer."""
        return self.gone or self.cancelled == req_id

    def read_all(self) -> None:
        """The reader: until the daemon's end, or a fault."""
        try:
            while message := self.read():
                request, _ = message
                if request["type"] == "CANCEL":
                    # One exchange at a time: any other number is finished or unknown (WP-44).
                    if request["req_id"] == self.running:
                        self.cancelled = self.running
                    continue
                self.running = request.get("req_id", self.running)
                self.incoming.put(message)
            self.incoming.put((GONE, b""))
        except ProtocolFault as fault:
            self.incoming.put((fault, b""))
        except OSError:
            self.incoming.put((GONE, b""))
        self.gone = True
        # An engine that does not look must not outlive the daemon (WP-61).
        time.sleep(ORPHAN_GRACE)
        print("the daemon is gone and the work does not end; ending it", file=sys.stderr, flush=True)
        os._exit(5)

    def read(self):
        """One message and its raw frame; None at the end between frames."""
        payload = self.frame(may_end=True)
        if payload is None:
            return None
        try:
            message = json.loads(payload)
        except ValueError as error:
            raise ProtocolFault(f"a control frame is no JSON: {error}") from error
        check("a control frame", message, {"type": str})
        kind = message["type"]
        raw = b""
        if declared := message.get("raw_bytes", 0):
            # Read whatever becomes of the message (WP-21, WP-24).
            raw = self.frame(may_end=False)
            if len(raw) != declared:
                raise ProtocolFault(f"a raw frame of {len(raw)} bytes, its header declares {declared}")
        if kind not in KNOWN:
            return {"type": "?", "name": kind, "req_id": message.get("req_id", 0)}, b""
        check(kind, message, KNOWN[kind])
        for field, inner in INSIDE.items():
            value = message.get(field, [])
            for row in value if isinstance(value, list) else [value]:
                check(f"{field} of {kind}", row, inner)
        return message, raw

    def frame(self, may_end: bool):
        """One payload; None where the stream may end and does."""
        header = self.exactly(LENGTH.size, may_end)
        if header is None:
            return None
        (length,) = LENGTH.unpack(header)
        if length > self.max_frame:
            # Nothing of it was stored (WP-23).
            raise ProtocolFault(f"a frame of {length} bytes, at most {self.max_frame} were agreed")
        return self.exactly(length, may_end=False)

    def exactly(self, count: int, may_end: bool):
        """So many bytes."""
        parts, left = [], count
        while left:
            part = self.socket.recv(min(left, 1 << 20))
            if not part:
                if may_end and left == count:
                    return None
                raise ProtocolFault("the stream ended inside a frame")
            parts.append(part)
            left -= len(part)
        return b"".join(parts)


def check(what: str, value: dict, fields: dict) -> None:
    """Whether an object has its fields, each of its type."""
    for field, kind in fields.items():
        found = value.get(field) if isinstance(value, dict) else None
        # True is an int to Python, and none to JSON.
        if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
            raise ProtocolFault(f"{what}: expected {field} of {kind.__name__}, found {found!r}")
