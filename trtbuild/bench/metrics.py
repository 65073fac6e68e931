"""Every metric as a row of one table: name, unit, what it needs, how it is computed, and which way is better.

Definitions follow the accepted ones: TTFT from the *scheduled* time to the first token, TPOT = (latency - TTFT) /
(tokens - 1) and undefined below two tokens, throughput from the tokens that arrived inside the window, goodput from
requests that meet every objective. A value whose needs are not met is None, never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trtbuild.bench.records import LoadRun, RequestRecord
from trtbuild.bench.statistics import summarize

Better = Literal["lower", "higher", "neither"]


@dataclass(frozen=True)
class RequestMetric:
    """A number of each successful request, reported as a distribution.

    `needs` are the attributes of `RequestRecord` that must exist; where one is None the request has no value.
    """

    name: str
    title: str
    unit: str
    better: Better
    needs: tuple[str, ...]
    compute: Callable[[RequestRecord], float]

    def of(self, record: RequestRecord) -> float | None:
        if not record.succeeded or any(getattr(record, name) is None for name in self.needs):
            return None
        return self.compute(record)

    def values(self, records: list[RequestRecord]) -> list[float]:
        found = (self.of(record) for record in records)
        return [value for value in found if value is not None]


@dataclass(frozen=True)
class RunMetric:
    """A number of a whole measured window."""

    name: str
    title: str
    unit: str
    better: Better
    needs: tuple[str, ...]
    compute: Callable[[LoadRun], float | None]

    def of(self, run: LoadRun) -> float | None:
        if any(not getattr(run, name) for name in self.needs):
            return None
        return self.compute(run)


def _ttft(r: RequestRecord) -> float:
    return (r.token_times_s[0] - r.scheduled_s) * 1e3


def _tpot(r: RequestRecord) -> float:
    assert r.tokens_after_first is not None
    return (r.token_times_s[-1] - r.token_times_s[0]) * 1e3 / r.tokens_after_first


def _latency(r: RequestRecord) -> float:
    assert r.answered_s is not None
    return (r.answered_s - r.scheduled_s) * 1e3


REQUEST_METRICS: Mapping[str, RequestMetric] = {
    m.name: m
    for m in (
        RequestMetric("ttft_ms", "time to first token", "ms", "lower", ("first_token_s",), _ttft),
        RequestMetric("tpot_ms", "time per output token", "ms", "lower", ("tokens_after_first",), _tpot),
        RequestMetric("latency_ms", "end-to-end latency", "ms", "lower", ("answered_s",), _latency),
        RequestMetric(
            "client_delay_ms", "sent after schedule", "ms", "lower", (), lambda r: (r.sent_s - r.scheduled_s) * 1e3
        ),
        RequestMetric("input_tokens", "prompt tokens", "tokens", "neither", (), lambda r: r.prompt_tokens),
        RequestMetric("output_tokens", "answer tokens", "tokens", "neither", (), lambda r: r.output_tokens),
    )
}


def _mean_in_flight(run: LoadRun) -> float:
    """Requests in the system (scheduled, not yet answered), averaged over the window."""
    held = 0.0
    for record in run.records:
        end = run.end_s if record.finished_s is None else min(record.finished_s, run.end_s)
        held += max(0.0, end - max(record.scheduled_s, run.start_s))
    return held / run.seconds


def _little_discrepancy(run: LoadRun) -> float | None:
    """(X * R - N) / N in percent: a steady window obeys Little's law, one that is too short or drifts does not.

    X and R are of the successful requests that ended inside the window, whenever they were scheduled.
    """
    ended = [r for r in run.records if r.finished_s is not None and run.start_s < r.finished_s <= run.end_s]
    in_flight = _mean_in_flight(run)
    if not ended or in_flight == 0:
        return None
    time_in_system = sum(r.finished_s - r.scheduled_s for r in ended if r.finished_s is not None)
    return (time_in_system / run.seconds - in_flight) / in_flight * 100


RUN_METRICS: Mapping[str, RunMetric] = {
    m.name: m
    for m in (
        RunMetric(
            "throughput_tok_s",
            "output throughput",
            "tok/s",
            "higher",
            ("seconds", "window_tokens"),
            lambda run: run.window_tokens / run.seconds,
        ),
        RunMetric(
            "throughput_req_s",
            "request throughput",
            "req/s",
            "higher",
            ("seconds", "window_requests"),
            lambda run: run.window_requests / run.seconds,
        ),
        RunMetric(
            "throughput_prompt_tok_s",
            "prompt throughput",
            "tok/s",
            "higher",
            ("seconds", "window_requests"),
            lambda run: run.window_prompt_tokens / run.seconds,
        ),
        RunMetric("mean_in_flight", "requests in flight", "", "neither", ("seconds", "records"), _mean_in_flight),
        RunMetric(
            "error_pct",
            "failed requests",
            "%",
            "lower",
            ("measured",),
            lambda run: len(run.errors) / len(run.measured) * 100,
        ),
        RunMetric(
            "little_discrepancy_pct", "Little's law", "%", "neither", ("seconds", "records"), _little_discrepancy
        ),
        RunMetric(
            "client_overhead_pct",
            "engine waited for the client",
            "%",
            "lower",
            ("seconds",),
            lambda run: run.overhead_s / run.seconds * 100,
        ),
    )
}


def token_gaps_ms(records: list[RequestRecord]) -> list[float]:
    """The gaps between consecutive token arrivals of the successful requests (tokens arriving together: one gap)."""
    return [
        (after - before) * 1e3
        for record in records
        if record.succeeded
        for before, after in zip(record.token_times_s, record.token_times_s[1:], strict=False)
    ]


def distributions(records: list[RequestRecord]) -> dict[str, dict[str, Any] | None]:
    """The summary of every request metric, and of the token gaps, over some measured records."""
    found = {name: summarize(metric.values(records)) for name, metric in REQUEST_METRICS.items()}
    return {**found, "gap_ms": summarize(token_gaps_ms(records))}


def run_values(run: LoadRun) -> dict[str, float | None]:
    """Every run metric of one window."""
    return {name: metric.of(run) for name, metric in RUN_METRICS.items()}
