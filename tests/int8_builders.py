"""Quantized decoders for tests, by plain maxima: which scales they are is all the same to a graph or an engine."""

from __future__ import annotations

import dataclasses

import numpy as np

from trtbuild.checkpoint.spec import LINEAR_MODULES, Decoder, Quantization, Tensor, module_path


def int8_decoder(decoder: Decoder, algo: str) -> Decoder:
    """The decoder with every linear in `algo` (per-tensor static, or per-token with a smoother everywhere)."""
    rng = np.random.default_rng(5)
    tensors = dict(decoder.tensors)

    def put(name: str, array: np.ndarray) -> None:
        tensors[name] = Tensor(array.dtype, array.shape, name, lambda: array)

    for layer in range(decoder.spec.num_layers):
        for module in LINEAR_MODULES:
            path = module_path(layer, module)
            weight = np.asarray(decoder.tensors[f"{path}.weight"].read(), np.float32)
            prequant = rng.uniform(0.5, 2.0, weight.shape[1]).astype(np.float32)
            weight = weight / prequant
            scale = np.abs(weight).max(axis=1) / 127
            put(f"{path}.weight", np.rint(weight / scale[:, None]).astype(np.int8))
            if algo == "W8A8_SQ_PER_CHANNEL":
                put(f"{path}.weights_scaling_factor", scale)
                put(f"{path}.activation_scaling_factor", np.asarray([0.03], np.float32))
                put(f"{path}.prequant_scaling_factor", prequant)
            else:
                put(f"{path}.per_channel_scale", scale[None])
                put(f"{path}.smoother", 1 / prequant[None])
    return dataclasses.replace(decoder, tensors=tensors, quantization=Quantization(algo, exclude_modules=("*lm_head",)))
