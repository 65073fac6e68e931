"""Service level objectives: a request is good only if it meets all of them; goodput counts the good ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtbuild.bench.metrics import REQUEST_METRICS
from trtbuild.bench.records import LoadRun, RequestRecord
from trtbuild.bench.statistics import Interval, wilson


@dataclass(frozen=True)
class Slo:
    """Limits per request, in ms, that `share` of the requests must meet together; None is no limit.

    A P99 of 800 ms is `Slo(latency_ms=800, share=0.99)`. A request without a metric that has a limit is not good: a
    failed one has none, and a one-token answer has no TPOT.
    """

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    latency_ms: float | None = None
    share: float = 0.99

    @property
    def limits(self) -> dict[str, float]:
        """Metric name → limit, of the limits that are set."""
        named = {"ttft_ms": self.ttft_ms, "tpot_ms": self.tpot_ms, "latency_ms": self.latency_ms}
        return {name: limit for name, limit in named.items() if limit is not None}

    def describe(self) -> str:
        titles = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "latency_ms": "latency"}
        parts = [f"{titles[name]} ≤ {limit:g} ms" for name, limit in self.limits.items()]
        return f"{' and '.join(parts)} for {self.share * 100:g} % of requests" if parts else "no objective"


def is_good(record: RequestRecord, slo: Slo) -> bool:
    """Whether a request succeeded and meets every limit."""
    if not record.succeeded:
        return False
    values = ((REQUEST_METRICS[name].of(record), limit) for name, limit in slo.limits.items())
    return all(value is not None and value <= limit for value, limit in values)


def goodput_req_s(run: LoadRun, slo: Slo) -> float | None:
    """Good requests that ended in the window, per second of it; never above the request throughput it is part of.

    None without a limit or a window.
    """
    if not slo.limits or run.seconds <= 0:
        return None
    ended = (r for r in run.records if r.finished_s is not None and run.start_s < r.finished_s <= run.end_s)
    return sum(is_good(record, slo) for record in ended) / run.seconds


@dataclass(frozen=True)
class Attainment:
    """How many requests were good, and what that says about the objective."""

    good: int
    requests: int
    interval: Interval | None
    verdict: str
    """"pass" when the Wilson interval lies above the asked share, "fail" below, else "inconclusive"."""


def attainment(records: Sequence[RequestRecord], slo: Slo, confidence: float = 0.95) -> Attainment:
    """Judge measured requests against an objective; unfinished ones count, because they were not good."""
    good = sum(is_good(record, slo) for record in records)
    interval = wilson(good, len(records), confidence)
    if interval is None or interval.low is None or interval.high is None:
        return Attainment(good, len(records), None, "inconclusive")
    verdict = "pass" if interval.low >= slo.share else "fail" if interval.high < slo.share else "inconclusive"
    return Attainment(good, len(records), interval, verdict)
