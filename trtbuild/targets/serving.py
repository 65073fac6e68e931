"""What a built engine can be asked to do: generate tokens in flight (`Driver`) and score given ones (`Scorer`).

Every target implements both, so the bench, the quality evaluation and the server know one narrow protocol. A driver
is a single-threaded event loop with a clock of its own: a simulated one runs in virtual time, a real one in
`time.perf_counter`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from trtbuild.checkpoint.spec import Array

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True)
class Request:
    """One generation request, token ids in and out.

    `temperature` 0 is greedy; above it tokens are drawn from the smallest set of probability `top_p`. With
    `ignore_eos` the stop tokens do not stop it, so that exactly `max_new_tokens` are generated.
    """

    id: int
    token_ids: Sequence[int]
    max_new_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class TokenEvent:
    """Tokens one request got in one engine step, or its end.

    `token_ids` may be empty on a final event. "length" means `max_new_tokens` or the engine's max_seq_len was
    reached; `error` holds the reason when `finish` is "error". `time_s` is the driver's clock.
    """

    request_id: int
    time_s: float
    token_ids: tuple[int, ...]
    finish: FinishReason | None = None
    error: str | None = None


@dataclass(frozen=True)
class EngineMemory:
    """Where an engine's memory goes; all of it counted, none of it estimated from the process size."""

    weights_bytes: int
    kv_pool_bytes: int
    kv_bytes_per_token: int
    kv_pool_tokens: int


class Driver(Protocol):
    """A running engine with in-flight batching."""

    def now(self) -> float:
        """Seconds on the driver's clock."""
        ...

    def submit(self, request: Request) -> None:
        """Queue a request; one that the engine's limits cannot hold ends with an "error" event in the next step."""
        ...

    def step(self, until: float | None) -> list[TokenEvent]:
        """Run one engine step when there is work, else wait until `until` (None: return at once)."""
        ...

    def cancel(self, request_id: int) -> None:
        """Stop a request; its last event has finish "cancelled". Unknown or finished ids are ignored."""
        ...

    def memory(self) -> EngineMemory: ...

    def close(self) -> None: ...


class Scorer(Protocol):
    """A built engine as a function from token ids to logits."""

    def logits(self, ids: Sequence[int]) -> Array:
        """F32 [len(ids), vocab]: row t are the logits of the token after ids[t], with an empty past."""
        ...

    def close(self) -> None: ...
