"""The entropy search as everybody publishes it: a plain loop. The oracle of the fast one."""

from __future__ import annotations

import numpy as np


def divergence_of(counts: np.ndarray, i: int, levels: int = 128) -> float:
    """KL(P ‖ Q) of keeping `i` bins."""
    p = counts[:i].astype(np.float64)
    p[-1] += counts[i:].sum()
    q = np.zeros(i)
    for level in range(levels):
        members = [j for j in range(i) if j * levels // i == level and counts[j] > 0]
        if members:
            q[members] = counts[members].sum() / len(members)
    if q.sum() == 0 or np.any((q == 0) & (p > 0)):
        return float("inf")
    p, q = p / p.sum(), q / q.sum()
    kept = p > 0
    return float((p[kept] * np.log(p[kept] / q[kept])).sum())


def entropy_bins_by_loop(counts: np.ndarray, stride: int = 1) -> int:
    """Number of bins with the least divergence, the last of equal ones."""
    counts = counts.copy()
    counts[0] = counts[1]
    best, best_divergence = len(counts), float("inf")
    for i in range(128, len(counts) + 1, stride):
        divergence = divergence_of(counts, i)
        if divergence <= best_divergence:
            best, best_divergence = i, divergence
    return best
