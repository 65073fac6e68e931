"""The two INT8 formats of the hub, as one table: how smoothing is stored, and which tensors a quantized linear has.

`W8A8_SQ_PER_CHANNEL` multiplies the input of every linear by a stored factor and scales it statically. The SmoothQuant
plugin scales each token while it runs; it folds the factors of qkv, fc and gate into the norm before them and divides
the inputs of dense and proj by `smoother`. Source: TensorRT-LLM `quantization/layers.py`, `models/llama/convert.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from trtbuild.calibrate.forward import Layer
from trtbuild.calibrate.threshold import scale_of
from trtbuild.checkpoint.spec import Array
from trtbuild.quantize.cast import DTYPES
from trtbuild.quantize.precisions import Precision

NORM_BEFORE: Mapping[str, str] = {"attention.qkv": "input_layernorm", "mlp.fc": "post_layernorm"}
"""Smoothing group → the norm whose output it reads."""


@dataclass(frozen=True)
class QuantizedGroup:
    """What one smoothing group became: `prequant` F32 [in] is the factor in effect, `levels` and `scales` by module.

    `amax` is the largest smoothed activation, `activation_scale` the static scale (unused per token).
    """

    group: str
    prequant: Array
    levels: Mapping[str, Array]
    scales: Mapping[str, Array]
    activation_scale: float
    amax: float


@dataclass(frozen=True)
class Scheme:
    """How one quant_algo stores a group.

    `effective(layer, group, factors)` gives the factors F32 [in] that the stored tensors amount to; `tensors(layer,
    group)` the tensors of the layer by name below `transformer.layers.{i}.`, the folded norm among them.
    """

    per_token: bool
    can_exclude: bool
    """Whether single linears can stay in float; the plugin ignores exclude_modules."""
    dtype: np.dtype[np.generic]
    _effective: Callable[[Scheme, Layer, str, Array], Array]
    _tensors: Callable[[Scheme, Layer, QuantizedGroup], dict[str, Array]]

    def effective(self, layer: Layer, group: str, factors: Array) -> Array:
        return self._effective(self, layer, group, factors)

    def tensors(self, layer: Layer, quantized: QuantizedGroup) -> dict[str, Array]:
        return self._tensors(self, layer, quantized)


def _static_effective(scheme: Scheme, layer: Layer, group: str, factors: Array) -> Array:
    del layer, group
    return np.asarray(factors.astype(scheme.dtype).astype(np.float32))


def _static_tensors(scheme: Scheme, layer: Layer, quantized: QuantizedGroup) -> dict[str, Array]:
    del layer
    tensors = {}
    for module, levels in quantized.levels.items():
        tensors[f"{module}.weight"] = levels
        tensors[f"{module}.weights_scaling_factor"] = quantized.scales[module]
        tensors[f"{module}.activation_scaling_factor"] = np.array([quantized.activation_scale], np.float32)
        tensors[f"{module}.prequant_scaling_factor"] = quantized.prequant.astype(scheme.dtype)
    return tensors


def _norm_of(layer: Layer, group: str) -> Array:
    return layer.input_norm if group == "attention.qkv" else layer.post_norm


def _folded_norm(scheme: Scheme, layer: Layer, group: str, factors: Array) -> Array:
    return np.asarray((_norm_of(layer, group) * factors).astype(scheme.dtype))


def _plugin_effective(scheme: Scheme, layer: Layer, group: str, factors: Array) -> Array:
    if group not in NORM_BEFORE:
        return np.asarray(1 / (1 / factors))  # what dividing by the stored smoother amounts to
    norm = _norm_of(layer, group)
    folded = _folded_norm(scheme, layer, group, factors).astype(np.float32)
    alive = (norm != 0) & (folded != 0)
    return np.asarray(np.divide(folded, norm, out=np.ones_like(norm), where=alive))


def _plugin_tensors(scheme: Scheme, layer: Layer, quantized: QuantizedGroup) -> dict[str, Array]:
    tensors: dict[str, Array] = {}
    for module, levels in quantized.levels.items():
        tensors[f"{module}.weight"] = levels
        tensors[f"{module}.per_channel_scale"] = quantized.scales[module][None, :]
        if quantized.group not in NORM_BEFORE:
            tensors[f"{module}.smoother"] = (1 / quantized.prequant)[None, :]
    if quantized.group in NORM_BEFORE:
        norm = NORM_BEFORE[quantized.group]
        tensors[f"{norm}.weight"] = _folded_norm(scheme, layer, quantized.group, quantized.prequant)
        tensors[f"{norm}.scale_to_int"] = np.array([1 / scale_of(quantized.amax)], np.float32)
    return tensors


def scheme_of(precision: Precision) -> Scheme:
    """The scheme of an INT8 precision; KeyError for one that is not calibrated here."""
    return _SCHEMES[precision.quant_algo or ""](DTYPES[precision.dtype])


_SCHEMES: Mapping[str, Callable[[np.dtype[np.generic]], Scheme]] = {
    "W8A8_SQ_PER_CHANNEL": lambda dtype: Scheme(False, True, dtype, _static_effective, _static_tensors),
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN": lambda dtype: Scheme(
        True, False, dtype, _plugin_effective, _plugin_tensors
    ),
}
"""quant_algo → scheme for a floating dtype."""
