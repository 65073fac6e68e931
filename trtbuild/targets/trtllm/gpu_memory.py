"""Sample GPU memory while a tool runs: through NVML where its Python package is, else through nvidia-smi.

Neither was run on a real GPU here; the tests give both a stand-in.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable
from types import TracebackType

_NVML_INTERVAL_S = 0.05
_SMI_INTERVAL_S = 0.5

Reader = Callable[[], list[int]]
"""Bytes in use on each GPU."""


def _nvml_reader() -> Reader | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    except Exception:  # NVMLError has no stable base class across versions, and any failure means: not this way
        return None
    return lambda: [int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles]


def _smi_reader() -> Reader | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None

    def read() -> list[int]:
        command = [program, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        values = [line.strip() for line in done.stdout.splitlines()]
        return [int(value) << 20 for value in values if value.isdigit()]

    return read


class GpuMemorySampler:
    """A context in which the most memory of the busiest GPU is recorded, beyond what was in use at its start.

    `peak_bytes` is None where no GPU can be read. NVML is asked 20 times a second, nvidia-smi, which takes longer to
    start, twice.
    """

    def __init__(self) -> None:
        self.peak_bytes: int | None = None
        self._stop = threading.Event()
        self._reader = _nvml_reader()
        self._interval_s = _NVML_INTERVAL_S
        if self._reader is None:
            self._reader, self._interval_s = _smi_reader(), _SMI_INTERVAL_S
        self._before = self._read()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> GpuMemorySampler:
        if self._before:
            self.peak_bytes = 0
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _read(self) -> list[int]:
        try:
            return self._reader() if self._reader is not None else []
        except Exception:  # a sample that cannot be taken is not worth ending a benchmark for
            return []

    def _sample(self) -> None:
        while not self._stop.wait(self._interval_s):
            now = self._read()
            grown = [used - before for used, before in zip(now, self._before, strict=False)]
            if grown and self.peak_bytes is not None:
                self.peak_bytes = max(self.peak_bytes, *grown)
