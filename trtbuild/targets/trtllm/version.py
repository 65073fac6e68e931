"""Which TensorRT-LLM is installed and what that release can do, from package metadata alone.

Importing tensorrt_llm loads torch, MPI and CUDA, and fails in ways that hide the reason (a replaced torch, a missing
libpython), so nothing here imports it. The table of requirements is the `Requires-Dist` of each release on PyPI.
None of this was run beside a real tensorrt_llm: it cannot be installed without NVIDIA's index and a GPU.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

LAST_RELEASE = "1.2.1"
"""The last stable release with the engine path, and the one this code is written against."""

CONTAINER = f"nvcr.io/nvidia/tensorrt-llm/release:{LAST_RELEASE}"

_FIRST = Version("1.0")
_REMOVED = Version("1.3.0.dev0")


class Window(Enum):
    """Where an installed release stands to the engine path."""

    ABSENT = "absent"
    TOO_OLD = "too old"
    BUILDS = "builds"
    REMOVED = "removed"


@dataclass(frozen=True)
class Release:
    """A row of the table: package → version specifier ("" where the release does not name the package)."""

    version: str
    engines: bool
    requires: Mapping[str, str]
    note: str = ""


PACKAGES = ("tensorrt", "torch", "nvidia-modelopt", "cuda-python", "transformers", "numpy", "onnx", "python")
"""Columns of the table of releases."""

RELEASES: tuple[Release, ...] = (
    Release("0.20.0", True, {"tensorrt": "~=10.10", "torch": "==2.7.0", "nvidia-modelopt": "~=0.29"}, "flags differ"),
    Release(
        "0.21.0",
        True,
        {"tensorrt": "~=10.11", "torch": ">=2.7.1", "nvidia-modelopt": "~=0.31", "transformers": "~=4.51.1"},
        "flags differ",
    ),
    Release(
        "1.0.0",
        True,
        {
            "tensorrt": "~=10.11.0",
            "torch": ">=2.7.1,<=2.8.0a0",
            "nvidia-modelopt": "~=0.33",
            "cuda-python": ">=12,<13",
            "transformers": "==4.53.1",
            "numpy": "<2",
            "python": ">=3.7",
        },
    ),
    Release(
        "1.1.0",
        True,
        {
            "tensorrt": "~=10.13.3",
            "torch": "==2.9.0",
            "nvidia-modelopt": "~=0.37.0",
            "cuda-python": ">=13",
            "transformers": "==4.56.0",
            "python": ">=3.10",
        },
        "CUDA 13.0",
    ),
    *(
        Release(
            version,
            True,
            {
                "tensorrt": "~=10.14.1",
                "torch": ">=2.9.1,<=2.10.0a0",
                "nvidia-modelopt": "~=0.37.0",
                "cuda-python": ">=13",
                "transformers": "==4.57.3",
                "numpy": "<2",
                "onnx": ">=1.18,<1.20",
                "python": ">=3.10",
            },
            "CUDA 13.1",
        )
        for version in ("1.2.0", "1.2.1")
    ),
    Release(
        "1.3.0rc15",
        True,
        {"tensorrt": "~=10.15.1", "torch": "~=2.10.0", "nvidia-modelopt": "~=0.37", "transformers": "==5.5.3"},
        "pre-release",
    ),
    Release(
        "1.3.0rc22",
        False,
        {"torch": "==2.11.0", "nvidia-modelopt": "~=0.37", "transformers": "==5.5.4"},
        "engine path gone",
    ),
    Release("1.3.0rc28", False, {"torch": "~=2.13.0"}, "engine path gone"),
    Release(
        "1.4.0rc1",
        False,
        {"torch": "~=2.14.0", "transformers": "==5.5.4", "numpy": ">=2"},
        "engine path gone",
    ),
)


@dataclass(frozen=True)
class Requirement:
    """One cell of the table: what a release wants of a package, what is here; `fits` is None where nothing is here."""

    package: str
    wanted: str
    installed: str | None
    fits: bool | None


def installed_version() -> str | None:
    """The installed tensorrt_llm, or None."""
    try:
        return importlib.metadata.version("tensorrt_llm")
    except importlib.metadata.PackageNotFoundError:
        return None


def window(version: str | None) -> Window:
    """Where a version stands; one that cannot be parsed counts as too old, since no flags are known for it.

    The pre-releases of 1.3 count as removed although those up to rc15 still carry the engine path: which flags they
    take was never established, and no stable release follows them.
    """
    if version is None:
        return Window.ABSENT
    try:
        parsed = Version(version)
    except InvalidVersion:
        return Window.TOO_OLD
    if parsed >= _REMOVED:
        return Window.REMOVED
    return Window.BUILDS if parsed >= _FIRST else Window.TOO_OLD


def explain_window(version: str | None) -> tuple[str, str]:
    """Why this version cannot build an engine, and what to do; only for windows other than BUILDS."""
    reason = {
        Window.ABSENT: "tensorrt_llm is not installed",
        Window.TOO_OLD: f"tensorrt_llm {version} is older than 1.0, whose flags this does not know",
        Window.REMOVED: f"tensorrt_llm {version} has no engine path: NVIDIA removed trtllm-build after 1.2",
    }[window(version)]
    container = f"--container {CONTAINER}"
    hint = {
        Window.ABSENT: f"add {container} to build in NVIDIA's image, --dry-run to see the command, or install "
        f"tensorrt_llm=={LAST_RELEASE}",
        Window.TOO_OLD: f"install tensorrt_llm=={LAST_RELEASE}, or add {container}",
        Window.REMOVED: "`trtbuild quantize --format unified-hf` writes what 1.3 and later load; for an engine use "
        f"tensorrt_llm {LAST_RELEASE} ({container}) or NVIDIA's TensorRT-Edge-LLM",
    }[window(version)]
    return reason, hint


def release_of(version: str) -> Release | None:
    """The row of an installed version: the exact one, else the newest row of the same major.minor."""
    exact = [release for release in RELEASES if release.version == version]
    if exact:
        return exact[0]
    try:
        parsed = Version(version)
    except InvalidVersion:
        return None
    alike = [release for release in RELEASES if Version(release.version).release[:2] == parsed.release[:2]]
    return alike[-1] if alike else None


def requirements(release: Release) -> list[Requirement]:
    """Every requirement of a release against what is installed in this environment."""
    import platform

    found = []
    for package in PACKAGES:
        wanted = release.requires.get(package, "")
        if not wanted:
            continue
        installed: str | None
        try:
            installed = platform.python_version() if package == "python" else importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            installed = None
        fits = None if installed is None else SpecifierSet(wanted, prereleases=True).contains(installed)
        found.append(Requirement(package, wanted, installed, fits))
    return found
