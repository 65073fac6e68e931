"""`trtbuild run` without the command line: every step from a model to a verdict, reusing what is already right.

    OUT/record                      calibration record, when a precision needs one
    OUT/checkpoints/PRECISION       TensorRT-LLM checkpoints
    OUT/engines/TARGET-PRECISION    engines
    OUT/bench                       bench.json, bench.md, bench.csv, report.html

Each step writes a whole folder or none, so a killed run continues with the first folder that is not there.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from trtbuild.bench.benchmark import run_bench
from trtbuild.bench.engines import read_sources
from trtbuild.bench.measurement import Watcher
from trtbuild.bench.report.writing import bench_settings, read_bench, write_reports
from trtbuild.calibrate.collect import calibrate_to
from trtbuild.calibrate.corpus import Samples
from trtbuild.calibrate.record import Record, data_fingerprint, open_record
from trtbuild.calibrate.samples import samples_for
from trtbuild.checkpoint.spec import Array, Decoder
from trtbuild.checkpoint.trtllm import read_checkpoint
from trtbuild.checkpoint.trtllm_config import Ranks
from trtbuild.errors import MachineLacks, UsageError
from trtbuild.machine import free_disk_bytes, this_machine
from trtbuild.plan import make_plan, require_fit
from trtbuild.profile import Profile, to_dict
from trtbuild.progress import Progress
from trtbuild.quantize.forms import TRTLLM, Serving
from trtbuild.quantize.modelopt import modelopt_settings, modelopt_to, samples_fingerprint
from trtbuild.quantize.policy import budget_of
from trtbuild.quantize.precisions import Precision, precision_of
from trtbuild.quantize.run import Request, hold_out, quantize_to
from trtbuild.store.reuse import reason_to_remake
from trtbuild.targets.base import BuildOptions, Limits, engine_identity, fit_limits
from trtbuild.targets.registry import load_target

T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """What a person asked for. `data` is text to calibrate with instead of the built-in one."""

    decoder: Decoder
    profile: Profile
    out: Path
    target: str
    data: Path | None = None
    options: BuildOptions = field(default_factory=BuildOptions)

    @property
    def record(self) -> Path:
        return self.out / "record"

    @property
    def bench(self) -> Path:
        return self.out / "bench"

    @property
    def serving(self) -> Serving:
        return Serving(self.options.tp, self.options.pp, self.profile.limits)

    @property
    def limits(self) -> Limits:
        return fit_limits(Limits(**dataclasses.asdict(self.profile.limits)), self.decoder.spec, {})

    def checkpoint(self, precision: Precision) -> Path:
        return self.out / "checkpoints" / precision.name

    def engine(self, precision: Precision) -> Path:
        return self.out / "engines" / f"{self.target}-{precision.name}"


def precisions_of(run: Run, progress: Progress) -> list[Precision]:
    """The profile's precisions that the target runs; what it leaves out is told. Raises UsageError for none."""
    asked = [precision_of(name) for name in run.profile.precisions]
    kept = [precision for precision in asked if load_target(run.target).runs(precision)]
    for precision in asked:
        if precision not in kept:
            progress.note(f"{precision.name} is left out: the {run.target} target does not run it")
    if not kept:
        raise UsageError(f"no precision of profile {run.profile.name} runs on {run.target}")
    return kept


def check_machine(run: Run) -> None:
    """Raise MachineLacks before anything is made when the target cannot build here."""
    able = load_target(run.target).capability().build
    if not able.ok and run.options.container is None:
        raise MachineLacks(able.reason, where=run.target, hint=able.hint)


def fitting(run: Run, precisions: list[Precision], progress: Progress) -> list[Precision]:
    """Those of the precisions that can be had on this machine; what is left out is told.

    Raises before the first byte is written: DoesNotFit when the disk or the memory is too small for all of them, or
    what a rule that refuses them all raises.
    """
    calibration = run.profile.calibration
    run.out.mkdir(parents=True, exist_ok=True)
    plan = make_plan(
        run.decoder.location,
        run.decoder.spec,
        [precision.name for precision in precisions],
        [run.target],
        run.limits,
        this_machine(),
        free_disk_bytes=free_disk_bytes(run.out),
        ranks=Ranks(run.options.tp, run.options.pp),
        calibration_tokens=calibration.samples * calibration.seq_len,
    )
    possible = tuple(row for row in plan.rows if row.possible)
    require_fit(dataclasses.replace(plan, rows=possible or plan.rows))
    for row in plan.rows:
        if row.obstacle is not None:
            progress.note(f"{row.precision} is left out: {row.obstacle}")
    kept = {row.precision for row in possible}
    return [precision for precision in precisions if precision.name in kept]


def with_baseline(run: Run, precisions: Sequence[Precision], progress: Progress) -> Run:
    """The run with a baseline that is among the precisions: where that of the profile was left out, the first that
    quantizes nothing; the profile's all the same where there is none, and quality then stays undecided."""
    unquantized = [precision.name for precision in precisions if precision.quant_algo is None]
    baseline = run.profile.baseline
    if baseline in {precision.name for precision in precisions} or not unquantized:
        return run
    progress.note(f"quality is compared with {unquantized[0]}, because {baseline} is left out")
    return dataclasses.replace(run, profile=dataclasses.replace(run.profile, baseline=unquantized[0]))


