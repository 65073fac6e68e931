"""A decoder of the hub as one ONNX graph, the same for OpenVINO, TensorRT and onnxruntime.

    inputs   input_ids, position_ids  int64 [batch, sequence]       attention_mask  int64 [batch, total]
             past_key_values.{i}.key, .value   [batch, kv_heads, past, head_size]
    outputs  logits [batch, sequence, vocab]   present.{i}.key, .value   [batch, kv_heads, total, head_size]

with total = past + sequence. A token at position p attends to the cache slots 0 … p (within the sliding window)
that `attention_mask` allows. The spelling is chosen so that every importer recognises it: RMSNormalization,
RotaryEmbedding and Attention are single operators, Attention has one output and a boolean mask.

With a cache of fixed slots (`cache.py`) there is one more input and one more output, so that no step moves more logits
than are wanted: logits_at int64 [rows], the places in `sequence` to compute logits for (logits [batch, rows, vocab]),
and tokens int64 [batch, rows], the largest of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trtbuild.checkpoint.linear import Linear, read_linear
from trtbuild.checkpoint.rope import inverse_frequencies
from trtbuild.checkpoint.spec import EMBEDDING, FINAL_NORM, HEAD, Decoder, DecoderSpec, layer_prefix, module_path
from trtbuild.errors import InputRefused
from trtbuild.graph.builder import OPSET, GraphBuilder
from trtbuild.graph.cache import SLOTS_OPSET, WRITE_INDICES, Cache, growing, in_slots
from trtbuild.graph.external_data import ExternalData
from trtbuild.graph.linear import add_linear
from trtbuild.progress import Progress, silent

MODEL_NAME = "model.onnx"

_INT64 = np.dtype(np.int64)


def _silu(graph: GraphBuilder, path: str, value: str) -> str:
    return graph.op("Mul", [value, graph.op("Sigmoid", [value], f"{path}/Sigmoid")], f"{path}/silu")


def _gelu(graph: GraphBuilder, path: str, value: str) -> str:
    return graph.op("Gelu", [value], f"{path}/Gelu")


def _gelu_tanh(graph: GraphBuilder, path: str, value: str) -> str:
    return graph.op("Gelu", [value], f"{path}/Gelu", approximate="tanh")


ACTIVATIONS: dict[str, Callable[[GraphBuilder, str, str], str]] = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
}


def rope_tables(spec: DecoderSpec, max_seq_len: int) -> tuple[Any, Any]:
    """cos and sin, F32 [max_seq_len, rotary_dim / 2], with the rope type's attention factor multiplied in."""
    inv_freq, attention_factor = inverse_frequencies(spec, max_seq_len)
    angles = np.arange(max_seq_len, dtype=np.float32)[:, None] * inv_freq.astype(np.float32)
    factor = np.float32(attention_factor)
    return np.cos(angles) * factor, np.sin(angles) * factor


@dataclass(frozen=True)
class _Shared:
    """What all layers use: the mask of each sliding window, position ids, rope tables, the kind of cache."""

    masks: dict[int | None, str]
    position_ids: str
    cos: str
    sin: str
    cache: Cache


def _masks(graph: GraphBuilder, spec: DecoderSpec, position_ids: str, attention_mask: str) -> dict[int | None, str]:
    """Boolean [batch, 1, sequence, total] for every sliding window that some layer has (None: plain causal)."""
    axes_query, axes_key = graph.integers(1, 3), graph.integers(1, 2)
    query = graph.op("Unsqueeze", [position_ids, axes_query], "mask/query")
    total = graph.op("Squeeze", [graph.op("Shape", [attention_mask], "mask/Shape", start=1, end=2)], "mask/total")
    zero, one = (graph.constant(f"mask/{n}", np.asarray(n, np.int64)) for n in (0, 1))
    slots = graph.op("Range", [zero, total, one], "mask/slots")
    allowed = graph.op("Cast", [attention_mask], "mask/attention", to=9)
    allowed = graph.op("Unsqueeze", [allowed, axes_key], "mask/allowed")
    causal = graph.op("And", [graph.op("LessOrEqual", [slots, query], "mask/LessOrEqual"), allowed], "mask/causal")
    masks: dict[int | None, str] = {}
    for window in dict.fromkeys(spec.window_of(layer) for layer in range(spec.num_layers)):
        if window is None:
            masks[window] = causal
            continue
        size = graph.constant(f"mask/window_{window}", np.asarray(window, np.int64))
        oldest = graph.op("Sub", [query, size], f"mask/window_{window}/Sub")
        near = graph.op("Greater", [slots, oldest], f"mask/window_{window}/Greater")
        masks[window] = graph.op("And", [causal, near], f"mask/sliding_{window}")
    return masks


