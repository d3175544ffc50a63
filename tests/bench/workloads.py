"""The workloads: token ids of W1 to W4.

| | |
|---|---|
| w1 | queries of 8 to 16 tokens |
| w2 | texts of 128 tokens |
| w3 | texts of 20 to 256 tokens, log-uniform |
| w4 | texts of 256 tokens |

The texts of shared/bench are used where they are found; otherwise ids are drawn with a fixed seed at the same lengths
(neither peer's time depends on which words they are).
"""

import json
import math
import random

import places

COUNTS = {"w1": 200, "w2": 40, "w3": 400, "w4": 64}
VOCABULARY = 30_522
CLS, SEP = 101, 102


def load(scale: float) -> tuple[dict[str, list[list[int]]], str]:
    """The workloads by name, and where they come from. `scale` shortens or lengthens the bulk ones."""
    counts = {name: max(4, round(count * scale)) for name, count in COUNTS.items()}
    if path := places.shared("bench/texts.json"):
        texts = json.loads(path.read_text())
        return {name: [text["ids"] for text in texts[name][:count]] for name, count in counts.items()}, "shared texts"
    draw = random.Random(7)
    lengths = {
        "w1": lambda: draw.randint(8, 16),
        "w2": lambda: 128,
        "w3": lambda: round(math.exp(draw.uniform(math.log(20), math.log(256)))),
        "w4": lambda: 256,
    }
    return {name: [ids(draw, lengths[name]()) for _ in range(count)] for name, count in counts.items()}, "drawn ids"


def ids(draw: random.Random, length: int) -> list[int]:
    """A sequence of that many ids with its two control tokens."""
    return [CLS, *(draw.randrange(1_000, VOCABULARY) for _ in range(length - 2)), SEP]
