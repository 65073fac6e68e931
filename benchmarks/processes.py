"""Whole commands, measured from outside: wall time, CPU time, and the peak of what it holds in memory.

Linux only: the peak is the kernel's own high-water mark (VmHWM of /proc/PID/status). Adding up pages ourselves would
take a core and the address space's lock from the command whose time is taken.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from trtbuild.machine import status_memory

_INTERVAL_S = 0.02


@dataclass(frozen=True)
class Cost:
    """`peak_bytes` is of the largest process: the commands measured here do their work in one process at a time."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


def _high_water_bytes(root: psutil.Process) -> int:
    """The largest mark of the process and its living children; 0 when they are gone."""
    largest = 0
    try:
        for process in (root, *root.children(recursive=True)):
            largest = max(largest, status_memory(Path(f"/proc/{process.pid}/status")).peak_bytes)
    except (psutil.Error, OSError, KeyError):
        pass
    return largest


def measure(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Cost:
    """Run a command to its end. Raises RuntimeError with the end of its output when it fails."""
    started = time.perf_counter()
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})}
    )
    process = psutil.Process(child.pid)
    peak_bytes = 0
    output: list[bytes] = []
    assert child.stdout is not None
    reader = threading.Thread(target=lambda: output.append(child.stdout.read() if child.stdout else b""))
    reader.start()
    while True:
        done, status, usage = os.wait4(child.pid, os.WNOHANG)
        if done:
            break
        peak_bytes = max(peak_bytes, _high_water_bytes(process))
        time.sleep(_INTERVAL_S)
    wall = time.perf_counter() - started
    reader.join()
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{b''.join(output).decode(errors='replace')[-2000:]}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, peak_bytes)
