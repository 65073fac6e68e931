"""An engine directory, opened: its manifest checked against this machine, its limits and properties at hand."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild.errors import InputRefused
from trtbuild.store.manifest import damaged_files, package_versions
from trtbuild.targets.base import Engine, read_engine
from trtbuild.targets.cpu.machine import PACKAGES
from trtbuild.targets.cpu.properties import plugin_properties, usable_kernels

MODEL_XML = "openvino_model.xml"
MODEL_BIN = "openvino_model.bin"


@dataclass(frozen=True)
class CpuEngine:
    """What scorer and driver need to know of an engine directory."""

    engine: Engine
    properties: dict[str, Any]
    """Properties to compile with on this processor."""
    kv_cache: str
    int8_kernels: str | None
    stop_token_ids: tuple[int, ...]

    @property
    def model_path(self) -> Path:
        return self.engine.path / MODEL_XML


def load_engine(path: Path) -> CpuEngine:
    """Read an engine of this target.

    Raises InputRefused when it is another target's, damaged, or built with other OpenVINO versions than are installed:
    the graph patterns and kernels that were checked would no longer be those that run.
    """
    engine = read_engine(path)
    if engine.target != "cpu":
        raise InputRefused(f"this engine was built for {engine.target}, not for cpu", where=path)
    rebuild = f"trtbuild build CHECKPOINT -o {path} --target cpu"
    damaged = damaged_files(path, engine.manifest)
    if damaged:
        raise InputRefused(f"{damaged[0]} is missing or cut short", where=path, hint=f"build it again: {rebuild}")
    installed = package_versions(PACKAGES)
    for name, built_with in engine.manifest.packages.items():
        if installed.get(name) != built_with:
            raise InputRefused(
                f"built with {name} {built_with}, but {installed.get(name, 'none')} is installed",
                where=path,
                hint=f"build it again ({rebuild}) or pip install {name}=={built_with}",
            )
    kv_cache = str(engine.settings["kv_cache"])
    kernels = usable_kernels(engine.settings)
    generation = json.loads((path / "generation_config.json").read_text(encoding="utf-8"))
    return CpuEngine(
        engine, plugin_properties(kv_cache, kernels), kv_cache, kernels, tuple(generation.get("eos_token_id", ()))
    )
