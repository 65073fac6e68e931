"""Thresholds from a histogram: the |x| beyond which an INT8 activation is clipped. Scale = threshold / 127.

`entropy` is the search of NVIDIA's GTC 2017 talk "8-bit inference with TensorRT" (S7310) with the conventions of
nvidia-modelopt's HistogramCalibrator, whose candidate it returns: bin 0 is given the count of bin 1, every number of
bins i from 128 to 2048 is tried, the last of equal minima wins, and the threshold is the upper edge of bin i − 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from trtbuild.calibrate.histogram import BINS, Histogram
from trtbuild.checkpoint.spec import Array

LEVELS = 128
PERCENTILE = 99.99
SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
"""Scales below the smallest normal FP32 are raised to it: engines flush subnormals to zero, and a zero scale is NaN."""

_ENTROPY_BLOCK = 128
_EQUAL = 1e-12


def scale_of(threshold: float) -> float:
    """Activation scale F32 of a threshold: threshold / 127; 1 where everything was zero, never 0."""
    if threshold == 0:
        return 1.0
    return float(max(np.float32(threshold) / np.float32(127), np.float32(SMALLEST_SCALE)))


def entropy_bins(counts: Array) -> int:
    """How many bins i (128 … 2048) keep the divergence KL(P ‖ Q) smallest.

    P is bins[:i] with everything beyond added to its last bin; Q is bins[:i] merged into 128 levels, level k holding
    the bins from ceil(k·i/128) on, each level's mass spread evenly over its non-empty bins. With prefix sums of c, of
    [c > 0] and of c·log c, KL needs two look-ups per level:

        Σ_j p_j log(p_j / q_j) = (Σ_j c_j log c_j − Σ_k C_k log(C_k / n_k)) / N + log(M / N), M = Σ_j c_j for j < i

    where the tail enters the last bin and its level only. Where the last bin is empty and the tail is not, Q is zero
    where P is not and the divergence is infinite. Minima closer than rounding (1e-12) count as equal.
    """
    c = np.array(counts, np.int64)
    c[0] = c[1]
    total = int(c.sum())
    if total == 0:
        return BINS
    sums = np.concatenate([[0], np.cumsum(c)])
    filled = np.concatenate([[0], np.cumsum(c > 0)])
    c_log_c = np.concatenate([[0.0], np.cumsum(_x_log_x(c.astype(np.float64)))])
    divergences = np.concatenate(
        [
            _divergences(np.arange(start, min(start + _ENTROPY_BLOCK, BINS + 1)), c, sums, filled, c_log_c)
            for start in range(LEVELS, BINS + 1, _ENTROPY_BLOCK)
        ]
    )
    return int(LEVELS + np.flatnonzero(divergences <= divergences.min() + _EQUAL)[-1])


def _x_log_x(x: Array) -> Array:
    return np.asarray(x * np.log(np.where(x > 0, x, 1.0)))


def _divergences(i: Array, c: Array, sums: Array, filled: Array, c_log_c: Array) -> Array:
    total = sums[-1]
    edges = -(-np.arange(LEVELS + 1)[None, :] * i[:, None] // LEVELS)
    mass = np.diff(sums[edges], axis=1).astype(np.float64)
    bins = np.diff(filled[edges], axis=1)
    kept = sums[i].astype(np.float64)
    tail = (total - sums[i]).astype(np.float64)
    last = c[i - 1].astype(np.float64)
    log_level = np.log(np.where(mass > 0, mass, 1.0) / np.where(bins > 0, bins, 1))
    own = c_log_c[i] - _x_log_x(last) + _x_log_x(last + tail)
    against = (mass * log_level).sum(axis=1) + tail * log_level[:, -1]
    with np.errstate(divide="ignore", invalid="ignore"):
        divergence = (own - against) / total + np.log(kept / total)
    impossible = ((last == 0) & (tail > 0)) | (kept == 0)
    return np.asarray(np.where(impossible, np.inf, divergence))


def entropy_threshold(histogram: Histogram) -> float:
    """Threshold of least divergence; never above the largest value, which the last bin's edge may exceed."""
    return min(entropy_bins(histogram.counts) * histogram.width, histogram.amax)


def max_threshold(histogram: Histogram) -> float:
    """The largest |x|: nothing is clipped."""
    return histogram.amax


def percentile_threshold(histogram: Histogram, percentile: float = PERCENTILE) -> float:
    """Upper edge of the first bin at which `percentile` per cent of the values are covered."""
    covered = np.cumsum(histogram.counts)
    needed = percentile / 100 * covered[-1]
    return min((int(np.searchsorted(covered, needed)) + 1) * histogram.width, histogram.amax)


def squared_errors(histogram: Histogram, thresholds: Array) -> Array:
    """Σ (v − Q(v))² over the histogram for each threshold, every value taken at the centre of its bin."""
    filled = np.flatnonzero(histogram.counts)
    values = (filled + 0.5) * histogram.width
    weights = histogram.counts[filled].astype(np.float64)
    scales = np.asarray(thresholds, np.float64)[:, None] / 127
    stored = np.minimum(np.rint(values / scales), 127) * scales
    return np.asarray((weights * np.square(values - stored)).sum(axis=1))


def mse_threshold(histogram: Histogram) -> float:
    """The threshold with the least squared error, among eight per octave down to 1/256 of the largest value."""
    if histogram.amax == 0:
        return 0.0
    candidates = histogram.amax * np.exp2(-np.arange(65) / 8)
    return float(candidates[np.argmin(squared_errors(histogram, candidates))])


METHODS: Mapping[str, Callable[[Histogram], float]] = {
    "entropy": entropy_threshold,
    "max": max_threshold,
    "percentile": percentile_threshold,
    "mse": mse_threshold,
}
"""Name of a calibration method → threshold of a histogram."""


def clipped_share(histogram: Histogram, threshold: float) -> float:
    """Share of the values above a threshold, by whole bins: what is in the threshold's own bin counts as kept."""
    total = int(histogram.counts.sum())
    if total == 0 or threshold >= histogram.amax:
        return 0.0
    return float(histogram.counts[int(np.ceil(threshold / histogram.width)) :].sum() / total)


def sqnr_db(histogram: Histogram, threshold: float) -> float | None:
    """Signal to quantization noise of the tensor in dB, None where there is no signal or no noise."""
    if threshold == 0:
        return None
    noise = float(squared_errors(histogram, np.array([threshold]))[0])
    centres = (np.arange(BINS) + 0.5) * histogram.width
    signal = float((histogram.counts * np.square(centres)).sum())
    return None if noise == 0 or signal == 0 else float(10 * np.log10(signal / noise))
