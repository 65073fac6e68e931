"""INT8 weights, one scale per output channel."""

from __future__ import annotations

import numpy as np

from trtbuild.checkpoint.spec import Array


def weight_scales(weight: Array) -> Array:
    """F32 [out]: the largest |w| of each output channel / 127; 1 where the channel is zero."""
    scales: Array = np.abs(weight).max(axis=1) / np.float32(127)
    return np.where(scales == 0, np.float32(1), np.maximum(scales, np.finfo(np.float32).tiny))


def rounded(weight: Array, scales: Array) -> Array:
    """Int8 [out, in] in −127 … 127 of weight F32 [out, in] (already divided by the prequant factors)."""
    levels = weight / scales[:, None]
    np.rint(levels, out=levels)
    np.clip(levels, -127, 127, out=levels)
    return levels.astype(np.int8)


def dequantized_weight(levels: Array, scales: Array) -> Array:
    """F32 [out, in] of int8 levels."""
    return np.asarray(levels.astype(np.float32) * scales[:, None])
