"""Thresholds: the fast entropy search against the plain loop, the others against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from entropy_loop import entropy_bins_by_loop

from trtbuild.calibrate.histogram import histogram_of
from trtbuild.calibrate.threshold import (
    METHODS,
    SMALLEST_SCALE,
    clipped_share,
    entropy_bins,
    entropy_threshold,
    mse_threshold,
    percentile_threshold,
    scale_of,
    sqnr_db,
    squared_errors,
)


def _values(name: str) -> np.ndarray:
    rng = np.random.default_rng(3)
    made = {
        "normal": lambda: rng.standard_normal(5000),
        "laplace": lambda: rng.laplace(size=20000),
        "heavy tail": lambda: rng.standard_t(2, size=20000),
        "one outlier": lambda: np.append(rng.standard_normal(20000), 1000.0),
        "uniform": lambda: rng.uniform(size=3000),
        "fewer bins than levels": lambda: np.append(rng.standard_normal(4000), 500.0),
        "gaps": lambda: rng.integers(0, 40, 2000) * 1.7,
    }
    return made[name]().astype(np.float32)


@pytest.mark.parametrize(
    "name", ["normal", "laplace", "heavy tail", "one outlier", "uniform", "fewer bins than levels", "gaps"]
)
def test_entropy_finds_what_the_loop_finds(name: str) -> None:
    counts = histogram_of(_values(name)).counts
    assert entropy_bins(counts) == entropy_bins_by_loop(counts)


def test_entropy_leaves_its_histogram_alone() -> None:
    histogram = histogram_of(_values("normal"))
    before = histogram.counts.copy()
    assert entropy_threshold(histogram) == entropy_threshold(histogram)
    assert np.array_equal(histogram.counts, before)


@pytest.mark.parametrize("method", METHODS)
def test_edge_cases_are_defined(method: str) -> None:
    find = METHODS[method]
    zeros = histogram_of(np.zeros(100, np.float32))
    assert find(zeros) == 0.0
    assert scale_of(find(zeros)) == 1.0
    constant = histogram_of(np.full(100, 3.0, np.float32))
    assert 0.95 * 3 < find(constant) <= 3.0
    subnormal = histogram_of(np.linspace(0, 1e-42, 50).astype(np.float32))
    assert 0 < find(subnormal) <= subnormal.amax
    assert scale_of(find(subnormal)) == SMALLEST_SCALE
    normal = histogram_of(_values("normal"))
    assert 0 < find(normal) <= normal.amax


def test_percentile_covers_its_share() -> None:
    values = np.abs(_values("laplace"))
    threshold = percentile_threshold(histogram_of(values), 99.0)
    exact = float(np.percentile(values, 99.0, method="higher"))
    width = histogram_of(values).width
    assert exact <= threshold <= exact + width


def test_mse_is_better_than_its_neighbours_and_than_max_on_outliers() -> None:
    histogram = histogram_of(_values("one outlier"))
    threshold = mse_threshold(histogram)
    errors = squared_errors(
        histogram, np.array([threshold, threshold * 2**0.125, threshold / 2**0.125, histogram.amax])
    )
    assert errors[0] == errors.min()


def test_squared_error_is_that_of_the_values() -> None:
    values = np.abs(_values("normal"))
    for threshold in (1.0, 2.5, float(values.max())):
        scale = threshold / 127
        exact = float(np.square(values - np.clip(np.rint(values / scale), -127, 127) * scale).sum())
        from_bins = float(squared_errors(histogram_of(values), np.array([threshold]))[0])
        assert from_bins == pytest.approx(exact, rel=0.05)


def test_clipped_share_and_sqnr() -> None:
    values = np.linspace(0, 1, 1001).astype(np.float32)
    histogram = histogram_of(values)
    assert clipped_share(histogram, 1.0) == 0.0
    assert clipped_share(histogram, 0.5) == pytest.approx(0.5, abs=0.002)
    sqnr = sqnr_db(histogram, 1.0)
    assert sqnr is not None
    assert sqnr == pytest.approx(10 * np.log10((1 / 3) / (1 / 127**2 / 12)), abs=0.5)
    assert sqnr_db(histogram_of(np.zeros(3, np.float32)), 0.0) is None
