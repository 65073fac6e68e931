"""Warm-up: discard requests until two consecutive windows agree, and never longer than told."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from trtbuild.bench.records import RequestRecord, WarmupReport


@dataclass(frozen=True)
class WarmupRule:
    """When a run counts as warm.

    A window is `window_requests` finished requests; its value is the median time per token after the first (the
    median latency where no answer has two tokens), which does not depend on how long the answers happen to be.
    `max_requests` 0 asks for no warm-up; the cap in requests or seconds ends it unstable, and the report says so.
    """

    max_requests: int = 64
    max_seconds: float = 60.0
    window_requests: int = 8
    tolerance: float = 0.05


def window_value_ms(records: list[RequestRecord]) -> float | None:
    """Median time per output token of some finished requests, else their median latency; None if all failed."""
    per_token, latency = [], []
    for record in records:
        if record.succeeded and record.answered_s is not None:
            latency.append((record.answered_s - record.scheduled_s) * 1e3)
            if record.tokens_after_first:
                span = record.token_times_s[-1] - record.token_times_s[0]
                per_token.append(span / record.tokens_after_first * 1e3)
    values = per_token or latency
    return statistics.median(values) if values else None


@dataclass
class Warmup:
    """The state of one warm-up; `add` finished requests until `done`."""

    rule: WarmupRule
    started_s: float
    _window: list[RequestRecord] = field(default_factory=list)
    _medians_ms: list[float] = field(default_factory=list)
    finished: int = 0
    _stable: bool = False
    _ended_s: float | None = None

    def add(self, record: RequestRecord, now: float) -> None:
        self.finished += 1
        self._window.append(record)
        if len(self._window) >= self.rule.window_requests:
            value = window_value_ms(self._window)
            self._window = []
            if value is not None:
                self._medians_ms.append(value)
            if len(self._medians_ms) >= 2:
                before, last = self._medians_ms[-2:]
                self._stable = abs(last - before) <= self.rule.tolerance * max(before, last)
        if self._stable or self.finished >= self.rule.max_requests:
            self._ended_s = now

    def expire(self, now: float) -> None:
        """End the warm-up when its time is over, whatever has finished."""
        if now - self.started_s >= self.rule.max_seconds:
            self._ended_s = now

    @property
    def done(self) -> bool:
        return self.rule.max_requests == 0 or self._ended_s is not None

    def report(self) -> WarmupReport:
        if self.rule.max_requests == 0:
            return WarmupReport()
        ended = self.started_s if self._ended_s is None else self._ended_s
        return WarmupReport(self.finished, ended - self.started_s, tuple(self._medians_ms), self._stable)
