"""The quantized decoder: the source's tensors cast, those of the quantized groups taken from where they were stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trtbuild.checkpoint.spec import Decoder, Quantization, Tensor, layer_prefix, module_path
from trtbuild.quantize.cast import DTYPES, cast_tensor
from trtbuild.quantize.choose import GroupChoice, stored_tensor
from trtbuild.quantize.precisions import Precision
from trtbuild.store.fingerprint import fingerprint_json

ALWAYS_EXCLUDED = "*lm_head"
"""A list of our own replaces TensorRT-LLM's defaults, so it must name the head again."""


def constant_tensor(name: str, array: np.ndarray[Any, np.dtype[Any]]) -> Tensor:
    """A small tensor that is in memory already."""
    return Tensor(array.dtype, array.shape, name, lambda: array)


def excluded_modules(floats: Sequence[GroupChoice]) -> tuple[str, ...]:
    """exclude_modules for the groups left in float, in the order of the layers."""
    paths = [module_path(choice.layer, module) for choice in floats for module in choice.modules]
    return (ALWAYS_EXCLUDED, *sorted(paths, key=lambda path: (int(path.split(".")[2]), path)))


def int8_decoder(
    decoder: Decoder,
    precision: Precision,
    choices: Sequence[GroupChoice],
    floats: Sequence[GroupChoice],
    settings: Mapping[str, Any],
) -> Decoder:
    """The decoder with every group of `choices` quantized except `floats`; tensors stay lazy."""
    dtype = DTYPES[precision.dtype]
    tensors = {name: cast_tensor(tensor, dtype) for name, tensor in decoder.tensors.items()}
    in_float = {choice.key for choice in floats}
    for choice in choices:
        if choice.key not in in_float:
            for name, path in choice.files.items():
                tensors[name] = stored_tensor(name, path, dtype)
    excluded = excluded_modules(floats)
    return dataclasses.replace(
        decoder,
        spec=dataclasses.replace(decoder.spec, dtype=precision.dtype),
        tensors=tensors,
        quantization=Quantization(quant_algo=precision.quant_algo, exclude_modules=excluded),
        fingerprint=lambda: fingerprint_json([decoder.fingerprint(), precision.name, list(excluded), dict(settings)]),
    )


def with_kv_cache(decoder: Decoder, kind: str, scales: Sequence[tuple[float, float]]) -> Decoder:
    """The decoder with a quantized KV cache: per layer the scales of K and V, and their maximum, which is used."""
    tensors = dict(decoder.tensors)
    for layer, (k, v) in enumerate(scales):
        for name, scale in (("k_cache", k), ("v_cache", v), ("kv_cache", max(k, v))):
            full = f"{layer_prefix(layer)}.attention.{name}_scaling_factor"
            tensors[full] = constant_tensor(full, np.array([scale], np.float32))
    return dataclasses.replace(
        decoder,
        tensors=tensors,
        quantization=dataclasses.replace(decoder.quantization, kv_cache_quant_algo=kind),
        fingerprint=lambda: fingerprint_json([decoder.fingerprint(), kind, [list(pair) for pair in scales]]),
    )