def _norm(graph: GraphBuilder, decoder: Decoder, name: str, value: str, output: str) -> str:
    weight = graph.weight(name, decoder.tensors[name].read())
    return graph.op("RMSNormalization", [value, weight], output, axis=-1, epsilon=decoder.spec.norm_epsilon)


def _heads(
    graph: GraphBuilder, decoder: Decoder, path: str, value: str, letter: str, heads: int, shared: _Shared
) -> str:
    """[batch, sequence, heads · head_size] → [batch, heads, sequence, head_size], normed and rotated (not V)."""
    spec = decoder.spec
    value = graph.op("Reshape", [value, graph.integers(0, 0, heads, spec.head_size)], f"{path}/{letter}/Reshape")
    if spec.qk_norm and letter in "qk":
        name = f"{path}.{letter}_layernorm.weight"
        value = _norm(graph, decoder, name, value, f"{path}.{letter}_layernorm")
    value = graph.op("Transpose", [value], f"{path}/{letter}/Transpose", perm=[0, 2, 1, 3])
    if letter == "v":
        return value
    rotary = int(spec.head_size * spec.rope.rotary_pct)
    inputs = [value, shared.cos, shared.sin, shared.position_ids]
    partial = {} if rotary == spec.head_size else {"rotary_embedding_dim": rotary}
    return graph.op("RotaryEmbedding", inputs, f"{path}/{letter}/RotaryEmbedding", **partial)


def _attention(graph: GraphBuilder, decoder: Decoder, layer: int, hidden: str, shared: _Shared) -> str:
    spec, path = decoder.spec, f"{layer_prefix(layer)}.attention"
    qkv = add_linear(graph, f"{path}.qkv", hidden, read_linear(decoder, layer, "attention.qkv"))
    split = graph.integers(spec.q_rows, spec.kv_rows, spec.kv_rows)
    q, k, v = graph.op_many("Split", [qkv, split], [f"{path}/{letter}" for letter in "qkv"], axis=-1)
    q = _heads(graph, decoder, path, q, "q", spec.num_heads, shared)
    k = _heads(graph, decoder, path, k, "k", spec.num_kv_heads, shared)
    v = _heads(graph, decoder, path, v, "v", spec.num_kv_heads, shared)
    k, v = shared.cache(graph, spec, layer, "key", k), shared.cache(graph, spec, layer, "value", v)
    context = graph.op("Attention", [q, k, v, shared.masks[spec.window_of(layer)]], f"{path}/Attention")
    context = graph.op("Transpose", [context], f"{path}/context/Transpose", perm=[0, 2, 1, 3])
    context = graph.op("Reshape", [context, graph.integers(0, 0, spec.q_rows)], f"{path}/context/Reshape")
    return add_linear(graph, f"{path}.dense", context, read_linear(decoder, layer, "attention.dense"))


def _mlp(graph: GraphBuilder, decoder: Decoder, layer: int, hidden: str) -> str:
    paths = {name: module_path(layer, f"mlp.{name}") for name in ("fc", "gate", "proj")}
    activated = add_linear(graph, paths["fc"], hidden, read_linear(decoder, layer, "mlp.fc"))
    activated = ACTIVATIONS[decoder.spec.hidden_act](graph, paths["fc"], activated)
    gate = add_linear(graph, paths["gate"], hidden, read_linear(decoder, layer, "mlp.gate"))
    product = graph.op("Mul", [activated, gate], f"{layer_prefix(layer)}.mlp/Mul")
    return add_linear(graph, paths["proj"], product, read_linear(decoder, layer, "mlp.proj"))


