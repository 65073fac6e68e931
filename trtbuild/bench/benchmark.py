"""`run_bench`: engines and a profile in, everything measured and judged out. The one entry point of the package."""

from __future__ import annotations

import dataclasses
import datetime
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild import __version__
from trtbuild.bench.engines import EngineSource, read_sources
from trtbuild.bench.measurement import Measured, Watcher
from trtbuild.bench.quality_session import (
    QualityTask,
    ScoreCache,
    collect_answers,
    collect_scores,
    default_cache,
    quality_task,
)
from trtbuild.bench.results import compared_intervals, engine_result, quality_result
from trtbuild.bench.session import MAX_ERROR_PCT, Interrupted, SpeedSession
from trtbuild.bench.settings import Overrides, Settings, resolve
from trtbuild.bench.tool import ToolMeasured, measured_by_tool, quality_of_twin, tool_result
from trtbuild.bench.tool import measure as measure_with_tools
from trtbuild.bench.trace import Trace, read_trace, scale_trace
from trtbuild.bench.verdict import Verdict, decide
from trtbuild.bench.workload import (
    PromptSet,
    chat_prompts,
    engine_tokenizer,
    file_prompts,
    synthetic_prompts,
    trace_prompts,
)
from trtbuild.checkpoint.tokenizer import Tokenizer
from trtbuild.errors import InputRefused, UsageError, VerdictFailed
from trtbuild.machine import this_machine
from trtbuild.profile import Profile, to_dict
from trtbuild.progress import Progress, silent
from trtbuild.store.manifest import package_versions
from trtbuild.targets.base import Limits

SCHEMA = 1

_PROMPTS = 256
_PACKAGES = ("numpy", "openvino", "openvino-genai", "tensorrt_llm", "sacrebleu", "tokenizers")


@dataclass(frozen=True)
class BenchResult:
    """A finished (or interrupted) benchmark: `document` is the content of bench.json."""

    document: dict[str, Any]
    verdict: Verdict
    partial: bool


def failure_of(document: Mapping[str, Any]) -> VerdictFailed | KeyboardInterrupt | None:
    """What the command ends with, or None: an interrupt, too many failed requests, or no precision that passes."""
    if document["partial"]:
        return KeyboardInterrupt()
    if document["error_pct"] > MAX_ERROR_PCT:
        return VerdictFailed(document["first_line"], hint="the messages are in bench.json under loads")
    verdict = document["verdict"]
    return VerdictFailed(verdict["sentence"]) if verdict["ship"] is None else None


def run_bench(
    engines: Sequence[Path],
    profile: Profile,
    *,
    baseline: Path | None = None,
    overrides: Overrides | None = None,
    cache: Path | None = None,
    progress: Progress = silent,
    watcher: Watcher | None = None,
) -> BenchResult:
    """Measure engine folders side by side under a profile and judge them.

    `baseline` is the engine quality is compared with; by default the one of the profile's baseline precision among
    `engines`. `cache` is where scores are kept between runs (the user's cache folder by default). Ctrl-C ends the
    measurement; what was complete is in the result, marked partial. Raises InputRefused for folders that are no
    engines or belong to different models, UsageError for settings that contradict each other.
    """
    sources = read_sources([*engines, *([baseline] if baseline is not None else [])])
    base: EngineSource | None
    if baseline is None:
        base = next((source for source in sources if source.precision == profile.baseline), None)
    else:
        given = sources.pop()
        same = next((source for source in sources if source.fingerprint == given.fingerprint), None)
        base = same or dataclasses.replace(given, name=f"{given.precision} (baseline)")
    return measure_sources(
        sources, base, profile, overrides or Overrides(), ScoreCache(cache or default_cache()), progress, watcher
    )


