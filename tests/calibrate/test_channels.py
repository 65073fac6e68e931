"""Counts per channel: exact maxima, exact sums, and the histogram of any smoothing from them."""

from __future__ import annotations

import numpy as np
import pytest

from trtbuild.calibrate.channels import (
    BUCKETS,
    ChannelCounts,
    ChannelSum,
    bucket_points,
    count_channels,
    first_not_finite,
    smoothed_histogram,
)
from trtbuild.calibrate.histogram import histogram_of


def _activations(rows: int = 400, channels: int = 24) -> np.ndarray:
    rng = np.random.default_rng(5)
    sizes = np.exp2(rng.integers(-6, 6, channels)).astype(np.float32)
    x = (rng.standard_normal((rows, channels)) * sizes).astype(np.float32)
    x[:, 3] = 0
    x[7, 4] = 900.0
    return x


def _sum(*parts: ChannelCounts) -> ChannelCounts:
    total = ChannelSum(len(parts[0].maxima))
    for part in parts:
        total.add(part)
    return total.total()


def test_counts_of_parts_add_up_in_any_order() -> None:
    x = _activations()
    whole = count_channels(x).whole()
    parts = [count_channels(np.ascontiguousarray(x[rows])) for rows in (slice(300, 400), slice(0, 10), slice(10, 300))]
    for total in (_sum(*parts), _sum(*parts[::-1])):
        assert np.array_equal(total.counts, whole.counts)
        assert np.array_equal(total.maxima, np.abs(x).max(axis=0))
    assert (whole.counts.sum(axis=1) == len(x)).all()
    trimmed = whole.trimmed()
    assert trimmed.counts.shape[1] < BUCKETS
    assert np.array_equal(trimmed.whole().counts, whole.counts)


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_smoothed_histogram_is_that_of_the_smoothed_values(strength: float) -> None:
    x = _activations()
    maxima = np.abs(x).max(axis=0)
    multiplier = np.where(maxima > 0, np.maximum(maxima, 1e-3) ** -strength, 1).astype(np.float32)
    derived, exact = smoothed_histogram(bucket_points(count_channels(x)), multiplier), histogram_of(x * multiplier)
    assert derived.amax == exact.amax
    assert derived.exponent == exact.exponent
    assert derived.elements == exact.elements
    # a value moves by at most three quarters of its bucket, 3/32 of itself
    shares = np.cumsum(exact.counts) / exact.elements, np.cumsum(derived.counts) / derived.elements
    reach = (np.arange(len(shares[0])) * 1.1).astype(int) + 1
    inside = reach < len(shares[0])
    assert (shares[1][reach[inside]] >= shares[0][inside] - 1e-12).all()
    assert (shares[0][reach[inside]] >= shares[1][inside] - 1e-12).all()


def test_extremes_fall_into_the_first_and_last_bucket() -> None:
    x = np.array([[0.0, 1e-45, 2.0**-25, 2.0**-24, 1.0, 2.0**24, 3e38]], np.float32)
    buckets = count_channels(x).whole().counts.argmax(axis=1)
    assert buckets.tolist() == [0, 0, 0, 1, 1 + 24 * 8, BUCKETS - 1, BUCKETS - 1]


def test_not_finite_is_located() -> None:
    x = _activations()
    assert first_not_finite(x) is None
    x[5, 2] = -np.inf
    x[6, 1] = np.nan
    assert first_not_finite(x) == (5, 2)
