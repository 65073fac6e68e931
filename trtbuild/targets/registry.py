"""The table of targets: a name and where its `Target` lives; nothing is imported before it is asked for."""

from __future__ import annotations

import difflib
import importlib
from pathlib import Path

from trtbuild.errors import UsageError
from trtbuild.targets.base import Target

TARGETS: dict[str, str] = {
    "cpu": "trtbuild.targets.cpu:TARGET",
    "tensorrt-rtx": "trtbuild.targets.tensorrt_rtx:TARGET",
    "trtllm": "trtbuild.targets.trtllm:TARGET",
}

_NVIDIA_DEVICES = (Path("/dev/nvidia0"), Path("/dev/dxg"))


def load_target(name: str) -> Target:
    """The target of that name; raises UsageError with the closest name for one that does not exist."""
    location = TARGETS.get(name)
    if location is None:
        close = difflib.get_close_matches(name, TARGETS, 1)
        guess = f"; did you mean {close[0]}?" if close else ""
        raise UsageError(f"no target {name!r}{guess}", hint=f"targets are {', '.join(TARGETS)}")
    module, attribute = location.split(":")
    target = getattr(importlib.import_module(module), attribute)
    assert isinstance(target, Target)
    return target


def has_gpu() -> bool:
    """Whether an NVIDIA device is visible to this process; asks no driver."""
    return any(device.exists() for device in _NVIDIA_DEVICES)


def default_target() -> str:
    """trtllm where a GPU and tensorrt_llm are, else the embedded CPU engine."""
    return "trtllm" if has_gpu() and load_target("trtllm").capability().build.ok else "cpu"
