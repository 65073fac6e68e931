"""Logits of given tokens: the engine's model compiled directly, with its cache as a state."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trtbuild.checkpoint.spec import Array
from trtbuild.errors import InputRefused
from trtbuild.targets.cpu.loading import load_engine

CHUNK_TOKENS = 256
"""Tokens per inference: bounds the logits held at once, and lets a quantized KV cache have its effect."""


def compile_model(model: Any, properties: Mapping[str, Any]) -> Any:
    """Compile an openvino.Model or the path of one for the CPU."""
    import openvino

    return openvino.Core().compile_model(model, "CPU", dict(properties))


class StatefulModel:
    """A compiled model whose KV cache is its state, run over one sequence at a time."""

    def __init__(self, compiled: Any) -> None:
        self._request = compiled.create_infer_request()
        self._outputs = len(compiled.outputs)
        self._inputs = {name for port in compiled.inputs for name in port.get_names()}

    def run(
        self, ids: Sequence[int] | Array, cuts: Iterable[int], rows: Mapping[str, Array] | None = None
    ) -> list[Array]:
        """Every output [len(ids), …] for `ids` with an empty past.

        The sequence is cut at the given positions, and each part sees the ones before as its past. `rows` are further
        inputs with a row per token.
        """
        self._request.reset_state()
        bounds = itertools.pairwise([0, *cuts, len(ids)])
        parts = [self._part(ids, start, stop, rows or {}) for start, stop in bounds]
        return parts[0] if len(parts) == 1 else [np.concatenate(pieces) for pieces in zip(*parts, strict=True)]

    def _part(self, ids: Sequence[int] | Array, start: int, stop: int, rows: Mapping[str, Array]) -> list[Array]:
        inputs = {
            "input_ids": np.asarray(ids[start:stop], np.int64)[None],
            "attention_mask": np.ones((1, stop), np.int64),
            "position_ids": np.arange(start, stop, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
            **{name: values[None, start:stop] for name, values in rows.items()},
        }
        self._request.infer({name: value for name, value in inputs.items() if name in self._inputs})
        return [np.array(self._request.get_output_tensor(number).data[0]) for number in range(self._outputs)]

    def close(self) -> None:
        del self._request


class CpuScorer:
    """Implements `targets.serving.Scorer`."""

    def __init__(self, model_xml: Path, properties: Mapping[str, Any], max_seq_len: int) -> None:
        self._model = StatefulModel(compile_model(model_xml, properties))
        self._max_seq_len = max_seq_len

    def logits(self, ids: Sequence[int]) -> Array:
        """F32 [len(ids), vocab] with an empty past; raises InputRefused beyond the engine's max_seq_len."""
        return self.logits_in_chunks(ids, range(CHUNK_TOKENS, len(ids), CHUNK_TOKENS))

    def logits_in_chunks(self, ids: Sequence[int], cuts: Iterable[int]) -> Array:
        """As `logits`, with the sequence cut at the given positions."""
        if not 1 <= len(ids) <= self._max_seq_len:
            raise InputRefused(
                f"{len(ids)} tokens do not fit this engine (1 to {self._max_seq_len})",
                hint="score shorter texts, or build with a larger --max-seq-len",
            )
        return self._model.run(ids, cuts)[0]

    def close(self) -> None:
        self._model.close()


def open_scorer(path: Path) -> CpuScorer:
    """Score with the kernels and the KV cache precision the engine serves with."""
    cpu = load_engine(path)
    return CpuScorer(cpu.model_path, cpu.properties, cpu.engine.limits.max_seq_len)
