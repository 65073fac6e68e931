"""Admission in front of any driver: how many requests may wait, and which of them goes first."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trtbuild.bench.driver import Driver, EngineMemory, Request, TokenEvent

QUEUE_FULL = "refused: the queue is full"

ORDERS: Mapping[str, Callable[[Request], int]] = {
    "arrival": lambda _: 0,
    "short-first": lambda request: len(request.token_ids) + request.max_new_tokens,
}
"""Name → sort key of a waiting request; equal keys keep their order of arrival."""


@dataclass(frozen=True)
class Admission:
    """`slots` requests run at once; the others wait in `order`, at most `queue_limit` of them (None: any number)."""

    slots: int
    order: str = "arrival"
    queue_limit: int | None = None


class AdmittingDriver:
    """A driver that gives its engine only what it has a slot for, so that the order of the queue is ours to choose."""

    def __init__(self, engine: Driver, admission: Admission) -> None:
        self._engine, self._admission = engine, admission
        self._key = ORDERS[admission.order]
        self._arrival = itertools.count()
        self._waiting: list[tuple[int, int, Request]] = []
        self._running: set[int] = set()
        self._refused: list[int] = []

    def now(self) -> float:
        return self._engine.now()

    def submit(self, request: Request) -> None:
        limit = self._admission.queue_limit
        if len(self._running) >= self._admission.slots and limit is not None and len(self._waiting) >= limit:
            self._refused.append(request.id)
            return
        heapq.heappush(self._waiting, (self._key(request), next(self._arrival), request))
        self._admit()

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._admission.slots:
            request = heapq.heappop(self._waiting)[2]
            self._running.add(request.id)
            self._engine.submit(request)

    def step(self, until: float | None) -> list[TokenEvent]:
        if self._refused:
            refused, self._refused = self._refused, []
            return [TokenEvent(i, self.now(), (), "error", QUEUE_FULL) for i in refused]
        events = self._engine.step(until)
        for event in events:
            if event.finish is not None:
                self._running.discard(event.request_id)
        self._admit()
        return events

    def cancel(self, request_id: int) -> None:
        waiting = [entry for entry in self._waiting if entry[2].id != request_id]
        if len(waiting) == len(self._waiting):
            self._engine.cancel(request_id)
        else:
            heapq.heapify(waiting)
            self._waiting = waiting

    def memory(self) -> EngineMemory:
        return self._engine.memory()

    def close(self) -> None:
        self._engine.close()
