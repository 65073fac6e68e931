"""In-flight batching on OpenVINO GenAI: paged KV cache, chunked context, one engine step at a time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trtbuild.targets.base import Limits, refusal
from trtbuild.targets.cpu.loading import MODEL_BIN, load_engine
from trtbuild.targets.cpu.properties import BLOCK_TOKENS
from trtbuild.targets.serving import EngineMemory, FinishReason, Request, TokenEvent


def pool_blocks(limits: Limits) -> int:
    """KV blocks of the pool; one meant for `max_batch_size` whole sequences has whole blocks for each."""
    blocks = -(-limits.pool_tokens // BLOCK_TOKENS)
    if limits.pool_tokens < limits.max_batch_size * limits.max_seq_len:
        return blocks
    return max(blocks, limits.max_batch_size * -(-limits.max_seq_len // BLOCK_TOKENS))


def open_pipeline(folder: Path, limits: Limits, properties: Mapping[str, Any]) -> Any:
    """GenAI's ContinuousBatchingPipeline with the limits mapped onto its scheduler."""
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_batched_tokens = limits.max_num_tokens
    scheduler.max_num_seqs = limits.max_batch_size
    scheduler.num_kv_blocks = pool_blocks(limits)
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = False
    return openvino_genai.ContinuousBatchingPipeline(str(folder), scheduler, "CPU", dict(properties))


def generation_config(request: Request, max_new_tokens: int, stop_token_ids: tuple[int, ...]) -> Any:
    """GenAI's GenerationConfig of a request."""
    import openvino_genai

    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = max_new_tokens
    config.ignore_eos = request.ignore_eos
    if stop_token_ids:
        config.eos_token_id = stop_token_ids[0]
        config.stop_token_ids = set(stop_token_ids)
    else:
        config.ignore_eos = True
    config.do_sample = request.temperature > 0
    if config.do_sample:
        config.temperature = request.temperature
        config.top_p = request.top_p
        config.rng_seed = request.seed
    return config


@dataclass
class _Running:
    request_id: int
    handle: Any
    cancelled: bool = False


class CpuDriver:
    """Implements `targets.serving.Driver`. A stop token is the last token of its request's events."""

    def __init__(
        self,
        folder: Path,
        limits: Limits,
        properties: Mapping[str, Any],
        *,
        vocab_size: int,
        stop_token_ids: tuple[int, ...] = (),
        kv_bytes_per_token: int = 0,
    ) -> None:
        from openvino_genai import GenerationFinishReason
        from openvino_genai.py_openvino_genai import GenerationStatus

        self._pipeline = open_pipeline(folder, limits, properties)
        self._reasons: dict[Any, FinishReason] = {
            GenerationFinishReason.STOP: "stop",
            GenerationFinishReason.LENGTH: "length",
        }
        self._ignored = GenerationStatus.IGNORED
        self._limits = limits
        self._stop_token_ids = stop_token_ids
        self._vocab_size = vocab_size
        self._kv_bytes_per_token = kv_bytes_per_token
        self._weights_bytes = (folder / MODEL_BIN).stat().st_size
        self._running: dict[int, _Running] = {}
        self._refused: list[TokenEvent] = []
        self._next_handle = 0

    def now(self) -> float:
        return time.perf_counter()

    def submit(self, request: Request) -> None:
        import openvino

        reason = refusal(request, self._limits, self._vocab_size, self._running)
        if reason is not None:
            self._refused.append(TokenEvent(request.id, self.now(), (), "error", reason))
            return
        room = min(request.max_new_tokens, self._limits.max_seq_len - len(request.token_ids))
        config = generation_config(request, room, self._stop_token_ids)
        ids = openvino.Tensor(np.asarray(request.token_ids, np.int64)[None])
        handle = self._pipeline.add_request(self._next_handle, ids, config)
        self._running[request.id] = _Running(request.id, handle)
        self._next_handle += 1

    def step(self, until: float | None) -> list[TokenEvent]:
        events, self._refused = self._refused, []
        if self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        elif until is not None and not events and not self._running:
            time.sleep(max(0.0, until - self.now()))
        now = self.now()
        for running in list(self._running.values()):
            event = self._read(running, now)
            if event is not None:
                events.append(event)
                if event.finish is not None:
                    del self._running[running.request_id]
        return events

    def _read(self, running: _Running, now: float) -> TokenEvent | None:
        """What a request got in the last step; None for nothing."""
        if running.cancelled:
            return TokenEvent(running.request_id, now, (), "cancelled")
        tokens: tuple[int, ...] = ()
        finish: FinishReason | None = None
        while running.handle.can_read():
            for output in running.handle.read().values():
                tokens += tuple(output.generated_ids)
                finish = self._reasons.get(output.finish_reason, finish)
        if finish is None and running.handle.get_status() == self._ignored:
            return TokenEvent(running.request_id, now, tokens, "error", "the KV pool has no room for this request")
        return TokenEvent(running.request_id, now, tokens, finish) if tokens or finish else None

    def cancel(self, request_id: int) -> None:
        running = self._running.get(request_id)
        if running is not None:
            running.cancelled = True
            running.handle.cancel()

    def memory(self) -> EngineMemory:
        tokens = pool_blocks(self._limits) * BLOCK_TOKENS
        per_token = self._kv_bytes_per_token
        return EngineMemory(self._weights_bytes, tokens * per_token, per_token, tokens)

    def close(self) -> None:
        for request_id in list(self._running):
            self.cancel(request_id)
        del self._pipeline


def open_driver(path: Path) -> CpuDriver:
    """Serve an engine with the limits it was built for."""
    cpu = load_engine(path)
    return CpuDriver(
        path,
        cpu.engine.limits,
        cpu.properties,
        vocab_size=int(cpu.engine.settings["vocab_size"]),
        stop_token_ids=cpu.stop_token_ids,
        kv_bytes_per_token=int(cpu.engine.settings["kv_bytes_per_token"]),
    )
