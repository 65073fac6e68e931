"""Logits of given tokens: the context phase of row 0, chunk after chunk, every position asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trtbuild.errors import InputRefused
from trtbuild.targets.tensorrt_rtx.batching import context_step
from trtbuild.targets.tensorrt_rtx.driver import ClosableExecutor
from trtbuild.targets.tensorrt_rtx.loading import load_engine


class SlotScorer:
    """Implements `targets.serving.Scorer` over any executor."""

    def __init__(self, executor: ClosableExecutor, max_seq_len: int) -> None:
        self._executor = executor
        self._max_seq_len = max_seq_len

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """F32 [len(ids), vocab] with an empty past; raises InputRefused beyond the engine's max_seq_len."""
        if not 1 <= len(ids) <= self._max_seq_len:
            raise InputRefused(
                f"{len(ids)} tokens do not fit this engine (1 to {self._max_seq_len})",
                hint="score shorter texts, or build with a larger --max-seq-len",
            )
        shape = self._executor.geometry
        parts = []
        for start in range(0, len(ids), shape.logits_rows):
            chunk = ids[start : start + shape.logits_rows]
            parts.append(self._executor.logits(context_step(shape, 0, chunk, start, range(len(chunk))))[0])
        return np.concatenate(parts)

    def close(self) -> None:
        self._executor.close()


def open_scorer(path: Path) -> SlotScorer:
    """Score on this machine's GPU; raises MachineLacks where there is none the engine was built for."""
    from trtbuild.targets.tensorrt_rtx.executor import open_executor

    loaded = load_engine(path)
    return SlotScorer(open_executor(loaded), loaded.engine.limits.max_seq_len)
