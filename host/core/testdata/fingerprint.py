#!/usr/bin/env python3
"""Writes fingerprint.json: golden vectors of the fingerprint, computed without any of Synapse's own code.

Only hashlib and json are used. Run `python3 fingerprint.py > fingerprint.json` and commit both. The forms below are
the public definition (docs: DECISIONS, fingerprint): SHA-256 over a domain, a zero byte and RFC 8785 JSON. For the
values used here Python's `json.dumps` with sorted keys writes RFC 8785: the keys are ASCII, the floats of the one
config (0.02, 0.1, 1e-12) have the same shortest form in Python and in ECMAScript.
"""

import copy
import hashlib
import json
import sys


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def domain_hash(domain, value):
    return hashlib.sha256(domain.encode() + b"\0" + canonical(value).encode()).hexdigest()


def config_digest(config):
    kept = {k: v for k, v in config.items() if k not in ("_name_or_path", "transformers_version")}
    return domain_hash("synapse.model_config.v1", kept)


def model_digest(files):
    pairs = sorted((f["role"], f["sha256"]) for f in files)
    return domain_hash("synapse.model_files.v1", [{"role": r, "sha256": s} for r, s in pairs])


def normalization(flag):
    return "l2" if flag else "none"


def profile_form(p):
    form = {
        "dtype": p["dtype"],
        "engine": {
            "build_flags": sorted(set(p["engine"]["build_flags"])),
            "engine": p["engine"]["engine"],
            "version": p["engine"]["version"],
        },
        "envelope": p["envelope"],
        "flash_attention": "on" if p["flash_attention"] else "off",
        "model_digest": p["model_digest"],
        "normalization": normalization(p["normalize"]),
        "pooling": p["pooling"],
        "quant": p["quant"],
        "templates": [{"role": r, "template": t} for r, t in sorted(p["templates"].items())],
    }
    # Absent is not null: a key without a value is left out.
    for key in ("tokenizer_digest", "thread_class", "shape_class"):
        if p.get(key) is not None:
            form[key] = p[key]
    return form


def fingerprint(p, served):
    return domain_hash(
        "synapse.fingerprint.v1",
        {
            "dims": served["dims"],
            "model_digest": p["model_digest"],
            "normalization": normalization(served["normalized"]),
            "numeric_profile_id": domain_hash("synapse.numeric_profile.v1", profile_form(p)),
            "quant": p["quant"],
        },
    )


MINILM_CONFIG = {
    "_name_or_path": "nreimers/MiniLM-L6-H384-uncased",
    "architectures": ["BertModel"],
    "attention_probs_dropout_prob": 0.1,
    "gradient_checkpointing": False,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 384,
    "initializer_range": 0.02,
    "intermediate_size": 1536,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "model_type": "bert",
    "num_attention_heads": 12,
    "num_hidden_layers": 6,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "transformers_version": "4.8.2",
    "type_vocab_size": 2,
    "use_cache": True,
    "vocab_size": 30522,
}


def main():
    minilm_files = [
        {"role": "weights", "sha256": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"},
        {"role": "config", "sha256": config_digest(MINILM_CONFIG)},
    ]
    minilm = {
        "model_digest": model_digest(minilm_files),
        "quant": "f32",
        "engine": {"engine": "owned", "version": "1", "build_flags": []},
        "tokenizer_digest": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        "pooling": "mean",
        "normalize": True,
        "dtype": "f32",
        "flash_attention": False,
        "envelope": {"max_tokens": 512, "max_batch": 64, "max_batch_tokens": 16384, "max_sequences": 64},
        "templates": {},
        "thread_class": None,
        "shape_class": None,
    }
    everything = {
        "model_digest": hashlib.sha256(b"another model").hexdigest(),
        "quant": "q4_1",
        "engine": {"engine": "llama-cpp", "version": "b7000", "build_flags": ["repack", "blas", "repack"]},
        "tokenizer_digest": hashlib.sha256(b"a tokenizer").hexdigest(),
        "pooling": "last",
        "normalize": False,
        "dtype": "f16",
        "flash_attention": True,
        "envelope": {"max_tokens": 8192, "max_batch": 1, "max_batch_tokens": 8192, "max_sequences": 1},
        "templates": {
            "query": 'Instruct: find \u2014 "passages"\n\u00dcbung \U0001f600 \ufb33\tQuery: {text}',
            "document": "passage: {text}\u007f\u0000",
        },
        "thread_class": "2",
        "shape_class": "batch<=8",
    }
    no_tokenizer = copy.deepcopy(minilm)
    no_tokenizer["tokenizer_digest"] = None
    cases = []
    for name, profile, served in [
        ("minilm as the record says", minilm, {"dims": 384, "normalized": True}),
        ("minilm not normalised", minilm, {"dims": 384, "normalized": False}),
        ("minilm cut to 128", minilm, {"dims": 128, "normalized": True}),
        ("an engine with its own tokenizer", no_tokenizer, {"dims": 384, "normalized": True}),
        ("every field set", everything, {"dims": 1024, "normalized": True}),
    ]:
        cases.append(
            {
                "name": name,
                "profile": profile,
                "served": served,
                "profile_form": canonical(profile_form(profile)),
                "numeric_profile_id": domain_hash("synapse.numeric_profile.v1", profile_form(profile)),
                "fingerprint": fingerprint(profile, served),
            }
        )
    golden = {
        "config_digest": {"config": MINILM_CONFIG, "digest": config_digest(MINILM_CONFIG)},
        "model_digest": {"files": minilm_files, "digest": model_digest(minilm_files)},
        "cases": cases,
    }
    json.dump(golden, sys.stdout, indent=1, ensure_ascii=True)
    sys.stdout.write("\n")


main()
