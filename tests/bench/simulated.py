"""Servers in virtual time with known service times, so that every number of the benchmark has an analytic value.

`open_driver` makes them importable for a worker process: the folder holds `simulated.json`, whose `kind` picks the
server and whose other keys are its arguments.
"""

from __future__ import annotations

import heapq
import json
import os
import random
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from builders import write_tokenizer

from trtbuild.bench.driver import EngineMemory, Request, TokenEvent
from trtbuild.bench.engines import EngineSource
from trtbuild.store.fingerprint import fingerprint_json
from trtbuild.targets.base import Limits

MEMORY = EngineMemory(weights_bytes=1000, kv_pool_bytes=500, kv_bytes_per_token=5, kv_pool_tokens=100)


class QueueServer:
    """`servers` identical servers, one queue, first come first served; one token when the service ends (G/G/c)."""

    def __init__(self, service_s: Iterator[float], servers: int = 1) -> None:
        self.time, self.service_s = 0.0, service_s
        self.free, self.queue, self.running = servers, deque[Request](), list[tuple[float, int]]()

    def now(self) -> float:
        return self.time

    def submit(self, request: Request) -> None:
        self.queue.append(request)
        self._start()

    def _start(self) -> None:
        while self.free and self.queue:
            self.free -= 1
            heapq.heappush(self.running, (self.time + next(self.service_s), self.queue.popleft().id))

    def step(self, until: float | None) -> list[TokenEvent]:
        if not self.running or (until is not None and until < self.running[0][0]):
            self.time = self.time if until is None else max(self.time, until)
            return []
        self.time, request_id = heapq.heappop(self.running)
        self.free += 1
        self._start()
        return [TokenEvent(request_id, self.time, (7,), "length")]

    def cancel(self, request_id: int) -> None:
        self.queue = deque(r for r in self.queue if r.id != request_id)

    def memory(self) -> EngineMemory:
        return MEMORY

    def close(self) -> None:
        pass


class BatchServer:
    """An engine with in-flight batching: a step costs `step_s(active)` plus prefill, and gives each request a token.

    `noise` is the relative standard deviation of a step's time. `fail_every` answers each n-th request with an error,
    `die_after` ends the process at that step, `answer_tokens` cuts every answer short with finish "stop".
    """

    def __init__(
        self,
        step_s: Callable[[int], float],
        *,
        prefill_s: float = 0.0,
        slots: int = 10**9,
        noise: float = 0.0,
        seed: int = 0,
        fail_every: int = 0,
        die_after: int = 0,
        answer_tokens: int | None = None,
    ) -> None:
        self.time, self.step_s, self.prefill_s, self.slots = 0.0, step_s, prefill_s, slots
        self.noise, self.rng = noise, random.Random(seed)
        self.fail_every, self.die_after, self.answer_tokens = fail_every, die_after, answer_tokens
        self.queue, self.active = deque[Request](), dict[int, int]()
        self.requests: dict[int, Request] = {}
        self.failed: list[int] = []
        self.seen = self.steps = 0

    def now(self) -> float:
        return self.time

    def submit(self, request: Request) -> None:
        self.seen += 1
        if self.fail_every and self.seen % self.fail_every == 0:
            self.failed.append(request.id)
        else:
            self.queue.append(request)

    def step(self, until: float | None) -> list[TokenEvent]:
        events = [TokenEvent(i, self.time, (), "error", "simulated failure") for i in self.failed]
        self.failed = []
        prefill = 0.0
        while self.queue and len(self.active) < self.slots:
            request = self.queue.popleft()
            self.requests[request.id], self.active[request.id] = request, 0
            prefill += self.prefill_s * len(request.token_ids)
        if not self.active:
            if not events and until is not None:
                self.time = max(self.time, until)
            return events
        self.steps += 1
        if self.die_after and self.steps >= self.die_after:
            os._exit(9)
        duration = prefill + self.step_s(len(self.active))
        self.time += duration * max(0.1, 1 + self.noise * self.rng.gauss(0, 1)) if self.noise else duration
        for request_id in list(self.active):
            request = self.requests[request_id]
            limit = request.max_new_tokens if self.answer_tokens is None else self.answer_tokens
            done = self.active[request_id] = self.active[request_id] + 1
            if limit == 0:
                events.append(TokenEvent(request_id, self.time, (), "stop"))
            elif done < limit:
                events.append(TokenEvent(request_id, self.time, (done,)))
            else:
                finish = "length" if limit == request.max_new_tokens else "stop"
                events.append(TokenEvent(request_id, self.time, (done,), finish))
            if done >= limit:
                del self.active[request_id], self.requests[request_id]
        return events

    def cancel(self, request_id: int) -> None:
        self.queue = deque(r for r in self.queue if r.id != request_id)
        self.active.pop(request_id, None)

    def memory(self) -> EngineMemory:
        return MEMORY

    def close(self) -> None:
        pass


