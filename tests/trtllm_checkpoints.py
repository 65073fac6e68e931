"""Small TensorRT-LLM checkpoints of every quant_algo, large enough for its kernels' rules, with random content."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import hub_builders
import numpy as np
from builders import write_huggingface

from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.spec import LINEAR_MODULES, Quantization
from trtbuild.checkpoint.trtllm import write_checkpoint

GROUP_SIZE = 128

SHAPE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 99,
    "max_position_embeddings": 4096,
}
"""Heads of 32, the smallest the attention plugin has; every input size a multiple of 128 at tp 1 and 2."""

ALGOS: dict[str, str | None] = {
    "fp16": None,
    "bf16": None,
    "fp32": None,
    "int8-wo": "W8A16",
    "int8": "W8A8_SQ_PER_CHANNEL",
    "int8-pt": "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN",
    "fp8": "FP8",
    "int4-awq": "W4A16_AWQ",
    "w4a8-awq": "W4A8_AWQ",
    "nvfp4": "NVFP4",
}
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def write_trtllm(
    folder: Path,
    precision: str = "fp16",
    *,
    tp: int = 1,
    pp: int = 1,
    kv_cache: str | None = None,
    family: str = "llama",
    tokenizer: bool = True,
    **changes: Any,
) -> Path:
    """Write a checkpoint of that precision under `folder`/ckpt and return its path."""
    source = write_huggingface(folder / "hf", family, **{**SHAPE, **changes})
    decoder = open_model(str(source))
    dtype = DTYPES.get(precision, "float16")
    decoder = hub_builders.cast(decoder, np.dtype(dtype)) if dtype != "float32" else decoder
    decoder = dataclasses.replace(decoder, spec=dataclasses.replace(decoder.spec, dtype=dtype))
    algo = ALGOS[precision]
    arrays: dict[str, np.ndarray] = {}
    rng = np.random.default_rng(3)
    for layer in range(decoder.spec.num_layers):
        prefix = f"transformer.layers.{layer}"
        for module in LINEAR_MODULES:
            rows, columns = decoder.spec.linear_shape(module)
            for suffix, array in _linear(algo, module, rows, columns, rng).items():
                arrays[f"{prefix}.{module}.{suffix}"] = array
        if kv_cache is not None:
            arrays[f"{prefix}.attention.kv_cache_scaling_factor"] = np.array([0.1], np.float32)
        if algo is not None and algo.endswith("PLUGIN"):
            for norm in ("input_layernorm", "post_layernorm"):
                arrays[f"{prefix}.{norm}.scale_to_int"] = np.ones(1, np.float32)
    group = {"W4A16_AWQ": GROUP_SIZE, "W4A8_AWQ": GROUP_SIZE}.get(algo or "")
    excluded = None if algo in (None, "W8A16") else ("*lm_head",)
    decoder = hub_builders.in_memory(decoder, arrays, Quantization(algo, kv_cache, excluded, group))
    if not tokenizer:
        decoder = dataclasses.replace(decoder, assets={})
    out = folder / "ckpt"
    out.mkdir(parents=True)
    write_checkpoint(decoder, out, tp=tp, pp=pp)
    return out


def _linear(algo: str | None, module: str, rows: int, columns: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    if algo in (None, "W8A16"):
        return {}
    if algo in ("W4A16_AWQ", "W4A8_AWQ"):
        scale = (rng.random((rows, columns // GROUP_SIZE)) + 0.5).astype(np.float32)
        tensors = {
            "weight": rng.integers(-127, 128, (rows // 2, columns)).astype(np.int8),
            "weights_scaling_factor": scale,
            "prequant_scaling_factor": np.ones(columns, np.float16),
        }
        one = (rng.random(1) + 0.5).astype(np.float32)
        extra = {"weights_scaling_factor_2": one, "activation_scaling_factor": one}
        return {**tensors, **extra} if algo == "W4A8_AWQ" else tensors
    tensors = hub_builders.random_linear(algo, rows, columns, rng)
    if algo.endswith("PLUGIN") and module in ("attention.dense", "mlp.proj"):
        tensors["smoother"] = (rng.random((1, columns)) + 0.5).astype(np.float32)
    return tensors


def change_config(checkpoint: Path, **changes: Any) -> None:
    """Overwrite keys of a checkpoint's config; a dict value is merged into the block of that name."""
    path = checkpoint / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    for key, value in changes.items():
        if isinstance(value, dict):
            config[key] = {**config[key], **value}
        else:
            config[key] = value
    path.write_text(json.dumps(config), encoding="utf-8")
