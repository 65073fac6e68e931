"""In-flight batching over the rows of a slot cache, without a word of CUDA.

A request waits until a row is free, keeps that row to its end, and gives it up at once. Every engine step gives each
answering sequence one token, all in one execution, and spends what is left of max_num_tokens on the prompts of the
others, chunk by chunk (chunked context). Nothing in the cache is ever moved or cleared: a token at position p is
written to slot p before anything attends to slot p, so what an earlier owner left there is never seen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trtbuild.targets.base import Limits, refusal
from trtbuild.targets.serving import FinishReason, Request
from trtbuild.targets.tensorrt_rtx.geometry import CONTEXT, GENERATION, Geometry

Ints = npt.NDArray[np.int64]

TOTAL_MULTIPLE = 64
"""Lengths of the attention mask are rounded up to this: TensorRT-RTX specializes kernels for the shapes it meets, and
the length would otherwise be another one in every step. Slots beyond a token's position are masked anyway."""


@dataclass(frozen=True)
class Step:
    """One execution of the engine on the cache rows from `first_row` on, in one of the two phases.

    Int64 arrays: input_ids and position_ids [batch, sequence], attention_mask [batch, total], logits_at [n].
    """

    phase: int
    first_row: int
    input_ids: Ints
    position_ids: Ints
    attention_mask: Ints
    logits_at: Ints


class Executor(Protocol):
    """What batching needs of an engine: run a step, get back one of its outputs."""

    geometry: Geometry

    def tokens(self, step: Step) -> Ints:
        """The most likely next token, int64 [batch, len(logits_at)]."""
        ...

    def logits(self, step: Step) -> npt.NDArray[np.float32]:
        """Logits F32 [batch, len(logits_at), vocab_size]."""
        ...


