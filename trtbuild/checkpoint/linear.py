"""What a linear module of the hub computes: its tensors and `quant_algo`, read into one meaning.

    float     y = x · Wᵀ + b
    int8-wo   y = x · (W₈ · w_scale[:, None])ᵀ + b
    int8      x₈ = clip(rint(x · prequant / a_scale), −128, 127)
              y  = (x₈ · a_scale) · (W₈ · w_scale[:, None])ᵀ + b
    int8-pt   as int8 with a_scale = max|x · prequant| / 127 of each token (row of x), 1 where the row is zero

This is the meaning that the numpy forward, the graph and every engine share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trtbuild.checkpoint.spec import Array, Decoder, module_path
from trtbuild.errors import InputRefused


@dataclass(frozen=True)
class Linear:
    """One linear module, its arrays in memory.

    `weight` is [out, in]: int8 when `weight_scale` F32 [out] is given, else float32, float16 or bfloat16.
    `activation_scale` is the static per-tensor scale, `per_token` marks dynamic ones, both absent for float
    activations. `prequant_scale` [in] multiplies the input first. `bias` [out] or None.
    """

    weight: Array
    bias: Array | None = None
    weight_scale: Array | None = None
    activation_scale: float | None = None
    per_token: bool = False
    prequant_scale: Array | None = None


def quantize_weight_only(weight: Array) -> tuple[Array, Array]:
    """Int8 weights [out, in] and scales F32 [out] as TensorRT-LLM's loader makes them for W8A16.

    The loader divides each output channel's maximum by 128 (not 127) and saturates at 127, so its largest weight
    is clipped by 1/128 when positive; rehearsing the engine means making the same choice. An all-zero channel
    gets scale 1. Source: `symmetric_quantize_last_axis_of_batched_matrix` in TensorRT-LLM's C++ kernels.
    """
    values = np.asarray(weight, np.float32)
    scale = np.abs(values).max(axis=1) / np.float32(128)
    scale[scale == 0] = 1
    quantized = np.clip(np.rint(values / scale[:, None]), -128, 127).astype(np.int8)
    return quantized, scale


def _weight_only(decoder: Decoder, path: str) -> Linear:
    weight = decoder.tensors[f"{path}.weight"].read()
    stored_scale = decoder.tensors.get(f"{path}.weights_scaling_factor")
    if stored_scale is None:
        weight, scale = quantize_weight_only(weight)
    else:
        scale = np.asarray(stored_scale.read(), np.float32)
        if weight.dtype != np.int8:
            raise InputRefused(f"weight is {weight.dtype}, but it has scales, so int8 was expected", where=path)
    return Linear(weight, _bias(decoder, path), weight_scale=scale)


def _int8(decoder: Decoder, path: str) -> Linear:
    prequant = decoder.tensors.get(f"{path}.prequant_scaling_factor")
    return Linear(
        decoder.tensors[f"{path}.weight"].read(),
        _bias(decoder, path),
        weight_scale=np.asarray(decoder.tensors[f"{path}.weights_scaling_factor"].read(), np.float32),
        activation_scale=float(decoder.tensors[f"{path}.activation_scaling_factor"].read().reshape(())),
        prequant_scale=None if prequant is None else prequant.read(),
    )


def _int8_per_token(decoder: Decoder, path: str) -> Linear:
    smoother = decoder.tensors.get(f"{path}.smoother")
    return Linear(
        decoder.tensors[f"{path}.weight"].read(),
        _bias(decoder, path),
        weight_scale=np.asarray(decoder.tensors[f"{path}.per_channel_scale"].read(), np.float32).reshape(-1),
        per_token=True,
        prequant_scale=None if smoother is None else 1 / np.asarray(smoother.read(), np.float32).reshape(-1),
    )


READERS: dict[str, Callable[[Decoder, str], Linear]] = {
    "W8A16": _weight_only,
    "W8A8_SQ_PER_CHANNEL": _int8,
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN": _int8_per_token,
}
"""quant_algo → how a quantized linear of that algorithm is read. An algorithm that is not here has no CPU meaning."""


def _bias(decoder: Decoder, path: str) -> Array | None:
    bias = decoder.tensors.get(f"{path}.bias")
    return None if bias is None else bias.read()


def read_linear(decoder: Decoder, layer: int, module: str) -> Linear:
    """Read one of LINEAR_MODULES of a layer with the meaning its quantization gives it.

    Raises InputRefused for a quant_algo without a reader.
    """
    path = module_path(layer, module)
    quantization = decoder.quantization
    if not quantization.quantizes(path):
        return Linear(decoder.tensors[f"{path}.weight"].read(), _bias(decoder, path))
    reader = READERS.get(quantization.quant_algo or "")
    if reader is None:
        raise InputRefused(
            f"quant_algo {quantization.quant_algo} cannot be run outside a GPU engine",
            where=decoder.location,
            hint=f"the CPU target runs {', '.join(READERS)} and unquantized checkpoints",
        )
    return reader(decoder, path)
