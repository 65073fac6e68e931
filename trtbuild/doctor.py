"""What this machine can build and run, and why not the rest; everything as data, nothing heavy imported."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtbuild import __version__
from trtbuild.machine import INT8_DOT_FEATURES, Machine, free_disk_bytes, this_machine
from trtbuild.store.manifest import package_versions
from trtbuild.targets.base import Availability
from trtbuild.targets.registry import TARGETS, default_target, load_target
from trtbuild.targets.trtllm.container import PROGRAM
from trtbuild.targets.trtllm.version import (
    CONTAINER,
    RELEASES,
    Requirement,
    Window,
    explain_window,
    installed_version,
    release_of,
    requirements,
    window,
)

PACKAGES = (
    "numpy",
    "ml_dtypes",
    "safetensors",
    "tokenizers",
    "onnx",
    "openvino",
    "openvino-genai",
    "gguf",
    "huggingface_hub",
    "tensorrt-rtx-cu13",
    "tensorrt",
    "tensorrt_llm",
    "nvidia-ml-py",
    "nvidia-modelopt",
    "torch",
    "transformers",
)
"""Distributions worth naming: what the base install brings, then what the extras do."""

PROGRAMS = ("nvidia-smi", "docker", "mpirun", "trtllm-build", "trtllm-bench", "trtllm-serve")

_MPI_SECONDS = 20


@dataclass(frozen=True)
class TargetReport:
    """What of a target works here."""

    name: str
    title: str
    build: Availability
    run: Availability
    versions: Mapping[str, str]


@dataclass(frozen=True)
class ReleaseReport:
    """A row of the table of TensorRT-LLM releases against this environment."""

    version: str
    engines: bool
    note: str
    installed: bool
    requirements: tuple[Requirement, ...]

    @property
    def misfits(self) -> tuple[Requirement, ...]:
        """Requirements that an installed package contradicts."""
        return tuple(requirement for requirement in self.requirements if requirement.fits is False)


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: `ok` is None where it does not matter here."""

    name: str
    ok: bool | None
    text: str
    hint: str | None = None


@dataclass(frozen=True)
class Report:
    """Everything `trtbuild doctor` knows. `packages` has the versions of what is installed, `missing` the rest."""

    trtbuild: str
    machine: Machine
    free_disk_bytes: int
    packages: Mapping[str, str]
    missing: tuple[str, ...]
    programs: Mapping[str, str]
    default_target: str
    targets: tuple[TargetReport, ...]
    tensorrt_llm: str | None
    window: str
    releases: tuple[ReleaseReport, ...]
    checks: tuple[Check, ...]


def examine(folder: Path = Path()) -> Report:
    """Look at this machine; `folder` is where engines would be written."""
    machine = this_machine()
    packages = package_versions(PACKAGES)
    installed = installed_version()
    programs = {name: found for name in PROGRAMS if (found := shutil.which(name))}
    return Report(
        trtbuild=__version__,
        machine=machine,
        free_disk_bytes=free_disk_bytes(folder),
        packages=packages,
        missing=tuple(name for name in PACKAGES if name not in packages),
        programs=programs,
        default_target=default_target(),
        targets=tuple(_target_report(name) for name in TARGETS),
        tensorrt_llm=installed,
        window=window(installed).value,
        releases=tuple(
            ReleaseReport(row.version, row.engines, row.note, row.version == installed, tuple(requirements(row)))
            for row in RELEASES
        ),
        checks=tuple(_checks(machine, folder, installed, programs)),
    )


def _target_report(name: str) -> TargetReport:
    target = load_target(name)
    found = target.capability()
    return TargetReport(name, target.title, found.build, found.run, found.versions)


def _checks(machine: Machine, folder: Path, installed: str | None, programs: Mapping[str, str]) -> list[Check]:
    checks = [_int8(machine), _writable(folder), _release(installed), _gpu(machine), _container(programs, machine)]
    if installed is not None:
        checks += [_environment(installed), _tools(programs), _mpi(programs)]
    return checks


