"""Decoder → unified Hugging Face checkpoint, which tensorrt_llm ≥ 1.3 (no engines, PyTorch backend) loads.

Hugging Face names with `weight_scale`, `input_scale` and `pre_quant_scale` beside the weights, `hf_quant_config.json`,
and the same block in `config.json`. Tensor by tensor what nvidia-modelopt 0.47's `export_hf_checkpoint` writes for the
same quantization.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trtbuild import __version__
from trtbuild.checkpoint.architectures import ARCHITECTURES
from trtbuild.checkpoint.huggingface import NORMS, QK_NORMS
from trtbuild.checkpoint.huggingface_config import config_of
from trtbuild.checkpoint.safetensors_writer import Layout, streamed_file
from trtbuild.checkpoint.spec import (
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    Array,
    Decoder,
    DecoderSpec,
    Tensor,
    layer_prefix,
    module_path,
)
from trtbuild.errors import InputRefused
from trtbuild.profile import EngineLimits
from trtbuild.progress import Progress, silent
from trtbuild.quantize import llm_api
from trtbuild.quantize.int8 import rounded, weight_scales

MAX_SHARD_BYTES = 10_000_000_000
"""Largest safetensors file written, the exporter's default; a single larger tensor has a file of its own."""

_NOT_IN_PYTORCH = ("W8A8_SQ_PER_CHANNEL",)
"""Not among the linear methods of tensorrt_llm/_torch/modules/linear.py (`get_quant_method`)."""

_F32 = np.dtype(np.float32)
_PRODUCER = {"name": "trtbuild", "version": __version__}
_HEAD_MODULES = ("lm_head", "model.embed_tokens")


@dataclass(frozen=True)
class _Output:
    """One tensor to write: its name and layout, and how it is made of the arrays of its group."""

    name: str
    layout: Layout
    make: Callable[[list[Array]], Array]


@dataclass(frozen=True)
class _Group:
    """Tensors of the hub that are read together, and what is written of them."""

    sources: tuple[Tensor, ...]
    outputs: tuple[_Output, ...]

    @property
    def size_bytes(self) -> int:
        return sum(output.layout.size_bytes for output in self.outputs)


@dataclass(frozen=True)
class _Share:
    """A linear of the Hugging Face model: rows `start` … `stop` of the hub's modules put one below the other."""

    module: str
    hub_modules: tuple[str, ...]
    start: int
    stop: int


def _shares(spec: DecoderSpec) -> list[_Share]:
    """How the family's stored linears are cut from, or joined of, the hub's."""
    found: dict[str, list[tuple[int, str, int, int]]] = {}
    for hub_module, pieces in ARCHITECTURES[spec.family].modules.items():
        rows = spec.linear_shape(hub_module)[0]
        lengths = (spec.q_rows, spec.kv_rows, spec.kv_rows) if len(pieces) == 3 else (rows,)
        start = 0
        for piece, length in zip(pieces, lengths, strict=True):
            found.setdefault(piece.module, []).append((piece.part, hub_module, start, start + length))
            start += length
    shares = []
    for module, parts in found.items():
        ordered = sorted(parts)
        hub_modules = tuple(hub_module for _, hub_module, _, _ in ordered)
        first, last = ordered[0][2], ordered[0][3] if len(ordered) == 1 else sum(part[3] for part in ordered)
        shares.append(_Share(module, hub_modules, first, last))
    return shares


def _rows(start: int, stop: int) -> Callable[[list[Array]], Array]:
    def make(arrays: list[Array]) -> Array:
        return (arrays[0] if len(arrays) == 1 else np.concatenate(arrays))[start:stop]

    return make


def _scalar(arrays: list[Array]) -> Array:
    if any(not np.array_equal(array, arrays[0]) for array in arrays):
        raise InputRefused("linears that the model stores as one were quantized with different scales")
    return np.asarray(arrays[0], np.float32).reshape(())


