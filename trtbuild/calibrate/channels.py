"""What every channel of a linear's input looked like: exact maxima, and counts on a logarithmic scale.

Smoothing divides each channel by its own factor, and the factors depend on maxima that are known only when all samples
have been seen. So the counts are kept per channel, in buckets of an eighth of an octave: the histogram of the smoothed
tensor is then a relabelling of buckets, for any smoothing, with no second pass over the samples. Counts are integers
and maxima are maxima, so records of disjoint data add up to what one run over both gives.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trtbuild.calibrate.histogram import Histogram, histogram_of
from trtbuild.checkpoint.spec import Array

LOWEST_OCTAVE = -24
OCTAVES = 48
STEPS = 8
"""Buckets per octave: a value is known to within 6 %, its channel's largest exactly."""
BUCKETS = 1 + OCTAVES * STEPS
"""Bucket 0 is |x| < 2^-24, zero included; the last bucket also takes what is beyond 2^24."""

_MANTISSA_BITS_DROPPED = 20
_FIRST = ((127 + LOWEST_OCTAVE) * STEPS) - 1
_NOT_FINITE = np.uint32(0x7F800000)
_POINTS = 2
"""Values that stand for a bucket: its lower and upper quarter."""


@dataclass(frozen=True)
class ChannelCounts:
    """Counts int64 [C, n] of buckets `first` … `first` + n − 1 and maxima F32 [C] of |x| over the rows seen."""

    first: int
    counts: Array
    maxima: Array

    def whole(self) -> ChannelCounts:
        """The same counts for all BUCKETS."""
        counts = np.zeros((len(self.counts), BUCKETS), np.int64)
        counts[:, self.first : self.first + self.counts.shape[1]] = self.counts
        return ChannelCounts(0, counts, self.maxima)

    def trimmed(self) -> ChannelCounts:
        """The same counts without empty buckets at either end."""
        used = np.flatnonzero(self.counts.any(axis=0))
        if len(used) == 0:
            return ChannelCounts(0, self.counts[:, :1], self.maxima)
        return ChannelCounts(self.first + int(used[0]), self.counts[:, used[0] : used[-1] + 1], self.maxima)


def first_not_finite(x: Array) -> tuple[int, int] | None:
    """(row, channel) of the first NaN or infinity of x F32 [T, C], None when there is none."""
    bits = x.view(np.uint32) & np.uint32(0x7FFFFFFF)
    if bits.max(initial=0) < _NOT_FINITE:
        return None
    row, channel = np.unravel_index(int(np.argmax(bits >= _NOT_FINITE)), x.shape)
    return int(row), int(channel)


def count_channels(x: Array) -> ChannelCounts:
    """Counts of one sample x F32 [T, C], contiguous and finite."""
    bits = x.view(np.uint32) & np.uint32(0x7FFFFFFF)
    maxima = bits.max(axis=0).view(np.float32)
    # sign removed, the bits of a float32 are ordered as its value: exponent and three mantissa bits are the bucket
    buckets = (bits >> np.uint32(_MANTISSA_BITS_DROPPED)).view(np.int32)
    buckets -= _FIRST
    np.clip(buckets, 0, BUCKETS - 1, out=buckets)
    first, last = int(buckets.min()), int(buckets.max())
    width = last - first + 1
    channels = x.shape[1]
    buckets += np.arange(0, channels * width, width, dtype=np.int32) - first
    counts = np.bincount(buckets.reshape(-1), minlength=channels * width)
    return ChannelCounts(first, counts.reshape(channels, width), maxima)


class ChannelSum:
    """Adds up counts and maxima; the order of adding does not matter."""

    def __init__(self, channels: int) -> None:
        self._counts = np.zeros((channels, BUCKETS), np.int64)
        self._maxima = np.zeros(channels, np.float32)

    def add(self, part: ChannelCounts) -> None:
        self._counts[:, part.first : part.first + part.counts.shape[1]] += part.counts
        np.maximum(self._maxima, part.maxima, out=self._maxima)

    def total(self) -> ChannelCounts:
        return ChannelCounts(0, self._counts, self._maxima)


def _bucket_points() -> Array:
    """Values F32 [BUCKETS − 1, _POINTS] that stand for the buckets above 0."""
    octave, step = np.divmod(np.arange(BUCKETS - 1), STEPS)
    place = (np.arange(_POINTS) + 0.5) / _POINTS
    mantissa = 1 + (step[:, None] + place[None, :]) / STEPS
    return (np.exp2((octave + LOWEST_OCTAVE).astype(np.float64))[:, None] * mantissa).astype(np.float32)


_VALUES = _bucket_points()


@dataclass(frozen=True)
class Points:
    """The values that stand for the counts: F32 and int64 [n, _POINTS] with their channel [n], and the zeros."""

    maxima: Array
    channel: Array
    values: Array
    counts: Array
    zeros: int


def bucket_points(channels: ChannelCounts) -> Points:
    """Every value is taken at its bucket's lower or upper quarter, in equal shares."""
    channel, column = np.nonzero(channels.counts)
    bucket = column + channels.first
    count = channels.counts[channel, column]
    tiny = bucket == 0
    zeros = int(count[tiny].sum())
    channel, bucket, count = channel[~tiny], bucket[~tiny], count[~tiny]
    values = np.minimum(_VALUES[bucket - 1], channels.maxima[channel, None])
    lower = count // _POINTS
    return Points(channels.maxima, channel, values, np.stack([count - lower, lower], axis=1), zeros)


def smoothed_histogram(points: Points, multiplier: Array) -> Histogram:
    """Histogram of x · multiplier F32 [C] over all rows counted; the largest value is exact."""
    multiplier = np.asarray(multiplier, np.float32)
    values = points.values * multiplier[points.channel, None]
    largest = np.max(points.maxima * multiplier, initial=0)
    return histogram_of(
        np.concatenate([values.reshape(-1), [np.float32(0), largest]]),
        np.concatenate([points.counts.reshape(-1), [points.zeros, 0]]),
    )
