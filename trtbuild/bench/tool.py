"""Engines that a vendor's tool measures: its summaries as entries of bench.json, None wherever it says nothing.

A tool answers all prompts once per concurrency. Loads with arrival times of their own cannot be asked of it, and
single requests are not seen, so an objective is judged from the percentiles: what they bound, no more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtbuild.bench.engines import EngineSource
from trtbuild.bench.loadgen import Prompt
from trtbuild.bench.loads import ClosedLoop, Load, load_to_json
from trtbuild.bench.measurement import Measured
from trtbuild.bench.settings import Settings
from trtbuild.bench.slo import Slo
from trtbuild.bench.statistics import PERCENTILES, percentile_name, samples_for_percentile, wilson
from trtbuild.errors import TrtbuildError
from trtbuild.progress import Progress
from trtbuild.store.manifest import read_manifest
from trtbuild.targets.base import Limits
from trtbuild.targets.measured import Summary, ToolLoad, ToolMeasurement, ToolMemory
from trtbuild.targets.registry import TARGETS, load_target
from trtbuild.targets.serving import Request

METRICS = ("ttft_ms", "tpot_ms", "latency_ms")

_MOST_REQUESTS_PER_USER = 16
_PERCENTILE_SHARES = {"min": 0.0, "p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}


def measured_by_tool(source: EngineSource) -> bool:
    """Whether a target leaves its engines to a tool of their vendor; sources of no target have drivers of their own."""
    return source.target in TARGETS and load_target(source.target).measure is not None


@dataclass(frozen=True)
class ToolMeasured:
    """One engine, what the tool measured of it, or why it could not."""

    source: EngineSource
    measurement: ToolMeasurement | None
    error: str | None = None


def measure(
    sources: Sequence[EngineSource], prompts: Sequence[Prompt], settings: Settings, progress: Progress
) -> list[ToolMeasured]:
    """Run each engine's tool once per closed loop; an engine it fails on is given up and says why."""
    concurrencies = sorted({load.concurrency for load in settings.loads if isinstance(load, ClosedLoop)})
    found = []
    for source in sources:
        tool = load_target(source.target).measure
        assert tool is not None
        requests = _requests(prompts, max(concurrencies, default=1), settings.window.min_requests)
        try:
            measurement = tool(source.path, requests, concurrencies, progress=progress)
        except TrtbuildError as error:
            said = str(error) + (f" ({error.hint})" if error.hint else "")
            progress.note(f"{source.name}: {said}")
            found.append(ToolMeasured(source, None, said))
            continue
        for note in measurement.notes:
            progress.note(f"{source.name}: {note}")
        found.append(ToolMeasured(source, measurement))
    return found


def _requests(prompts: Sequence[Prompt], users: int, at_least: int) -> list[Request]:
    """Enough requests for the largest concurrency to matter, the prompts in turn."""
    count = max(at_least, min(len(prompts), users * _MOST_REQUESTS_PER_USER))
    chosen = (prompts[i % len(prompts)] for i in range(count))
    return [Request(i, list(p.token_ids), p.max_new_tokens, p.ignore_eos) for i, p in enumerate(chosen)]


def quality_of_twin(
    source: EngineSource, measured: Sequence[Measured], quality: Mapping[str, dict[str, Any] | None]
) -> dict[str, Any] | None:
    """The quality of an engine that was built from the same checkpoint and can be scored, or None.

    A tool gives no logits; what the checkpoint lost by quantization is the same on every target.
    """
    checkpoint = _checkpoint(source)
    for other in measured:
        if checkpoint is not None and _checkpoint(other.source) == checkpoint:
            found = quality.get(other.source.name)
            return None if found is None else {**found, "measured_on": other.source.name}
    return None


def _checkpoint(source: EngineSource) -> str | None:
    manifest = read_manifest(source.path)
    return None if manifest is None else manifest.inputs.get("checkpoint")


def tool_result(measured: ToolMeasured, settings: Settings, quality: dict[str, Any] | None) -> dict[str, Any]:
    """One entry of `results`, with the keys every other engine's has."""
    source, measurement = measured.source, measured.measurement
    by_concurrency = {} if measurement is None else {load.concurrency: load for load in measurement.loads}
    loads = [_load_result(load, _of(load, by_concurrency), settings.slo) for load in settings.loads]
    head = loads[settings.headline]
    memory = ToolMemory() if measurement is None else measurement.memory
    parts = memory_parts(memory, source.limits)
    return {
        "precision": source.precision,
        "name": source.name,
        "target": source.target,
        "engine": str(source.path),
        "fingerprint": source.fingerprint,
        "weights_bytes": memory.weights_bytes,
        "kv_bytes_per_token": memory.kv_bytes_per_token,
        "kv_pool_tokens": memory.pool_tokens,
        "peak_memory_bytes": None if parts is None else parts["peak_bytes"],
        "memory": parts,
        **{key: head[key] for key in ("throughput_tok_s", "throughput_req_s", "goodput_req_s", "intervals")},
        **{key: head[key] for key in (*METRICS, "gap_ms")},
        "requests": sum(load["requests"] for load in loads),
        "errors": 0,
        "error": measured.error,
        "quality": quality,
        "tasks": None,
        "knee": None,
        "capacity": None,
        "curve": _curve(by_concurrency),
        "loads": loads,
        "notes": [] if measurement is None else list(measurement.notes),
    }


