"""The CPU plugin's properties of an engine: nothing is left to defaults that differ between processors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtbuild.checkpoint.spec import DecoderSpec
from trtbuild.targets.cpu.machine import int8_features

KV_CACHE_TYPES: Mapping[str, int] = {"f32": 4, "f16": 2, "u8": 1}
"""KV cache precision → bytes per element (u8 adds scales and zero points, see `kv_bytes_per_token`)."""

BLOCK_TOKENS = 32
"""Tokens of one KV block of OpenVINO's CPU paged attention."""

NATIVE, EXACT = "native", "exact"
"""How W8A8 runs: the plugin's own INT8 kernels, or FP32 arithmetic on the quantized values."""


def default_kv_cache(dtype: str, kv_cache_quant_algo: str | None) -> str:
    """As TensorRT-LLM does: the model's own type, eight bits when the checkpoint quantizes its KV cache.

    BF16 becomes FP32: the plugin has no BF16 cache beside FP32 arithmetic, and FP16 would not hold BF16's range.
    """
    return "u8" if kv_cache_quant_algo else {"float32": "f32", "float16": "f16", "bfloat16": "f32"}[dtype]


def kv_bytes_per_token(spec: DecoderSpec, kv_cache: str) -> int:
    """Bytes one token takes in the paged cache over all layers.

    u8 adds an FP32 scale and zero point: per token and head for V, per channel of a block for K.
    """
    elements = 2 * spec.head_size * KV_CACHE_TYPES[kv_cache]
    overhead = 8 + 8 * spec.head_size // BLOCK_TOKENS if kv_cache == "u8" else 0
    return spec.num_layers * spec.num_kv_heads * (elements + overhead)


def plugin_properties(kv_cache: str, int8_kernels: str | None) -> dict[str, Any]:
    """Properties for `compile_model` and for GenAI's pipeline.

    FP32 inference precision: on processors with AVX512_BF16 or AMX the plugin would otherwise compute in bfloat16.
    Dynamic quantization off: it would quantize activations that the checkpoint leaves in float.
    """
    properties: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": kv_cache,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
    }
    if int8_kernels == EXACT:
        properties["LP_TRANSFORMS_MODE"] = "NO"
    return properties


def usable_kernels(settings: Mapping[str, Any]) -> str | None:
    """The `int8_kernels` an engine may run with on this processor.

    Native ones only where the instruction sets are those they were checked with when the engine was built.
    """
    recorded = settings.get("int8_kernels")
    if recorded == NATIVE and frozenset(settings.get("int8_features", ())) != int8_features():
        return EXACT
    return None if recorded is None else str(recorded)
