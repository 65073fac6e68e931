"""What OpenVINO can do on this CPU, read without importing it: packages and instruction sets."""

from __future__ import annotations

import platform

from trtbuild.machine import INT8_DOT_FEATURES, cpu_features
from trtbuild.store.manifest import package_versions
from trtbuild.targets.base import Availability, Capability

PACKAGES = ("openvino", "openvino-genai")
"""Distributions an engine depends on to the version: their kernels and graph patterns are what was checked."""

_SHOWN = ("avx2", "avx512", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")


def int8_features() -> frozenset[str]:
    """Instruction sets of this CPU that add INT8 products in 32 bits. Without one, OpenVINO's INT8 kernels add pairs of
    products in 16 bits and saturate."""
    return frozenset(cpu_features()).intersection(INT8_DOT_FEATURES)


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
