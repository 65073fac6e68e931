"""What can be said of a CPU engine before anything is written: rules, and bytes."""

from __future__ import annotations

from trtbuild.checkpoint.linear import READERS
from trtbuild.checkpoint.spec import Decoder, DecoderSpec, Quantization
from trtbuild.graph.decoder import ACTIVATIONS
from trtbuild.targets.base import BuildOptions, Finding, Footprint, Limits, limit_findings
from trtbuild.targets.cpu.machine import int8_features
from trtbuild.targets.cpu.properties import KV_CACHE_TYPES, default_kv_cache, kv_bytes_per_token
from trtbuild.targets.cpu.slices import SLICE_BYTES
from trtbuild.targets.sizes import DTYPE_BYTES, layer_bytes, weight_bytes

RUNTIME_BYTES = 160_000_000
"""Resident memory of Python with OpenVINO and GenAI loaded and a model compiled, its weights not yet touched."""


def preflight(decoder: Decoder, limits: Limits, options: BuildOptions) -> list[Finding]:
    """Every rule this target has; needs headers only."""
    spec, quantization = decoder.spec, decoder.quantization
    findings = limit_findings(spec, limits)
    if quantization.quant_algo is not None and quantization.quant_algo not in READERS:
        findings.append(
            Finding(
                "quant_algo",
                f"{quantization.quant_algo} runs on a GPU only",
                f"the CPU target runs {', '.join(READERS)} and unquantized checkpoints",
            )
        )
    if spec.hidden_act not in ACTIVATIONS:
        findings.append(Finding("hidden_act", f"{spec.hidden_act} is not supported", ", ".join(ACTIVATIONS)))
    if options.kv_cache is not None and options.kv_cache not in KV_CACHE_TYPES:
        known = ", ".join(KV_CACHE_TYPES)
        findings.append(Finding("kv_cache", f"{options.kv_cache} is not a KV cache precision here", f"one of {known}"))
    if quantization.kv_cache_quant_algo is not None and options.kv_cache is None:
        text = f"the checkpoint's {quantization.kv_cache_quant_algo} KV cache runs as u8 with a scale per token here"
        findings.append(Finding("kv_cache", text, "its quality on a GPU may differ", fatal=False))
    if options.sms:
        findings.append(Finding("sm", "SM versions mean nothing on a CPU", "leave --sm out", fatal=False))
    if limits.max_num_tokens < limits.max_batch_size:
        text = f"max_num_tokens {limits.max_num_tokens} is below max_batch_size {limits.max_batch_size}"
        findings.append(Finding("max_num_tokens", text, "not every sequence advances in every step", fatal=False))
    return findings


def footprint(spec: DecoderSpec, quantization: Quantization, limits: Limits, options: BuildOptions) -> Footprint:
    """Bytes on disk and in memory, as measured on SmolLM2 and explained by what the plugin does.

    Beside the mapped file the plugin keeps the weights packed for its kernels (an embedding that is not the head as
    well is only looked up), once more for few rows at a time where it unpacks them on the fly (16-bit and INT8 weights
    in FP32 arithmetic).
    """
    kv_cache = options.kv_cache or default_kv_cache(spec.dtype, quantization.kv_cache_quant_algo)
    weights = weight_bytes(spec, quantization)
    looked_up = 0 if spec.tie_word_embeddings else spec.vocab_size * spec.hidden_size * DTYPE_BYTES[spec.dtype]
    layers = layer_bytes(spec, quantization) * spec.num_layers
    qkv = spec.linear_shape("attention.qkv")[0]
    row = 2 * (4 * spec.hidden_size + qkv + 3 * spec.intermediate_size) * 4
    return Footprint(
        disk_bytes=weights,
        build_peak_bytes=RUNTIME_BYTES + max(weights, 6 * max(SLICE_BYTES, layers // spec.num_layers)),
        weights_bytes=weights,
        kv_bytes_per_token=kv_bytes_per_token(spec, kv_cache),
        activation_bytes=limits.max_num_tokens * row + limits.max_batch_size * spec.vocab_size * 4,
        runtime_bytes=RUNTIME_BYTES + weights - looked_up + _few_rows_copy_bytes(spec, quantization, layers),
    )


def _few_rows_copy_bytes(spec: DecoderSpec, quantization: Quantization, layers: int) -> int:
    if quantization.quant_algo == "W8A8_SQ_PER_CHANNEL" and int8_features():
        return 0
    if quantization.quant_algo is None and spec.dtype == "float32":
        rows, columns = spec.linear_shape("mlp.proj")
        return spec.num_layers * rows * columns * 4
    return layers
