"""What this CPU can do, read without importing OpenVINO: packages, instruction sets, available memory."""

from __future__ import annotations

import platform
import re
from pathlib import Path

from trtbuild.store.manifest import package_versions
from trtbuild.targets.base import Availability, Capability

PACKAGES = ("openvino", "openvino-genai")
"""Distributions an engine depends on to the version: their kernels and graph patterns are what was checked."""

INT8_FEATURES = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})
"""Instruction sets that add INT8 products in 32 bits. Without one, OpenVINO's INT8 kernels add pairs of products in
16 bits and saturate."""

_SHOWN = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")


def cpu_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Flags of the first processor; empty where the system does not tell."""
    try:
        flags = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", cpuinfo.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return frozenset()
    return frozenset(flags.group(1).split()) if flags else frozenset()


def int8_features() -> frozenset[str]:
    return cpu_features() & INT8_FEATURES


def capability() -> Capability:
    """Both steps need the same two packages and nothing else."""
    versions = package_versions(PACKAGES)
    features = cpu_features()
    shown = {"processor": platform.machine()} | {name: "yes" for name in _SHOWN if name in features}
    missing = [name for name in PACKAGES if name not in versions]
    if missing:
        state = Availability(False, f"{missing[0]} is not installed", f"pip install {' '.join(missing)}")
    else:
        state = Availability(True)
    return Capability(state, state, {**versions, **shown})
