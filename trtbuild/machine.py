"""What this machine has: CPU and its vector instructions, memory a process may use, NVIDIA GPUs."""

from __future__ import annotations

import csv
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

CPU_FEATURES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("avx2", ("avx2",)),
    ("f16c", ("f16c",)),
    ("avx512", ("avx512f", "avx512bw", "avx512vl")),
    ("avx512_vnni", ("avx512_vnni",)),
    ("avx_vnni", ("avx_vnni",)),
    ("avx512_bf16", ("avx512_bf16",)),
    ("avx512_fp16", ("avx512_fp16",)),
    ("amx_int8", ("amx_tile", "amx_int8")),
    ("amx_bf16", ("amx_tile", "amx_bf16")),
    ("asimd", ("asimd",)),
    ("dotprod", ("asimddp",)),
    ("i8mm", ("i8mm",)),
    ("sve", ("sve",)),
)
"""Our name of a feature → the flags of /proc/cpuinfo that must all be there (x86 first, then Arm)."""

INT8_DOT_FEATURES = ("avx512_vnni", "avx_vnni", "amx_int8")
"""x86 features with which 8-bit products are summed in 32 bits without saturating in 16."""


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU as `nvidia-smi` describes it; `sm` is 86 for compute capability 8.6."""

    index: int
    name: str
    memory_bytes: int
    free_bytes: int
    sm: int
    driver: str


@dataclass(frozen=True)
class Machine:
    """`cores` counts what this process may run on; memory respects the container's limit."""

    system: str
    python: str
    cpu: str
    cores: int
    features: tuple[str, ...]
    memory_bytes: int
    available_bytes: int
    gpus: tuple[Gpu, ...]

    @property
    def int8_exact(self) -> bool:
        """Whether the CPU has 8-bit dot products that do not saturate."""
        return any(feature in self.features for feature in INT8_DOT_FEATURES)


def _cpuinfo() -> dict[str, str]:
    """First processor's lines of /proc/cpuinfo; empty where there is none."""
    info: dict[str, str] = {}
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return info
    for line in text.split("\n\n", 1)[0].splitlines():
        name, _, value = line.partition(":")
        info[name.strip()] = value.strip()
    return info


def cpu_features() -> tuple[str, ...]:
    """Names of CPU_FEATURES this CPU has, in the order of the table."""
    info = _cpuinfo()
    flags = set((info.get("flags") or info.get("Features") or "").split())
    return tuple(name for name, needed in CPU_FEATURES if flags.issuperset(needed))


def _read_number(path: str) -> int | None:
    try:
        return int(Path(path).read_text(encoding="ascii").strip())
    except (OSError, ValueError):
        return None


def memory() -> tuple[int, int]:
    """Total and available bytes for this process: the machine's, or the control group's where that is less.

    Page cache of the group counts as available, since the kernel drops it first.
    """
    import psutil

    machine = psutil.virtual_memory()
    total, available = int(machine.total), int(machine.available)
    limit = _read_number("/sys/fs/cgroup/memory.max") or _read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes")
    used = _read_number("/sys/fs/cgroup/memory.current") or _read_number("/sys/fs/cgroup/memory/memory.usage_in_bytes")
    if limit is not None and limit < total:
        total = limit
        available = min(available, max(0, limit - (used or 0) + _group_cache_bytes()))
    return total, available


def _group_cache_bytes() -> int:
    for path in ("/sys/fs/cgroup/memory.stat", "/sys/fs/cgroup/memory/memory.stat"):
        try:
            lines = Path(path).read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        values = dict(line.split(" ", 1) for line in lines if " " in line)
        return int(values.get("inactive_file", 0))
    return 0


def gpus() -> tuple[Gpu, ...]:
    """The GPUs `nvidia-smi` lists; none where it is missing, fails, or does not answer within ten seconds.

    `nvidia-smi` comes with every driver, so no Python package is needed. Fields it does not know on a card
    ("[N/A]" memory on unified-memory devices) count as 0.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    query = "--query-gpu=index,name,memory.total,memory.free,compute_cap,driver_version"
    try:
        done = subprocess.run(
            [program, query, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    found = []
    for row in csv.reader(done.stdout.splitlines(), skipinitialspace=True):
        if len(row) == 6:
            index, name, total, free, capability, driver = (value.strip() for value in row)
            sm = capability.replace(".", "")
            found.append(Gpu(int(index), name, _mib(total), _mib(free), int(sm) if sm.isdigit() else 0, driver))
    return tuple(found)


def _mib(text: str) -> int:
    return int(float(text)) << 20 if text.replace(".", "").isdigit() else 0


def this_machine() -> Machine:
    """Look at this machine once."""
    info = _cpuinfo()
    total, available = memory()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        cpu=info.get("model name") or platform.processor() or platform.machine(),
        cores=cores,
        features=cpu_features(),
        memory_bytes=total,
        available_bytes=available,
        gpus=gpus(),
    )


def free_disk_bytes(path: Path) -> int:
    """Free bytes on the disk that holds `path`, or its closest parent that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


@dataclass(frozen=True)
class ProcessMemory:
    """Resident bytes of a process: the most it ever held, what it holds now, what it held before the engine opened."""

    peak_bytes: int
    now_bytes: int


def status_memory(status: Path) -> ProcessMemory:
    """From a Linux /proc/PID/status; KeyError for a process that has ended and is not yet reaped."""
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    peak, now = (int(fields[name].split()[0]) * 1024 for name in ("VmHWM", "VmRSS"))
    return ProcessMemory(peak, now)


def process_memory() -> ProcessMemory:
    """Of this process. The peak is the kernel's high-water mark, so no sampling can miss it."""
    status = Path("/proc/self/status")
    if status.exists():
        return status_memory(status)
    import resource

    import psutil

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return ProcessMemory(peak, int(psutil.Process().memory_info().rss))
