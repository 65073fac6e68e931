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


class CpuScorer:
    """A compiled model as a function from token ids to logits."""

    def __init__(self, model_xml: Path, properties: Mapping[str, Any], max_seq_len: int) -> None:
        import openvino

        self._request = openvino.Core().compile_model(model_xml, "CPU", dict(properties)).create_infer_request()
        self._max_seq_len = max_seq_len

    def logits(self, ids: Sequence[int]) -> Array:
        """F32 [len(ids), vocab] with an empty past; raises InputRefused beyond the engine's max_seq_len."""
        return self.logits_in_chunks(ids, range(CHUNK_TOKENS, len(ids), CHUNK_TOKENS))

    def logits_in_chunks(self, ids: Sequence[int], cuts: Iterable[int]) -> Array:
        """As `logits`, with the sequence cut at the given positions: each part sees the ones before as its past."""
        if not 1 <= len(ids) <= self._max_seq_len:
            raise InputRefused(
                f"{len(ids)} tokens do not fit this engine (1 to {self._max_seq_len})",
                hint="score shorter texts, or build with a larger --max-seq-len",
            )
        self._request.reset_state()
        bounds = [0, *cuts, len(ids)]
        parts = [self._chunk(ids[start:stop], start) for start, stop in itertools.pairwise(bounds)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _chunk(self, ids: Sequence[int], start: int) -> Array:
        stop = start + len(ids)
        inputs = {
            "input_ids": np.asarray(ids, np.int64)[None],
            "attention_mask": np.ones((1, stop), np.int64),
            "position_ids": np.arange(start, stop, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        self._request.infer(inputs)
        return np.array(self._request.get_tensor("logits").data[0])

    def close(self) -> None:
        del self._request


def open_scorer(path: Path) -> CpuScorer:
    """Score with the kernels and the KV cache precision the engine serves with."""
    cpu = load_engine(path)
    return CpuScorer(cpu.model_path, cpu.properties, cpu.engine.limits.max_seq_len)