def _shared(arrays: list[Array]) -> Array:
    if any(not np.array_equal(array, arrays[0]) for array in arrays):
        raise InputRefused("linears that the model stores as one were smoothed differently")
    return arrays[0]


def _joined(arrays: list[Array], start: int, stop: int) -> Array:
    return np.asarray(_rows(start, stop)(arrays), np.float32)


def _quantized_weight(start: int, stop: int) -> Callable[[list[Array]], Array]:
    def make(arrays: list[Array]) -> Array:
        weight = _joined(arrays, start, stop)
        return rounded(weight, weight_scales(weight))

    return make


def _weight_only_scale(start: int, stop: int) -> Callable[[list[Array]], Array]:
    return lambda arrays: weight_scales(_joined(arrays, start, stop)).astype(np.float32)


@dataclass(frozen=True)
class _Format:
    """How one quant_algo is spelled: hub suffix → (suffix, kind); kinds are rows, scalar and shared."""

    suffixes: Mapping[str, tuple[str, str]]
    quantizes_weights: bool = False


FORMATS: Mapping[str, _Format] = {
    "W8A16": _Format({"weight": ("weight", "rows"), "weights_scaling_factor": ("weight_scale", "rows")}, True),
    "W8A8_SQ_PER_CHANNEL": _Format(
        {
            "weight": ("weight", "rows"),
            "weights_scaling_factor": ("weight_scale", "rows"),
            "activation_scaling_factor": ("input_scale", "scalar"),
            "prequant_scaling_factor": ("pre_quant_scale", "shared"),
        }
    ),
}
"""quant_algo → its spelling. The other algorithms are exported by modelopt itself (`quantize/modelopt.py`)."""

_FLOATING = _Format({"weight": ("weight", "rows")})


def _format_of(decoder: Decoder, hub_modules: tuple[str, ...], layer: int) -> _Format:
    paths = [module_path(layer, module) for module in hub_modules]
    quantized = {decoder.quantization.quantizes(path) for path in paths}
    if len(quantized) > 1:
        raise InputRefused(
            f"{' and '.join(paths)} are one linear of this model, but only one of them is quantized",
            where=decoder.location,
        )
    return FORMATS[decoder.quantization.quant_algo or ""] if quantized == {True} else _FLOATING


def _linear_groups(decoder: Decoder, share: _Share, layer: int) -> Iterator[_Group]:
    form = _format_of(decoder, share.hub_modules, layer)
    target = f"model.layers.{layer}.{share.module}"

    def sources(suffix: str) -> tuple[Tensor, ...]:
        paths = [f"{module_path(layer, module)}.{suffix}" for module in share.hub_modules]
        return tuple(decoder.tensors[path] for path in paths if path in decoder.tensors)

    rows = share.stop - share.start
    weights = sources("weight")
    if form.quantizes_weights and weights[0].dtype != np.int8:
        outputs = (
            _Output(
                f"{target}.weight",
                Layout(np.dtype(np.int8), (rows, weights[0].shape[1])),
                _quantized_weight(share.start, share.stop),
            ),
            _Output(f"{target}.weight_scale", Layout(_F32, (rows,)), _weight_only_scale(share.start, share.stop)),
        )
        yield _Group(weights, outputs)
    else:
        for suffix, (spelled, kind) in form.suffixes.items():
            parts = sources(suffix)
            if not parts:
                continue
            yield _Group(parts, (_spelled(f"{target}.{spelled}", parts[0], kind, share.start, share.stop),))
    biases = sources("bias")
    if biases:
        yield _Group(biases, (_spelled(f"{target}.bias", biases[0], "rows", share.start, share.stop),))


def _spelled(name: str, tensor: Tensor, kind: str, start: int, stop: int) -> _Output:
    if kind == "scalar":
        return _Output(name, Layout(_F32, ()), _scalar)
    if kind == "shared":
        return _Output(name, Layout(tensor.dtype, tensor.shape), _shared)
    return _Output(name, Layout(tensor.dtype, (stop - start, *tensor.shape[1:])), _rows(start, stop))


