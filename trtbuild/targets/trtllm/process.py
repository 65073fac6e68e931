"""Run one of NVIDIA's command line tools: its output goes to a log line by line, and dies with us."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtbuild.errors import MachineLacks


@dataclass(frozen=True)
class Completed:
    """How a tool ended. `returncode` is negative when a signal ended it; `lines` are all it said, in order."""

    command: tuple[str, ...]
    returncode: int
    lines: tuple[str, ...]

    @property
    def killed(self) -> bool:
        """Whether SIGKILL ended it, directly or (137) through a shell or a container."""
        return self.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)


def run_logged(
    command: Sequence[str],
    log: Path,
    *,
    on_line: Callable[[str], None] = lambda _: None,
    env: Mapping[str, str] | None = None,
) -> Completed:
    """Run a command to its end with stdout and stderr in `log`, in the order they were written.

    The tool runs in a process group of its own; when we are interrupted, all of it (MPI ranks, pool workers) is ended.
    Raises MachineLacks when the program does not exist.
    """
    lines: list[str] = []
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(command)}\n")
        file.flush()
        try:
            process = subprocess.Popen(
                list(command),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                encoding="utf-8",
                errors="replace",
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise MachineLacks(f"{command[0]} is not on the PATH", hint="see `trtbuild doctor`") from error
        try:
            assert process.stdout is not None
            for line in process.stdout:
                file.write(line)
                file.flush()
                lines.append(line.rstrip("\n"))
                on_line(lines[-1])
            returncode = process.wait()
        except BaseException:
            _end_group(process)
            raise
        finally:
            if process.stdout is not None:
                process.stdout.close()
    return Completed(tuple(command), returncode, tuple(lines))


def _end_group(process: subprocess.Popen[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)
            return
