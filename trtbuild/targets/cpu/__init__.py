"""The embedded CPU engine: OpenVINO GenAI with paged KV cache and in-flight batching."""

from __future__ import annotations

from pathlib import Path

from trtbuild.progress import Progress
from trtbuild.targets.base import BuildOptions, Limits, Target
from trtbuild.targets.cpu.machine import capability
from trtbuild.targets.cpu.preflight import footprint, preflight
from trtbuild.targets.serving import Driver, Scorer


def _build(checkpoint: Path, out: Path, limits: Limits, options: BuildOptions, progress: Progress) -> Path:
    from trtbuild.targets.cpu.build import build

    return build(checkpoint, out, limits, options, progress)


def _open_driver(engine: Path) -> Driver:
    from trtbuild.targets.cpu.driver import open_driver

    return open_driver(engine)


def _open_scorer(engine: Path) -> Scorer:
    from trtbuild.targets.cpu.scorer import open_scorer

    return open_scorer(engine)


TARGET = Target(
    name="cpu",
    title="OpenVINO GenAI on this machine's CPU",
    capability=capability,
    preflight=preflight,
    footprint=footprint,
    build=_build,
    open_driver=_open_driver,
    open_scorer=_open_scorer,
    runs=lambda precision: precision.has_graph,
    on_gpu=False,
)
