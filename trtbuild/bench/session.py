"""A whole measurement: every engine under every load, in turn (A B A B), then the searches, then quality.

The turns are what makes precisions comparable: a machine that slows down in the middle slows all of them down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from trtbuild.bench.admission import Admission
from trtbuild.bench.capacity import find_capacity
from trtbuild.bench.engines import EngineSource
from trtbuild.bench.knee import Probe, find_knee
from trtbuild.bench.loadgen import LoadStatus, Prompt, Window
from trtbuild.bench.loads import ClosedLoop, Load, OpenLoop
from trtbuild.bench.measurement import RATE_STEP, LiveStatus, Measured, Watcher, salvage
from trtbuild.bench.metrics import RUN_METRICS
from trtbuild.bench.records import LoadRun
from trtbuild.bench.remote import EngineDied, EngineProcess, Fleet
from trtbuild.bench.repeats import repeat_groups
from trtbuild.bench.settings import Settings, probe_window, window_for
from trtbuild.bench.slo import Attainment, attainment
from trtbuild.bench.statistics import resolution_pct
from trtbuild.progress import Progress

MAX_ERROR_PCT = 1.0
"""Above this share of failed requests nothing an engine did is a result."""


_MAX_RATE = 4.0
"""A search for the largest rate ends at this many times the rate the objective names."""


class Interrupted(Exception):
    """A person pressed Ctrl-C in a run; what it had is kept, nothing more is measured."""


class SpeedSession:
    """Speed and memory of some engines. Use as a context manager; it owns the worker processes."""

    def __init__(
        self,
        measured: Sequence[Measured],
        prompts: Sequence[Prompt],
        settings: Settings,
        progress: Progress,
        watcher: Watcher | None,
    ) -> None:
        self.measured, self.prompts, self.settings = measured, prompts, settings
        self.progress, self.watcher = progress, watcher
        self.fleet = Fleet(self._open)

    def __enter__(self) -> SpeedSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.fleet.close()
        for measured in self.measured:
            measured.peak_bytes = self.fleet.peaks.get(measured.source.name, measured.peak_bytes)

    def _open(self, process: EngineProcess) -> None:
        measured = next(m for m in self.measured if m.source.name == process.source.name)
        measured.memory = process.open_driver(self._admission(process.source))

    def _admission(self, source: EngineSource) -> Admission | None:
        settings = self.settings
        if settings.order is None and settings.queue_limit is None:
            return None
        slots = source.limits.max_batch_size if source.limits is not None else 1
        return Admission(slots, settings.order or "arrival", settings.queue_limit)

    def open_all(self) -> None:
        """Open every engine once, so that one that cannot be opened is told before anything is measured."""
        with self.progress.task("opening engines", len(self.measured)) as advance:
            for measured in self.measured:
                self.fleet.get(measured.source)
                advance(1)

    def measure_loads(self) -> None:
        """Every load, `repeats` times, engines in turn; the headline load further, up to `max_repeats`, while its
        throughputs are known less well than asked. Raises Interrupted after a run that was cut short."""
        settings = self.settings
        engines = [m for m in self.measured if m.under_test]
        self._rounds("measuring", engines, range(settings.repeats), range(len(settings.loads)))
        for repeat in range(settings.repeats, settings.max_repeats):
            alive = [m for m in engines if m.error is None]
            told = resolution_pct(repeat_groups(alive, settings.headline, "throughput_tok_s"))
            if told is None or told <= settings.resolution_pct:
                break
            self.progress.note(f"throughputs are told apart from {told:.0f} % on: round {repeat + 1}")
            self._rounds("measuring on", engines, range(repeat, repeat + 1), (settings.headline,))
        for measured in engines:
            self._note_memory(measured)

    def _rounds(self, title: str, engines: Sequence[Measured], repeats: range, loads: Sequence[int]) -> None:
        with self.progress.task(title, len(repeats) * len(loads) * len(engines)) as advance:
            for repeat in repeats:
                for index in loads:
                    for measured in engines:
                        if measured.error is None:
                            self._measure(measured, index, self.settings.loads[index], repeat)
                        advance(1)

    def _measure(self, measured: Measured, index: int, load: Load, repeat: int) -> None:
        seeded = replace(load, seed=load.seed + repeat) if isinstance(load, OpenLoop) else load
        window = window_for(load, self.settings.window)
        run = self._run(measured, seeded, window, repeat)
        if run is None:
            return
        measured.runs.setdefault(index, []).append(run)
        failed = RUN_METRICS["error_pct"].of(run)
        if failed is not None and failed > MAX_ERROR_PCT:
            self.progress.note(f"{measured.source.name}: {failed:.1f} % of requests failed ({run.errors[0].error})")
        if run.partial and measured.error is None:
            raise Interrupted

    def _run(self, measured: Measured, load: Load, window: Window, repeat: int) -> LoadRun | None:
        """One run; an engine that dies in it is given up, with what it had done until then."""
        name, rounds = measured.source.name, max(self.settings.repeats, repeat + 1)

        def on_tick(status: LoadStatus) -> None:
            if self.watcher is not None:
                self.watcher.show(LiveStatus(name, load.describe(), repeat + 1, rounds, status))

        try:
            return self.fleet.get(measured.source).load(self.prompts, load, window, on_tick)
        except EngineDied as death:
            self.give_up(measured, death)
            return salvage(death.records, "the engine died") if death.records else None

    def give_up(self, measured: Measured, death: EngineDied) -> None:
        """Take an engine whose process ended out of everything that follows."""
        measured.error = str(death) + (f" ({death.hint})" if death.hint else "")
        self.progress.note(f"{measured.source.name}: {measured.error}")
        self.fleet.drop(measured.source.name)

    def _note_memory(self, measured: Measured) -> None:
        if measured.error is None:
            measured.peak_bytes = self.fleet.note_memory(measured.source)

    def search(self) -> None:
        """The knee, and the largest concurrency that meets the objective, of each engine."""
        engines = [m for m in self.measured if m.under_test and m.error is None]
        with self.progress.task("searching the knee", len(engines)) as advance:
            for measured in engines:
                self._search(measured)
                advance(1)
                self._note_memory(measured)

    def _search(self, measured: Measured) -> None:
        settings = self.settings

        def run(concurrency: int) -> LoadRun | None:
            if concurrency not in measured.probes and measured.error is None:
                found = self._probe(measured, ClosedLoop(concurrency))
                if found is not None:
                    measured.probes[concurrency] = found
            return measured.probes.get(concurrency)

        def probe(concurrency: int) -> Probe:
            return as_probe(concurrency, run(concurrency), measured.error)

        measured.knee = find_knee(probe, settings.max_concurrency)
        if not settings.slo.limits:
            return
        tried = {c: attainment(found.measured, settings.slo) for c, found in measured.probes.items()}
        judged = self._judged(run)
        if measured.error is None:
            measured.capacity = find_capacity(judged, tried, settings.slo.share, settings.max_concurrency)
        rate = settings.objective_rate
        if measured.error is None and rate is not None:

            def at_rate(tenths: int) -> LoadRun | None:
                load = OpenLoop(tenths * RATE_STEP * rate, settings.burstiness, settings.seed)
                return self._probe(measured, load) if measured.error is None else None

            limit = round(_MAX_RATE / RATE_STEP)
            measured.rate_capacity = find_capacity(self._judged(at_rate), {}, settings.slo.share, limit)

    def _probe(self, measured: Measured, load: Load) -> LoadRun | None:
        found = self._run(measured, load, probe_window(load, self.settings.window), 0)
        if found is not None and found.partial and measured.error is None:
            raise Interrupted
        return found

    def _judged(self, run: Callable[[int], LoadRun | None]) -> Callable[[int], Attainment]:
        def judged(level: int) -> Attainment:
            found = run(level)
            return attainment([] if found is None else found.measured, self.settings.slo)

        return judged


def as_probe(concurrency: int, run: LoadRun | None, error: str | None) -> Probe:
    """A run as a point of the throughput curve; failures and refusals make it unusable."""
    if run is None or error is not None:
        return Probe(concurrency, 0.0, error or "no result")
    failed = RUN_METRICS["error_pct"].of(run) or 0.0
    throughput = RUN_METRICS["throughput_tok_s"].of(run)
    if failed > MAX_ERROR_PCT:
        return Probe(concurrency, throughput or 0.0, f"{failed:.0f} % of requests failed")
    if throughput is None:
        return Probe(concurrency, 0.0, "no token arrived in the window")
    return Probe(concurrency, throughput)
