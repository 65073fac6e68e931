"""Exact histograms: the same counts for any batches, order and grouping."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtbuild.calibrate.histogram import BINS, Histogram, coarsened, empty_histogram, histogram_of, merge

_FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def _same(a: Histogram, b: Histogram) -> bool:
    return (
        bool(np.array_equal(a.counts, b.counts))
        and a.exponent == b.exponent
        and a.amax == b.amax
        and a.zeros == b.zeros
    )


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(_FLOATS, max_size=8), max_size=6), st.randoms())
def test_batches_and_order_do_not_matter(batches: list[list[float]], random: object) -> None:
    whole = histogram_of(np.array([v for batch in batches for v in batch], np.float32))
    parts = [histogram_of(np.array(batch, np.float32)) for batch in batches]
    random.shuffle(parts)  # type: ignore[attr-defined]
    assert _same(merge(parts), whole)
    half = len(parts) // 2
    assert _same(merge([merge(parts[:half]), empty_histogram(), merge(parts[half:])]), whole)


@settings(max_examples=200, deadline=None)
@given(st.lists(_FLOATS, min_size=1, max_size=20))
def test_every_value_lies_in_its_bin(values: list[float]) -> None:
    array = np.abs(np.array(values, np.float32))
    histogram = histogram_of(array)
    expected = np.zeros(BINS, np.int64)
    for value in array.tolist():
        expected[math.floor(math.ldexp(value, -histogram.exponent))] += 1
    assert np.array_equal(histogram.counts, expected)
    assert histogram.amax == array.max()
    if histogram.amax > 0:
        assert histogram.counts[BINS // 2 :].sum() > 0, "the width must be the smallest that fits"


def test_accounts_for_what_is_not_finite_and_for_zeros() -> None:
    values = np.array([0.0, -0.0, 1.0, np.nan, np.inf, -np.inf, -np.inf], np.float32)
    histogram = histogram_of(values)
    assert (histogram.zeros, histogram.nans, histogram.infinities, histogram.elements) == (2, 1, 3, 7)
    assert histogram.amax == 1.0


@pytest.mark.parametrize("value", [1e-45, 1.17549435e-38, 1.0, 3.4028235e38])
def test_the_whole_range_of_float32(value: float) -> None:
    histogram = histogram_of(np.array([value, value / 2, 0], np.float32))
    assert histogram.counts.sum() == 3
    assert histogram.amax == np.float32(value)
    assert histogram.counts[0] >= 1


def test_weights_count_values_many_times() -> None:
    values, weights = np.array([0.5, 0.25, 0.0], np.float32), np.array([3, 0, 2])
    assert _same(histogram_of(values, weights), histogram_of(np.array([0.5, 0.5, 0.5, 0.0, 0.0], np.float32)))


def test_counts_beyond_float32_stay_exact() -> None:
    many = 2**40 + 1
    histogram = histogram_of(np.array([1.0], np.float32), np.array([many]))
    assert merge([histogram, histogram]).counts.sum() == 2 * many


def test_a_histogram_cannot_be_made_finer() -> None:
    histogram = histogram_of(np.array([1.0], np.float32))
    with pytest.raises(ValueError, match="finer"):
        coarsened(histogram, histogram.exponent - 1)