def _of(load: Load, found: Mapping[int, ToolLoad]) -> ToolLoad | None:
    return found.get(load.concurrency) if isinstance(load, ClosedLoop) else None


def memory_parts(memory: ToolMemory, limits: Limits | None) -> dict[str, int | None] | None:
    """The peak with the KV pool that was asked for, and its parts.

    A runtime that gives the pool a share of all free memory has the same peak for every precision; what it took beyond
    the pool of the limits is not counted, and `measured_peak_bytes` says what was really seen.
    """
    if memory.peak_bytes is None:
        return None
    asked = memory.pool_bytes
    if limits is not None and memory.kv_bytes_per_token is not None and memory.pool_bytes is not None:
        asked = min(memory.pool_bytes, limits.pool_tokens * memory.kv_bytes_per_token)
    peak = memory.peak_bytes - (memory.pool_bytes or 0) + (asked or 0)
    known = [part for part in (memory.weights_bytes, asked) if part is not None]
    rest = peak - sum(known)
    return {
        "peak_bytes": peak,
        "weights_bytes": memory.weights_bytes,
        "kv_pool_bytes": asked,
        "rest_bytes": rest if rest >= 0 else None,
        "activation_bytes": memory.activation_bytes,
        "buffer_bytes": memory.buffer_bytes,
        "measured_peak_bytes": memory.peak_bytes,
        "measured_kv_pool_bytes": memory.pool_bytes,
    }


def _load_result(load: Load, found: ToolLoad | None, slo: Slo) -> dict[str, Any]:
    summaries = {name: None if found is None else _summary(getattr(found, name), found.requests) for name in METRICS}
    throughput = None if found is None else found.throughput_tok_s
    rate = None if found is None else found.throughput_req_s
    return {
        "load": load.describe(),
        **load_to_json(load),
        "requests": 0 if found is None else found.requests,
        "errors": 0,
        "error_messages": [],
        "throughput_tok_s": throughput,
        "throughput_req_s": rate,
        "intervals": dict.fromkeys(("throughput_tok_s", "throughput_req_s", *METRICS)),
        **summaries,
        "client_delay_ms": None,
        "gap_ms": None,
        "input_tokens": None,
        "output_tokens": None,
        "goodput_req_s": None,
        "slo": None if found is None or not slo.limits else bounded_attainment(found, slo),
        "repeats": [],
        "cdf": dict.fromkeys(("latency_ms", "ttft_ms")),
    }


def _summary(summary: Summary | None, requests: int) -> dict[str, Any] | None:
    """As `statistics.summarize`: a percentile only where there are enough requests for it."""
    if summary is None:
        return None
    found: dict[str, Any] = {"n": requests, "mean": summary.get("mean"), "std": None}
    found |= {"min": summary.get("min"), "max": summary.get("max")}
    for share in PERCENTILES:
        name = percentile_name(share)
        found[name] = summary.get(name) if requests >= samples_for_percentile(share) else None
    return {**found, "p99_interval": None}


def bounded_attainment(load: ToolLoad, slo: Slo) -> dict[str, Any] | None:
    """How many requests met the objective, as far as percentiles say.

    At least: for each limit the largest percentile within it bounds the requests above it, and those add up. At most:
    the smallest percentile above a limit bounds the requests within it. A verdict is given only where the Wilson
    interval of the bound that decides it leaves no doubt; None where a metric that has a limit was not reported.
    """
    missing, most = 0.0, 1.0
    for name, limit in slo.limits.items():
        summary: Summary | None = getattr(load, name)
        if summary is None:
            return None
        known = {name: share for name, share in _PERCENTILE_SHARES.items() if name in summary}
        within = [share for name, share in known.items() if summary[name] <= limit]
        above = [share for name, share in known.items() if summary[name] > limit]
        missing += 1.0 - max(within, default=0.0)
        most = min(most, min(above, default=1.0))
    good = max(0, math.floor(load.requests * (1.0 - missing) + 1e-9))
    best = math.ceil(load.requests * most - 1e-9)
    low, high = wilson(good, load.requests), wilson(best, load.requests)
    if low is None or high is None or low.low is None or high.high is None:
        return None
    verdict = "pass" if low.low >= slo.share else "fail" if high.high < slo.share else "inconclusive"
    return {"good": good, "requests": load.requests, "interval": [low.low, high.high], "verdict": verdict}


def _curve(found: Mapping[int, ToolLoad]) -> list[dict[str, Any]]:
    return [
        {
            "concurrency": concurrency,
            "throughput_tok_s": load.throughput_tok_s,
            "throughput_req_s": load.throughput_req_s,
            **{name: (getattr(load, name) or {}).get("mean") for name in METRICS},
        }
        for concurrency, load in sorted(found.items())
        if load.throughput_tok_s is not None
    ]
