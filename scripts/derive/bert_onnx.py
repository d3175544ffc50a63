"""A BERT encoder as an ONNX graph: opset 17, any batch and any length, in f32 or with dynamic quantisation.

State: none. Caller: minilm.py. Inputs `input_ids`, `attention_mask`, `token_type_ids` (i64, [batch, sequence]), output
`last_hidden_state` (f32, [batch, sequence, hidden]). The operators and their order are those of the architecture
(Devlin et al. 2018) with GELU by the error function; pooling and normalisation are left to whoever runs it.

With dynamic quantisation every product with a weight is one of whole numbers, as quantisation tools write it: the weights
are signed bytes with one scale a matrix, the activations become bytes whose scale is taken from all that is in the call.
Everything else stays in f32.
"""

import math

from onnx_writer import FLOAT, INT8, INT64, Graph, port
from tensors import Tensor

# The largest finite f32, negated: what a masked position is moved by.
MASKED = -3.4028234663852886e38


def write(config: dict, tensors: dict[str, Tensor], dynamic: bool = False) -> bytes:
    """The file; with `dynamic` quantisation or without."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    if config["hidden_act"] != "gelu" or config["model_type"] != "bert" or hidden % heads:
        raise SystemExit("derive: expected a BERT encoder with gelu")
    graph = Graph()
    used: set[str] = set()

    def weight(name: str) -> str:
        used.add(name)
        tensor = tensors[name]
        return graph.weight(name, FLOAT, tensor.shape, tensor.raw_f32())

    quantised: dict[str, list[str]] = {}

    def linear(value: str, name: str) -> str:
        used.add(f"{name}.weight")
        matrix = tensors[f"{name}.weight"].transposed()
        if dynamic:
            product = whole_product(value, f"{name}.weight", matrix)
        else:
            matrix = graph.weight(f"{name}.weight.transposed", FLOAT, matrix.shape, matrix.raw_f32())
            product = graph.node("MatMul", [value, matrix])
        return graph.node("Add", [product, weight(f"{name}.bias")])

    def whole_product(value: str, name: str, matrix: Tensor) -> str:
        raw, step = matrix.raw_i8()
        numbers = graph.weight(f"{name}.quantised", INT8, matrix.shape, raw)
        if value not in quantised:
            quantised[value] = graph.node_of("DynamicQuantizeLinear", [value], ["bytes", "scale", "zero"])
        octets, scale, zero = quantised[value]
        product = graph.node("Cast", [graph.node("MatMulInteger", [octets, numbers, zero])], to=FLOAT)
        return graph.node("Mul", [product, graph.node("Mul", [scale, graph.scalar(f"{name}.scale", step)])])

    def norm(value: str, name: str, output: str | None = None) -> str:
        epsilon = float(config["layer_norm_eps"])
        inputs = [value, weight(f"{name}.weight"), weight(f"{name}.bias")]
        return graph.node("LayerNormalization", inputs, output, axis=-1, epsilon=epsilon)

    one = graph.scalar("one", 1.0)
    half = graph.scalar("half", 0.5)
    root_two = graph.scalar("root_two", math.sqrt(2.0))
    scale = graph.scalar("root_head_dim", math.sqrt(hidden // heads))
    split = graph.integers("split", [0, 0, heads, hidden // heads])
    joined = graph.integers("joined", [0, 0, hidden])

    length = graph.node("Gather", [graph.node("Shape", ["input_ids"]), scalar_i64(graph, "axis_sequence", 1)], axis=0)
    zero, step = scalar_i64(graph, "zero", 0), scalar_i64(graph, "step", 1)
    positions = graph.node("Range", [zero, length, step])
    words = graph.node("Gather", [weight("embeddings.word_embeddings.weight"), "input_ids"], axis=0)
    types = graph.node("Gather", [weight("embeddings.token_type_embeddings.weight"), "token_type_ids"], axis=0)
    places = graph.node("Gather", [weight("embeddings.position_embeddings.weight"), positions], axis=0)
    state = graph.node("Add", [graph.node("Add", [words, types]), places])
    state = norm(state, "embeddings.LayerNorm")

    mask = graph.node("Unsqueeze", ["attention_mask", graph.integers("mask_axes", [1, 2])])
    mask = graph.node("Sub", [one, graph.node("Cast", [mask], to=FLOAT)])
    mask = graph.node("Mul", [mask, graph.scalar("masked", MASKED)])

    layers = config["num_hidden_layers"]
    for index in range(layers):
        layer = f"encoder.layer.{index}"

        def head(part: str, order: list[int], layer: str = layer, state: str = state) -> str:
            value = graph.node("Reshape", [linear(state, f"{layer}.attention.self.{part}"), split])
            return graph.node("Transpose", [value], perm=order)

        query, key, value = head("query", [0, 2, 1, 3]), head("key", [0, 2, 3, 1]), head("value", [0, 2, 1, 3])
        scores = graph.node("Div", [graph.node("MatMul", [query, key]), scale])
        weights = graph.node("Softmax", [graph.node("Add", [scores, mask])], axis=-1)
        mixed = graph.node("Transpose", [graph.node("MatMul", [weights, value])], perm=[0, 2, 1, 3])
        mixed = linear(graph.node("Reshape", [mixed, joined]), f"{layer}.attention.output.dense")
        state = norm(graph.node("Add", [mixed, state]), f"{layer}.attention.output.LayerNorm")
        wide = linear(state, f"{layer}.intermediate.dense")
        curve = graph.node("Add", [graph.node("Erf", [graph.node("Div", [wide, root_two])]), one])
        wide = graph.node("Mul", [graph.node("Mul", [wide, curve]), half])
        narrow = graph.node("Add", [linear(wide, f"{layer}.output.dense"), state])
        output = "last_hidden_state" if index == layers - 1 else None
        state = norm(narrow, f"{layer}.output.LayerNorm", output)

    if left := sorted(name for name in tensors if name not in used and not name.startswith("pooler.")):
        raise SystemExit(f"derive: the graph leaves {', '.join(left)} out")
    inputs = [port(name, INT64, ["batch", "sequence"]) for name in ("input_ids", "attention_mask", "token_type_ids")]
    outputs = [port("last_hidden_state", FLOAT, ["batch", "sequence", hidden])]
    return graph.model("bert", "synapse-derive", inputs, outputs)


def scalar_i64(graph: Graph, name: str, value: int) -> str:
    """Adds one i64 without dimensions."""
    return graph.weight(name, INT64, (), value.to_bytes(8, "little", signed=True))
