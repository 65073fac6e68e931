"""Peak memory of an engine's process and its parts."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from trtbuild.bench.driver import EngineMemory


@dataclass(frozen=True)
class ProcessMemory:
    """Resident bytes of a process: the most it ever held, what it holds now, what it held before the engine opened."""

    peak_bytes: int
    now_bytes: int


def process_memory() -> ProcessMemory:
    """Of this process. The peak is the kernel's high-water mark, so no sampling can miss it."""
    status = Path("/proc/self/status")
    if status.exists():
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        peak, now = (int(fields[name].split()[0]) * 1024 for name in ("VmHWM", "VmRSS"))
        return ProcessMemory(peak, now)
    import resource

    import psutil

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return ProcessMemory(peak, int(psutil.Process().memory_info().rss))


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
