"""SmoothQuant: move the difficulty of uneven channels from the activation into the weights.

    s = max|x|^α / max|W|^(1 − α) per input channel,  x · W = (x / s) · (s · W)      (Xiao et al. 2023, equation 4)

The formats store 1/s in several ways (`quantize/schemes.py`), some in the dtype of the model. What is stored is rounded
first and the weights are divided by the rounded factors, so the rounding costs nothing.
"""

from __future__ import annotations

import numpy as np

from trtbuild.checkpoint.spec import Array

ALPHAS: tuple[float | None, ...] = (None, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""Strengths tried; None is no smoothing."""

_SMALLEST_SHARE = 1e-5
_LARGEST = 2.0**14
"""Stored factors lie between 2^-14, the smallest normal FP16, and 2^14."""


def _raised(maxima: Array) -> Array:
    """Maxima as float64, the smallest raised to a share of the largest so that no channel is blown up."""
    values = np.asarray(maxima, np.float64)
    return np.maximum(values, max(float(values.max(initial=0)) * _SMALLEST_SHARE, np.finfo(np.float64).tiny))


def prequant_factors(activation_maxima: Array, weight_maxima: Array, alpha: float | None) -> Array:
    """What multiplies the input, F32 [in]: 1/s, scaled by a power of two so that its geometric mean is near 1.

    A dead channel (no activation seen) gets 1: were it ever to wake, it should be treated like the average one.
    """
    if alpha is None:
        return np.ones(len(activation_maxima), np.float32)
    alive = np.asarray(activation_maxima) > 0
    logarithm = (1 - alpha) * np.log2(_raised(weight_maxima)) - alpha * np.log2(_raised(activation_maxima))
    if alive.any():
        logarithm -= np.rint(logarithm[alive].mean())
    factors = np.where(alive, np.exp2(logarithm), 1.0)
    return np.clip(factors, 1 / _LARGEST, _LARGEST).astype(np.float32)
