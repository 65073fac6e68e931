"""When requests are due: closed loop, open loop with Poisson or gamma arrivals, replay of recorded times.

A load is a frozen, JSON-able description; `start` turns it into an `Arrivals` that the generator asks for due times.
The due time is the *scheduled* time of a request, and latency counts from it: a late client or a busy engine
cannot hide queueing (no coordinated omission).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol


class Arrivals(Protocol):
    """The schedule of one run, on the driver's clock."""

    def due(self) -> float | None:
        """When the next request is due, or None if none is before another one finishes (or ever)."""
        ...

    def taken(self) -> None:
        """The request that was due has been submitted."""
        ...

    def finished(self, time_s: float) -> None:
        """A request ended at `time_s`."""
        ...


class Load(Protocol):
    """A description of how requests arrive."""

    def start(self, now: float) -> Arrivals: ...

    def describe(self) -> str: ...

    @property
    def requests(self) -> int | None:
        """How many requests it has, None when it never ends."""
        ...

    @property
    def users(self) -> int:
        """How many users of a closed loop start at the same moment; 0 where arrivals have times of their own."""
        ...


@dataclass(frozen=True)
class ClosedLoop:
    """`concurrency` users, each sending its next request the moment its last one is answered."""

    concurrency: int

    @property
    def requests(self) -> int | None:
        return None

    @property
    def users(self) -> int:
        return self.concurrency

    def start(self, now: float) -> Arrivals:
        return _ClosedArrivals(deque([now] * self.concurrency))

    def describe(self) -> str:
        return f"closed loop, {self.concurrency} in flight"


@dataclass
class _ClosedArrivals:
    free_at: deque[float]

    def due(self) -> float | None:
        return self.free_at[0] if self.free_at else None

    def taken(self) -> None:
        self.free_at.popleft()

    def finished(self, time_s: float) -> None:
        self.free_at.append(time_s)


@dataclass(frozen=True)
class OpenLoop:
    """Arrivals at `rate_per_s` whatever the engine does; gaps are gamma with shape `burstiness` (1 is Poisson).

    A shape below 1 gives bursts, above 1 a steadier stream; the coefficient of variation is 1 / sqrt(burstiness).
    """

    rate_per_s: float
    burstiness: float = 1.0
    seed: int = 0

    @property
    def requests(self) -> int | None:
        return None

    @property
    def users(self) -> int:
        return 0

    def start(self, now: float) -> Arrivals:
        return _OpenArrivals(self, random.Random(self.seed), now)

    def describe(self) -> str:
        kind = "Poisson" if self.burstiness == 1 else f"gamma (burstiness {self.burstiness:g})"
        return f"open loop, {self.rate_per_s:g} requests/s, {kind} arrivals"


class _OpenArrivals:
    def __init__(self, load: OpenLoop, rng: random.Random, now: float) -> None:
        self._load, self._rng = load, rng
        self._next = now + self._gap()

    def _gap(self) -> float:
        shape = self._load.burstiness
        return self._rng.gammavariate(shape, 1 / (shape * self._load.rate_per_s))

    def due(self) -> float | None:
        return self._next

    def taken(self) -> None:
        self._next += self._gap()

    def finished(self, time_s: float) -> None:
        del time_s


@dataclass(frozen=True)
class Replay:
    """Recorded arrival times, in seconds from the start of the run; the n-th prompt belongs to the n-th time."""

    times_s: tuple[float, ...]
    description: str = "trace replay"

    @property
    def requests(self) -> int | None:
        return len(self.times_s)

    @property
    def users(self) -> int:
        return 0

    def start(self, now: float) -> Arrivals:
        return _ReplayArrivals([now + t for t in reversed(self.times_s)])

    def describe(self) -> str:
        return self.description


@dataclass
class _ReplayArrivals:
    left: list[float]

    def due(self) -> float | None:
        return self.left[-1] if self.left else None

    def taken(self) -> None:
        self.left.pop()

    def finished(self, time_s: float) -> None:
        del time_s


LOADS: Mapping[str, Callable[..., Load]] = {
    "closed": ClosedLoop,
    "open": OpenLoop,
    "replay": Replay,
}


def load_to_json(load: Load) -> dict[str, Any]:
    """A load as JSON, with its kind."""
    kind = next(name for name, cls in LOADS.items() if type(load) is cls)
    return {"kind": kind, **asdict(load)}  # type: ignore[call-overload]


def load_from_json(value: Mapping[str, Any]) -> Load:
    """The load that `load_to_json` wrote."""
    fields = {name: tuple(v) if isinstance(v, list) else v for name, v in value.items() if name != "kind"}
    return LOADS[value["kind"]](**fields)