def measure_sources(
    sources: Sequence[EngineSource],
    base: EngineSource | None,
    profile: Profile,
    overrides: Overrides,
    cache: ScoreCache,
    progress: Progress = silent,
    watcher: Watcher | None = None,
) -> BenchResult:
    """`run_bench` after the manifests were read; `base` need not be one of `sources`."""
    if not sources:
        raise UsageError("no engine to measure", hint="trtbuild bench ENGINE… -o DIR")
    tokenizer = _common_tokenizer([*sources, *([base] if base is not None else [])])
    limits = _common_limits(sources)
    trace = _trace(overrides, limits)
    settings = resolve(profile, overrides, trace)
    prompts = _prompts(profile, overrides, settings, sources, tokenizer, limits, trace)
    progress.note(prompts.story)
    measured = [Measured(source) for source in sources if not measured_by_tool(source)]
    if base is not None and measured_by_tool(base):
        base = None
    task = _quality_task(profile, settings, tokenizer, limits, progress) if measured else None
    reference = next((m for m in measured if m.source is base), None)
    everyone = list(measured)
    if reference is None and base is not None and task is not None:
        reference = Measured(base, under_test=False)
        everyone.append(reference)
    tools = measure_with_tools([s for s in sources if measured_by_tool(s)], prompts.prompts, settings, progress)
    partial = bool(everyone) and _measure(everyone, reference, prompts, settings, task, cache, progress, watcher)
    return _conclude(sources, measured, tools, reference, profile, settings, prompts, tokenizer, task, partial)


def _measure(
    everyone: Sequence[Measured],
    reference: Measured | None,
    prompts: PromptSet,
    settings: Settings,
    task: QualityTask | None,
    cache: ScoreCache,
    progress: Progress,
    watcher: Watcher | None,
) -> bool:
    """Run every phase; True when a person ended it early."""
    try:
        with SpeedSession(everyone, prompts.prompts, settings, progress, watcher) as session:
            session.open_all()
            session.measure_loads()
            if settings.find_knee:
                session.search()
            if task is not None and task.questions:
                collect_answers(session, task, cache)
        if task is not None:
            collect_scores(everyone, reference, task, cache, progress)
        if settings.tasks:
            from trtbuild.bench.lm_eval_model import run_tasks

            run_tasks(everyone, settings.tasks, progress)
    except (Interrupted, KeyboardInterrupt):
        progress.note("interrupted; the result is partial")
        return True
    return False


def _common_tokenizer(sources: Sequence[EngineSource]) -> Tokenizer | None:
    """The tokenizer all engines share; None where one has none. Raises InputRefused when they differ."""
    found = [(source, engine_tokenizer(source.path)) for source in sources]
    known = [(source, tokenizer) for source, tokenizer in found if tokenizer is not None]
    for source, tokenizer in known[1:]:
        if tokenizer.fingerprint() != known[0][1].fingerprint():
            raise InputRefused(
                f"its tokenizer is not that of {known[0][0].path}",
                where=source.path,
                hint="compare engines of one model only",
            )
    return known[0][1] if len(known) == len(found) else None


def _common_limits(sources: Sequence[EngineSource]) -> Limits | None:
    """The smallest of every limit: what all engines can take."""
    known = [source.limits for source in sources if source.limits is not None]
    if not known:
        return None
    names = ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens")
    return Limits(**{name: min(getattr(limits, name) for limits in known) for name in names})


def _trace(overrides: Overrides, limits: Limits | None) -> Trace | None:
    if overrides.trace is None:
        return None
    return scale_trace(
        read_trace(overrides.trace),
        speed=overrides.trace_speed,
        max_requests=overrides.trace_requests,
        max_input_len=None if limits is None else limits.max_input_len,
        max_seq_len=None if limits is None else limits.max_seq_len,
    )


