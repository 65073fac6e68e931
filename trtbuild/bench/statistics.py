"""The statistics of the benchmark, each with the assumption it makes; nothing here knows what is measured."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

PERCENTILES: tuple[float, ...] = (0.50, 0.90, 0.95, 0.99, 0.999)
_BOOTSTRAP_DRAWS = 2000
PROCESS_SPREAD = 0.01
"""Half-width, relative, that the process itself adds to an interval: two processes of one engine stay up to this far
apart for as long as they live (`benchmarks/same_engine_twice.py`), which repeats inside each of them cannot show."""

_SURELY_APART = 1.5
"""Widths of an interval between two values that are told apart nearly always."""


@dataclass(frozen=True)
class Interval:
    """An estimate with the ends of its confidence interval; the ends are None where none can be given."""

    value: float
    low: float | None
    high: float | None

    @property
    def resolution_pct(self) -> float | None:
        """The difference, in percent of the value, that this interval and one like it tell in about 19 of 20 runs.

        They part where the estimates are one width away from each other, which a true difference of one width reaches
        every other time; half a width more is 1.5 to 2 standard errors of the difference, for 3 to 9 repeats of two.
        """
        if self.low is None or self.high is None or not self.value:
            return None
        return _SURELY_APART * (self.high - self.low) / self.value * 100

    def overlaps(self, other: Interval) -> bool:
        """Whether the two intervals share a point; True when either has no ends, because then nothing is known."""
        if self.low is None or self.high is None or other.low is None or other.high is None:
            return True
        return self.low <= other.high and other.low <= self.high


def percentile_name(q: float) -> str:
    """0.5 → "p50", 0.999 → "p99.9"."""
    return f"p{q * 100:g}"


def samples_for_percentile(q: float) -> int:
    """How many observations pQ needs before it is more than a rumour: 10 / (1 - Q)."""
    return math.ceil(round(10 / (1 - q), 6))


def percentile(values: Floats, q: float) -> float | None:
    """The Q-quantile by linear interpolation, or None below `samples_for_percentile(q)` observations."""
    return float(np.quantile(values, q)) if len(values) >= samples_for_percentile(q) else None


def percentile_interval(values: Floats, q: float, confidence: float = 0.95) -> tuple[float, float] | None:
    """Distribution-free interval of the Q-quantile: two order statistics whose ranks cover it (binomial, exact).

    None where the sample is too small for an upper order statistic. Assumes independent observations.
    """
    n = len(values)
    if n < samples_for_percentile(q):
        return None
    counts = np.arange(n + 1)
    log_pmf = (
        _log_factorials(n)[n]
        - _log_factorials(n)[counts]
        - _log_factorials(n)[n - counts]
        + counts * math.log(q)
        + (n - counts) * math.log1p(-q)
    )
    cdf = np.cumsum(np.exp(log_pmf))
    tail = (1 - confidence) / 2
    low = int(np.searchsorted(cdf, tail, side="right"))  # P(count < low) <= tail
    high = int(np.searchsorted(cdf, 1 - tail, side="left")) + 1
    if low < 1 or high > n:
        return None
    ordered = np.sort(values)
    return float(ordered[low - 1]), float(ordered[high - 1])


@functools.lru_cache(maxsize=16)
def _log_factorials(n: int) -> Floats:
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])


def summarize(values: Sequence[float], unit_scale: float = 1.0) -> dict[str, Any] | None:
    """n, mean, sample standard deviation, extremes, and each percentile that n allows; None for no values."""
    if not values:
        return None
    data = np.asarray(values, np.float64) * unit_scale
    summary: dict[str, Any] = {
        "n": len(data),
        "mean": float(data.mean()),
        "std": float(data.std(ddof=1)) if len(data) > 1 else None,
        "min": float(data.min()),
        "max": float(data.max()),
    }
    for q in PERCENTILES:
        summary[percentile_name(q)] = percentile(data, q)
    interval = percentile_interval(data, 0.99)
    summary["p99_interval"] = list(interval) if interval else None
    return summary


def t_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t with whole degrees of freedom, by bisection on its closed-form distribution."""
    low, high = 0.0, 1e7
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_cdf(middle, degrees) < probability else (low, middle)
    return (low + high) / 2


