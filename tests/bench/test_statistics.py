"""Statistics against scipy's values (written down), against simulation, and against their own definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtbuild.bench.statistics import (
    Interval,
    paired_bootstrap,
    percentile_interval,
    repeat_intervals,
    resolution_pct,
    samples_for_percentile,
    slope_is_positive,
    summarize,
    t_quantile,
    wilson,
)


@pytest.mark.parametrize(
    ("probability", "degrees", "expected"),
    [
        (0.975, 1, 12.7062047364),
        (0.975, 2, 4.3026527297),
        (0.975, 3, 3.1824463053),
        (0.975, 8, 2.3060041350),
        (0.995, 5, 4.0321429836),
        (0.999, 30, 3.3851848668),
        (0.9, 17, 1.3333793897),
    ],
)
def test_t_quantiles_are_the_tabulated_ones(probability: float, degrees: int, expected: float) -> None:
    assert t_quantile(probability, degrees) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(("q", "needed"), [(0.5, 20), (0.9, 100), (0.95, 200), (0.99, 1000), (0.999, 10_000)])
def test_a_percentile_needs_ten_observations_beyond_it(q: float, needed: int) -> None:
    assert samples_for_percentile(q) == needed


def test_a_summary_has_only_the_percentiles_its_sample_allows() -> None:
    assert summarize([]) is None
    three = summarize([3.0, 1.0, 2.0])
    assert three["mean"] == 2 and three["max"] == 3 and three["std"] == 1
    assert all(three[name] is None for name in ("p50", "p90", "p95", "p99", "p99.9"))
    hundred = summarize([float(i) for i in range(100)])
    assert hundred["p50"] == 49.5 and hundred["p90"] == pytest.approx(89.1)
    assert hundred["p95"] is None and hundred["p99"] is None
    thousand = summarize([float(i) for i in range(1000)])
    low, high = thousand["p99_interval"]
    assert thousand["p99"] == pytest.approx(989.01)
    assert low < thousand["p99"] < high


def test_the_order_statistic_interval_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    truth = -math.log(0.1)
    hits = 0
    for _ in range(2000):
        low, high = percentile_interval(rng.exponential(size=150), 0.9)
        hits += low <= truth <= high
    assert 0.945 <= hits / 2000 <= 0.985  # exact for a continuous distribution, and at least 95 %


@pytest.mark.parametrize(
    ("good", "n", "low", "high"), [(0, 10, 0, 0.2775), (10, 10, 0.7225, 1), (95, 100, 0.8882, 0.9785)]
)
def test_wilson_intervals_are_the_published_ones(good: int, n: int, low: float, high: float) -> None:
    interval = wilson(good, n)
    assert (interval.low, interval.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))
    assert wilson(0, 0) is None


def test_repeats_of_one_engine_under_two_names_are_not_distinguishable_in_19_of_20_trials() -> None:
    rng = np.random.default_rng(7)
    for noise in (0.005, 0.02, 0.05):
        told_apart = 0
        for _ in range(400):
            groups = {name: list(200 * np.exp(noise * rng.standard_normal(3))) for name in ("a", "b")}
            intervals = repeat_intervals(groups)
            told_apart += not intervals["a"].overlaps(intervals["b"])
        assert told_apart / 400 <= 0.05


def test_repeats_that_agree_better_than_two_processes_do_are_not_told_apart() -> None:
    intervals = repeat_intervals({"a": [180.9, 180.0, 180.4], "b": [178.8, 178.8, 177.7]})
    assert intervals["a"].overlaps(intervals["b"])


def test_a_ten_percent_slowdown_is_told_apart() -> None:
    rng = np.random.default_rng(3)
    found = 0
    for _ in range(200):
        groups = {name: list(200 * np.exp(0.015 * rng.standard_normal(3))) for name in ("a", "b", "c", "d")}
        groups["d"] = [value * 0.9 for value in groups["d"]]
        intervals = repeat_intervals(groups)
        found += not intervals["a"].overlaps(intervals["d"])
    assert found >= 199


def test_a_difference_of_the_resolution_is_told_in_19_of_20_runs() -> None:
    rng = np.random.default_rng(11)
    told = asked = 0
    for repeats in (3, 5, 9):
        for _ in range(200):
            noise = 0.03 * rng.standard_normal((2, repeats))
            groups = {"a": list(200 * np.exp(noise[0])), "b": list(200 * np.exp(noise[1]))}
            # the typical resolution of such repeats, not that of this draw, or lucky draws would be asked for more
            spread = {name: [200 * np.exp(0.03 * z) for z in _unit_normal(repeats)] for name in groups}
            difference = resolution_pct(spread)
            assert difference is not None
            groups["b"] = [value * (1 - difference / 100) for value in groups["b"]]
            intervals = repeat_intervals(groups)
            told += not intervals["a"].overlaps(intervals["b"])
            asked += 1
    assert told / asked >= 0.9


def _unit_normal(count: int) -> np.ndarray:
    """Values whose mean is 0 and whose sample standard deviation is 1."""
    values = np.arange(count) - (count - 1) / 2
    return values / values.std(ddof=1)


def test_repeat_intervals_of_too_little() -> None:
    found = repeat_intervals({"one": [5.0], "none": [], "zero": [0.0, 0.0]})
    assert found["one"] == Interval(5.0, None, None)
    assert found["none"] is None
    assert found["zero"] == Interval(0.0, None, None)
    assert found["one"].overlaps(Interval(9.0, 8.9, 9.1))  # nothing is known
    borrowed = repeat_intervals({"one": [5.0], "many": [4.0, 4.2, 4.1]})["one"]
    assert borrowed.low < 5.0 < borrowed.high


@settings(deadline=None)
@given(st.lists(st.floats(0.1, 100), min_size=2, max_size=8))
def test_the_median_of_repeats_lies_in_its_interval(values: list[float]) -> None:
    interval = repeat_intervals({"x": values})["x"]
    assert interval.low <= interval.value * (1 + 1e-9) and interval.value <= interval.high * (1 + 1e-9)


def test_a_paired_bootstrap_covers_the_mean() -> None:
    rng = np.random.default_rng(5)
    hits = 0
    for seed in range(25):
        data = rng.normal(1.0, 2.0, 80)
        interval = paired_bootstrap(len(data), lambda rows, data=data: float(data[rows].mean()), seed=seed)
        hits += interval.low <= 1.0 <= interval.high
    assert hits >= 21
    assert paired_bootstrap(1, lambda _: 2.0) == Interval(2.0, None, None)


def test_slopes() -> None:
    rng = np.random.default_rng(0)
    assert slope_is_positive(np.arange(10) + rng.normal(0, 0.1, 10), 0.999)
    assert not slope_is_positive(-np.arange(10.0), 0.9)
    assert not slope_is_positive(np.array([1.0, 2.0]), 0.9)
    flat = sum(slope_is_positive(rng.standard_normal(10), 0.99) for _ in range(1000))
    assert 2 <= flat <= 25  # one per cent of noise looks like a slope


def test_resolution_is_one_and_a_half_times_the_widest_interval() -> None:
    groups = {"a": [99.0, 100.0, 101.0], "b": [195.0, 200.0, 205.0]}
    found = repeat_intervals(groups)
    widths = [
        (i.high - i.low) / i.value * 100 for i in found.values() if i and i.low is not None and i.high is not None
    ]
    assert resolution_pct(groups) == pytest.approx(1.5 * max(widths))
    assert resolution_pct({"a": [100.0]}) is None and resolution_pct({}) is None
