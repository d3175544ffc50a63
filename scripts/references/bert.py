"""BERT's encoder in float64, one text at a time, written from the paper and the weights' names; numpy only.

State: the weights. Caller: minilm.py. No line of it comes from our engines: it is what they are measured against.
"""

import json
import math

import numpy as np

ERF = np.frompyfunc(math.erf, 1, 1)


class Bert:
    """The weights of a safetensors file that holds f32 alone, as float64."""

    def __init__(self, config: dict, safetensors: bytes) -> None:
        length = int.from_bytes(safetensors[:8], "little")
        header = json.loads(safetensors[8 : 8 + length])
        self.weights = {}
        for name, entry in header.items():
            if name == "__metadata__" or entry["dtype"] != "F32":
                continue
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            values = np.frombuffer(safetensors[begin:end], "<f4").reshape(entry["shape"])
            self.weights[name] = values.astype(np.float64)
        if config["hidden_act"] != "gelu":
            raise SystemExit(f"references: hidden_act {config['hidden_act']}, expected gelu")
        self.layers = config["num_hidden_layers"]
        self.heads = config["num_attention_heads"]
        self.eps = config["layer_norm_eps"]

    def mean(self, ids: list[int]) -> np.ndarray:
        """The mean over all tokens of the last layer, before any normalisation."""
        weights, n = self.weights, len(ids)
        x = weights["embeddings.word_embeddings.weight"][ids]
        x = x + weights["embeddings.position_embeddings.weight"][:n]
        x = x + weights["embeddings.token_type_embeddings.weight"][0]
        x = self.norm(x, "embeddings.LayerNorm")
        for layer in range(self.layers):
            at = f"encoder.layer.{layer}."
            query, key, value = (self.heads_of(self.linear(x, f"{at}attention.self.{part}")) for part in PARTS)
            scores = query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[-1])
            scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
            mixed = (scores / scores.sum(axis=-1, keepdims=True)) @ value
            mixed = mixed.transpose(1, 0, 2).reshape(n, -1)
            x = self.norm(x + self.linear(mixed, f"{at}attention.output.dense"), f"{at}attention.output.LayerNorm")
            wide = self.linear(x, f"{at}intermediate.dense")
            wide = 0.5 * wide * (1.0 + ERF(wide / math.sqrt(2.0)).astype(np.float64))
            x = self.norm(x + self.linear(wide, f"{at}output.dense"), f"{at}output.LayerNorm")
        return x.mean(axis=0)

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        """A product and a bias."""
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def heads_of(self, x: np.ndarray) -> np.ndarray:
        """Tokens by width as heads by tokens by head width."""
        return x.reshape(len(x), self.heads, -1).transpose(1, 0, 2)

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        """LayerNorm over the width."""
        centred = x - x.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + self.eps)
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]


PARTS = ("query", "key", "value")
