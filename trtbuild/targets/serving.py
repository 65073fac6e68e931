"""The narrow interface between an engine and whoever drives it: requests in, token events out, step by step.

These types live in the targets layer because every target implements them and `bench`, which measures them, is
imported after it; `trtbuild.bench.driver` re-exports them. A driver owns its clock: a real engine answers with
`time.perf_counter()`, a simulated one with virtual time, and the caller never looks at another clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True)
class Request:
    """One prompt as token ids. `temperature` 0 is greedy; `ignore_eos` generates exactly `max_new_tokens`."""

    id: int
    token_ids: Sequence[int]
    max_new_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class TokenEvent:
    """What one step gave one request, at `time_s` on the driver's clock.

    `token_ids` are the engine's own new ids; a stop token is the last of them (the engine computed it, so it counts,
    but it is never padded). `finish` is set on the last event of a request and only there; `error` says why when
    `finish` is "error". An answer may have no token at all.
    """

    request_id: int
    time_s: float
    token_ids: tuple[int, ...]
    finish: FinishReason | None = None
    error: str | None = None


@dataclass(frozen=True)
class EngineMemory:
    """The parts of an engine's memory that it can name itself, and the limits that follow from them."""

    weights_bytes: int
    kv_pool_bytes: int
    kv_bytes_per_token: int
    kv_pool_tokens: int


class Driver(Protocol):
    """An engine as a single-threaded event loop. Not thread-safe; every call is made from the thread that opened it."""

    def now(self) -> float:
        """Seconds on the driver's clock; never goes back."""
        ...

    def submit(self, request: Request) -> None:
        """Queue a request; it returns at once. A request the engine cannot take is answered by an "error" event."""
        ...

    def step(self, until: float | None) -> list[TokenEvent]:
        """Run one engine step if there is work, else wait until `until` (None: return at once); return what it gave."""
        ...

    def cancel(self, request_id: int) -> None:
        """Drop a request; a "cancelled" event may follow, an unknown id is ignored."""
        ...

    def memory(self) -> EngineMemory:
        """The engine's own account of its memory."""
        ...

    def close(self) -> None:
        """Free the engine; closing twice is allowed."""
        ...


class Scorer(Protocol):
    """The same weights as a function from token ids to logits, for perplexity, KL divergence and oracles."""

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits of every position of one text, float32 [len(ids), vocab_size]; row t predicts token t + 1."""
        ...

    def close(self) -> None:
        """Free the model; closing twice is allowed."""
        ...
