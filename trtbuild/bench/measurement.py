"""What a session gathers about each engine, and the live view of what it is doing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trtbuild.bench.capacity import Capacity
from trtbuild.bench.driver import EngineMemory
from trtbuild.bench.engines import EngineSource
from trtbuild.bench.knee import Knee
from trtbuild.bench.loadgen import LoadStatus
from trtbuild.bench.quality import Answers, Scores
from trtbuild.bench.records import LoadRun, RequestRecord, WarmupReport

RATE_STEP = 0.1
"""A search for the largest rate goes in tenths of the rate the objective names."""


@dataclass
class Measured:
    """Everything measured of one engine. `runs[i]` are the repeats of load i; `probes` the runs of searches.

    `error` is why the engine was given up: it died, or could not answer. `under_test` is False for a baseline that was
    only brought along to compare quality with.
    """

    source: EngineSource
    under_test: bool = True
    memory: EngineMemory | None = None
    peak_bytes: int | None = None
    runs: dict[int, list[LoadRun]] = field(default_factory=dict)
    probes: dict[int, LoadRun] = field(default_factory=dict)
    knee: Knee | None = None
    capacity: Capacity | None = None
    rate_capacity: Capacity | None = None
    """In steps of `RATE_STEP` of the objective's rate, where it names one."""
    answers: Answers | None = None
    scores: Scores | None = None
    tasks: dict[str, dict[str, float]] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True)
class LiveStatus:
    """What runs at this moment: which engine, under which load, in which repeat of how many."""

    engine: str
    load: str
    repeat: int
    repeats: int
    status: LoadStatus


class Watcher(Protocol):
    """Shows a live view; called a few times a second while a load runs."""

    def show(self, status: LiveStatus) -> None: ...


def salvage(records: Sequence[RequestRecord], reason: str) -> LoadRun:
    """What is left of a run whose engine died: its finished requests, marked partial, over the time they span."""
    ended = [r.finished_s for r in records if r.finished_s is not None]
    measured = [r for r in records if r.phase == "measured"]
    start = min((r.scheduled_s for r in measured), default=0.0)
    return LoadRun(
        records=list(records),
        start_s=start,
        end_s=max(ended, default=start),
        window_tokens=sum(r.output_tokens for r in measured),
        window_prompt_tokens=sum(r.prompt_tokens for r in measured if r.succeeded),
        window_requests=sum(r.succeeded for r in measured),
        overhead_s=0.0,
        warmup=WarmupReport(),
        stop_reason=reason,
        partial=True,
    )
