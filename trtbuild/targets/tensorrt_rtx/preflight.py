"""What can be said of a TensorRT engine before anything is written: rules, and bytes."""

from __future__ import annotations

import math

from trtbuild.checkpoint.linear import READERS
from trtbuild.checkpoint.spec import Decoder, DecoderSpec, Quantization
from trtbuild.errors import MachineLacks
from trtbuild.graph.decoder import ACTIVATIONS
from trtbuild.targets.base import BuildOptions, Finding, Footprint, Limits, limit_findings
from trtbuild.targets.sizes import DTYPE_BYTES, weight_bytes
from trtbuild.targets.tensorrt_rtx.geometry import Geometry, geometry
from trtbuild.targets.tensorrt_rtx.machine import FLAVOURS, first_gpu, installed

RUNTIME_BYTES = 500 << 20
"""Device memory of the CUDA context, the library and its kernels: an estimate, it could not be measured here."""

_KERNELS_BYTES = (800_000, 1_400_000)
"""Kernels in an engine file, per layer over both profiles: of float and of int8 matmuls (SmolLM2, version 1.7.1)."""

_COPIED = {None: ("attention.qkv",), "W8A16": ("mlp.fc", "mlp.gate")}
"""quant_algo → the linears whose weights the second profile holds in a layout of its own, seen from the size of
engines with one and with two profiles."""

_BUILD_BASE_BYTES = 700_000_000
_BUILD_FACTOR = 2.25
"""Resident memory of a build: so much and so many times the engine file (1.2 to 1.4 GB for SmolLM2, whose engines are
206 to 327 MB; 8.0 GB for one of 3.2 GB)."""

_VOLUME = 1 << 31
_KV_TYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_TURING_DTYPES = ("float16",)
"""On SM75 TensorRT-RTX compiles neither FP32 matmuls nor bfloat16."""


def preflight(decoder: Decoder, limits: Limits, options: BuildOptions) -> list[Finding]:
    """Every rule this target has; needs headers only, and none of TensorRT's packages."""
    spec, quantization = decoder.spec, decoder.quantization
    findings = limit_findings(spec, limits)
    if not findings:
        findings += _volume_findings(spec, limits)
    return [
        *findings,
        *_model_findings(spec, quantization),
        *_kv_findings(spec, quantization, options),
        *_sm_findings(spec, options.sms),
        *_option_findings(options),
    ]


def _volume_findings(spec: DecoderSpec, limits: Limits) -> list[Finding]:
    findings = []
    shape = geometry(spec, limits)
    if limits.max_num_tokens < limits.max_batch_size:
        text = f"max_num_tokens {limits.max_num_tokens} is below max_batch_size {limits.max_batch_size}"
        hint = f"a step gives every sequence one token: raise max_num_tokens to {limits.max_batch_size} or more"
        findings.append(Finding("max_num_tokens", text, hint))
    if shape.rows < limits.max_batch_size:
        text = f"a pool of {limits.pool_tokens} tokens holds {shape.rows} sequences of {limits.max_seq_len}"
        hint = f"max_batch_size {limits.max_batch_size} is not reached: this target's KV cache is not paged"
        findings.append(Finding("kv_pool", text, hint, fatal=False))
    cache = shape.rows * shape.num_kv_heads * shape.slots * shape.head_size
    if cache >= _VOLUME:
        most = (_VOLUME - 1) // (cache // shape.rows)
        text = f"a KV tensor of {cache} elements is above TensorRT's {_VOLUME - 1}"
        hint = f"lower max_batch_size to {most}" if most else "lower max_seq_len"
        findings.append(Finding("tensor_volume", text, hint))
    return findings


def _model_findings(spec: DecoderSpec, quantization: Quantization) -> list[Finding]:
    findings = []
    algo = quantization.quant_algo
    if algo is not None and algo not in READERS:
        hint = f"this target builds {', '.join(READERS)} and unquantized checkpoints; use --target trtllm"
        findings.append(Finding("quant_algo", f"{algo} has no ONNX form here", hint))
    elif algo is not None and algo != "W8A16":
        text = "TensorRT-RTX lists INT8 for weight-only matmuls: W8A8 may run unfused, slower than int8-wo"
        findings.append(Finding("quant_algo", text, "measure both on the GPU before choosing", fatal=False))
    if spec.hidden_act not in ACTIVATIONS:
        findings.append(Finding("hidden_act", f"{spec.hidden_act} is not supported", ", ".join(ACTIVATIONS)))
    return findings