def make_step(
    shape: Geometry, phase: int, first_row: int, ids: Ints, positions: Ints, logits_at: Sequence[int]
) -> Step:
    """A step for `ids` [batch, sequence] at `positions`, its mask long enough for the last of them."""
    needed = int(positions.max()) + 1
    total = min(shape.slots, -(-needed // TOTAL_MULTIPLE) * TOTAL_MULTIPLE)
    mask = np.ones((len(ids), total), np.int64)
    return Step(phase, first_row, ids, positions, mask, np.asarray(logits_at, np.int64))


def context_step(shape: Geometry, row: int, ids: Sequence[int], start: int, logits_at: Sequence[int]) -> Step:
    """A chunk of one sequence, whose first token stands at position `start`."""
    positions = np.arange(start, start + len(ids), dtype=np.int64)[None]
    return make_step(shape, CONTEXT, row, np.asarray(ids, np.int64)[None], positions, logits_at)


@dataclass(frozen=True)
class Outcome:
    """What an execution gave one request; the last outcome of a request has `finish`."""

    request_id: int
    token_ids: tuple[int, ...] = ()
    finish: FinishReason | None = None
    error: str | None = None


@dataclass
class _Sequence:
    request: Request
    room: int
    """Tokens it may still generate."""
    row: int = -1
    cached: int = 0
    """Tokens whose keys and values are in the row."""
    pending: list[int] = field(default_factory=list)
    """Tokens that are not in the cache yet: the rest of the prompt, or the one token generated last."""
    answering: bool = False


class Batching:
    """Admission and steps; `advance` is one engine step."""

    def __init__(self, executor: Executor, limits: Limits, stop_token_ids: Sequence[int]) -> None:
        self._executor = executor
        self._limits = limits
        self._stops = frozenset(stop_token_ids)
        self._waiting: deque[_Sequence] = deque()
        self._running: dict[int, _Sequence] = {}
        self._free = list(range(executor.geometry.rows))
        self._told: list[Outcome] = []

    @property
    def idle(self) -> bool:
        return not (self._waiting or self._running or self._told)

    def submit(self, request: Request) -> None:
        """Queue a request, or the error it gets at the next step."""
        known = {sequence.request.id for sequence in self._waiting} | set(self._running)
        reason = refusal(request, self._limits, self._executor.geometry.vocab_size, known)
        if reason is None and request.temperature > 0:
            reason = "this target decodes greedily: temperature must be 0"
        if reason is not None:
            self._told.append(Outcome(request.id, finish="error", error=reason))
            return
        room = min(request.max_new_tokens, self._limits.max_seq_len - len(request.token_ids))
        self._waiting.append(_Sequence(request, room, pending=list(request.token_ids)))

    def cancel(self, request_id: int) -> None:
        """Drop a request wherever it is; an unknown one is ignored."""
        waiting = [sequence for sequence in self._waiting if sequence.request.id == request_id]
        for sequence in waiting:
            self._waiting.remove(sequence)
        if request_id in self._running:
            self._release(self._running[request_id])
        elif not waiting:
            return
        self._told.append(Outcome(request_id, finish="cancelled"))

    def advance(self) -> Iterator[Outcome]:
        """One engine step, its outcomes as each execution gives them."""
        told, self._told = self._told, []
        yield from told
        self._admit()
        answering = [sequence for sequence in self._running.values() if sequence.answering]
        prompts = [sequence for sequence in self._running.values() if not sequence.answering]
        budget = self._limits.max_num_tokens - len(answering)
        if answering:
            yield from self._generate(answering)
        for sequence in prompts:
            if budget <= 0:
                break
            budget -= yield from self._prefill(sequence, budget)

    def _admit(self) -> None:
        while self._waiting and self._free:
            sequence = self._waiting.popleft()
            # The lowest row: a generation step covers the rows up to the highest one in use.
            sequence.row = min(self._free)
            self._free.remove(sequence.row)
            self._running[sequence.request.id] = sequence

    def _release(self, sequence: _Sequence) -> None:
        del self._running[sequence.request.id]
        self._free.append(sequence.row)

    def _prefill(self, sequence: _Sequence, budget: int) -> Generator[Outcome, None, int]:
        """Run the next chunk of a prompt; returns its number of tokens. The last chunk gives the first token."""
        shape = self._executor.geometry
        chunk = sequence.pending[: min(budget, shape.context_tokens)]
        step = context_step(shape, sequence.row, chunk, sequence.cached, [len(chunk) - 1])
        tokens = self._executor.tokens(step)
        sequence.cached += len(chunk)
        sequence.pending = sequence.pending[len(chunk) :]
        if not sequence.pending:
            sequence.answering = True
            yield self._take(sequence, int(tokens[0, 0]))
        return len(chunk)

    def _generate(self, answering: list[_Sequence]) -> Iterator[Outcome]:
        """One token for each answering sequence, in one execution over rows 0 … highest.

        Rows in between that are free or still in their prompt run along: what they write is at a position that will
        be written again before it is read.
        """
        rows = max(sequence.row for sequence in answering) + 1
        ids, positions = np.zeros((rows, 1), np.int64), np.zeros((rows, 1), np.int64)
        for sequence in self._running.values():
            if sequence.row < rows:
                positions[sequence.row, 0] = sequence.cached
        for sequence in answering:
            ids[sequence.row, 0] = sequence.pending[0]
        tokens = self._executor.tokens(make_step(self._executor.geometry, GENERATION, 0, ids, positions, [0]))
        for sequence in answering:
            sequence.cached += 1
            yield self._take(sequence, int(tokens[sequence.row, 0]))

    def _take(self, sequence: _Sequence, token: int) -> Outcome:
        """Record a new token of a sequence and see whether it ends there."""
        sequence.pending = [token]
        sequence.room -= 1
        finish: FinishReason | None = None
        if token in self._stops and not sequence.request.ignore_eos:
            finish = "stop"
        elif sequence.room == 0:
            finish = "length"
        if finish is not None:
            self._release(sequence)
        return Outcome(sequence.request.id, (token,), finish)
