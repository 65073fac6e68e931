"""The knee: the concurrency beyond which more requests in flight buy waiting instead of throughput.

Concurrency is the control variable, because every concurrency has a steady state, while an open loop above capacity
has none. A ladder doubles it until throughput stops rising; a line from the origin's side and a line through the tail
meet at the knee (two-segment fit); bisection narrows the bracket around it. A knee is only reported where the curve
has one: the tail must be flat against the rise, and two lines must explain the points much better than a smooth
saturation curve without a kink, which is how a CPU behaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from trtbuild.bench.statistics import Floats

GAIN_TO_GO_ON = 0.05
NEAR_PEAK = 0.95
_MAX_TAIL_SLOPE = 0.25
_MIN_POINTS = 5


@dataclass(frozen=True)
class Probe:
    """One short measurement at one concurrency. `problem` says why it cannot be compared (errors, a growing queue)."""

    concurrency: int
    throughput: float
    problem: str | None = None


@dataclass(frozen=True)
class Knee:
    """The result of a search.

    `concurrency` is the knee, None where the curve has none (`reason` says why). `best` is the smallest concurrency
    that gives 95 % of the peak: the max_batch_size worth building for. `lower_bound` is True when the ladder ended
    at a limit while throughput was still rising: both numbers are then lower bounds only.
    """

    concurrency: float | None
    best: int | None
    peak_throughput: float | None
    lower_bound: bool
    stop_reason: str
    reason: str
    probes: tuple[Probe, ...]


def find_knee(probe: Callable[[int], Probe], limit: int, refinements: int = 4) -> Knee:
    """Climb the ladder up to `limit`, fit, and refine with up to `refinements` more probes inside the bracket."""
    probes: dict[int, Probe] = {}
    stop_reason, rising = _climb(probe, limit, probes)
    good = _usable(probes)
    if not good:
        return Knee(None, None, None, False, stop_reason, "no probe succeeded", tuple(probes.values()))
    for _ in range(refinements if not rising else 0):
        wanted = _next_probe(_usable(probes))
        if wanted is None:
            break
        probes[wanted] = probe(wanted)
    good = _usable(probes)
    peak = max(p.throughput for p in good)
    best = next(p.concurrency for p in good if p.throughput >= NEAR_PEAK * peak)
    if rising:
        knee, reason = None, "throughput still rises at the largest concurrency tried"
    else:
        knee, reason = judge(good)
    return Knee(knee, best, peak, rising, stop_reason, reason, tuple(sorted(probes.values(), key=_by_concurrency)))


def _by_concurrency(probe: Probe) -> int:
    return probe.concurrency


def _usable(probes: dict[int, Probe]) -> list[Probe]:
    return sorted((p for p in probes.values() if p.problem is None), key=_by_concurrency)


def _climb(probe: Callable[[int], Probe], limit: int, probes: dict[int, Probe]) -> tuple[str, bool]:
    """Double until two steps in a row gain less than 5 %; return the stop reason and whether it still rose.

    Two flat steps, not one, because the tail needs points of its own before a line can be put through it.
    """
    concurrency, flat = 1, 0
    while True:
        current = probes[concurrency] = probe(concurrency)
        if current.problem is not None:
            return f"{current.problem} at {concurrency} in flight", False
        before = probes.get(concurrency // 2)
        if before is not None:
            flat = flat + 1 if current.throughput < before.throughput * (1 + GAIN_TO_GO_ON) else 0
        if flat == 2:
            return f"gain under {GAIN_TO_GO_ON * 100:g} % up to {concurrency} in flight", False
        if concurrency >= limit:
            return f"limit of {limit} in flight reached", flat == 0
        concurrency = min(2 * concurrency, limit)


def _next_probe(good: Sequence[Probe]) -> int | None:
    """The untried concurrency that narrows the bracket most: the fit's own estimate, else the middle of the bracket."""
    tried = [p.concurrency for p in good]
    fit = two_segments(good)
    if fit is None:
        return None
    estimate = round(fit.knee)
    if estimate not in tried and tried[0] < estimate < tried[-1]:
        return estimate
    below = max((c for c in tried if c < fit.knee), default=None)
    above = min((c for c in tried if c > fit.knee), default=None)
    if below is None or above is None:
        return None
    sides = [(below + estimate) // 2, (above + estimate + 1) // 2]
    fresh = [c for c in sides if c not in tried and below < c < above]
    return max(fresh, key=lambda c: min(abs(c - t) for t in tried)) if fresh else None


@dataclass(frozen=True)
class TwoSegments:
    """Two lines that meet: slopes of both, where they meet, the height there, and what they leave unexplained."""

    knee: float
    height: float
    rise: float
    tail: float
    residual: float


def two_segments(good: Sequence[Probe]) -> TwoSegments | None:
    """Least-squares continuous two-segment fit of relative throughput; None below four points or without a rise.

    Residuals are weighed by the inverse height of the point, because a probe's noise is relative to its throughput.
    """
    if len(good) < 4:
        return None
    x = np.array([p.concurrency for p in good], np.float64)
    y = np.array([p.throughput for p in good], np.float64)
    best: TwoSegments | None = None
    for knee in np.exp(np.linspace(math.log(x[0]), math.log(x[-1]), 400))[1:-1]:
        basis = np.stack([np.ones_like(x), np.minimum(x, knee) - knee, np.maximum(x, knee) - knee], 1)
        if not (x < knee).any() or not (x > knee).any():
            continue
        solution, *_ = np.linalg.lstsq(basis / y[:, None], np.ones_like(y), rcond=None)
        residual = float(((basis @ solution / y - 1) ** 2).sum())
        if best is None or residual < best.residual:
            best = TwoSegments(float(knee), float(solution[0]), float(solution[1]), float(solution[2]), residual)
    return best


def _smooth_residual(x: Floats, y: Floats) -> float:
    """Unexplained part of the best kinkless saturation curve x / (a + b x), on the same relative scale."""
    basis = np.stack([np.ones_like(x), x], 1)
    weights = y / x  # x / y = a + b x, relative error
    solution, *_ = np.linalg.lstsq(basis * weights[:, None], np.ones_like(x), rcond=None)
    cost = basis @ solution
    return float((x / cost / y - 1) @ (x / cost / y - 1))


def judge(good: Sequence[Probe]) -> tuple[float | None, str]:
    """The knee and the reason, or None and the reason there is none."""
    if len(good) < _MIN_POINTS:
        return None, f"only {len(good)} usable probes, {_MIN_POINTS} are needed"
    fit = two_segments(good)
    if fit is None or fit.rise <= 0:
        return None, "throughput does not rise with concurrency"
    x = np.array([p.concurrency for p in good], np.float64)
    y = np.array([p.throughput for p in good], np.float64)
    if fit.tail > _MAX_TAIL_SLOPE * fit.rise:
        return None, f"the tail still rises at {fit.tail / fit.rise * 100:.0f} % of the first slope"
    if fit.height < 0.85 * y.max():
        return None, "the bend lies well below the peak"
    smooth = _smooth_residual(x, y)
    if smooth <= 2 * fit.residual:
        return None, "throughput saturates smoothly, without a kink"
    return fit.knee, "two lines explain the curve, and a smooth one does not"
