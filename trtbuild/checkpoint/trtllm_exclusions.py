"""exclude_modules under pipeline parallelism, where TensorRT-LLM numbers the layers of every stage from 0.

One `config.json` serves all stages, and its patterns are matched against names inside a stage: a module left in float
is left in float in every stage. Source: TensorRT-LLM `quantize_layers` and `DecoderLayerList`.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from trtbuild.checkpoint.linear import read_linear
from trtbuild.checkpoint.spec import (
    EMBEDDING,
    LINEAR_MODULES,
    Array,
    Decoder,
    Quantization,
    Tensor,
    module_path,
)

_LAYERS = "transformer.layers."


def _renumbered(quantization: Quantization, num_layers: int, *, old: int, new: int) -> Quantization:
    """The block with layer-specific patterns, meant for `old` stages of layers, spelled out for `new` stages."""
    if old == new or quantization.exclude_modules is None or quantization.quant_algo is None:
        return quantization
    general = tuple(pattern for pattern in quantization.exclude_modules if not pattern.startswith(_LAYERS))
    by_general = dataclasses.replace(quantization, exclude_modules=general)
    excluded = {
        (layer % (num_layers // new), module)
        for layer in range(num_layers)
        for module in LINEAR_MODULES
        if not quantization.quantizes(module_path(layer % (num_layers // old), module))
    }
    specific = (module_path(layer, module) for layer, module in sorted(excluded))
    return dataclasses.replace(
        quantization, exclude_modules=(*general, *(path for path in specific if by_general.quantizes(path)))
    )


def within_stages(quantization: Quantization, num_layers: int, pp: int) -> Quantization:
    """The block to write for `pp` stages: a module excluded in one stage is excluded in all of them."""
    return _renumbered(quantization, num_layers, old=1, new=pp)


def over_all_layers(quantization: Quantization, num_layers: int, pp: int) -> Quantization:
    """The block of a checkpoint of `pp` stages with its layers numbered through."""
    return _renumbered(quantization, num_layers, old=pp, new=1)


def _dequantized(decoder: Decoder, layer: int, module: str, dtype: np.dtype[np.generic]) -> Tensor:
    def read() -> Array:
        linear = read_linear(decoder, layer, module)
        weight = linear.weight.astype(np.float32)
        if linear.weight_scale is not None:
            weight *= linear.weight_scale[:, None]
        if linear.prequant_scale is not None:
            weight *= linear.prequant_scale.astype(np.float32)
        return weight.astype(dtype)

    name = f"{module_path(layer, module)}.weight"
    return Tensor(dtype, decoder.tensors[name].shape, decoder.tensors[name].source, read)


def with_float_partners(decoder: Decoder, pp: int) -> Decoder:
    """The decoder with what `within_stages` adds to its exclusions turned back into floating weights."""
    layers = decoder.spec.num_layers
    written = over_all_layers(within_stages(decoder.quantization, layers, pp), layers, pp)
    dtype, tensors = decoder.tensors[EMBEDDING].dtype, dict(decoder.tensors)
    for layer in range(layers):
        for module in LINEAR_MODULES:
            path = module_path(layer, module)
            if decoder.quantization.quantizes(path) and not written.quantizes(path):
                kept = (f"{path}.weight", f"{path}.bias")
                for name in [n for n in tensors if n.startswith(f"{path}.") and n not in kept]:
                    del tensors[name]
                tensors[f"{path}.weight"] = _dequantized(decoder, layer, module, dtype)
    return dataclasses.replace(decoder, tensors=tensors)
