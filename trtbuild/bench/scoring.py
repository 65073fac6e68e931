"""Log-probabilities of given text, and their distance from the baseline's on the same positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from trtbuild.bench.driver import Scorer

_ROWS = 64


def score_window(
    scorer: Scorer, ids: Sequence[int], first: int, write: str | None, against: str | None
) -> dict[str, list[float] | list[int]]:
    """Score tokens `ids[first:]`, each given all before it; `first` is at least 1, for nothing precedes token 0.

    Returns `logp` (natural log of the probability of each token) and `top1` (the most likely id at each position).
    `write` is a file to keep these logits in (float32 [positions, vocab]); `against` such a file of the baseline, which
    adds `kl`: KL(baseline || engine) of each position, in nats. Both distributions are normalised in float64.
    """
    logits = scorer.logits(ids)[first - 1 : len(ids) - 1]
    if write is not None:
        np.save(write, logits, allow_pickle=False)
    baseline = None if against is None else np.load(against, mmap_mode="r", allow_pickle=False)
    logp, kl = np.empty(len(logits)), np.empty(len(logits))
    for start in range(0, len(logits), _ROWS):
        rows = slice(start, min(start + _ROWS, len(logits)))
        ours = _log_softmax(logits[rows])
        targets = np.asarray(ids[first + rows.start : first + rows.stop])
        logp[rows] = ours[np.arange(len(ours)), targets]
        if baseline is not None:
            theirs = _log_softmax(baseline[rows])
            kl[rows] = (np.exp(theirs) * (theirs - ours)).sum(axis=1)
    scores: dict[str, list[float] | list[int]] = {"logp": logp.tolist(), "top1": logits.argmax(axis=1).tolist()}
    return scores if baseline is None else {**scores, "kl": kl.tolist()}


def _log_softmax(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted
