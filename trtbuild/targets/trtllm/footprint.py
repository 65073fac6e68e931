"""What a TensorRT-LLM engine needs on each rank, from the spec alone: disk, host memory, GPU memory.

Weights and KV bytes follow from the formats and are exact. Activations, buffers and the runtime's own share have no
published formula; their coefficients reproduce the one published memory log (`docs/source/reference/memory.md` of
TensorRT-LLM: a 6695 MiB engine on an 80 GB card, 1134 MiB activations at 8192 tokens, 224 MB buffers, 775 MiB
unexplained by them) and are estimates for everything else. None of it was measured here, for want of a GPU.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

from trtbuild.checkpoint.spec import LINEAR_MODULES, DecoderSpec, Quantization
from trtbuild.checkpoint.trtllm_config import Ranks
from trtbuild.targets.base import BuildOptions, Footprint, Limits

DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2}
KV_BYTES: Mapping[str | None, float] = {None: 0.0, "INT8": 1, "FP8": 1, "NVFP4": 0.5625}
"""KV cache algorithm → bytes of one element (0: the model's dtype); NVFP4 carries one FP8 scale per 16 elements."""

KV_FREE_FRACTION = 0.9
"""Share of what is left free that the runtime gives the KV pool by default."""

RUNTIME_BYTES = 775 << 20
"""CUDA context, cuBLAS, NCCL and kernels: what the published log leaves unexplained."""

_ACTIVATION_FACTOR = 1.75
"""A layer has two tensors of hidden and three of intermediate size alive; times this they are the log's 1134 MiB."""

_HOST_BUILD_FACTOR = 2.0
_HOST_LIBRARIES_BYTES = 4 << 30
"""Host memory of a build: users report several times the weights; there is no official formula."""


@dataclass(frozen=True)
class Storage:
    """Bytes of a quantized linear: `weight` per element, `per_output` per row, `per_input` per column, `group` scales.

    `scale_group` is the number of inputs that share a scale of `scale_bytes`; 0 means no such scales.
    """

    weight: float
    per_output: float = 0
    per_input: float = 0
    scale_group: int = 0
    scale_bytes: float = 0

    def size(self, outputs: int, inputs: int) -> int:
        groups = outputs * math.ceil(inputs / self.scale_group) if self.scale_group else 0
        return math.ceil(
            self.weight * outputs * inputs
            + self.per_output * outputs
            + self.per_input * inputs
            + self.scale_bytes * groups
        )


def _engine_storage(quantization: Quantization, dtype_bytes: int) -> Storage:
    group = quantization.group_size or 128
    return {
        None: Storage(dtype_bytes),
        "W8A16": Storage(1, per_output=dtype_bytes),
        "W4A16": Storage(0.5, per_output=dtype_bytes),
        "W8A8_SQ_PER_CHANNEL": Storage(1, per_output=4, per_input=dtype_bytes),
        "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN": Storage(1, per_output=4, per_input=4),
        "FP8": Storage(1),
        "FP8_PER_CHANNEL_PER_TOKEN": Storage(1, per_output=4),
        "W4A16_AWQ": Storage(0.5, per_input=dtype_bytes, scale_group=group, scale_bytes=dtype_bytes),
        "W4A8_AWQ": Storage(0.5, per_input=dtype_bytes, scale_group=group, scale_bytes=dtype_bytes),
        "NVFP4": Storage(0.5, scale_group=16, scale_bytes=1),
    }.get(quantization.quant_algo, Storage(1, per_output=4))


def _checkpoint_storage(quantization: Quantization, dtype_bytes: int) -> Storage:
    """As the engine's, but weight-only algorithms are stored in floating point and quantized by the loader.

    The scales of groups are FP32 in the file and the model's dtype in the engine.
    """
    if quantization.quant_algo in ("W8A16", "W4A16"):
        return Storage(dtype_bytes)
    engine = _engine_storage(quantization, dtype_bytes)
    return dataclasses.replace(engine, scale_bytes=4) if engine.scale_bytes == dtype_bytes else engine


def rank_spec(spec: DecoderSpec, ranks: Ranks) -> DecoderSpec:
    """The slice of a decoder that one rank holds, as a spec: heads, intermediate and layers divided."""
    return dataclasses.replace(
        spec,
        num_layers=math.ceil(spec.num_layers / ranks.pp),
        num_heads=math.ceil(spec.num_heads / ranks.tp),
        num_kv_heads=math.ceil(spec.num_kv_heads / ranks.tp),
        intermediate_size=math.ceil(spec.intermediate_size / ranks.tp),
        sliding_layers=None,
    )


def weights_bytes(spec: DecoderSpec, quantization: Quantization, ranks: Ranks, *, checkpoint: bool = False) -> int:
    """Bytes of the largest rank's weights, in the engine or, with `checkpoint`, in the checkpoint.

    A tied head is stored twice, as TensorRT-LLM does. With pp the first rank has the embedding and the last the head;
    the larger of the two counts. Excluded modules are counted in floating point.
    """
    local, dtype_bytes = rank_spec(spec, ranks), DTYPE_BYTES[spec.dtype]
    storage = (_checkpoint_storage if checkpoint else _engine_storage)(quantization, dtype_bytes)
    total = 0
    for layer in range(local.num_layers):
        for module in LINEAR_MODULES:
            outputs, inputs = local.linear_shape(module)
            path = f"transformer.layers.{layer}.{module}"
            kept = storage if quantization.quantizes(path) else Storage(dtype_bytes)
            total += kept.size(outputs, inputs) + (outputs * dtype_bytes if spec.has_bias(module) else 0)
        norms = 2 * spec.hidden_size + (2 * spec.head_size if spec.qk_norm else 0)
        total += norms * dtype_bytes
    table = spec.vocab_size * spec.hidden_size * dtype_bytes
    head = math.ceil(spec.vocab_size / ranks.tp) * spec.hidden_size * dtype_bytes
    embedding = head if ranks.tp > 1 else table
    return total + (embedding + head if ranks.pp == 1 else max(embedding, head)) + spec.hidden_size * dtype_bytes


def kv_bytes_per_token(spec: DecoderSpec, quantization: Quantization, ranks: Ranks = Ranks()) -> int:
    """KV cache bytes of one token on one rank: 2 · layers · kv_heads_per_rank · head_size · bytes."""
    local = rank_spec(spec, ranks)
    element = KV_BYTES[quantization.kv_cache_quant_algo] or DTYPE_BYTES[spec.dtype]
    return math.ceil(2 * local.num_layers * local.num_kv_heads * local.head_size * element)


def activation_bytes(spec: DecoderSpec, limits: Limits, ranks: Ranks = Ranks()) -> int:
    """Execution context memory: fixed at build from the largest profile, proportional to max_num_tokens."""
    local = rank_spec(spec, ranks)
    live = 2 * local.hidden_size + 3 * local.intermediate_size
    return math.ceil(_ACTIVATION_FACTOR * limits.max_num_tokens * live * DTYPE_BYTES[spec.dtype])


def buffer_bytes(spec: DecoderSpec, limits: Limits) -> int:
    """Runtime and decoder buffers, allocated before the KV pool: logits of each sequence and its token bookkeeping."""
    return limits.max_batch_size * (spec.vocab_size * 16 + limits.max_seq_len * 32)


def footprint(spec: DecoderSpec, quantization: Quantization, limits: Limits, options: BuildOptions) -> Footprint:
    """What one of the `options.tp` × `options.pp` ranks needs; disk counts the engines of all ranks."""
    ranks = Ranks(options.tp, options.pp)
    weights = weights_bytes(spec, quantization, ranks)
    source = weights_bytes(spec, quantization, ranks, checkpoint=True)
    return Footprint(
        disk_bytes=weights * ranks.world,
        build_peak_bytes=math.ceil(_HOST_BUILD_FACTOR * source) + _HOST_LIBRARIES_BYTES,
        weights_bytes=weights,
        kv_bytes_per_token=kv_bytes_per_token(spec, quantization, ranks),
        activation_bytes=activation_bytes(spec, limits, ranks),
        runtime_bytes=RUNTIME_BYTES + buffer_bytes(spec, limits),
        kv_free_fraction=KV_FREE_FRACTION,
    )
