"""Quantized decoders of the hub with random content, for every layout of a quantized linear."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from builders import write_huggingface

from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.spec import Decoder, Quantization, Tensor


def cast(decoder: Decoder, dtype: Any) -> Decoder:
    dtype = np.dtype(dtype)
    tensors = {
        name: Tensor(dtype, t.shape, t.source, lambda t=t: t.read().astype(dtype))
        for name, t in decoder.tensors.items()
    }
    return dataclasses.replace(decoder, tensors=tensors)


def in_memory(decoder: Decoder, arrays: dict[str, np.ndarray], quantization: Quantization) -> Decoder:
    tensors = {name: Tensor(a.dtype, a.shape, name, lambda a=a: a) for name, a in arrays.items()}
    return dataclasses.replace(decoder, tensors={**decoder.tensors, **tensors}, quantization=quantization)


def random_linear(algo: str, rows: int, columns: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Tensors of one quantized linear [rows, columns] with random content."""
    i8 = lambda *shape: rng.integers(-127, 128, shape).astype(np.int8)  # noqa: E731
    f32 = lambda *shape: np.asarray(rng.random(shape, np.float32) + np.float32(0.5))  # noqa: E731
    one, prequant = f32(1), f32(columns).astype(np.float16)
    sq = {"weight": i8(rows, columns), "weights_scaling_factor": f32(rows), "activation_scaling_factor": one}
    return {
        "W8A8_SQ_PER_CHANNEL": {**sq, "prequant_scaling_factor": prequant},
        "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN": {"weight": i8(rows, columns), "per_channel_scale": f32(1, rows)},
        "FP8": {
            "weight": f32(rows, columns).astype(ml_dtypes.float8_e4m3fn),
            "weights_scaling_factor": one,
            "activation_scaling_factor": one,
        },
        "W4A8_AWQ": {
            "weight": i8(rows // 2, columns),
            "weights_scaling_factor": f32(rows, columns // GROUP_SIZE),
            "weights_scaling_factor_2": one,
            "activation_scaling_factor": one,
            "prequant_scaling_factor": prequant,
        },
        "NVFP4": {
            "weight": rng.integers(0, 256, (rows, columns // 2)).astype(np.uint8),
            "weights_scaling_factor": f32(rows, columns // 16).astype(ml_dtypes.float8_e4m3fn),
            "weights_scaling_factor_2": f32(),
            "activation_scaling_factor": f32(),
        },
    }[algo]


ALGOS = ("W8A8_SQ_PER_CHANNEL", "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN", "FP8", "W4A8_AWQ", "NVFP4")
GROUP_SIZE = 16
LINEARS = ("attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj")


def quantized(folder: Path, algo: str, **changes: Any) -> Decoder:
    """A tiny llama whose linears are all quantized in that layout, with an INT8 KV cache."""
    decoder = cast(open_model(str(write_huggingface(folder, **changes))), np.float16)
    rng = np.random.default_rng(7)
    arrays: dict[str, np.ndarray] = {}
    for layer in range(decoder.spec.num_layers):
        for module in LINEARS:
            path = f"transformer.layers.{layer}.{module}"
            tensors = random_linear(algo, *decoder.spec.linear_shape(module), rng)
            if algo.endswith("PLUGIN") and module in ("attention.dense", "mlp.proj"):
                columns = decoder.spec.linear_shape(module)[1]
                tensors["smoother"] = rng.random((1, columns), np.float32) + 0.5
            arrays |= {f"{path}.{suffix}": array for suffix, array in tensors.items()}
        arrays[f"transformer.layers.{layer}.attention.kv_cache_scaling_factor"] = np.array([0.1], np.float32)
        if algo.endswith("PLUGIN"):
            for norm in ("input_layernorm", "post_layernorm"):
                arrays[f"transformer.layers.{layer}.{norm}.scale_to_int"] = np.ones(1, np.float32)
    group_size = GROUP_SIZE if algo == "W4A8_AWQ" else None
    return in_memory(decoder, arrays, Quantization(algo, "INT8", ("*lm_head",), group_size))