def _prompts(
    profile: Profile,
    overrides: Overrides,
    settings: Settings,
    sources: Sequence[EngineSource],
    tokenizer: Tokenizer | None,
    limits: Limits | None,
    trace: Trace | None,
) -> PromptSet:
    work, vocab_size = profile.workload, min(source.vocab_size for source in sources)
    if trace is not None:
        return trace_prompts(trace, vocab_size, None if overrides.synthetic else tokenizer, settings.seed)
    if overrides.prompts is not None:
        if tokenizer is None:
            raise UsageError("prompts need a tokenizer, and these engines carry none", hint="leave --prompts out")
        return file_prompts(overrides.prompts, tokenizer, work.output_tokens, work.ignore_eos, limits)
    shape = (work.prompt_tokens, work.output_tokens, work.ignore_eos, _PROMPTS, settings.seed)
    if overrides.synthetic or work.prompts == "synthetic" or tokenizer is None:
        return synthetic_prompts(vocab_size, *shape)
    return chat_prompts(tokenizer, *shape)


def _quality_task(
    profile: Profile, settings: Settings, tokenizer: Tokenizer | None, limits: Limits | None, progress: Progress
) -> QualityTask | None:
    if not settings.quality:
        return None
    if tokenizer is None:
        progress.note("quality is not measured: the engines carry no tokenizer")
        return None
    return quality_task(tokenizer, profile.evaluation, None if limits is None else limits.max_seq_len)


def _conclude(
    sources: Sequence[EngineSource],
    measured: Sequence[Measured],
    tools: Sequence[ToolMeasured],
    reference: Measured | None,
    profile: Profile,
    settings: Settings,
    prompts: PromptSet,
    tokenizer: Tokenizer | None,
    task: QualityTask | None,
    partial: bool,
) -> BenchResult:
    intervals = [compared_intervals(measured, index) for index in range(len(settings.loads))]
    quality = {m.source.name: quality_result(m, reference, tokenizer, task) for m in measured}
    results = [engine_result(m, settings, intervals, quality[m.source.name]) for m in measured]
    results += [tool_result(t, settings, quality_of_twin(t.source, measured, quality)) for t in tools]
    results.sort(key=lambda result: [source.name for source in sources].index(result["name"]))
    budget = settings.budget if settings.quality else None
    verdict = decide(results, profile.name, profile.objective, settings.slo, budget, settings.slo_load)
    if partial:
        verdict = dataclasses.replace(verdict, sentence=f"Provisional, for the run was interrupted: {verdict.sentence}")
    for result in results:
        result["verdict"] = verdict.verdict_of(result["name"])
    requests, errors = (sum(result[key] for result in results) for key in ("requests", "errors"))
    failed = [(result["name"], result["error"]) for result in results if result["error"]]
    error_pct = errors / requests * 100 if requests else (100.0 if failed else 0.0)
    document = {
        "schema": SCHEMA,
        "trtbuild": __version__,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "partial": partial,
        "first_line": first_line(errors, requests, partial, failed),
        "error_pct": error_pct,
        "verdict": verdict.to_json(),
        "machine": dataclasses.asdict(this_machine()),
        "profile": to_dict(profile),
        "settings": settings_json(settings),
        "workload": prompts.story,
        "quality": None
        if task is None
        else {**task.describe(), "baseline": reference.source.name if reference else None},
        "packages": package_versions(_PACKAGES),
        "command": sys.argv[1:],
        "results": results,
    }
    return BenchResult(document, verdict, partial)


def first_line(errors: int, requests: int, partial: bool, failed: Sequence[tuple[str, str | None]]) -> str:
    """What a reader must know before any number; `failed` are engines that were given up, and why."""
    parts = [f"{name} was given up: {reason}" for name, reason in failed]
    if errors:
        parts.append(f"{errors} of {requests} requests failed ({errors / requests * 100:.2g} %)")
    if partial:
        parts.append("partial result, the measurement was interrupted")
    return "; ".join(parts) or f"{requests} requests, none failed"


def settings_json(settings: Settings) -> dict[str, Any]:
    """Every setting a run was made with."""
    value = dataclasses.asdict(settings)
    value["loads"] = [load.describe() for load in settings.loads]
    value["slo"]["description"] = settings.slo.describe()
    return value
