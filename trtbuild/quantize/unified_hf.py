"""Decoder → unified Hugging Face checkpoint, which tensorrt_llm ≥ 1.3 (no engines, PyTorch backend) loads.

Hugging Face names with `weight_scale`, `input_scale` and `pre_quant_scale` beside the weights, `hf_quant_config.json`,
and the same block in `config.json`. Tensor by tensor what nvidia-modelopt 0.47's `export_hf_checkpoint` writes for the
same quantization.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from trtbuild import __version__
from trtbuild.checkpoint.huggingface_config import config_of
from trtbuild.checkpoint.safetensors_writer import streamed_file
from trtbuild.checkpoint.spec import Decoder, module_path
from trtbuild.errors import InputRefused
from trtbuild.profile import EngineLimits
from trtbuild.progress import Progress, silent
from trtbuild.quantize import llm_api
from trtbuild.quantize.unified_hf_layout import FORMATS, Group, groups_of, shares_of

MAX_SHARD_BYTES = 10_000_000_000
"""Largest safetensors file written, the exporter's default; a single larger tensor has a file of its own."""

_NOT_IN_PYTORCH = ("W8A8_SQ_PER_CHANNEL",)
"""Not among the linear methods of tensorrt_llm/_torch/modules/linear.py (`get_quant_method`)."""

_PRODUCER = {"name": "trtbuild", "version": __version__}
_HEAD_MODULES = ("lm_head", "model.embed_tokens")


def _excluded(decoder: Decoder) -> list[str]:
    """Hugging Face names of the linears that stay in float, and of head and embedding."""
    modules = [
        f"model.layers.{layer}.{share.module}"
        for layer in range(decoder.spec.num_layers)
        for share in shares_of(decoder.spec)
        if not decoder.quantization.quantizes(module_path(layer, share.hub_modules[0]))
    ]
    return sorted([*_HEAD_MODULES, *modules])


def check_kv_cache(kv_cache_quant_algo: str | None, where: str) -> None:
    """Raise InputRefused for a KV cache type that the format, and modelopt's exporter, does not have."""
    if kv_cache_quant_algo not in (None, "FP8"):
        raise InputRefused(
            f"unified Hugging Face checkpoints have no {kv_cache_quant_algo} KV cache",
            where=where,
            hint="leave the KV cache in float, or take --kv-cache fp8",
        )


def _check(decoder: Decoder) -> None:
    quantization = decoder.quantization
    if quantization.quant_algo not in (None, *FORMATS):
        raise InputRefused(
            f"{quantization.quant_algo} has no unified Hugging Face form here",
            where=decoder.location,
            hint=f"exported are unquantized models, {', '.join(FORMATS)}; the rest with -p through modelopt",
        )
    check_kv_cache(quantization.kv_cache_quant_algo, decoder.location)


def _quantization_blocks(decoder: Decoder) -> tuple[dict[str, Any], dict[str, Any]]:
    """(`quantization` of hf_quant_config.json, `quantization_config` of config.json)."""
    quantization, excluded = decoder.quantization, _excluded(decoder)
    block = {
        "quant_algo": quantization.quant_algo,
        "kv_cache_quant_algo": quantization.kv_cache_quant_algo,
        "exclude_modules": excluded,
    }
    config: dict[str, Any] = {
        "ignore": excluded,
        "quant_algo": quantization.quant_algo,
        "producer": _PRODUCER,
        "quant_method": "modelopt",
    }
    if quantization.kv_cache_quant_algo is not None:
        config["kv_cache_scheme"] = {"dynamic": False, "num_bits": 8, "type": "float"}
    return block, config


def _sharded(groups: list[Group], max_shard_bytes: int) -> list[list[Group]]:
    shards: list[list[Group]] = [[]]
    size_bytes = 0
    for group in groups:
        if shards[-1] and size_bytes + group.size_bytes > max_shard_bytes:
            shards.append([])
            size_bytes = 0
        shards[-1].append(group)
        size_bytes += group.size_bytes
    return shards


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_unified_hf(
    decoder: Decoder,
    out: Path,
    *,
    limits: EngineLimits | None = None,
    tp: int = 1,
    pp: int = 1,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    progress: Progress = silent,
) -> None:
    """Write the unified checkpoint into the existing folder `out`, one tensor in memory at a time.

    It is not cut into ranks; `limits` (of a profile), `tp` and `pp` only go into the `llm_api.yaml` beside it. W8A16,
    whose weights the hub leaves floating, is quantized here (row maximum / 127). Raises InputRefused for a
    quantization without such a form, and for linears quantized apart that the model stores as one.
    """
    _check(decoder)
    shards = _sharded(list(groups_of(decoder)), max_shard_bytes)
    names = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    if len(shards) == 1:
        names = ["model.safetensors"]
    weight_map: dict[str, str] = {}
    total_bytes = sum(group.size_bytes for shard in shards for group in shard)
    with contextlib.ExitStack() as stack:
        advance = stack.enter_context(progress.task("writing unified checkpoint", total=total_bytes))
        for name, shard in zip(names, shards, strict=True):
            outputs = {output.name: output.layout for group in shard for output in group.outputs}
            weight_map |= dict.fromkeys(outputs, name)
            with streamed_file(out / name, outputs, {"format": "pt"}) as file:
                for group in shard:
                    arrays = [source.read() for source in group.sources]
                    for output in group.outputs:
                        file.write(output.name, output.make(arrays))
                    del arrays
                    advance(group.size_bytes)
    if len(shards) > 1:
        document = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(weight_map.items()))}
        _write_json(out / "model.safetensors.index.json", document)
    config = config_of(decoder.spec)
    if (decoder.quantization.quant_algo, decoder.quantization.kv_cache_quant_algo) != (None, None):
        block, config["quantization_config"] = _quantization_blocks(decoder)
        _write_json(out / "hf_quant_config.json", {"producer": _PRODUCER, "quantization": block})
    _write_json(out / "config.json", config)
    for asset, content in decoder.assets.items():
        (out / asset).write_bytes(content)
    options = llm_api.llm_api_options(limits or EngineLimits(), decoder.quantization.kv_cache_quant_algo, tp=tp, pp=pp)
    (out / llm_api.FILE_NAME).write_text(llm_api.llm_api_yaml(options), encoding="utf-8")
    if decoder.quantization.quant_algo in _NOT_IN_PYTORCH:
        progress.note(
            f"tensorrt_llm's PyTorch backend has no linear for {decoder.quantization.quant_algo}: this export is for "
            "other loaders; -p int8-wo and fp8 are what that backend runs"
        )
