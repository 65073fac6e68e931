"""Read what trtllm-bench leaves: its report JSON, and the memory lines of the runtime's log.

Field names as `bench/dataclasses/reporting.py` writes them and log lines as `docs/source/reference/memory.md` shows
them (TensorRT-LLM 1.1). The report has no memory figure: `machine.memory.total` is the size of the GPU.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trtbuild.errors import InputRefused
from trtbuild.targets.measured import Summary, ToolLoad, ToolMemory

_UNITS = {"MiB": 2**20, "GiB": 2**30, "KiB": 2**10, "MB": 10**6, "GB": 10**9, "KB": 10**3, "B": 1}
_SIZE = r"([\d.]+) ([KMG]i?B|B)"
_NAMES = {"minimum": "min", "maximum": "max", "average": "mean", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}

MEMORY_LINES: Mapping[str, tuple[str, ...]] = {
    "weights_bytes": (rf"Loaded engine size: {_SIZE}",),
    "activation_bytes": (rf"Allocated {_SIZE} for execution context memory",),
    "buffer_bytes": (
        rf"Allocated {_SIZE} GPU memory for runtime buffers",
        rf"Allocated {_SIZE} GPU memory for decoder",
    ),
    "free_before_pool_bytes": (rf"max tokens in paged kv cache: total: [\d.]+ GiB, available: {_SIZE}",),
    "pool_bytes": (rf"Allocated {_SIZE} for max tokens in paged KV cache",),
}
"""Part of ToolMemory → the lines that say it; several lines are added up."""

_POOL_TOKENS = re.compile(r"max tokens in paged KV cache \((\d+)\)")


def read_report(path: Path, concurrency: int) -> ToolLoad:
    """One report as a load. Raises InputRefused when the file is missing or lacks the parts every report has."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        info, performance = raw["request_info"], raw["performance"]
        requests = int(info["num_requests"])
        streaming: Mapping[str, Any] = raw.get("streaming_metrics") or {}
        return ToolLoad(
            concurrency=concurrency,
            requests=requests,
            seconds=float(performance["total_latency_ms"]) / 1e3,
            input_tokens=round(requests * float(info["avg_input_length"])),
            output_tokens=round(requests * float(info["avg_output_length"])),
            throughput_tok_s=_number(performance.get("system_output_throughput_tok_s")),
            throughput_req_s=_number(performance.get("request_throughput_req_s")),
            ttft_ms=_summary(streaming.get("ttft_percentiles")),
            tpot_ms=_summary(streaming.get("tpot_percentiles")) if _has_tpot(info) else None,
            latency_ms=_summary(performance.get("request_latency_percentiles_ms")),
        )
    except FileNotFoundError as error:
        raise InputRefused("trtllm-bench wrote no report", where=path) from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputRefused(f"not a report of trtllm-bench ({error!r})", where=path) from error


def _has_tpot(info: Mapping[str, Any]) -> bool:
    """One-token answers have no TPOT; the tool gives 0 for them."""
    return float(info["avg_output_length"]) >= 2


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _summary(percentiles: Any) -> Summary | None:
    if not isinstance(percentiles, dict):
        return None
    found = {ours: _number(percentiles.get(theirs)) for theirs, ours in _NAMES.items()}
    return {name: value for name, value in found.items() if value is not None} or None


def read_memory(lines: Iterable[str], kv_bytes_per_token: int | None, peak_bytes: int | None) -> ToolMemory:
    """The memory split that the runtime logged; of several ranks the first to say each line counts."""
    text = "\n".join(lines)
    parts: dict[str, int | None] = {}
    for name, patterns in MEMORY_LINES.items():
        found = [match for pattern in patterns if (match := re.search(pattern, text))]
        parts[name] = sum(round(float(m[1]) * _UNITS[m[2]]) for m in found) if found else None
    tokens = _POOL_TOKENS.search(text)
    return ToolMemory(
        **parts,
        pool_tokens=int(tokens[1]) if tokens else None,
        kv_bytes_per_token=kv_bytes_per_token,
        peak_bytes=peak_bytes,
    )
