"""Rounding that compensates its own error: each weight's rounding error is made good by the weights rounded after it.

For y = x · wᵀ the error that matters is Σ_t (x_t · e)² = e H eᵀ with H = Xᵀ X and e the rounding errors of a row. With
H = R Rᵀ, R upper triangular, it is Σ_j (Σ_{k ≤ j} e_k R_kj)²: rounding the columns in order, e_j can cancel what the
earlier errors left in term j, so w_j is rounded after subtracting Σ_{k<j} e_k R_kj / R_jj. This gives the integers of
GPTQ (Frantar et al. 2022, algorithm 1) without its matrix inversion. The format does not change: the same scales,
other integers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trtbuild.checkpoint.spec import Array

_DAMPING = 0.01
"""Share of H's mean diagonal added to it: directions the samples did not show are rounded as they are."""
_BLOCK = 64
LARGEST_RUN = 2048
"""Columns that compensate each other; wider inputs are cut into such runs, so that memory and time stay bounded."""


def factors(x: Array, row_weights: Array) -> list[Array]:
    """For H = Σ_t weight_t · x_tᵀ x_t of x F32 [T, in]: upper triangular R F32 with R Rᵀ = H + damping.

    One factor for each run of LARGEST_RUN columns.
    """
    root = np.sqrt(row_weights)[:, None]
    runs = range(0, x.shape[1], LARGEST_RUN)
    return [_upper_factor(x[:, start : start + LARGEST_RUN] * root) for start in runs]


def _upper_factor(x: Array) -> Array:
    h = x.T @ x
    diagonal = np.arange(len(h))
    mean = float(h[diagonal, diagonal].mean())
    h[diagonal, diagonal] += np.float32(_DAMPING * mean if mean > 0 else 1.0)
    # the lower factor of H with rows and columns reversed is R reversed
    return np.ascontiguousarray(np.linalg.cholesky(h[::-1, ::-1])[::-1, ::-1])


def compensated(weight: Array, scales: Array, upper: Sequence[Array]) -> Array:
    """Int8 [out, in] of weight F32 [out, in] with `scales` F32 [out], compensating along `factors`."""
    runs = [weight[:, i * LARGEST_RUN : (i + 1) * LARGEST_RUN] for i in range(len(upper))]
    return np.concatenate(
        [_compensated_run(run / scales[:, None], factor) for run, factor in zip(runs, upper, strict=True)], axis=1
    )


def _compensated_run(weight: Array, upper: Array) -> Array:
    """Int8 [out, in]; `weight` F32 [out, in] is in units of its scale."""
    columns = weight.shape[1]
    target = np.ascontiguousarray(weight.T)
    errors = np.empty_like(target)
    levels = np.empty(target.shape, np.int8)
    for start in range(0, columns, _BLOCK):
        stop = min(start + _BLOCK, columns)
        left = upper[:start, start:stop].T @ errors[:start]
        for j in range(start, stop):
            level = np.rint(target[j] - left[j - start] / upper[j, j])
            np.clip(level, -127, 127, out=level)
            levels[j] = level
            np.subtract(level, target[j], out=errors[j])
            left[j - start + 1 :] += upper[j, j + 1 : stop, None] * errors[j]
    return np.ascontiguousarray(levels.T)
