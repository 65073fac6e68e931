"""Which TensorRT is installed and which GPU is here, from package metadata and the driver's own tool alone."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass

from trtbuild.errors import MachineLacks
from trtbuild.machine import Gpu, gpus
from trtbuild.targets.base import Availability, Capability


@dataclass(frozen=True)
class Flavour:
    """One of the libraries with the TensorRT API: its import name and the distributions that bring it.

    `sms` are the SM versions it builds for without one of them being here; none means it builds for the GPU it runs
    on. `magic` are the first bytes of its engine files, where they are known. `timing_cache` is False where the
    library documents its timing cache as having no effect.
    """

    module: str
    distributions: tuple[str, ...]
    sms: tuple[int, ...] = ()
    magic: bytes = b""
    timing_cache: bool = True


FLAVOURS = (
    Flavour(
        "tensorrt_rtx",
        ("tensorrt-rtx-cu13", "tensorrt-rtx-cu12", "tensorrt-rtx"),
        sms=(75, 80, 86, 89, 120, 121),
        magic=b"vtrt",
        timing_cache=False,
    ),
    Flavour("tensorrt", ("tensorrt", "tensorrt-cu13", "tensorrt-cu12")),
)
"""In order of preference. The SM versions are the members of `ComputeCapability` in TensorRT-RTX 1.7.1."""

INSTALL = "pip install 'trtbuild[rtx]' (tensorrt-rtx-cu13, Linux on x86-64)"


@dataclass(frozen=True)
class Installed:
    """A flavour that is here, with the distribution's name and version."""

    flavour: Flavour
    distribution: str
    version: str


def installed() -> Installed | None:
    """The first flavour whose distribution is installed; nothing is imported."""
    for flavour in FLAVOURS:
        for distribution in flavour.distributions:
            try:
                return Installed(flavour, distribution, importlib.metadata.version(distribution))
            except importlib.metadata.PackageNotFoundError:
                continue
    return None


def require_installed() -> Installed:
    """As `installed`; raises MachineLacks where there is none."""
    found = installed()
    if found is None:
        raise MachineLacks("neither TensorRT-RTX nor TensorRT is installed", hint=INSTALL)
    return found


def first_gpu() -> Gpu | None:
    """The GPU an engine would run on: the first one the driver lists."""
    return next(iter(gpus()), None)


def capability() -> Capability:
    """TensorRT-RTX builds anywhere; full TensorRT needs the GPU it builds for; running always needs one."""
    found, gpu = installed(), first_gpu()
    if found is None:
        missing = Availability(False, "neither TensorRT-RTX nor TensorRT is installed", INSTALL)
        return Capability(missing, missing)
    versions = {found.distribution: found.version}
    no_gpu = Availability(False, "no NVIDIA GPU is visible here", "run on a machine with the GPU the engine is for")
    build = Availability(True) if found.flavour.sms or gpu is not None else no_gpu
    if gpu is None:
        return Capability(build, no_gpu, versions)
    return Capability(build, Availability(True), {**versions, "gpu": f"{gpu.name} (SM{gpu.sm})"})
