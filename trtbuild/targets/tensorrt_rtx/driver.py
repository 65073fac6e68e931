"""An engine on a GPU behind the driver protocol: batching decides, an executor runs, the clock is the process's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from trtbuild.targets.base import Limits
from trtbuild.targets.serving import EngineMemory, Request, TokenEvent
from trtbuild.targets.tensorrt_rtx.batching import Batching, Executor
from trtbuild.targets.tensorrt_rtx.loading import load_engine


class ClosableExecutor(Executor, Protocol):
    """An executor that owns device memory."""

    weights_bytes: int

    def close(self) -> None: ...


class SlotDriver:
    """Implements `targets.serving.Driver` over any executor."""

    def __init__(self, executor: ClosableExecutor, limits: Limits, stop_token_ids: Sequence[int]) -> None:
        self._executor = executor
        self._batching = Batching(executor, limits, stop_token_ids)

    def now(self) -> float:
        return time.perf_counter()

    def submit(self, request: Request) -> None:
        self._batching.submit(request)

    def step(self, until: float | None) -> list[TokenEvent]:
        if self._batching.idle:
            if until is not None:
                time.sleep(max(0.0, until - self.now()))
            return []
        return [
            TokenEvent(outcome.request_id, self.now(), outcome.token_ids, outcome.finish, outcome.error)
            for outcome in self._batching.advance()
        ]

    def cancel(self, request_id: int) -> None:
        self._batching.cancel(request_id)

    def memory(self) -> EngineMemory:
        shape = self._executor.geometry
        tokens = shape.rows * shape.slots
        per_token = shape.kv_bytes_per_token
        return EngineMemory(self._executor.weights_bytes, tokens * per_token, per_token, tokens)

    def close(self) -> None:
        self._executor.close()


def open_driver(path: Path) -> SlotDriver:
    """Serve an engine on this machine's GPU; raises MachineLacks where there is none it was built for."""
    from trtbuild.targets.tensorrt_rtx.executor import open_executor

    loaded = load_engine(path)
    return SlotDriver(open_executor(loaded), loaded.engine.limits, loaded.stop_token_ids)
