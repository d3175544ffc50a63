"""A BERT encoder as a GGUF file of version 3, matrices in f16 or f32.

State: none. Caller: minilm.py. Tensor names and metadata keys are those that llama.cpp reads for the architecture
`bert`. The vocabulary is written the way llama.cpp keeps WordPiece: a continuation loses its `##`, any other ordinary
token gains U+2581. Biases, norms, positions and token types stay f32.
"""

import struct

from tensors import Tensor

U32, F32, BOOL, STRING, ARRAY, I32 = 4, 6, 7, 8, 9, 5  # metadata value types
TYPE_F32, TYPE_F16 = 0, 1  # tensor types
NORMAL, CONTROL = 1, 3  # token types
MEAN_POOLING = 1
ALL_F32, MOSTLY_F16 = 0, 1  # file types
ALIGNMENT = 32

TOP = {
    "embeddings.word_embeddings.weight": "token_embd.weight",
    "embeddings.position_embeddings.weight": "position_embd.weight",
    "embeddings.token_type_embeddings.weight": "token_types.weight",
    "embeddings.LayerNorm": "token_embd_norm",
}
LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}


def text(value: str) -> bytes:
    """A length and UTF-8."""
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key: str, kind: int, value) -> bytes:
    """One metadata pair. A list is an array of texts or of i32."""
    out = text(key) + struct.pack("<I", kind)
    if kind == STRING:
        return out + text(value)
    if kind == ARRAY:
        texts = isinstance(value[0], str)
        out += struct.pack("<IQ", STRING if texts else I32, len(value))
        return out + b"".join(text(item) if texts else struct.pack("<i", item) for item in value)
    return out + struct.pack({U32: "<I", F32: "<f", BOOL: "<?"}[kind], value)


def vocabulary(tokenizer: dict) -> tuple[list[str], list[int]]:
    """Tokens in llama.cpp's spelling, and their types, by id."""
    special = {token["id"] for token in tokenizer["added_tokens"] if token["special"]}
    by_id = {index: token for token, index in tokenizer["model"]["vocab"].items()}
    prefix = tokenizer["model"]["continuing_subword_prefix"]
    tokens, types = [], []
    for index in range(len(by_id)):
        token = by_id[index]
        if index in special:
            tokens.append(token)
        elif token.startswith(prefix):
            tokens.append(token[len(prefix) :])
        else:
            tokens.append("\u2581" + token)
        types.append(CONTROL if index in special else NORMAL)
    return tokens, types


def renamed(name: str) -> str:
    """The name that llama.cpp has for a tensor."""
    if name in TOP:
        return TOP[name]
    stem, _, part = name.rpartition(".")
    if stem in TOP:
        return f"{TOP[stem]}.{part}"
    _, _, index, inner = stem.split(".", 3)
    return f"blk.{index}.{LAYER[inner]}.{part}"


def write(config: dict, tokenizer: dict, name: str, tensors: dict[str, Tensor], half: bool) -> bytes:
    """The file; `half` stores matrices as f16."""
    tokens, types = vocabulary(tokenizer)
    ids = tokenizer["model"]["vocab"]
    if len(tokens) != config["vocab_size"]:
        raise SystemExit(f"derive: {len(tokens)} tokens, but a table of {config['vocab_size']}")
    pairs = [
        ("general.architecture", STRING, "bert"),
        ("general.name", STRING, name),
        ("general.file_type", U32, MOSTLY_F16 if half else ALL_F32),
        ("general.quantization_version", U32, 2),
        ("bert.block_count", U32, config["num_hidden_layers"]),
        ("bert.context_length", U32, config["max_position_embeddings"]),
        ("bert.embedding_length", U32, config["hidden_size"]),
        ("bert.feed_forward_length", U32, config["intermediate_size"]),
        ("bert.attention.head_count", U32, config["num_attention_heads"]),
        ("bert.attention.layer_norm_epsilon", F32, config["layer_norm_eps"]),
        ("bert.attention.causal", BOOL, False),
        ("bert.pooling_type", U32, MEAN_POOLING),
        ("tokenizer.ggml.token_type_count", U32, config["type_vocab_size"]),
        ("tokenizer.ggml.model", STRING, "bert"),
        ("tokenizer.ggml.pre", STRING, "jina-v2-en"),
        ("tokenizer.ggml.tokens", ARRAY, tokens),
        ("tokenizer.ggml.token_type", ARRAY, types),
        ("tokenizer.ggml.bos_token_id", U32, ids["[CLS]"]),
        ("tokenizer.ggml.eos_token_id", U32, ids["[SEP]"]),
        ("tokenizer.ggml.unknown_token_id", U32, ids["[UNK]"]),
        ("tokenizer.ggml.seperator_token_id", U32, ids["[SEP]"]),
        ("tokenizer.ggml.padding_token_id", U32, ids["[PAD]"]),
        ("tokenizer.ggml.mask_token_id", U32, ids["[MASK]"]),
        ("tokenizer.ggml.add_bos_token", BOOL, True),
        ("tokenizer.ggml.add_eos_token", BOOL, True),
    ]
    header, data = bytearray(), bytearray()
    kept = sorted(source for source in tensors if not source.startswith("pooler."))
    for source in kept:
        tensor, target = tensors[source], renamed(source)
        wide = not half or len(tensor.shape) == 1 or target in ("position_embd.weight", "token_types.weight")
        header += text(target) + struct.pack("<I", len(tensor.shape))
        # The contiguous dimension comes first.
        header += b"".join(struct.pack("<Q", size) for size in reversed(tensor.shape))
        header += struct.pack("<IQ", TYPE_F32 if wide else TYPE_F16, len(data))
        data += tensor.raw_f32() if wide else tensor.raw_f16()
        data += bytes(-len(data) % ALIGNMENT)
    out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(kept), len(pairs)))
    for pair in pairs:
        out += entry(*pair)
    out += header
    out += bytes(-len(out) % ALIGNMENT)
    return bytes(out + data)
