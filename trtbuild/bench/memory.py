"""Peak memory of an engine's process and its parts."""

from __future__ import annotations

from dataclasses import dataclass

from trtbuild.bench.driver import EngineMemory


@dataclass(frozen=True)
class MemoryParts:
    """The peak and what it consists of. `rest_bytes` is everything else: runtime, kernels, activations, the client."""

    peak_bytes: int
    weights_bytes: int
    kv_pool_bytes: int
    rest_bytes: int | None
    """None where the parts exceed the peak: the engine then maps weights or pool without touching all of them."""


def memory_parts(peak_bytes: int, engine: EngineMemory) -> MemoryParts:
    """Split a peak into weights, KV pool and the rest."""
    rest = peak_bytes - engine.weights_bytes - engine.kv_pool_bytes
    return MemoryParts(peak_bytes, engine.weights_bytes, engine.kv_pool_bytes, rest if rest >= 0 else None)
