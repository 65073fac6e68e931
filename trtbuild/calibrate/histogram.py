"""Exact histograms of |x|: 2048 int64 bins whose width is a power of two.

Bin i holds the values v with i · 2^e ≤ v < (i + 1) · 2^e. The exponent e is the smallest for which the largest value
fits, and growing it by one adds neighbouring bins in pairs, which is exact because floor(floor(v / w) / 2) =
floor(v / 2w). So the counts depend on the values alone, not on batches, their order, shards or threads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from trtbuild.checkpoint.spec import Array

BINS = 2048
_BITS = 11
_LOWEST_EXPONENT = -160
"""Below the width that the smallest subnormal needs: the exponent of a histogram that has seen only zeros."""


@dataclass(frozen=True)
class Histogram:
    """Counts int64 [2048] of the finite |x|, zeros included (bin 0), and what else was met.

    `exponent` is log2 of the bin width. `amax` is the largest finite |x| itself, not its bin's edge.
    """

    counts: Array
    exponent: int
    amax: float
    zeros: int = 0
    nans: int = 0
    infinities: int = 0

    @property
    def width(self) -> float:
        return float(np.ldexp(1.0, self.exponent))

    @property
    def elements(self) -> int:
        return int(self.counts.sum()) + self.nans + self.infinities


def empty_histogram() -> Histogram:
    """A histogram that has seen nothing; `merge` with it changes nothing."""
    return Histogram(np.zeros(BINS, np.int64), _LOWEST_EXPONENT, 0.0)


def exponent_for(amax: float) -> int:
    """The smallest bin exponent with which `amax` falls into one of 2048 bins."""
    return _LOWEST_EXPONENT if amax == 0 else int(np.frexp(amax)[1]) - _BITS


def _bins_of(magnitudes: Array, exponent: int) -> Array:
    # multiplying by a power of two is exact; float64 because 2^-exponent may exceed float32 for subnormal ranges
    scaled = magnitudes if exponent >= -100 else magnitudes.astype(np.float64)
    return (scaled * scaled.dtype.type(2.0**-exponent)).astype(np.int64)


def histogram_of(values: Array, weights: Array | None = None) -> Histogram:
    """Histogram of |values| (any shape, floating); `weights` int64 counts each value that many times."""
    magnitudes = np.abs(np.asarray(values, np.float32)).reshape(-1)
    times = None if weights is None else np.asarray(weights, np.int64).reshape(-1)
    nans = infinities = 0
    amax = float(magnitudes.max(initial=0))
    if not np.isfinite(amax):
        nan, finite = np.isnan(magnitudes), np.isfinite(magnitudes)
        nans, infinities = _count(nan, times), _count(~finite & ~nan, times)
        times = None if times is None else times[finite]
        magnitudes = magnitudes[finite]
        amax = float(magnitudes.max(initial=0))
    if magnitudes.size == 0:
        return Histogram(np.zeros(BINS, np.int64), _LOWEST_EXPONENT, 0.0, 0, nans, infinities)
    exponent = exponent_for(amax)
    bins = _bins_of(magnitudes, exponent)
    # bincount adds weights as float64, exact below 2^53
    counts = np.bincount(bins, weights=times, minlength=BINS).astype(np.int64)
    return Histogram(counts, exponent, amax, _count(magnitudes == 0, times), nans, infinities)


def _count(mask: Array, weights: Array | None) -> int:
    return int(np.count_nonzero(mask)) if weights is None else int(weights[mask].sum())


def coarsened(histogram: Histogram, exponent: int) -> Array:
    """Counts int64 [2048] of the same values with bins of width 2^exponent, at least the present width."""
    shift = exponent - histogram.exponent
    if shift < 0:
        raise ValueError("a histogram cannot be made finer")
    if shift == 0:
        return histogram.counts
    kept = BINS >> min(shift, _BITS)
    counts = np.zeros(BINS, np.int64)
    counts[:kept] = histogram.counts.reshape(kept, -1).sum(axis=1)
    return counts


def merge(histograms: Iterable[Histogram]) -> Histogram:
    """The histogram of all values together; the order does not matter."""
    parts = list(histograms)
    exponent = max((part.exponent for part in parts), default=_LOWEST_EXPONENT)
    counts = np.zeros(BINS, np.int64)
    for part in parts:
        counts += coarsened(part, exponent)
    return Histogram(
        counts,
        exponent,
        max((part.amax for part in parts), default=0.0),
        sum(part.zeros for part in parts),
        sum(part.nans for part in parts),
        sum(part.infinities for part in parts),
    )
