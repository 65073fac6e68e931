"""Rope settings of a GGUF file: keys under `{arch}.rope.`, and frequency factors stored as tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from trtbuild.checkpoint.fields import Fields
from trtbuild.checkpoint.gguf_header import GgufTensor
from trtbuild.checkpoint.rope import llama3_factors, read_scaling
from trtbuild.checkpoint.safetensors import map_bytes
from trtbuild.checkpoint.spec import Array, RopeSpec
from trtbuild.errors import InputRefused

_LLAMA3_ORIGINAL = (8192, 4096, 2048, 16384, 32768)


def read_gguf_rope(
    fields: Fields, arch: str, tensors: Mapping[str, GgufTensor], head_size: int, window: int
) -> RopeSpec:
    """Rope settings from metadata and from the tensor `rope_freqs.weight`, into which llama3 scaling was folded."""
    base = fields.number(f"{arch}.rope.freq_base", 10000.0)
    dimensions = fields.count(f"{arch}.rope.dimension_count", head_size)
    if dimensions > head_size or dimensions % 2:
        raise fields.refuse(f"{arch}.rope.dimension_count", f"is {dimensions} of a head size of {head_size}")
    share = dimensions / head_size
    factors = tensors.get("rope_freqs.weight")
    if factors is not None:
        return RopeSpec(base, _folded_llama3(_read_factors(factors, dimensions // 2), base, dimensions, window), share)
    raw = _scaling_keys(fields, arch)
    where = f"{fields.where}: {arch}.rope.scaling"
    return RopeSpec(base, read_scaling(raw, where, rotary_pairs=dimensions // 2, original_window=window), share)


def _scaling_keys(fields: Fields, arch: str) -> dict[str, Any]:
    """The scaling keys in Hugging Face's spelling; a factor without a type is linear, as llama.cpp takes it."""
    prefix = f"{arch}.rope.scaling."
    factor = fields.get(f"{prefix}factor")
    kind = fields.text(f"{prefix}type", "none" if factor is None else "linear")
    if kind == "none":
        return {}
    names = {
        "original_max_position_embeddings": "original_context_length",
        "beta_fast": "yarn_beta_fast",
        "beta_slow": "yarn_beta_slow",
    }
    values = {"factor": factor, **{name: fields.get(prefix + key) for name, key in names.items()}}
    raw = {"rope_type": kind, **{name: value for name, value in values.items() if value is not None}}
    share = fields.number(f"{prefix}attn_factor", 1.0)
    if kind == "yarn" and share != 1:
        raw["attention_factor"] = share * (1 + 0.1 * math.log(max(fields.number(f"{prefix}factor"), 1.0)))
    return raw


def _read_factors(tensor: GgufTensor, pairs: int) -> Array:
    if tensor.type_name != "F32" or tensor.shape != (pairs,):
        raise InputRefused(f"is {tensor.type_name} {list(tensor.shape)}, F32 [{pairs}] is needed", where=tensor.source)
    values = map_bytes(tensor.path, tensor.offset_bytes, tensor.size_bytes).view(np.float32)
    if not np.isfinite(values).all() or not (values > 0).all():
        raise InputRefused("holds values that are not above zero", where=tensor.source)
    return values


def _folded_llama3(factors: Array, base: float, dimensions: int, window: int) -> dict[str, Any] | None:
    """The scaling whose frequencies are the plain ones divided by `factors`.

    llama.cpp keeps the quotients and drops the settings they came from. They are found again by trying those that
    Llama 3 models use; quotients of any other origin are stated as longrope factors, which means the same.
    """
    if (factors == 1).all():
        return None
    factor = round(float(factors.max()), 3)
    for original in _LLAMA3_ORIGINAL:
        candidate = {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": original,
        }
        if np.allclose(llama3_factors(candidate, base, dimensions), factors, rtol=1e-4, atol=0):
            return candidate
    listed = [float(str(value)) for value in factors]
    return {
        "rope_type": "longrope",
        "short_factor": listed,
        "long_factor": listed,
        "attention_factor": 1.0,
        "original_max_position_embeddings": window,
    }