def _layer(graph: GraphBuilder, decoder: Decoder, layer: int, hidden: str, shared: _Shared) -> str:
    prefix = layer_prefix(layer)
    normed = _norm(graph, decoder, f"{prefix}.input_layernorm.weight", hidden, f"{prefix}.input_layernorm")
    attended = _attention(graph, decoder, layer, normed, shared)
    hidden = graph.op("Add", [hidden, attended], f"{prefix}.attention/residual")
    normed = _norm(graph, decoder, f"{prefix}.post_layernorm.weight", hidden, f"{prefix}.post_layernorm")
    return graph.op("Add", [hidden, _mlp(graph, decoder, layer, normed)], f"{prefix}.mlp/residual")


def _head(decoder: Decoder) -> tuple[str, Linear]:
    """Path of the head's weight and the head.

    A tied one goes by the embedding's name, so both are one initializer; a checkpoint from elsewhere does not say that
    it is tied, but its two tensors are equal.
    """
    head, embedding = (decoder.tensors[name].read() for name in (HEAD, EMBEDDING))
    tied = decoder.spec.tie_word_embeddings or (head.dtype == embedding.dtype and np.array_equal(head, embedding))
    return (EMBEDDING if tied else HEAD).removesuffix(".weight"), Linear(embedding if tied else head)


def write_onnx(
    decoder: Decoder,
    directory: Path,
    *,
    max_seq_len: int,
    compute: str = "float32",
    slots: int | None = None,
    progress: Progress = silent,
) -> Path:
    """Write `model.onnx` and `model.onnx.data` into `directory`, tensor after tensor; returns the model's path.

    `max_seq_len` is the number of positions in the rope tables. `compute` (float32, float16, bfloat16) is the type of
    activations, KV cache and logits; weights keep the type the checkpoint stores them in and are cast where it
    differs. `slots` asks for a cache with that many fixed slots per row instead of a growing one. Raises InputRefused
    for an activation or quant_algo the graph has no operator for.
    """
    import ml_dtypes
    import onnx

    spec = decoder.spec
    if spec.hidden_act not in ACTIVATIONS:
        raise InputRefused(
            f"hidden_act {spec.hidden_act} has no operator here",
            where=decoder.location,
            hint=f"supported: {', '.join(ACTIVATIONS)}",
        )
    dtype = np.dtype(ml_dtypes.bfloat16) if compute == "bfloat16" else np.dtype(compute)
    path = directory / MODEL_NAME
    with ExternalData(directory / f"{MODEL_NAME}.data") as data:
        graph = GraphBuilder(data, dtype, weight_only_input_major=slots is not None)
        ids = graph.input("input_ids", _INT64, ["batch", "sequence"])
        position_ids = graph.input("position_ids", _INT64, ["batch", "sequence"])
        attention_mask = graph.input("attention_mask", _INT64, ["batch", "total"])
        graph.output("logits", dtype, ["batch", "sequence" if slots is None else "rows", spec.vocab_size])
        cos, sin = (
            graph.constant(f"rope/{name}", table.astype(dtype))
            for name, table in zip(("cos", "sin"), rope_tables(spec, max_seq_len), strict=True)
        )
        masks = _masks(graph, spec, position_ids, attention_mask)
        shared = _Shared(masks, position_ids, cos, sin, growing if slots is None else in_slots(slots))
        if slots is not None:
            graph.op("Gather", [position_ids, graph.constant("cache/first", 0)], WRITE_INDICES, axis=1)
        embedding = decoder.tensors[EMBEDDING]
        rows = graph.op("Gather", [graph.constant(EMBEDDING, embedding.read()), ids], "embedding/Gather")
        hidden = graph.cast(rows, embedding.dtype, dtype)
        with progress.task("writing the graph", total=spec.num_layers + 1) as advance:
            for layer in range(spec.num_layers):
                hidden = _layer(graph, decoder, layer, hidden, shared)
                advance(1)
            if slots is not None:
                at = graph.input("logits_at", _INT64, ["rows"])
                hidden = graph.op("Gather", [hidden, at], "transformer.ln_f/Gather", axis=1)
            hidden = _norm(graph, decoder, FINAL_NORM, hidden, "transformer.ln_f")
            head_path, head = _head(decoder)
            logits = add_linear(graph, head_path, hidden, head, output="logits")
            if slots is not None:
                graph.output(graph.op("ArgMax", [logits], "tokens", axis=-1, keepdims=0), _INT64, ["batch", "rows"])
            advance(1)
        model = graph.model(spec.family, "trtbuild", OPSET if slots is None else SLOTS_OPSET)
    onnx.save_model(model, path)
    return path
