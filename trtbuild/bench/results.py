"""From what was measured to the values of bench.json; nothing here judges and nothing formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from trtbuild.bench.capacity import Capacity
from trtbuild.bench.loads import Load, load_to_json
from trtbuild.bench.measurement import RATE_STEP, Measured
from trtbuild.bench.memory import memory_parts
from trtbuild.bench.metrics import REQUEST_METRICS, RUN_METRICS, distributions, run_values
from trtbuild.bench.quality import answer_quality, score_quality
from trtbuild.bench.quality_session import QualityTask
from trtbuild.bench.records import LoadRun, RequestRecord
from trtbuild.bench.repeats import repeat_groups, repeat_value
from trtbuild.bench.settings import Settings
from trtbuild.bench.slo import attainment, goodput_req_s
from trtbuild.bench.statistics import Interval, repeat_intervals
from trtbuild.checkpoint.tokenizer import Tokenizer

COMPARED = {
    "throughput_tok_s": "higher",
    "throughput_req_s": "higher",
    "ttft_ms": "lower",
    "tpot_ms": "lower",
    "latency_ms": "lower",
}
"""Metrics that engines and runs are compared by, and which way is better; request metrics by the mean of each run."""

_CDF_POINTS = 101


def compared_intervals(engines: Sequence[Measured], load: int) -> dict[str, dict[str, Interval | None]]:
    """Metric → engine → median of its repeats with interval, under one load."""
    return {metric: repeat_intervals(repeat_groups(engines, load, metric)) for metric in COMPARED}


def _ends(interval: Interval | None) -> list[float] | None:
    return None if interval is None or interval.low is None or interval.high is None else [interval.low, interval.high]


def load_result(
    load: Load, runs: Sequence[LoadRun], settings: Settings, intervals: Mapping[str, Interval | None]
) -> dict[str, Any]:
    """Everything about one engine under one load: repeats one by one, and all of them together."""
    records = [record for run in runs for record in run.measured]
    judged = attainment(records, settings.slo) if settings.slo.limits else None
    goodputs = [value for value in (goodput_req_s(run, settings.slo) for run in runs) if value is not None]
    return {
        "load": load.describe(),
        **load_to_json(load),
        "requests": len(records),
        "errors": sum(len(run.errors) for run in runs),
        "error_messages": _most_common(record.error for run in runs for record in run.errors),
        **{name: interval.value if interval else None for name, interval in intervals.items() if name in RUN_METRICS},
        "medians": {name: interval.value if interval else None for name, interval in intervals.items()},
        "intervals": {name: _ends(interval) for name, interval in intervals.items()},
        **distributions(records),
        "goodput_req_s": float(np.median(goodputs)) if goodputs else None,
        "slo": None
        if judged is None
        else _attainment_json(judged.good, judged.requests, judged.interval, judged.verdict),
        "repeats": [_repeat(run) for run in runs],
        "cdf": {name: _cdf(records, name) for name in ("latency_ms", "ttft_ms")},
    }


def _attainment_json(good: int, requests: int, interval: Interval | None, verdict: str) -> dict[str, Any]:
    return {"good": good, "requests": requests, "interval": _ends(interval), "verdict": verdict}


def _most_common(messages: Any) -> list[str]:
    counts: dict[str, int] = {}
    for message in messages:
        counts[str(message)] = counts.get(str(message), 0) + 1
    return [f"{count} × {text}" for text, count in sorted(counts.items(), key=lambda item: -item[1])[:5]]


def _repeat(run: LoadRun) -> dict[str, Any]:
    values = {name: repeat_value(run, name) for name in COMPARED if name in REQUEST_METRICS}
    return {
        **run_values(run),
        **{f"mean_{name}": value for name, value in values.items()},
        "requests": len(run.measured),
        "seconds": run.seconds,
        "warmup": asdict(run.warmup),
        "stop_reason": run.stop_reason,
        "partial": run.partial,
    }


def _cdf(records: Sequence[RequestRecord], metric: str) -> list[float] | None:
    """Values at equally spaced shares from 0 to 1, enough to draw the distribution."""
    values = REQUEST_METRICS[metric].values(list(records))
    if len(values) < 2:
        return None
    return [float(v) for v in np.quantile(values, np.linspace(0, 1, min(_CDF_POINTS, len(values))))]


def engine_result(
    measured: Measured,
    settings: Settings,
    intervals: Sequence[Mapping[str, Mapping[str, Interval | None]]],
    quality: dict[str, Any] | None,
) -> dict[str, Any]:
    """One entry of `results`: the headline load's numbers on top, every load, the searches, memory and quality."""
    name, memory = measured.source.name, measured.memory
    loads = [
        load_result(
            load,
            measured.runs.get(index, ()),
            settings,
            {metric: per[name] for metric, per in intervals[index].items()},
        )
        for index, load in enumerate(settings.loads)
    ]
    head = loads[settings.headline]
    parts = memory_parts(measured.peak_bytes, memory) if measured.peak_bytes and memory else None
    return {
        "precision": measured.source.precision,
        "name": name,
        "target": measured.source.target,
        "engine": str(measured.source.path),
        "fingerprint": measured.source.fingerprint,
        "weights_bytes": memory.weights_bytes if memory else None,
        "kv_bytes_per_token": memory.kv_bytes_per_token if memory else None,
        "kv_pool_tokens": memory.kv_pool_tokens if memory else None,
        "peak_memory_bytes": measured.peak_bytes,
        "memory": None if parts is None else asdict(parts),
        **{key: head[key] for key in ("throughput_tok_s", "throughput_req_s", "goodput_req_s", "intervals")},
        **{key: head[key] for key in ("ttft_ms", "tpot_ms", "latency_ms", "gap_ms")},
        "requests": sum(load["requests"] for load in loads),
        "errors": sum(load["errors"] for load in loads),
        "error": measured.error,
        "quality": quality,
        "tasks": measured.tasks or None,
        "knee": None if measured.knee is None else asdict(measured.knee),
        "capacity": _capacity(measured.capacity, "concurrency"),
        "rate_capacity": _capacity(measured.rate_capacity, "rate_qps", RATE_STEP * (settings.objective_rate or 0.0)),
        "curve": _curve(measured, settings),
        "loads": loads,
    }


