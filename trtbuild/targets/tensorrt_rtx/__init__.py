"""TensorRT for RTX (or full TensorRT): ahead-of-time engines, built without a GPU and run on one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtbuild.progress import Progress
from trtbuild.targets.base import BuildOptions, Limits, Target
from trtbuild.targets.serving import Driver, Scorer
from trtbuild.targets.tensorrt_rtx.machine import capability
from trtbuild.targets.tensorrt_rtx.preflight import footprint, preflight


def _build(checkpoint: Path, out: Path, limits: Limits, options: BuildOptions, progress: Progress) -> Path:
    from trtbuild.targets.tensorrt_rtx.build import build

    return build(checkpoint, out, limits, options, progress)


def _open_driver(engine: Path) -> Driver:
    from trtbuild.targets.tensorrt_rtx.driver import open_driver

    return open_driver(engine)


def _open_scorer(engine: Path) -> Scorer:
    from trtbuild.targets.tensorrt_rtx.scorer import open_scorer

    return open_scorer(engine)


def _examine(engine: Path) -> Mapping[str, Any]:
    from trtbuild.targets.tensorrt_rtx.loading import examine

    return examine(engine)


TARGET = Target(
    name="tensorrt-rtx",
    title="TensorRT for RTX, built ahead of time for the named GPUs",
    capability=capability,
    preflight=preflight,
    footprint=footprint,
    build=_build,
    open_driver=_open_driver,
    open_scorer=_open_scorer,
    examine=_examine,
    runs=lambda precision: precision.has_graph,
)
