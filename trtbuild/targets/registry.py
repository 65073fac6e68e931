"""The table of targets: a name and where its `Target` lives; nothing is imported before it is asked for."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from trtbuild.errors import UsageError, did_you_mean
from trtbuild.targets.base import Target

TARGETS: dict[str, str] = {
    "cpu": "trtbuild.targets.cpu:TARGET",
    "tensorrt-rtx": "trtbuild.targets.tensorrt_rtx:TARGET",
    "trtllm": "trtbuild.targets.trtllm:TARGET",
}

_NVIDIA_DEVICES = (Path("/dev/nvidia0"), Path("/dev/dxg"))


def resolve(location: str) -> Any:
    """What "module:attribute" names; the module is imported now."""
    module, attribute = location.split(":")
    return getattr(importlib.import_module(module), attribute)


def load_target(name: str) -> Target:
    """The target of that name; raises UsageError with the closest name for one that does not exist."""
    location = TARGETS.get(name)
    if location is None:
        guess = did_you_mean(name, TARGETS)
        what = f"no target {name!r}; {guess}" if guess else f"no target {name!r}"
        raise UsageError(what, hint=f"targets are {', '.join(TARGETS)}")
    target = resolve(location)
    assert isinstance(target, Target)
    return target


def has_gpu() -> bool:
    """Whether an NVIDIA device is visible to this process; asks no driver."""
    return any(device.exists() for device in _NVIDIA_DEVICES)


def default_target() -> str:
    """trtllm where a GPU and tensorrt_llm are, else the embedded CPU engine."""
    return "trtllm" if has_gpu() and load_target("trtllm").capability().build.ok else "cpu"
