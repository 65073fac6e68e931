"""An engine directory, opened: its files, the library that wrote it and the GPU it is for against what is here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild.errors import InputRefused, MachineLacks
from trtbuild.store.manifest import damaged_files
from trtbuild.targets.base import Engine, read_engine
from trtbuild.targets.tensorrt_rtx.geometry import Geometry
from trtbuild.targets.tensorrt_rtx.machine import FLAVOURS, INSTALL, first_gpu, installed

PLAN_NAME = "model.engine"


@dataclass(frozen=True)
class RtxEngine:
    """What driver and scorer need to know of an engine directory."""

    engine: Engine
    geometry: Geometry
    stop_token_ids: tuple[int, ...]

    @property
    def plan_path(self) -> Path:
        return self.engine.path / PLAN_NAME


def examine(path: Path) -> Mapping[str, Any]:
    """What the engine file itself says, without any package of NVIDIA's: whether it begins as its library's do."""
    engine = read_engine(path)
    magic = {flavour.module: flavour.magic for flavour in FLAVOURS}.get(str(engine.settings.get("library")), b"")
    plan = path / PLAN_NAME
    if not plan.is_file():
        return {"engine_file": "missing"}
    with plan.open("rb") as file:
        begins = file.read(4)
    if not magic:
        return {"engine_file": f"begins with {begins!r}"}
    told = "as it should" if begins == magic else f"not with {magic!r}: this is no engine"
    return {"engine_file": f"begins with {begins!r}, {told}"}


def load_engine(path: Path) -> RtxEngine:
    """Read an engine of this target for running it here.

    Raises InputRefused when it is another target's or damaged, MachineLacks without the library version that wrote it
    or without a GPU it was built for: an engine file is valid for one version and the named SMs.
    """
    engine = read_engine(path)
    if engine.target != "tensorrt-rtx":
        raise InputRefused(f"this engine was built for {engine.target}, not for tensorrt-rtx", where=path)
    settings = engine.settings
    sms = [int(sm) for sm in settings["sms"]]
    rebuild = f"trtbuild build CHECKPOINT -o {path} --target tensorrt-rtx"
    damaged = damaged_files(path, engine.manifest)
    if damaged:
        hint = f"build it again: {rebuild} --sm {','.join(map(str, sms))}"
        raise InputRefused(f"{damaged[0]} is missing or cut short", where=path, hint=hint)
    _require_gpu(path, sms, rebuild)
    _require_library(path, str(settings["library"]), str(settings["library_version"]), rebuild)
    generation = json.loads((path / "generation_config.json").read_text(encoding="utf-8"))
    return RtxEngine(engine, Geometry(**settings["geometry"]), tuple(generation["eos_token_id"]))


def _require_gpu(path: Path, sms: list[int], rebuild: str) -> None:
    names = ", ".join(f"SM{sm}" for sm in sms)
    gpu = first_gpu()
    if gpu is None:
        raise MachineLacks(
            f"running this engine needs an NVIDIA GPU ({names}), and none is visible here",
            where=path,
            hint="copy the folder to a machine that has one; `trtbuild build --target cpu` runs here",
        )
    if gpu.sm not in sms:
        raise MachineLacks(
            f"this engine is for {names}, and the GPU here is a {gpu.name} (SM{gpu.sm})",
            where=path,
            hint=f"build one for it: {rebuild} --sm {gpu.sm}",
        )


def _require_library(path: Path, module: str, version: str, rebuild: str) -> None:
    found = installed()
    if found is None:
        raise MachineLacks(f"running this engine needs {module} {version}", where=path, hint=INSTALL)
    if (found.flavour.module, found.version) != (module, version):
        raise MachineLacks(
            f"this engine was built with {module} {version}, and {found.distribution} {found.version} is installed",
            where=path,
            hint=f"install that version, or build it again: {rebuild}",
        )
