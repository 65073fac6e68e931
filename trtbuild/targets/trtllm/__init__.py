"""TensorRT-LLM engines through NVIDIA's own tools: trtllm-build, trtllm-bench, trtllm-serve of releases 1.0-1.2.

Nothing in this package was run against the real tools, which need NVIDIA's packages and a GPU; it is written from
their source and documentation, and held by stand-ins that accept exactly the documented flags and formats.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trtbuild.checkpoint.spec import Decoder
from trtbuild.errors import MachineLacks
from trtbuild.progress import Progress, silent
from trtbuild.store.manifest import package_versions
from trtbuild.targets.base import Availability, BuildOptions, Capability, Finding, Limits, Target
from trtbuild.targets.measured import ToolMeasurement
from trtbuild.targets.serving import Driver, Request, Scorer
from trtbuild.targets.trtllm.footprint import footprint
from trtbuild.targets.trtllm.version import Window, explain_window, installed_version, window


def capability() -> Capability:
    """Whether engines can be built and run here: a release of the window, and a GPU. Imports nothing of NVIDIA's."""
    from trtbuild.machine import gpus

    version = installed_version()
    if window(version) is not Window.BUILDS:
        reason, hint = explain_window(version)
        state = Availability(False, reason, hint)
    elif not gpus():
        state = Availability(False, "no NVIDIA GPU", "quantize, plan and --dry-run need none; build and run do")
    else:
        state = Availability(True)
    return Capability(state, state, package_versions(("tensorrt_llm", "tensorrt", "torch")))


def _preflight(decoder: Decoder, limits: Limits, options: BuildOptions) -> list[Finding]:
    from trtbuild.targets.trtllm.preflight import preflight

    return preflight(decoder, limits, options)


def _build(checkpoint: Path, out: Path, limits: Limits, options: BuildOptions, progress: Progress) -> Path:
    from trtbuild.targets.trtllm.build import build

    return build(checkpoint, out, limits, options, progress)


def _commands(checkpoint: Path, out: Path, limits: Limits, options: BuildOptions) -> list[list[str]]:
    from trtbuild.targets.trtllm.build import commands

    return commands(checkpoint, out, limits, options)


def _open_driver(engine: Path) -> Driver:
    raise MachineLacks(
        "a TensorRT-LLM engine is driven by NVIDIA's own tools, not from this process",
        where=engine,
        hint="`trtbuild bench` runs trtllm-bench on it, `trtbuild inspect` shows how to serve it",
    )


def _open_scorer(engine: Path) -> Scorer:
    raise MachineLacks(
        "the logits of a TensorRT-LLM engine are not read here",
        where=engine,
        hint="build the same checkpoint with --target cpu: its quality is that of the checkpoint",
    )


def _launch(engine: Path) -> list[tuple[str, list[str]]]:
    from trtbuild.targets.trtllm.launch import launch_lines

    return [(line.purpose, list(line.words)) for line in launch_lines(engine)]


def _measure(
    engine: Path,
    requests: Sequence[Request],
    concurrencies: Sequence[int],
    *,
    warmup: int = 2,
    log: Path | None = None,
    progress: Progress = silent,
) -> ToolMeasurement:
    from trtbuild.targets.trtllm.bench import measure

    return measure(engine, requests, concurrencies, warmup=warmup, log=log, progress=progress)


TARGET = Target(
    name="trtllm",
    title="TensorRT-LLM on an NVIDIA GPU",
    capability=capability,
    preflight=_preflight,
    footprint=footprint,
    build=_build,
    open_driver=_open_driver,
    open_scorer=_open_scorer,
    commands=_commands,
    measure=_measure,
    launch=_launch,
)
