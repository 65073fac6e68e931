"""How a run measures: a profile, with what the command line says instead."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from trtbuild.bench.admission import ORDERS
from trtbuild.bench.loadgen import Window
from trtbuild.bench.loads import ClosedLoop, Load, OpenLoop, Replay
from trtbuild.bench.quality import Budget
from trtbuild.bench.slo import Slo
from trtbuild.bench.trace import Trace
from trtbuild.bench.warmup import WarmupRule
from trtbuild.errors import UsageError
from trtbuild.profile import Profile

_MIN_WARMUP_WINDOW = 2


@dataclass(frozen=True)
class Overrides:
    """What the command line may say instead of the profile; None leaves the profile's word.

    `prompts` is a file of a user's prompts, `trace` a CSV of arrivals that replaces every other load; `order` and
    `queue_limit` put an admission queue in front of each engine. `quality` False leaves quality out; `tasks` are
    lm-evaluation-harness tasks.
    """

    concurrency: tuple[int, ...] | None = None
    rates_qps: tuple[float, ...] | None = None
    burstiness: float | None = None
    trace: Path | None = None
    trace_speed: float = 1.0
    trace_requests: int | None = None
    prompts: Path | None = None
    synthetic: bool = False
    requests: int | None = None
    seconds: float | None = None
    repeats: int | None = None
    warmup: int | None = None
    find_knee: bool | None = None
    order: str | None = None
    queue_limit: int | None = None
    quality: bool = True
    tasks: tuple[str, ...] = ()
    seed: int | None = None


@dataclass(frozen=True)
class Settings:
    """Everything that decides what a run does, resolved. `headline` indexes the load whose numbers head the table."""

    loads: tuple[Load, ...]
    headline: int
    slo_load: int
    """The load the objective is judged at: the rate it names, else the headline."""
    objective_rate: float | None
    burstiness: float
    window: Window
    repeats: int
    max_repeats: int
    resolution_pct: float
    """The headline load is repeated beyond `repeats` until its throughputs are known this well."""
    max_concurrency: int
    find_knee: bool
    slo: Slo
    budget: Budget
    seed: int
    order: str | None
    queue_limit: int | None
    quality: bool
    tasks: tuple[str, ...]


def resolve(profile: Profile, overrides: Overrides, trace: Trace | None) -> Settings:
    """Join a profile and the command line; raises UsageError for what contradicts itself."""
    work = profile.workload
    if overrides.order is not None and overrides.order not in ORDERS:
        raise UsageError(f"no order {overrides.order!r}", hint=f"orders are {', '.join(ORDERS)}")
    burstiness = work.burstiness if overrides.burstiness is None else overrides.burstiness
    seed = work.seed if overrides.seed is None else overrides.seed
    only_rates = overrides.rates_qps is not None and overrides.concurrency is None
    concurrency = () if only_rates else overrides.concurrency or work.concurrency
    rates = work.rates_qps if overrides.rates_qps is None else overrides.rates_qps
    objective_rate = profile.slo.rate_qps if overrides.rates_qps is None and overrides.concurrency is None else None
    if objective_rate is not None and objective_rate not in rates:
        rates = (*rates, objective_rate)
    if overrides.concurrency is not None and overrides.rates_qps is None:
        rates = ()
    closed: list[Load] = [ClosedLoop(c) for c in sorted(concurrency)]
    opened: list[Load] = [OpenLoop(rate, burstiness, seed) for rate in rates]
    loads = [trace.load()] if trace is not None else closed + opened
    if not loads:
        raise UsageError("no load to measure", hint="give --concurrency, --rate or --trace")
    headline = len(closed) - 1 if closed and trace is None else len(loads) - 1
    slo_load = next(
        (i for i, load in enumerate(loads) if isinstance(load, OpenLoop) and load.rate_per_s == objective_rate),
        headline,
    )
    warmup = WarmupRule(work.warmup_requests if overrides.warmup is None else overrides.warmup, work.warmup_seconds)
    window = Window(
        min_requests=work.min_requests if overrides.requests is None else overrides.requests,
        min_seconds=work.min_seconds if overrides.seconds is None else overrides.seconds,
        max_seconds=max(work.max_seconds, overrides.seconds or 0.0),
        warmup=warmup,
    )
    find_knee = (work.find_knee if overrides.find_knee is None else overrides.find_knee) and trace is None
    return Settings(
        loads=tuple(loads),
        headline=headline,
        slo_load=slo_load,
        objective_rate=objective_rate,
        burstiness=burstiness,
        window=window,
        repeats=work.repeats if overrides.repeats is None else overrides.repeats,
        max_repeats=work.max_repeats if overrides.repeats is None else overrides.repeats,
        resolution_pct=work.resolution_pct,
        max_concurrency=work.max_concurrency,
        find_knee=find_knee,
        slo=Slo(profile.slo.ttft_ms, profile.slo.tpot_ms, profile.slo.latency_p99_ms),
        budget=Budget(
            profile.quality.max_perplexity_change_pct,
            profile.quality.max_kl,
            profile.quality.min_top1_pct,
            profile.quality.within_measurement_error,
            profile.quality.rounding_pct,
        ),
        seed=seed,
        order=overrides.order,
        queue_limit=overrides.queue_limit,
        quality=overrides.quality,
        tasks=overrides.tasks,
    )


def window_for(load: Load, window: Window, *, explicit: bool = False) -> Window:
    """The window of one load.

    A closed loop is measured for one answer per user at least (unless the number of requests was given), and warmed up
    for as many; a replay is warmed up on at most a tenth of its requests; an open loop ends when its queue only grows.
    """
    rule, least = window.warmup, window.min_requests
    if isinstance(load, ClosedLoop):
        cap = max(rule.max_requests, load.concurrency) if rule.max_requests else 0
        least = least if explicit else max(least, load.concurrency)
        size = max(_MIN_WARMUP_WINDOW, min(load.concurrency, cap // 2))
    else:
        cap = min(rule.max_requests, (load.requests or 0) // 10) if isinstance(load, Replay) else rule.max_requests
        size = max(_MIN_WARMUP_WINDOW, cap // 4)
    return dataclasses.replace(
        window,
        min_requests=least,
        warmup=dataclasses.replace(rule, max_requests=cap, window_requests=size),
        stop_when_growing=isinstance(load, OpenLoop),
    )


def probe_window(load: Load, window: Window) -> Window:
    """A shorter window for one step of a search."""
    least = max(12, 2 * load.users) if load.users else window.min_requests
    shorter = dataclasses.replace(window, min_requests=least, min_seconds=window.min_seconds / 4)
    return window_for(load, shorter, explicit=True)
