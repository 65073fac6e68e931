"""GGUF files of llama.cpp: mapped, dequantized one tensor at a time, tokenizer rebuilt.

Tensor and key names: llama.cpp's gguf-py constants. What its quantized types decode to: the gguf package.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from trtbuild.checkpoint.architectures import Architecture, architecture_of_gguf
from trtbuild.checkpoint.assembly import Extent, check_shapes, concatenated, content_fingerprint, listed
from trtbuild.checkpoint.fields import MAX_LAYERS, Fields
from trtbuild.checkpoint.gguf_header import GgufTensor, read_gguf
from trtbuild.checkpoint.gguf_rope import read_gguf_rope
from trtbuild.checkpoint.gguf_tokenizer import rebuild_tokenizer
from trtbuild.checkpoint.safetensors import map_bytes
from trtbuild.checkpoint.spec import (
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    Array,
    Decoder,
    DecoderSpec,
    Tensor,
)
from trtbuild.errors import InputRefused

_PLAIN: Mapping[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
"""Types that need no dequantizing; all others become float32."""

_LAYER_NAMES: Mapping[str, tuple[str, ...]] = {
    "input_layernorm": ("attn_norm",),
    "post_layernorm": ("ffn_norm",),
    "attention.qkv": ("attn_q", "attn_k", "attn_v"),
    "attention.dense": ("attn_output",),
    "mlp.fc": ("ffn_gate",),
    "mlp.gate": ("ffn_up",),
    "mlp.proj": ("ffn_down",),
    "attention.q_layernorm": ("attn_q_norm",),
    "attention.k_layernorm": ("attn_k_norm",),
}
"""Module of the hub → the stored modules it is made of."""

_EXTRA_NAMES = frozenset({"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"})
_SLICE_BYTES = 1 << 24


def open_gguf(path: Path) -> Decoder:
    """Open a GGUF file (or the first of a split model) of a supported architecture; only its header is read.

    Weights of a quantized type are float32, dequantized when read. Raises InputRefused, naming file and tensor, for
    whatever cannot become a decoder.
    """
    file = read_gguf(path)
    fields = Fields(file.metadata, str(path))
    row = architecture_of_gguf(fields.text("general.architecture"), str(path))
    used = {name: t for name, t in file.tensors.items() if name not in _EXTRA_NAMES}
    rebuilt = rebuild_tokenizer(file.metadata, str(path))
    spec = _read_spec(row, fields, file.tensors, rebuilt.eos_token_ids)
    tensors = _hub_tensors(row, spec, used, path)
    check_shapes(spec, tensors, "the metadata")
    extents = [Extent(t.name, t.type_name, t.shape, t.path, t.offset_bytes, t.size_bytes) for t in used.values()]
    return Decoder(
        spec,
        tensors,
        str(path),
        content_fingerprint(spec, extents),
        assets=rebuilt.assets,
        notes=(*_notes(spec, used), *rebuilt.notes),
    )


def _notes(spec: DecoderSpec, tensors: Mapping[str, GgufTensor]) -> list[str]:
    notes = ["the head is tied to the embedding"] if spec.tie_word_embeddings else []
    quantized = sorted({t.type_name for t in tensors.values() if t.type_name not in _PLAIN})
    if quantized:
        notes.append(
            f"the weights are dequantized from {' and '.join(quantized)}: the baseline is this dequantized model, "
            "not the original"
        )
    return notes


def _uniform(fields: Fields, name: str, default: int | None = None) -> int:
    """A count that GGUF may give once or per layer; per layer it must be the same everywhere."""
    value = fields.get(name)
    if isinstance(value, np.ndarray):
        distinct = set(value.tolist())
        if len(distinct) != 1:
            raise fields.refuse(name, "differs by layer, which is not supported")
        return Fields({name: distinct.pop()}, fields.where).count(name)
    return fields.count(name, default)


def _read_spec(
    row: Architecture, fields: Fields, tensors: Mapping[str, GgufTensor], eos_token_ids: tuple[int, ...]
) -> DecoderSpec:
    arch = row.gguf
    if fields.get(f"{arch}.expert_count"):
        raise fields.refuse(f"{arch}.expert_count", "is set: mixtures of experts are not supported")
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        hint = "a vocabulary-only file holds no weights" if not tensors else None
        raise InputRefused("missing tensor token_embd.weight", where=fields.where, hint=hint)
    hidden, heads = fields.count(f"{arch}.embedding_length"), _uniform(fields, f"{arch}.attention.head_count")
    kv_heads = _uniform(fields, f"{arch}.attention.head_count_kv", heads)
    head_size = fields.count(f"{arch}.attention.key_length", max(hidden // heads, 1))
    if fields.count(f"{arch}.attention.value_length", head_size) != head_size:
        raise fields.refuse(f"{arch}.attention.value_length", "differs from key_length, which is not supported")
    if heads % kv_heads or head_size % 2:
        raise fields.refuse(f"{arch}.attention.head_count", f"{heads}, {kv_heads} KV heads of size {head_size}: no")
    window = fields.count(f"{arch}.context_length")
    return DecoderSpec(
        family=row.family,
        hidden_size=hidden,
        num_layers=fields.count(f"{arch}.block_count", most=MAX_LAYERS),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=head_size,
        intermediate_size=_uniform(fields, f"{arch}.feed_forward_length"),
        vocab_size=embedding.shape[0],
        max_position_embeddings=window,
        norm_epsilon=fields.number(f"{arch}.attention.layer_norm_rms_epsilon"),
        rope=read_gguf_rope(fields, str(arch), tensors, head_size, window),
        tie_word_embeddings="output.weight" not in tensors,
        qkv_bias="blk.0.attn_q.bias" in tensors,
        dense_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_gate.bias" in tensors,
        qk_norm=row.qk_norm,
        dtype=_spec_dtype(tensors, embedding),
        bos_token_id=next(iter(fields.token_ids("tokenizer.ggml.bos_token_id")), None),
        eos_token_ids=eos_token_ids,
    )


def _spec_dtype(tensors: Mapping[str, GgufTensor], embedding: GgufTensor) -> str:
    quantized = any(tensor.type_name not in _PLAIN for tensor in tensors.values())
    return "float32" if quantized else _stored_dtype(embedding).name


def _stored_dtype(tensor: GgufTensor) -> np.dtype[Any]:
    return _PLAIN.get(tensor.type_name, np.dtype(np.float32))


def _hub_tensors(
    row: Architecture, spec: DecoderSpec, stored: Mapping[str, GgufTensor], path: Path
) -> dict[str, Tensor]:
    left = dict(stored)
    missing: list[str] = []

    def take(name: str, heads: int | None = None) -> Tensor | None:
        tensor = left.pop(name, None)
        if tensor is None:
            missing.append(name)
            return None
        return _lazy(tensor, heads)

    heads_of = {"attn_q": spec.num_heads, "attn_k": spec.num_kv_heads} if row.gguf_permuted else {}
    found = {EMBEDDING: take("token_embd.weight"), FINAL_NORM: take("output_norm.weight")}
    found[HEAD] = found[EMBEDDING] if spec.tie_word_embeddings else take("output.weight")
    for name in spec.float_shapes():
        if name in found:
            continue
        _, _, layer, rest = name.split(".", 3)
        module, kind = rest.rsplit(".", 1)
        parts = [take(f"blk.{layer}.{source}.{kind}", heads_of.get(source)) for source in _LAYER_NAMES[module]]
        present = [part for part in parts if part is not None]
        found[name] = concatenated(present) if present else None
    if missing:
        raise InputRefused(f"missing tensor {listed(missing)}", where=path)
    if left:
        raise InputRefused(f"tensor {listed(left)} has no place in a {spec.family} decoder", where=path)
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def _lazy(tensor: GgufTensor, permuted_heads: int | None) -> Tensor:
    """A tensor under its numpy dtype; `permuted_heads` undoes llama.cpp's order of the rows within each head."""
    _require_dequantizer(tensor)

    def read() -> Array:
        rows = _raw_rows(tensor)
        if permuted_heads is not None:
            rows = rows[_unpermuted(tensor.shape[0], permuted_heads, tensor.source)]
        return _decoded(rows, tensor.type_name).reshape(tensor.shape)

    return Tensor(_stored_dtype(tensor), tensor.shape, tensor.source, read)