def _t_cdf(t: float, degrees: int) -> float:
    """P(T <= t) for t >= 0; Abramowitz and Stegun 26.7.3 and 26.7.4."""
    theta = math.atan(t / math.sqrt(degrees))
    cosine = math.cos(theta) ** 2
    if degrees == 1:
        return 0.5 + theta / math.pi
    term = total = 1.0
    if degrees % 2:
        for i in range(3, degrees, 2):
            term *= cosine * (i - 1) / i
            total += term
        area = 2 / math.pi * (theta + math.sin(theta) * math.cos(theta) * total)
    else:
        for i in range(2, degrees, 2):
            term *= cosine * (i - 1) / i
            total += term
        area = math.sin(theta) * total
    return 0.5 + area / 2


def resolution_pct(groups: Mapping[str, Sequence[float]]) -> float | None:
    """The difference told nearly always between any two of the groups; None where there is no interval."""
    intervals = (interval for interval in repeat_intervals(groups).values() if interval is not None)
    return max((found for one in intervals if (found := one.resolution_pct) is not None), default=None)


def repeat_intervals(groups: Mapping[str, Sequence[float]], confidence: float = 0.95) -> dict[str, Interval | None]:
    """Median of each group's repeats with a t-interval of its geometric mean.

    The repeats of all groups were interleaved on one machine, so their relative spread is taken as one and pooled
    (one-way analysis of variance on logarithms): with three repeats of four engines the interval has eight degrees of
    freedom instead of two. PROCESS_SPREAD is added in squares, whatever the number of repeats. A group of a single
    repeat borrows that spread; where there is none at all the ends are None. A group without values, or with a value
    that is not positive, gives a plain median without interval or None.
    """
    logs = {name: np.log(values) for name, values in groups.items() if values and min(values) > 0}
    degrees = sum(len(values) - 1 for values in logs.values())
    squares = sum(float(((values - values.mean()) ** 2).sum()) for values in logs.values())
    spread = math.sqrt(squares / degrees) if degrees else None
    intervals: dict[str, Interval | None] = {}
    for name, values in groups.items():
        if not values:
            intervals[name] = None
        elif name not in logs or spread is None:
            intervals[name] = Interval(float(np.median(values)), None, None)
        else:
            repeats = t_quantile((1 + confidence) / 2, degrees) * spread / math.sqrt(len(values))
            half = math.hypot(repeats, PROCESS_SPREAD)
            mean = float(logs[name].mean())
            intervals[name] = Interval(float(np.median(values)), math.exp(mean - half), math.exp(mean + half))
    return intervals


def wilson(successes: int, trials: int, confidence: float = 0.95) -> Interval | None:
    """Wilson's score interval of a proportion; None for no trials."""
    if trials == 0:
        return None
    z = _normal_quantile((1 + confidence) / 2)
    share = successes / trials
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return Interval(share, max(0.0, centre - half), min(1.0, centre + half))


def _normal_quantile(probability: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(probability)


def paired_bootstrap(
    count: int, statistic: Callable[[npt.NDArray[np.intp]], float], confidence: float = 0.95, seed: int = 0
) -> Interval:
    """Percentile bootstrap of `statistic(indices)` over `count` paired units (texts), resampled whole.

    Whole texts, because the tokens of one text are not independent; both sides of a pair are drawn together.
    """
    rng = np.random.default_rng(seed)
    everything = np.arange(count)
    value = statistic(everything)
    if count < 2:
        return Interval(value, None, None)
    draws = np.array([statistic(rng.integers(0, count, count)) for _ in range(_BOOTSTRAP_DRAWS)])
    tail = (1 - confidence) / 2
    return Interval(value, float(np.quantile(draws, tail)), float(np.quantile(draws, 1 - tail)))


def slope_is_positive(values: Floats, confidence: float) -> bool:
    """One-sided t-test of the least-squares slope of `values` over their index; needs at least four values."""
    n = len(values)
    if n < 4:
        return False
    x = np.arange(n) - (n - 1) / 2
    slope = float(x @ values / (x @ x))
    residuals = values - values.mean() - slope * x
    error = math.sqrt(float(residuals @ residuals) / (n - 2) / float(x @ x))
    return slope > 0 if error == 0 else slope / error > t_quantile(confidence, n - 2)
