"""Whole commands, measured from outside: wall time, CPU time, and the peak of what the process tree holds in memory."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Cost:
    """`peak_bytes` is the largest sum over the process and its children of their share of resident memory (pages that
    several hold count once), sampled all along."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


def _held(process: psutil.Process) -> int:
    total = 0
    try:
        for member in (process, *process.children(recursive=True)):
            total += member.memory_full_info().pss
    except psutil.Error:
        pass
    return total


def measure(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Cost:
    """Run a command to its end. Raises RuntimeError with the end of its output when it fails."""
    started = time.perf_counter()
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})}
    )
    process = psutil.Process(child.pid)
    peak = 0
    output: list[bytes] = []
    assert child.stdout is not None
    reader = threading.Thread(target=lambda: output.append(child.stdout.read() if child.stdout else b""))
    reader.start()
    while True:
        done, status, usage = os.wait4(child.pid, os.WNOHANG)
        if done:
            break
        peak = max(peak, _held(process))
        time.sleep(0.01)
    wall = time.perf_counter() - started
    reader.join()
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{b''.join(output).decode(errors='replace')[-2000:]}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, peak)
