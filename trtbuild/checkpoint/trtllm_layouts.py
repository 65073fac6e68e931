"""Which tensors TensorRT-LLM wants of a checkpoint: one table of linear layouts per quant_algo, and the rest around it.

Shapes are those of one rank. Sources: TensorRT-LLM `quantization/layers.py` and `models/modeling_utils.py` (1.0-1.2),
and checkpoints that nvidia-modelopt 0.37 and 0.47 export.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from trtbuild.checkpoint.spec import (
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    LINEAR_MODULES,
    DecoderSpec,
    Quantization,
    layer_prefix,
    module_path,
)
from trtbuild.checkpoint.trtllm_config import FAMILIES, Ranks
from trtbuild.checkpoint.trtllm_sharding import COLUMNS, MODULE_CUTS, Split, row_sections

FLOAT = "dtype of the checkpoint"


@dataclass(frozen=True)
class Expected:
    """A tensor that must be there: accepted dtypes (numpy names) and its shape on one rank."""

    dtypes: tuple[str, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class _Row:
    """One tensor of a quantized linear; dimensions are names looked up in `_dimensions`."""

    dtypes: tuple[str, ...]
    shape: tuple[str, ...]
    modules: tuple[str, ...] = LINEAR_MODULES


_F32, _I8, _FP8 = ("float32",), ("int8",), ("float8_e4m3fn", "int8")
_COLUMN_CUT = tuple(module for module in LINEAR_MODULES if MODULE_CUTS[module] == COLUMNS)
_FLOATING: Mapping[str, _Row] = {"weight": _Row((FLOAT,), ("out", "in"))}
_PREQUANT: Mapping[str, _Row] = {"prequant_scaling_factor": _Row((FLOAT,), ("in",))}
_ACTIVATION: Mapping[str, _Row] = {"activation_scaling_factor": _Row(_F32, ("1",))}
_INT4: Mapping[str, _Row] = {
    "weight": _Row(_I8, ("out/2", "in")),
    "weights_scaling_factor": _Row(_F32, ("out", "in/group")),
    **_PREQUANT,
}

LINEAR_LAYOUTS: Mapping[str | None, Mapping[str, _Row]] = {
    None: _FLOATING,
    "W8A16": _FLOATING,
    "W4A16": _FLOATING,
    "W8A8_SQ_PER_CHANNEL": {
        "weight": _Row(_I8, ("out", "in")),
        "weights_scaling_factor": _Row(_F32, ("out",)),
        **_ACTIVATION,
        **_PREQUANT,
    },
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN": {
        "weight": _Row(_I8, ("out", "in")),
        "per_channel_scale": _Row(_F32, ("1", "out")),
        "smoother": _Row(_F32, ("1", "in"), _COLUMN_CUT),
    },
    "FP8": {
        "weight": _Row(_FP8, ("out", "in")),
        "weights_scaling_factor": _Row(_F32, ("1",)),
        **_ACTIVATION,
    },
    "W4A16_AWQ": _INT4,
    "W4A8_AWQ": {**_INT4, "weights_scaling_factor_2": _Row(_F32, ("1",)), **_ACTIVATION},
    "NVFP4": {
        "weight": _Row(("uint8",), ("out", "in/2")),
        "weights_scaling_factor": _Row(("float8_e4m3fn",), ("out", "in/16")),
        "weights_scaling_factor_2": _Row(_F32, ()),
        "activation_scaling_factor": _Row(_F32, ()),
    },
}
"""quant_algo → suffix → tensor of each quantized linear. W8A16 and W4A16 are quantized by TensorRT-LLM's loader."""

WEIGHT_ONLY_BITS: Mapping[str, int] = {"W8A16": 8, "W4A16": 4, "W4A16_AWQ": 4, "W4A8_AWQ": 4}
"""quant_algo that runs on the mixed-input GEMM kernels → bits per weight."""

PLUGIN_SUFFIX = "_PLUGIN"
"""Algorithms whose name ends so run in the SmoothQuant plugin, which ignores exclude_modules."""