def ensure(
    title: str,
    path: Path,
    kind: str,
    make: Callable[[], T],
    *,
    inputs: Mapping[str, str],
    settings: Mapping[str, Any],
    progress: Progress,
) -> T | None:
    """What `make` returns, or None where `path` holds what it would make; says which of the two, and why it is made
    again."""
    reason = reason_to_remake(path, kind, inputs=inputs, settings=settings)
    if reason is None:
        progress.note(f"{title}: reused")
        return None
    progress.note(f"{title}: made again, {reason}" if path.exists() else title)
    return make()


@dataclass(frozen=True)
class Calibrated:
    """The run's calibration text as token ids, and the record of it with the samples held out to validate on."""

    taken: Samples
    record: Record | None
    held: Sequence[Array]


def calibrate_once(run: Run, precisions: Sequence[Precision], progress: Progress) -> Calibrated | None:
    """Tokenize the text, and make its record where a precision needs one; None when nothing is to be calibrated."""
    if not any(precision.needs_calibration for precision in precisions):
        return None
    calibration = run.profile.calibration
    taken = samples_for(run.decoder, run.data, calibration.samples, calibration.seq_len, progress=progress)
    if all(precision.through_modelopt for precision in precisions if precision.needs_calibration):
        return Calibrated(taken, None, ())
    kept, held = hold_out(taken.ids)

    def make() -> None:
        calibrate_to(
            run.decoder, kept, run.record, tokenizer_fingerprint=taken.tokenizer_fingerprint, progress=progress
        )

    inputs = {
        "model": run.decoder.fingerprint(),
        "tokenizer": taken.tokenizer_fingerprint,
        "data": data_fingerprint(kept),
    }
    ensure("calibration record", run.record, "record", make, inputs=inputs, settings={}, progress=progress)
    return Calibrated(taken, open_record(run.record), held)


def make_checkpoint(run: Run, precision: Precision, calibrated: Calibrated | None, progress: Progress) -> None:
    """Quantize the model into `run.checkpoint(precision)`."""
    path = run.checkpoint(precision)
    path.parent.mkdir(parents=True, exist_ok=True)
    inputs = {"model": run.decoder.fingerprint()}
    needed = calibrated if precision.needs_calibration else None
    make: Callable[[], Mapping[str, Any] | None]
    if precision.through_modelopt:
        samples = needed.taken.ids if needed is not None else ()
        inputs["samples"] = samples_fingerprint(samples)
        settings = modelopt_settings(precision.name, TRTLLM, None, run.serving)
        make = functools.partial(
            modelopt_to, run.decoder, path, precision.name, samples, serving=run.serving, progress=progress
        )
    else:
        record = needed.record if needed is not None else None
        if record is not None:
            inputs["record"] = record.fingerprint()
        method, budget = run.profile.calibration.method, budget_of(run.profile.quality)
        settings = Request(precision, method, budget, None, run.serving, TRTLLM).settings()
        make = functools.partial(
            quantize_to,
            run.decoder,
            path,
            precision.name,
            record=record,
            validation=needed.held if needed is not None else (),
            calibration=method,
            budget=budget,
            serving=run.serving,
            progress=progress,
        )
    evidence = ensure(
        f"checkpoint {precision.name}", path, "checkpoint", make, inputs=inputs, settings=settings, progress=progress
    )
    if evidence is not None:
        progress.note(evidence["summary"])


def make_engine(run: Run, precision: Precision, progress: Progress) -> None:
    """Build the engine of a precision from its checkpoint."""
    target, checkpoint, path = load_target(run.target), run.checkpoint(precision), run.engine(precision)
    limits = run.limits
    ensure(
        f"engine {run.target} {precision.name}",
        path,
        "engine",
        lambda: target.build(checkpoint, path, limits, run.options, progress),
        inputs={"checkpoint": read_checkpoint(checkpoint).fingerprint()},
        settings=engine_identity(run.target, limits, run.options),
        progress=progress,
    )


def measure(run: Run, engines: list[Path], progress: Progress, watcher: Watcher | None) -> Mapping[str, Any]:
    """The content of bench.json: measured now, or read where the same engines were measured under the same profile."""
    inputs = {source.name: source.fingerprint for source in read_sources(engines)}
    reason = reason_to_remake(run.bench, "bench", inputs=inputs, settings=bench_settings(to_dict(run.profile)))
    if reason is None:
        progress.note(f"benchmark: reused; delete {run.bench} to measure again")
        return read_bench(run.bench)
    able = load_target(run.target).capability().run
    if not able.ok and run.options.container is None:
        raise MachineLacks(f"the engines are built, but cannot be measured here: {able.reason}", hint=able.hint)
    result = run_bench(engines, run.profile, progress=progress, watcher=watcher)
    write_reports(result.document, run.bench)
    return result.document


def run_pipeline(run: Run, progress: Progress, watcher: Watcher | None = None) -> Mapping[str, Any]:
    """All steps; returns the content of bench.json. Raises what the steps raise, before anything is half-written.

    A precision is quantized and built before the next one, so that an interrupted run has whole engines to show.
    """
    precisions = precisions_of(run, progress)
    check_machine(run)
    precisions = fitting(run, precisions, progress)
    run = with_baseline(run, precisions, progress)
    calibrated = calibrate_once(run, precisions, progress)
    for precision in precisions:
        make_checkpoint(run, precision, calibrated, progress)
        make_engine(run, precision, progress)
    return measure(run, [run.engine(precision) for precision in precisions], progress, watcher)