def _kv_findings(spec: DecoderSpec, quantization: Quantization, options: BuildOptions) -> list[Finding]:
    own = _KV_TYPES[spec.dtype]
    findings = []
    if options.kv_cache not in (None, own):
        text = f"a {options.kv_cache} KV cache does not go with {spec.dtype} computation here"
        findings.append(Finding("kv_cache", text, f"leave it out or give {own}"))
    if quantization.kv_cache_quant_algo is not None:
        text = f"the checkpoint's {quantization.kv_cache_quant_algo} KV cache is kept in {spec.dtype} here"
        findings.append(Finding("kv_cache", text, "its quality in TensorRT-LLM may differ", fatal=False))
    return findings


def _sm_findings(spec: DecoderSpec, sms: tuple[int, ...]) -> list[Finding]:
    found = installed()
    flavour = FLAVOURS[0] if found is None else found.flavour
    gpu = first_gpu()
    offered = flavour.sms or ((gpu.sm,) if gpu is not None else ())
    names = ", ".join(map(str, offered)) or "none without a GPU"
    if not sms and gpu is None:
        text = "no SM version is given and no GPU is here to take it from"
        return [Finding("sm", text, f"--sm, any of {names}", error=MachineLacks)]
    wanted = sms or ((gpu.sm,) if gpu is not None else ())
    findings = [
        Finding("sm", f"{flavour.module} builds nothing for SM{sm}", f"offered: {names}")
        for sm in dict.fromkeys(wanted)
        if sm not in offered
    ]
    if 75 in wanted and spec.dtype not in _TURING_DTYPES:
        text = f"SM75 has no {spec.dtype} matmul in TensorRT-RTX"
        findings.append(Finding("sm75_dtype", text, "use fp16, int8-wo or int8, or leave SM75 out"))
    return findings


def _option_findings(options: BuildOptions) -> list[Finding]:
    findings = []
    if options.container is not None:
        findings.append(Finding("container", "this target builds in this process", "leave --container out"))
    if options.extra:
        text = f"this target calls no tool that could be given {options.extra[0]}"
        findings.append(Finding("extra", text, "leave it out"))
    return findings


def footprint(spec: DecoderSpec, quantization: Quantization, limits: Limits, options: BuildOptions) -> Footprint:
    """Bytes on disk and in memory; the engine file is what is loaded, so its weights count as it stores them."""
    del options
    shape = geometry(spec, limits)
    weights = weight_bytes(spec, quantization) + _copied_bytes(spec, quantization)
    disk = weights + _KERNELS_BYTES[quantization.quant_algo is not None] * spec.num_layers
    return Footprint(
        disk_bytes=disk,
        build_peak_bytes=_BUILD_BASE_BYTES + int(_BUILD_FACTOR * disk),
        weights_bytes=weights,
        kv_bytes_per_token=shape.kv_bytes_per_token,
        activation_bytes=activation_bytes(spec, shape),
        runtime_bytes=RUNTIME_BYTES,
    )


def _copied_bytes(spec: DecoderSpec, quantization: Quantization) -> int:
    element = DTYPE_BYTES[spec.dtype] if quantization.quant_algo is None else 1
    modules = _COPIED.get(quantization.quant_algo, ())
    return element * spec.num_layers * sum(math.prod(spec.linear_shape(module)) for module in modules)


def activation_bytes(spec: DecoderSpec, shape: Geometry) -> int:
    """Tensors alive in the widest place of a layer, and the logits; an estimate."""
    wide = max(spec.linear_shape("attention.qkv")[0], 2 * spec.intermediate_size) + 3 * spec.hidden_size
    size = DTYPE_BYTES[spec.dtype]
    return size * (max(shape.context_tokens, shape.rows) * wide + max(shape.logits_rows, shape.rows) * spec.vocab_size)
