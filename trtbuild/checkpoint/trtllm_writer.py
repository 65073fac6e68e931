"""Decoder → TensorRT-LLM checkpoint, streamed: headers first, then one tensor in memory at a time for all ranks."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trtbuild.checkpoint.safetensors_writer import Layout, streamed_file
from trtbuild.checkpoint.spec import EMBEDDING, Array, Decoder, Tensor
from trtbuild.checkpoint.trtllm_config import CONFIG_NAME, FAMILIES, Ranks, build_config
from trtbuild.checkpoint.trtllm_exclusions import with_float_partners, within_stages
from trtbuild.checkpoint.trtllm_sharding import Split, check_ranks, cut_axis, split_whole, stage_of
from trtbuild.errors import InputRefused
from trtbuild.progress import Progress, silent


@dataclass(frozen=True)
class _Placed:
    """One tensor of the rank files: `parts` of the hub, concatenated along `join` (or all the same), cut by `split`."""

    parts: tuple[Tensor, ...]
    join: int | None
    layout: Layout
    split: Split
    stage: int
    local_name: str

    def read(self) -> Array:
        arrays = [part.read() for part in self.parts]
        if self.join is not None:
            return np.concatenate(arrays, axis=self.join)
        for part, array in zip(self.parts[1:], arrays[1:], strict=True):
            if not np.array_equal(array, arrays[0]):
                raise InputRefused(
                    "differs from its partner, but this family fuses both into one linear",
                    where=part.source,
                    hint="quantize mlp.fc and mlp.gate with the same smoothing and activation scale",
                )
        return arrays[0]

    def local_layout(self) -> Layout:
        shape = list(self.layout.shape)
        if self.split.axis is not None:
            shape[self.split.axis] = self.split.local_length
        return Layout(self.layout.dtype, tuple(shape))


def shard(whole: Array, split: Split, tp_rank: int) -> Array:
    """What a rank holds of a tensor; a view where no assembly is needed."""
    if split.axis is None:
        return whole
    pieces = split.pieces(tp_rank)
    arrays = [whole[(slice(None),) * split.axis + (slice(p.start, p.start + p.length),)] for p in pieces]
    padding = split.local_length - sum(piece.length for piece in pieces)
    if padding:
        shape = list(whole.shape)
        shape[split.axis] = padding
        arrays.append(np.zeros(shape, whole.dtype))
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=split.axis)


def _place(decoder: Decoder, ranks: Ranks) -> Iterator[_Placed]:
    spec = decoder.spec
    fused = FAMILIES[spec.family].fused_mlp
    for name, tensor in decoder.tensors.items():
        if fused and ".mlp.gate." in name:
            continue  # its rows are written before those of mlp.fc
        parts: tuple[Tensor, ...] = (tensor,)
        join = None
        if fused and ".mlp.fc." in name:
            partner = decoder.tensors.get(name.replace(".mlp.fc.", ".mlp.gate."))
            if partner is None or partner.dtype != tensor.dtype:
                raise InputRefused(
                    "mlp.fc and mlp.gate must be quantized alike, because this family fuses both into one linear",
                    where=tensor.source,
                )
            parts = (partner, tensor)
            join = cut_axis(name, tensor.shape, 0)
        shape = list(tensor.shape)
        if join is not None:
            shape[join] *= 2
        split = split_whole(spec, name, tuple(shape), ranks.tp)
        if split is None:
            raise InputRefused(f"shape {tensor.shape} cannot be cut into {ranks.tp} equal parts", where=tensor.source)
        stage, local_name = stage_of(name, spec.num_layers, ranks.pp)
        yield _Placed(parts, join, Layout(tensor.dtype, tuple(shape)), split, stage, local_name)


def write_checkpoint(
    decoder: Decoder, out: Path, *, tp: int = 1, pp: int = 1, progress: Progress = silent
) -> dict[str, Any]:
    """Write `config.json`, a file per rank and the decoder's assets into the existing folder `out`.

    The tensors are written with the dtypes they have; `dtype` of the config is that of the embedding. Returns the
    content of `config.json`. Raises UsageError when the decoder cannot be cut into tp × pp ranks, naming the legal
    values, InputRefused when a tensor cannot be read, OSError when the disk is full.
    """
    ranks = Ranks(tp, pp)
    check_ranks(decoder.spec, ranks)
    decoder = with_float_partners(decoder, pp)
    placed = list(_place(decoder, ranks))
    quantization = within_stages(decoder.quantization, decoder.spec.num_layers, pp)
    config = build_config(decoder.spec, quantization, ranks, dtype=str(decoder.tensors[EMBEDDING].dtype))
    with contextlib.ExitStack() as stack:
        files = [
            [
                stack.enter_context(
                    streamed_file(
                        out / ranks.file_name(stage, tp_rank),
                        {tensor.local_name: tensor.local_layout() for tensor in placed if tensor.stage == stage},
                    )
                )
                for tp_rank in range(tp)
            ]
            for stage in range(pp)
        ]
        advance = stack.enter_context(
            progress.task("writing checkpoint", total=sum(tensor.layout.size_bytes for tensor in placed))
        )
        for tensor in placed:
            whole = tensor.read()
            for tp_rank in range(tp):
                files[tensor.stage][tp_rank].write(tensor.local_name, shard(whole, tensor.split, tp_rank))
            del whole
            advance(tensor.layout.size_bytes)
    (out / CONFIG_NAME).write_text(json.dumps(config, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for name, content in decoder.assets.items():
        if name != CONFIG_NAME:
            (out / name).write_bytes(content)
    return config