def _renamed(name: str, tensor: Tensor) -> _Group:
    return _Group((tensor,), (_Output(name, Layout(tensor.dtype, tensor.shape), _shared),))


def _groups(decoder: Decoder) -> Iterator[_Group]:
    spec = decoder.spec
    yield _renamed("model.embed_tokens.weight", decoder.tensors[EMBEDDING])
    shares = _shares(spec)
    norms = {**NORMS, **(QK_NORMS if spec.qk_norm else {})}
    for layer in range(spec.num_layers):
        for hub_name, name in norms.items():
            yield _renamed(f"model.layers.{layer}.{name}", decoder.tensors[f"{layer_prefix(layer)}.{hub_name}"])
        for share in shares:
            yield from _linear_groups(decoder, share, layer)
        if decoder.quantization.kv_cache_quant_algo is not None:
            yield from _kv_scales(decoder, layer)
    yield _renamed("model.norm.weight", decoder.tensors[FINAL_NORM])
    if not spec.tie_word_embeddings:
        yield _renamed(HEAD, decoder.tensors[HEAD])


def _kv_scales(decoder: Decoder, layer: int) -> Iterator[_Group]:
    path = f"{layer_prefix(layer)}.attention"
    merged = decoder.tensors[f"{path}.kv_cache_scaling_factor"]
    for letter in "kv":
        own = decoder.tensors.get(f"{path}.{letter}_cache_scaling_factor", merged)
        name = f"model.layers.{layer}.self_attn.{letter}_proj.{letter}_scale"
        yield _Group((own,), (_Output(name, Layout(_F32, ()), _scalar),))


def _excluded(decoder: Decoder) -> list[str]:
    """Hugging Face names of the linears that stay in float, and of head and embedding."""
    modules = [
        f"model.layers.{layer}.{share.module}"
        for layer in range(decoder.spec.num_layers)
        for share in _shares(decoder.spec)
        if not decoder.quantization.quantizes(module_path(layer, share.hub_modules[0]))
    ]
    return sorted([*_HEAD_MODULES, *modules])


def _check(decoder: Decoder) -> None:
    quantization = decoder.quantization
    if quantization.quant_algo not in (None, *FORMATS):
        raise InputRefused(
            f"{quantization.quant_algo} has no unified Hugging Face form here",
            where=decoder.location,
            hint=f"exported are unquantized models, {', '.join(FORMATS)}; the rest with -p through modelopt",
        )
    if quantization.kv_cache_quant_algo not in (None, "FP8"):
        raise InputRefused(
            f"unified Hugging Face checkpoints have no {quantization.kv_cache_quant_algo} KV cache",
            where=decoder.location,
            hint="leave the KV cache in float, or take --kv-cache fp8",
        )


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


def _sharded(groups: list[_Group], max_shard_bytes: int) -> list[list[_Group]]:
    shards: list[list[_Group]] = [[]]
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
    shards = _sharded(list(_groups(decoder)), max_shard_bytes)
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
    if decoder.quantization.quant_algo is not None:
        block, config["quantization_config"] = _quantization_blocks(decoder)
        _write_json(out / "hf_quant_config.json", {"producer": _PRODUCER, "quantization": block})
    _write_json(out / "config.json", config)
    for asset, content in decoder.assets.items():
        (out / asset).write_bytes(content)
    options = llm_api.llm_api_options(limits or EngineLimits(), decoder.quantization.kv_cache_quant_algo, tp=tp, pp=pp)
    (out / llm_api.FILE_NAME).write_text(llm_api.llm_api_yaml(options), encoding="utf-8")
    if decoder.quantization.quant_algo in _NOT_IN_PYTORCH:
        progress.note(
            f"tensorrt_llm's PyTorch backend has no {decoder.quantization.quant_algo} linear as of 1.4: this export is "
            "for other loaders; -p int8-wo or fp8 is what it runs"
        )
