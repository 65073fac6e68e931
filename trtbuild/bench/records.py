"""What is written down while an engine is driven: one record per request, one run per measured window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Phase = Literal["warmup", "measured", "after"]
"""When a request was scheduled: before the window, inside it, or while the last measured ones still ran."""


@dataclass
class RequestRecord:
    """One request; every `_s` is seconds on the driver's clock, None until it happened.

    `scheduled_s` is when the load said it should start (latency counts from here), `sent_s` when it was submitted.
    `token_times_s[i]` is when `token_counts[i]` tokens arrived together; both are empty for an answer without tokens.
    """

    id: int
    prompt: int
    phase: Phase
    scheduled_s: float
    sent_s: float
    prompt_tokens: int
    max_new_tokens: int
    token_times_s: list[float] = field(default_factory=list)
    token_counts: list[int] = field(default_factory=list)
    finished_s: float | None = None
    finish: str | None = None
    error: str | None = None

    @property
    def succeeded(self) -> bool:
        return self.finish in ("stop", "length")

    @property
    def output_tokens(self) -> int:
        return sum(self.token_counts)

    @property
    def first_token_s(self) -> float | None:
        return self.token_times_s[0] if self.token_times_s else None

    @property
    def last_token_s(self) -> float | None:
        return self.token_times_s[-1] if self.token_times_s else None

    @property
    def answered_s(self) -> float | None:
        """When the answer was complete: its last token, or its end when it has no token at all."""
        return self.token_times_s[-1] if self.token_times_s else self.finished_s

    @property
    def tokens_after_first(self) -> int | None:
        """The denominator of TPOT, or None where TPOT cannot exist (fewer than two tokens)."""
        count = self.output_tokens - 1
        return count if count >= 1 else None


@dataclass(frozen=True)
class WarmupReport:
    """What was discarded before the window, and whether the last two warm-up windows agreed."""

    requests: int = 0
    seconds: float = 0.0
    medians_ms: tuple[float, ...] = ()
    stable: bool | None = None
    """None when no warm-up was asked for."""


@dataclass
class LoadRun:
    """One measured window under one load.

    The window is [`start_s`, `end_s`]; `window_tokens` and `window_requests` are what arrived or finished inside it,
    from whichever request. `records` holds the warm-up, the measured requests and those that kept the load up after.
    `overhead_s` is the time inside the window in which the engine waited for the client.
    """

    records: list[RequestRecord]
    start_s: float
    end_s: float
    window_tokens: int
    window_prompt_tokens: int
    window_requests: int
    overhead_s: float
    warmup: WarmupReport
    stop_reason: str
    partial: bool = False

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s

    @property
    def measured(self) -> list[RequestRecord]:
        return [record for record in self.records if record.phase == "measured"]

    @property
    def succeeded(self) -> list[RequestRecord]:
        return [record for record in self.records if record.phase == "measured" and record.succeeded]

    @property
    def errors(self) -> list[RequestRecord]:
        """Measured requests that ended badly; those that an interrupt or a growing queue cut off are no errors."""
        return [record for record in self.measured if record.finish is not None and not record.succeeded]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> LoadRun:
        warmup = WarmupReport(**{**value["warmup"], "medians_ms": tuple(value["warmup"]["medians_ms"])})
        records = [RequestRecord(**record) for record in value["records"]]
        return LoadRun(**{**value, "records": records, "warmup": warmup})