def exponential(rate: float, seed: int) -> Iterator[float]:
    """Service times of M/M/c."""
    rng = random.Random(seed)
    while True:
        yield rng.expovariate(rate)


def constant(seconds: float) -> Iterator[float]:
    """Service times of M/D/c."""
    while True:
        yield seconds


def capacity_step(capacity: int, seconds: float) -> Callable[[int], float]:
    """A step that costs the same up to `capacity` requests and proportionally more above: a knee at `capacity`."""
    return lambda active: seconds * max(1.0, active / capacity)


def smooth_step(base: float, per_request: float) -> Callable[[int], float]:
    """A step that costs more with every request, like a CPU: throughput bends, and has no knee."""
    return lambda active: base + per_request * active


STEPS: dict[str, Callable[..., Callable[[int], float]]] = {"capacity": capacity_step, "smooth": smooth_step}


def open_driver(folder: Path) -> BatchServer:
    """The server that `simulated.json` in `folder` describes; `step` is [name, arguments…]."""
    settings: dict[str, Any] = json.loads((folder / "simulated.json").read_text())
    settings.pop("loss", None)
    name, *arguments = settings.pop("step")
    return BatchServer(STEPS[name](*arguments), **settings)


class TableScorer:
    """A bigram model: a table of logits. `loss` makes it surer of itself than it should be: perplexity rises by it."""

    def __init__(self, vocab_size: int, loss: float) -> None:
        rng = np.random.default_rng(0)
        table, noise = rng.normal(0, 1, (2, vocab_size, vocab_size))
        self.table = (table * (1 + loss) + 0.5 * loss * noise).astype(np.float32)

    def logits(self, ids: list[int]) -> np.ndarray:
        return self.table[np.asarray(ids)]

    def close(self) -> None:
        pass


def open_scorer(folder: Path) -> TableScorer:
    """The scorer of the engine in `folder`; `loss` in `simulated.json` makes it worse."""
    return TableScorer(96, json.loads((folder / "simulated.json").read_text()).get("loss", 0.0))


def make_engine(folder: Path, name: str, *, tokenizer: bool = False, **settings: Any) -> EngineSource:
    """A simulated engine in `folder`/`name`; with a tokenizer it can be asked text and scored."""
    path = folder / name
    path.mkdir(exist_ok=True)
    (path / "simulated.json").write_text(json.dumps({"step": ["smooth", 0.01, 0.001], **settings}))
    if tokenizer:
        write_tokenizer(path, 96)
    return EngineSource(
        name=name,
        precision=name,
        target="simulated",
        path=path,
        driver="simulated:open_driver",
        scorer="simulated:open_scorer" if tokenizer else None,
        limits=Limits(max_batch_size=64, max_input_len=4096, max_seq_len=8192) if tokenizer else None,
        size_bytes=1000,
        vocab_size=96,
        fingerprint=fingerprint_json({"name": name, **settings}),
    )