def _int8(machine: Machine) -> Check:
    if machine.int8_exact:
        features = [name for name in INT8_DOT_FEATURES if name in machine.features]
        return Check("int8 arithmetic", True, f"{', '.join(features)}: native INT8 kernels can be exact")
    return Check(
        "int8 arithmetic",
        None,
        "no VNNI or AMX: native INT8 kernels would saturate, so int8 engines run in FP32 arithmetic",
    )


def _writable(folder: Path) -> Check:
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    ok = os.access(place, os.W_OK)
    return Check(
        "output folder", ok, f"{place} is {'' if ok else 'not '}writable", None if ok else "choose one with -o"
    )


def _release(installed: str | None) -> Check:
    if window(installed) is Window.BUILDS:
        return Check("tensorrt_llm", True, f"{installed} builds engines")
    reason, hint = explain_window(installed)
    return Check("tensorrt_llm", None if installed is None else False, reason, hint)


def _gpu(machine: Machine) -> Check:
    if not machine.gpus:
        return Check("NVIDIA GPU", None, "none found by nvidia-smi", "the cpu and tensorrt-rtx targets build without")
    listed = "; ".join(f"{gpu.name} SM {gpu.sm} {gpu.memory_bytes / 2**30:.1f} GiB" for gpu in machine.gpus)
    return Check("NVIDIA GPU", True, f"{listed}, driver {machine.gpus[0].driver}")


def _container(programs: Mapping[str, str], machine: Machine) -> Check:
    if PROGRAM not in programs:
        return Check("container", None, "docker is not installed", f"with it, --container can build in {CONTAINER}")
    if not machine.gpus:
        return Check("container", None, "docker is there, but a container needs a GPU as much as this machine does")
    return Check("container", True, f"docker is there: --container can build in {CONTAINER}")


def _environment(installed: str) -> Check:
    """The packages beside tensorrt_llm against what its release needs; a wrong torch shows as an undefined symbol."""
    release = release_of(installed)
    if release is None:
        return Check("tensorrt_llm environment", None, f"what {installed} needs is not known")
    wrong = [
        f"{need.package} {need.installed or 'missing'} (needs {need.wanted})"
        for need in requirements(release)
        if not need.fits
    ]
    if wrong:
        return Check("tensorrt_llm environment", False, "; ".join(wrong), f"pip install tensorrt_llm=={installed}")
    return Check("tensorrt_llm environment", True, f"everything fits release {release.version}")


def _tools(programs: Mapping[str, str]) -> Check:
    absent = [name for name in PROGRAMS if name.startswith("trtllm-") and name not in programs]
    if absent:
        return Check("NVIDIA's tools", False, f"not on the PATH: {', '.join(absent)}", "activate their environment")
    return Check("NVIDIA's tools", True, "trtllm-build, trtllm-bench and trtllm-serve are on the PATH")


def _mpi(programs: Mapping[str, str]) -> Check:
    """Start one process through MPI: where that fails, trtllm-bench dies at executor start with "PRTE ERROR"."""
    if "mpirun" not in programs:
        return Check("MPI", False, "mpirun is not installed", "apt-get install libopenmpi-dev openmpi-bin")
    try:
        done = subprocess.run(
            [programs["mpirun"], "--allow-run-as-root", "-n", "1", "true"],
            capture_output=True,
            text=True,
            timeout=_MPI_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("MPI", False, f"mpirun -n 1 true: {error}", "see the MPI of this environment")
    if done.returncode != 0:
        said = next((line for line in done.stderr.splitlines() if line.strip(" -")), "it said nothing")
        return Check("MPI", False, f"mpirun -n 1 true fails: {said}", "a conda MPI is often the cause")
    if "mpi4py" not in package_versions(("mpi4py",)):
        return Check("MPI", False, "mpi4py is not installed", "pip install mpi4py")
    return Check("MPI", True, "mpirun starts processes")