def _capacity(found: Capacity | None, level: str, unit: float = 1) -> dict[str, Any] | None:
    """A search's result; `unit` is what one step of it stands for."""
    if found is None:
        return None
    met = found.attainment
    return {
        level: round(found.concurrency * unit, 6),
        "failed_at": None if found.failed_at is None else round(found.failed_at * unit, 6),
        "resolved": found.resolved,
        "lower_bound": found.lower_bound,
        "slo": None if met is None else _attainment_json(met.good, met.requests, met.interval, met.verdict),
    }


def _curve(measured: Measured, settings: Settings) -> list[dict[str, Any]]:
    """Throughput and mean latency over concurrency: the closed loops that were measured and those of the searches."""
    points: dict[int, list[LoadRun]] = {}
    for index, load in enumerate(settings.loads):
        users = load.users
        if users:
            points.setdefault(users, []).extend(measured.runs.get(index, ()))
    for concurrency, run in measured.probes.items():
        points.setdefault(concurrency, []).append(run)
    curve = []
    for concurrency, runs in sorted(points.items()):
        values = {name: [v for v in (repeat_value(run, name) for run in runs) if v is not None] for name in COMPARED}
        if values["throughput_tok_s"]:
            medians = {name: float(np.median(found)) if found else None for name, found in values.items()}
            curve.append({"concurrency": concurrency, **medians})
    return curve


def quality_result(
    measured: Measured, baseline: Measured | None, tokenizer: Tokenizer | None, task: QualityTask | None
) -> dict[str, Any] | None:
    """The quality of one engine; the baseline's own entry holds its perplexity and no differences."""
    if task is None or (measured.scores is None and measured.answers is None):
        return None
    is_baseline = measured is baseline
    found: dict[str, Any] = {"baseline": None if baseline is None else baseline.source.name, "is_baseline": is_baseline}
    found |= dict.fromkeys(("perplexity", "perplexity_change_pct", "kl", "top1_pct", "bleu", "chrf", "exact_32_pct"))
    if measured.scores is not None and measured.scores.tokens:
        reference = measured.scores if baseline is None or baseline.scores is None else baseline.scores
        scored = score_quality(measured.scores, reference)
        found |= {"perplexity": scored["perplexity"]} if reference is measured.scores else scored
        found["window_nll"] = [-float(part.sum()) for part in measured.scores.logp]
        found["window_tokens"] = [len(part) for part in measured.scores.logp]
    if not is_baseline and baseline is not None and baseline.answers is not None and measured.answers is not None:
        assert tokenizer is not None
        found |= answer_quality(measured.answers, baseline.answers, tokenizer.decode)
    return found
