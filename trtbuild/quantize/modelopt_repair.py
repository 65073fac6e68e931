"""What a decoder must be before modelopt quantizes it, and what its export must get back before it is called done."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from trtbuild.checkpoint.spec import EMBEDDING, HEAD, LINEAR_MODULES, Decoder, DecoderSpec, Tensor, module_path
from trtbuild.checkpoint.trtllm import read_checkpoint, validate_checkpoint
from trtbuild.checkpoint.trtllm_sharding import COLUMNS, MODULE_CUTS
from trtbuild.errors import InputRefused
from trtbuild.quantize.precisions import Precision


def check_groups(spec: DecoderSpec, precision: Precision, *, tp: int = 1) -> None:
    """Raise InputRefused for the first linear whose inputs a group-wise precision cannot divide; loads nothing."""
    if precision.group_size is None:
        return
    for module in LINEAR_MODULES:
        columns = spec.linear_shape(module)[1]
        local = columns // tp if MODULE_CUTS[module] == COLUMNS else columns
        if local % precision.group_size:
            on_rank = f" on each of {tp} ranks" if local != columns else ""
            raise InputRefused(
                f"{local} inputs{on_rank} are not a multiple of {precision.group_size}, which {precision.name} needs",
                where=module_path(0, module),
                hint="choose another precision: int8, int8-wo and fp8 take any size",
            )


def repaired(exported: Decoder, source: Decoder, dtype: str) -> Decoder:
    """What modelopt exported, with what it lost put back from the decoder it was made of.

    Spec (rope, windows, stop tokens, vocabulary without AWQ's padding) and assets come from `source`; linears under
    W8A8_SQ_PER_CHANNEL without smoothing get prequant factors of one, which TensorRT-LLM demands.
    """
    tensors = dict(exported.tensors)
    for name in (EMBEDDING, HEAD):
        tensors[name] = _first_rows(tensors[name], source.spec.vocab_size)
    if exported.quantization.quant_algo == "W8A8_SQ_PER_CHANNEL":
        ones = np.dtype(tensors[EMBEDDING].dtype)
        for layer in range(source.spec.num_layers):
            for module in LINEAR_MODULES:
                path = module_path(layer, module)
                if exported.quantization.quantizes(path):
                    tensors.setdefault(
                        f"{path}.prequant_scaling_factor", _ones(source.spec.linear_shape(module)[1], ones)
                    )
    spec = dataclasses.replace(source.spec, dtype=dtype)
    return dataclasses.replace(exported, spec=spec, tensors=tensors, assets=source.assets, notes=source.notes)


def _first_rows(tensor: Tensor, rows: int) -> Tensor:
    if tensor.shape[0] == rows:
        return tensor
    return dataclasses.replace(tensor, shape=(rows, *tensor.shape[1:]), read=lambda: tensor.read()[:rows])


def _ones(length: int, dtype: np.dtype[Any]) -> Tensor:
    return Tensor(dtype, (length,), "prequant factors of one", lambda: np.ones(length, dtype))


def require_valid(folder: Path, quantization_asked: str | None, kv_cache: str | None) -> None:
    block = read_checkpoint(folder).quantization
    if block.quant_algo != quantization_asked:
        raise InputRefused(f"modelopt exported {block.quant_algo}, {quantization_asked} was asked for", where=folder)
    if kv_cache is not None and block.kv_cache_quant_algo != kv_cache.upper():
        raise InputRefused("modelopt lost the KV cache quantization in its export", where=folder)
    fatal = [finding for finding in validate_checkpoint(folder) if finding.fatal]
    if fatal:
        raise InputRefused(
            f"modelopt's export breaks rule {fatal[0].rule}: {fatal[0].text}", where=folder, hint=fatal[0].hint
        )