def _raw_rows(tensor: GgufTensor) -> Array:
    """uint8, one row per row of the tensor; a vector has one element per row (biases are permuted as well)."""
    rows = tensor.shape[0]
    return map_bytes(tensor.path, tensor.offset_bytes, tensor.size_bytes).reshape(rows, tensor.size_bytes // rows)


def _unpermuted(rows: int, heads: int, source: str) -> Array:
    """Stored row of each original row: llama.cpp interleaves the first and second half of a head's rows."""
    if rows % (2 * heads):
        raise InputRefused(f"{rows} rows cannot be {heads} heads of even size", where=source)
    order = np.arange(rows).reshape(heads, rows // heads // 2, 2)
    return order.swapaxes(1, 2).reshape(-1)


def _decoded(rows: Array, type_name: str) -> Array:
    """[rows, columns] from raw rows, dequantized in slices so that temporaries stay small."""
    plain = _PLAIN.get(type_name)
    if plain is not None:
        return rows.view(plain)
    from gguf import GGMLQuantizationType, dequantize

    kind = GGMLQuantizationType[type_name]
    step = max(1, _SLICE_BYTES // rows.shape[1])
    first: Array = dequantize(rows[:step], kind)
    if len(rows) <= step:
        return first
    out = np.empty((len(rows), first.shape[1]), np.float32)
    out[:step] = first
    for start in range(step, len(rows), step):
        out[start : start + step] = dequantize(rows[start : start + step], kind)
    return out


@functools.cache
def _has_dequantizer(type_name: str) -> bool:
    from gguf import GGMLQuantizationType, dequantize
    from gguf.constants import GGML_QUANT_SIZES

    kind = GGMLQuantizationType[type_name]
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _require_dequantizer(tensor: GgufTensor) -> None:
    if not _has_dequantizer(tensor.type_name):
        raise InputRefused(
            f"type {tensor.type_name} cannot be dequantized",
            where=tensor.source,
            hint="take a file of another quantization of the same model, best F16 or BF16",
        )
