"""The load generator: one single-threaded loop over a driver's steps and a driver's clock.

Because it looks at no other clock, a simulated server in virtual time is measured by exactly the code that measures
an engine. The load flows without a gap from warm-up into the measured window and on until the last measured request
is answered, so neither the start-up burst nor the drain is part of any number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trtbuild.bench.driver import Driver, Request, TokenEvent
from trtbuild.bench.loads import Arrivals, Load
from trtbuild.bench.records import LoadRun, Phase, RequestRecord
from trtbuild.bench.saturation import queue_only_grows
from trtbuild.bench.warmup import Warmup, WarmupRule

_TICK_SECONDS = 0.25
_STALLED_STEPS = 10_000
_HOPELESS_FAILURES = 200

GROWING = "the queue only grows"
"""The stop reason of a run that was ended because the load is above what the engine can take."""


@dataclass(frozen=True)
class Prompt:
    """One thing to ask: token ids, how many tokens to answer with, and whether to go on past end-of-sequence."""

    token_ids: tuple[int, ...]
    max_new_tokens: int
    ignore_eos: bool = False


@dataclass(frozen=True)
class Window:
    """How long to measure: at least `min_requests` answered *and* `min_seconds`, at most `max_seconds`.

    `grace_seconds` is how long the measured requests still running at the end of the window are waited for.
    `stop_when_growing` ends an open loop whose queue only grows, because nothing after that point is a measurement.
    """

    min_requests: int = 100
    min_seconds: float = 10.0
    max_seconds: float = 600.0
    grace_seconds: float = 120.0
    warmup: WarmupRule = field(default_factory=WarmupRule)
    stop_when_growing: bool = False


@dataclass(frozen=True)
class LoadStatus:
    """What an observer sees a few times a second; `ttft_ms` and `rate_tok_s` are of the last moments."""

    phase: Phase
    done: int
    total: int
    in_flight: int
    rate_tok_s: float | None
    ttft_ms: float | None


class LoadObserver(Protocol):
    """Watches a run. `tick` gets the records finished since the last tick; returning True asks the run to stop."""

    def tick(self, status: LoadStatus, finished: Sequence[RequestRecord]) -> bool: ...


class Unobserved:
    """Watches nothing and never stops a run."""

    def tick(self, status: LoadStatus, finished: Sequence[RequestRecord]) -> bool:
        del status, finished
        return False


def run_load(
    driver: Driver, prompts: Sequence[Prompt], load: Load, window: Window, observer: LoadObserver | None = None
) -> LoadRun:
    """Drive `driver` with `prompts` (cycled) under `load` and return everything that happened.

    Raises nothing of its own for failed requests: they are records with an error. A driver that makes no progress
    although requests are in flight raises RuntimeError.
    """
    return _Run(driver, prompts, load, window, observer or Unobserved()).go()


class _Run:
    """The state of one run; `go` is the loop, the other methods are what can happen in it."""

    def __init__(
        self, driver: Driver, prompts: Sequence[Prompt], load: Load, window: Window, observer: LoadObserver
    ) -> None:
        self.driver, self.prompts, self.load, self.window, self.observer = driver, prompts, load, window, observer
        now = driver.now()
        self.arrivals: Arrivals = load.start(now)
        self.warmup = Warmup(window.warmup, now)
        self.records: list[RequestRecord] = []
        self.in_flight: dict[int, RequestRecord] = {}
        self.phase: Phase = "warmup"
        self.start_s = self.end_s = self.last_event_s = now
        self.measured_done = self.measured_open = self.window_requests = 0
        self.tokens = self.window_tokens = self.window_prompt_tokens = 0
        self.overhead_s = self.submit_s = 0.0
        self.stop_reason = ""
        self.partial = self.over = False
        self.failed = 0
        self.next_look = 0.0
        self.fresh: list[RequestRecord] = []
        self.last_tick_s, self.last_tick_tokens = now, 0
        self.ttft_ms: float | None = None
        if self.warmup.done:
            self._open_window(now)

    def go(self) -> LoadRun:
        driver, stalled = self.driver, 0
        returned = driver.now()
        while not self.over:
            held = self.in_flight or self._is_due(returned)
            self.submit_s = 0.0
            due = self._submit_due(driver.now())
            if not self.in_flight and due is None:
                self._close_window(self.last_event_s, "all requests answered")
                break
            entered = driver.now()
            if held and self.phase == "measured":
                self.overhead_s += entered - returned - self.submit_s
            events = driver.step(due)
            returned = driver.now()
            for event in events:
                self._handle(event)
            stalled = stalled + 1 if not events and returned <= entered else 0
            if stalled > _STALLED_STEPS:
                raise RuntimeError(f"the engine makes no progress with {len(self.in_flight)} requests in flight")
            self._check_limits(returned)
        self._let_go()
        self._tick(driver.now())
        return self._result()

    def _is_due(self, now: float) -> bool:
        due = self.arrivals.due()
        return due is not None and due <= now

    def _submit_due(self, now: float) -> float | None:
        """Submit everything that is due; return when the next request will be."""
        while (due := self.arrivals.due()) is not None and due <= now:
            self.arrivals.taken()
            self._submit(due)
        return due

    def _submit(self, scheduled_s: float) -> None:
        request_id = len(self.records)
        index = request_id % len(self.prompts)
        prompt = self.prompts[index]
        tokens = prompt.max_new_tokens
        if self.phase == "warmup" and request_id < self.load.users:
            # Users that start together and get answers of one length march in step for ever, each wave a burst of
            # prompts. The first answers of a warm-up are cut to different lengths, and the users spread out.
            tokens = max(1, tokens * (request_id + 1) // self.load.users)
        sent_s = self.driver.now()
        record = RequestRecord(request_id, index, self.phase, scheduled_s, sent_s, len(prompt.token_ids), tokens)
        self.records.append(record)
        self.in_flight[request_id] = record
        if self.phase == "measured":
            self.measured_open += 1
        self.driver.submit(Request(request_id, prompt.token_ids, tokens, prompt.ignore_eos, seed=request_id))
        self.submit_s += self.driver.now() - sent_s

    def _handle(self, event: TokenEvent) -> None:
        record = self.in_flight.get(event.request_id)
        if record is None:
            return
        count = len(event.token_ids)
        self.last_event_s = event.time_s
        if count:
            if not record.token_times_s:
                self.ttft_ms = (event.time_s - record.scheduled_s) * 1e3
            record.token_times_s.append(event.time_s)
            record.token_counts.append(count)
            self.tokens += count
            if self._in_window(event.time_s):
                self.window_tokens += count
        if event.finish is not None:
            self._finish(record, event)

    def _finish(self, record: RequestRecord, event: TokenEvent) -> None:
        record.finished_s, record.finish, record.error = event.time_s, event.finish, event.error
        if not record.succeeded and record.error is None:
            record.error = f"{event.finish} by the engine"
        del self.in_flight[record.id]
        self.fresh.append(record)
        self.arrivals.finished(event.time_s)
        if record.phase == "measured":
            self.measured_done += 1
            self.measured_open -= 1
        if record.succeeded and self._in_window(event.time_s):
            self.window_requests += 1
            self.window_prompt_tokens += record.prompt_tokens
        self.failed += not record.succeeded
        if self.failed >= _HOPELESS_FAILURES and 2 * self.failed > len(self.records):
            # An engine that refuses at once would be asked as fast as this loop can turn.
            self._close_window(event.time_s, f"{self.failed} of {len(self.records)} requests failed")
            self.over = True
        if self.phase == "measured":
            enough = self.load.requests is None and self.measured_done >= self.window.min_requests
            if enough and event.time_s - self.start_s >= self.window.min_seconds:
                self._close_window(event.time_s, "enough requests and time")
        elif self.phase == "warmup":
            self.warmup.add(record, event.time_s)
            if self.warmup.done:
                self._open_window(event.time_s)

    def _open_window(self, time_s: float) -> None:
        self.phase, self.start_s = "measured", time_s

    def _close_window(self, time_s: float, reason: str) -> None:
        if self.phase == "warmup":
            self.start_s = time_s
        if self.phase != "after":
            self.phase, self.end_s, self.stop_reason = "after", time_s, reason

    def _check_limits(self, now: float) -> None:
        """End warm-up, window or run where a cap, the observer, or a queue that only grows says so."""
        if now - self.last_tick_s >= _TICK_SECONDS:
            if self._tick(now):
                self._close_window(now, "interrupted")
                self.partial = self.over = True
            elif self._is_lost():
                self._close_window(now, GROWING)
                self.over = True
        if self.phase == "warmup":
            self.warmup.expire(now)
            if self.warmup.done:
                self._open_window(now)
        elif self.phase == "measured" and now - self.start_s >= self.window.max_seconds:
            self._close_window(now, f"time cap of {self.window.max_seconds:g} s")
        if self.phase == "after":
            self.over = self.over or self.measured_open == 0 or now - self.end_s >= self.window.grace_seconds

    def _is_lost(self) -> bool:
        """Look at the queue whenever the run has a tenth more requests, so that looking stays cheap in a long run."""
        if not self.window.stop_when_growing or self.phase != "measured" or len(self.records) < self.next_look:
            return False
        self.next_look = len(self.records) * 1.1
        return queue_only_grows(self.records, self.start_s)

    def _in_window(self, time_s: float) -> bool:
        """The window is open at its start and closed at its end; several events can share either time."""
        return self.start_s < time_s and (self.phase == "measured" or (self.phase == "after" and time_s <= self.end_s))

    def _tick(self, now: float) -> bool:
        elapsed = now - self.last_tick_s
        rate = (self.tokens - self.last_tick_tokens) / elapsed if elapsed > 0 else None
        self.last_tick_s, self.last_tick_tokens = now, self.tokens
        if self.phase == "warmup":
            done, total = self.warmup.finished, self.window.warmup.max_requests
        else:
            done, total = self.measured_done, self.load.requests or self.window.min_requests
        status = LoadStatus(self.phase, done, max(done, total), len(self.in_flight), rate, self.ttft_ms)
        fresh, self.fresh = self.fresh, []
        return self.observer.tick(status, fresh)

    def _let_go(self) -> None:
        """Cancel what still runs and step until the engine has let go of it, so that the next run starts clean."""
        for record in list(self.in_flight.values()):
            self.driver.cancel(record.id)
            if record.phase == "measured" and not self.partial and self.stop_reason != GROWING:
                record.finish = "error"
                record.error = f"not answered within {self.window.grace_seconds:g} s after the window"
                self.fresh.append(record)
        for _ in range(len(self.in_flight) + 2):
            if not self.in_flight:
                return
            for event in self.driver.step(self.driver.now()):
                if event.finish is not None:
                    self.in_flight.pop(event.request_id, None)

    def _result(self) -> LoadRun:
        return LoadRun(
            records=self.records,
            start_s=self.start_s,
            end_s=self.end_s,
            window_tokens=self.window_tokens,
            window_prompt_tokens=self.window_prompt_tokens,
            window_requests=self.window_requests,
            overhead_s=self.overhead_s,
            warmup=self.warmup.report(),
            stop_reason=self.stop_reason,
            partial=self.partial,
        )