def linear_shape_of_rank(spec: DecoderSpec, module: str, tp: int) -> tuple[int, int]:
    """[out, in] of a linear module of the checkpoint on one rank (mlp.fc of a fused family holds up and gate)."""
    rows, columns = spec.linear_shape(module)
    if MODULE_CUTS[module] == COLUMNS:
        return rows, columns // tp
    sections = row_sections(spec, module)
    split = Split(0, (rows,), (rows,), tp) if sections is None else Split(0, *sections, tp)
    return split.local_length, columns


def linear_modules(spec: DecoderSpec) -> tuple[str, ...]:
    """The linear modules a layer of the checkpoint has."""
    fused = FAMILIES[spec.family].fused_mlp
    return tuple(module for module in LINEAR_MODULES if not (fused and module == "mlp.gate"))


def _dimensions(rows: int, columns: int, group_size: int) -> dict[str, int]:
    return {
        "1": 1,
        "out": rows,
        "out/2": rows // 2,
        "in": columns,
        "in/2": columns // 2,
        "in/16": columns // 16,
        "in/group": columns // group_size,
    }


def _linear(
    spec: DecoderSpec, quantization: Quantization, path: str, module: str, tp: int, dtype: str
) -> dict[str, Expected]:
    algo = quantization.quant_algo if quantization.quantizes(path) else None
    rows, columns = linear_shape_of_rank(spec, module, tp)
    sizes = _dimensions(rows, columns, quantization.group_size or 128)
    tensors = {
        f"{path}.{suffix}": Expected(
            tuple(dtype if name is FLOAT else name for name in row.dtypes), tuple(sizes[name] for name in row.shape)
        )
        for suffix, row in LINEAR_LAYOUTS[algo].items()
        if module in row.modules
    }
    if spec.has_bias(module):
        bias_rows = rows if MODULE_CUTS[module] != COLUMNS else spec.linear_shape(module)[0]
        tensors[f"{path}.bias"] = Expected((dtype,), (bias_rows,))
    return tensors


def _layer(spec: DecoderSpec, quantization: Quantization, layer: int, tp: int, dtype: str) -> dict[str, Expected]:
    prefix = layer_prefix(layer)
    tensors: dict[str, Expected] = {}
    for name in ("input_layernorm", "post_layernorm"):
        tensors[f"{prefix}.{name}.weight"] = Expected((dtype,), (spec.hidden_size,))
        if (quantization.quant_algo or "").endswith(PLUGIN_SUFFIX):
            tensors[f"{prefix}.{name}.scale_to_int"] = Expected(_F32, (1,))
    if spec.qk_norm:
        for name in ("q_layernorm", "k_layernorm"):
            tensors[f"{prefix}.attention.{name}.weight"] = Expected((dtype,), (spec.head_size,))
    if quantization.kv_cache_quant_algo is not None:
        tensors[f"{prefix}.attention.kv_cache_scaling_factor"] = Expected(_F32, (1,))
    for module in linear_modules(spec):
        tensors |= _linear(spec, quantization, module_path(layer, module), module, tp, dtype)
    return tensors


def expected_tensors(
    spec: DecoderSpec, quantization: Quantization, ranks: Ranks, *, dtype: str, embedding_axis: int | None
) -> list[dict[str, Expected]]:
    """For each pipeline stage, name in the file → what each of its tensor-parallel ranks must hold.

    `quantization` is the block of that `config.json`, whose exclude_modules number the layers of a stage from 0. The
    decoder must be divisible by the ranks and the quant_algo must have a row in LINEAR_LAYOUTS.
    """
    layers: dict[str, Expected] = {}
    for layer in range(spec.num_layers // ranks.pp):
        layers |= _layer(spec, quantization, layer, ranks.tp, dtype)
    stages = [dict(layers) for _ in range(ranks.pp)]
    shape = [spec.vocab_size, spec.hidden_size]
    if embedding_axis is not None:
        shape[embedding_axis] = math.ceil(shape[embedding_axis] / ranks.tp)
    stages[0][EMBEDDING] = Expected((dtype,), (shape[0], shape[1]))
    stages[-1][FINAL_NORM] = Expected((dtype,), (spec.hidden_size,))
    stages[-1][HEAD] = Expected((dtype,), (math.ceil(spec.vocab_size / ranks.tp), spec.hidden_size))
    return stages
