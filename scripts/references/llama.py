"""A llama decoder in float64 from a GGUF file, written from the format's and the architecture's descriptions; numpy only.

State: the weights and the vocabulary. Caller: smollm2.py. No line of it comes from our engines or from llama.cpp.
"""

import math
import re
import struct

import numpy as np

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
F32, Q4_1, Q8_0 = 0, 3, 8
# Words as GPT-2 splits them, digits one by one. Enough for ASCII, which the prompts are.
WORDS = re.compile(r"[0-9]|'(?:[sdmt]|ll|ve|re)| ?[A-Za-z]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")


class Gguf:
    """Metadata and tensors of a file."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 4
        _version, tensors, pairs = self.take("I"), self.take("Q"), self.take("Q")
        self.metadata = {}
        for _ in range(pairs):
            key = self.text()
            self.metadata[key] = self.value(self.take("I"))
        self.places = {}
        for _ in range(tensors):
            name = self.text()
            shape = [self.take("Q") for _ in range(self.take("I"))]
            self.places[name] = (shape[::-1], self.take("I"), self.take("Q"))
        alignment = self.metadata.get("general.alignment", 32)
        self.start = -(-self.at // alignment) * alignment

    def take(self, code: str):
        """One little-endian number."""
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def text(self) -> str:
        """A length and UTF-8."""
        length = self.take("Q")
        self.at += length
        return self.data[self.at - length : self.at].decode()

    def value(self, kind: int):
        """A metadata value."""
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            inner, many = self.take("I"), self.take("Q")
            return [self.value(inner) for _ in range(many)]
        return self.take(SCALARS[kind])

    def tensor(self, name: str) -> np.ndarray:
        """A tensor's values, dequantised exactly."""
        shape, kind, offset = self.places[name]
        many = math.prod(shape)
        begin = self.start + offset
        if kind == F32:
            values = np.frombuffer(self.data, "<f4", many, begin).astype(np.float64)
        elif kind == Q4_1:
            block = np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)])
            blocks = np.frombuffer(self.data, block, many // 32, begin)
            nibbles = np.concatenate([blocks["q"] & 15, blocks["q"] >> 4], axis=1).astype(np.float64)
            values = nibbles * blocks["d"].astype(np.float64)[:, None] + blocks["m"].astype(np.float64)[:, None]
        elif kind == Q8_0:
            block = np.dtype([("d", "<f2"), ("q", "i1", 32)])
            blocks = np.frombuffer(self.data, block, many // 32, begin)
            values = blocks["q"].astype(np.float64) * blocks["d"].astype(np.float64)[:, None]
        else:
            raise SystemExit(f"references: {name} is of type {kind}, which is not read")
        return values.reshape(shape)


class Llama:
    """The model, and its byte-level BPE vocabulary."""

    def __init__(self, gguf: Gguf) -> None:
        self.weights = {name: gguf.tensor(name) for name in gguf.places}
        meta = gguf.metadata
        self.layers = meta["llama.block_count"]
        self.heads, self.groups = meta["llama.attention.head_count"], meta["llama.attention.head_count_kv"]
        self.base, self.eps = meta["llama.rope.freq_base"], meta["llama.attention.layer_norm_rms_epsilon"]
        self.end = meta["tokenizer.ggml.eos_token_id"]
        self.tokens = meta["tokenizer.ggml.tokens"]
        self.ids = {token: index for index, token in enumerate(self.tokens)}
        self.ranks = {tuple(pair.split(" ")): rank for rank, pair in enumerate(meta["tokenizer.ggml.merges"])}
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in printable]
        self.of_byte = {byte: chr(byte) for byte in printable}
        self.of_byte |= {byte: chr(256 + index) for index, byte in enumerate(others)}
        self.of_char = {char: byte for byte, char in self.of_byte.items()}

    def encode(self, text: str) -> list[int]:
        """Merges of least rank first, word by word; no control token comes out of it."""
        ids = []
        for word in WORDS.findall(text):
            parts = [self.of_byte[byte] for byte in word.encode()]
            while len(parts) > 1:
                ranks = [self.ranks.get(pair, math.inf) for pair in zip(parts, parts[1:])]
                least = min(ranks)
                if least == math.inf:
                    break
                at = ranks.index(least)
                parts[at : at + 2] = ["".join(parts[at : at + 2])]
            ids += [self.ids[part] for part in parts]
        return ids

    def decode(self, ids: list[int]) -> bytes:
        """The bytes that tokens spell."""
        return bytes(self.of_char[char] for index in ids for char in self.tokens[index])

    def logits(self, ids: list[int]) -> np.ndarray:
        """The next token's logits."""
        w, n = self.weights, len(ids)
        x = w["token_embd.weight"][ids]
        width = w["blk.0.attn_q.weight"].shape[0] // self.heads
        angles = np.arange(n)[:, None] * self.base ** (-np.arange(0, width, 2) / width)
        mask = np.triu(np.full((n, n), -np.inf), 1)
        for layer in range(self.layers):
            at = f"blk.{layer}."
            h = self.norm(x, f"{at}attn_norm.weight")
            query = turned((h @ w[f"{at}attn_q.weight"].T).reshape(n, self.heads, width), angles)
            key = turned((h @ w[f"{at}attn_k.weight"].T).reshape(n, self.groups, width), angles)
            value = (h @ w[f"{at}attn_v.weight"].T).reshape(n, self.groups, width)
            share = self.heads // self.groups
            key, value = np.repeat(key, share, axis=1), np.repeat(value, share, axis=1)
            scores = np.einsum("qhd,khd->hqk", query, key) / math.sqrt(width) + mask
            scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
            scores /= scores.sum(axis=-1, keepdims=True)
            mixed = np.einsum("hqk,khd->qhd", scores, value).reshape(n, -1)
            x = x + mixed @ w[f"{at}attn_output.weight"].T
            h = self.norm(x, f"{at}ffn_norm.weight")
            gate = h @ w[f"{at}ffn_gate.weight"].T
            wide = gate / (1.0 + np.exp(-gate)) * (h @ w[f"{at}ffn_up.weight"].T)
            x = x + wide @ w[f"{at}ffn_down.weight"].T
        return self.norm(x[-1:], "output_norm.weight")[0] @ w["token_embd.weight"].T

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        """RMSNorm over the width."""
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + self.eps) * self.weights[name]


def turned(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Rotary positions over neighbouring pairs, as a GGUF of this architecture stores them."""
    even, odd = x[..., 0::2], x[..., 1::2]
    cosine, sine = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
    out = np.empty_like(x)
    out[..., 0::2] = even * cosine - odd * sine
    out[..., 1::2] = even * sine + odd * cosine
    return out
