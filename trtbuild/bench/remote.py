"""The parent's side of a worker process, and the set of workers that fit into memory together."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trtbuild import errors
from trtbuild.bench.admission import Admission
from trtbuild.bench.driver import EngineMemory
from trtbuild.bench.engines import EngineSource
from trtbuild.bench.loadgen import LoadStatus, Prompt, Window
from trtbuild.bench.loads import Load, load_to_json
from trtbuild.bench.records import LoadRun, RequestRecord
from trtbuild.machine import ProcessMemory, memory

OnTick = Callable[[LoadStatus], None]

_STOP_SECONDS = 30.0
_WORKER_BASE_BYTES = 400 << 20


class EngineDied(errors.TrtbuildError):
    """The engine's process ended in the middle of a command. `records` is what had been measured by then."""

    exit_code = errors.VerdictFailed.exit_code

    def __init__(self, what: str, records: list[RequestRecord], hint: str | None) -> None:
        super().__init__(what, hint=hint)
        self.records = records


def _json_line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


class EngineProcess:
    """A worker with one engine open. Not thread-safe. Raises what the engine raised, or `EngineDied`."""

    def __init__(self, source: EngineSource) -> None:
        self.source = source
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process, closed in close()
        paths = [entry for entry in sys.path if entry]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trtbuild.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C on the terminal is for the parent alone
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        self._finished: list[RequestRecord] = []
        self._answer: dict[str, Any] = {}
        self.busy = False
        """Whether a command is under way; True outside of one means it was abandoned, and the process is useless."""
        self._prompts: set[str] = set()

    def open_driver(self, admission: Admission | None) -> EngineMemory:
        driver, path = self.source.driver, str(self.source.path)
        settings = None if admission is None else asdict(admission)
        return EngineMemory(**self._call("open_driver", factory=driver, path=path, admission=settings))

    def open_scorer(self) -> None:
        self._call("open_scorer", factory=self.source.scorer, path=str(self.source.path))

    def load(
        self, prompts: Sequence[Prompt], load: Load, window: Window, on_tick: OnTick | None = None, name: str = "main"
    ) -> LoadRun:
        """Measure one window. KeyboardInterrupt asks the engine to stop and returns the partial run."""
        if name not in self._prompts:
            self._call("prompts", name=name, prompts=[(p.token_ids, p.max_new_tokens, p.ignore_eos) for p in prompts])
            self._prompts.add(name)
        spec = asdict(window)
        spec = {key: None if value == float("inf") else value for key, value in spec.items()}
        result = self._call("load", on_tick=on_tick, prompts=name, load=load_to_json(load), window=spec)
        return LoadRun.from_json(result)

    def answers(self, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> list[list[int] | None]:
        found: list[list[int] | None] = self._call(
            "answers", prompts=[list(ids) for ids in prompts], max_new_tokens=max_new_tokens
        )
        return found

    def score(self, ids: Sequence[int], first: int, *, write: Path | None, against: Path | None) -> dict[str, Any]:
        keep, other = (None if path is None else str(path) for path in (write, against))
        scores: dict[str, Any] = self._call("score", ids=[int(i) for i in ids], first=first, write=keep, against=other)
        return scores

    def memory(self) -> ProcessMemory:
        value = self._call("memory")
        return ProcessMemory(value["peak_bytes"], value["now_bytes"])

    def _call(self, command: str, on_tick: OnTick | None = None, **arguments: Any) -> Any:
        self._finished = []
        self.busy, stopping = True, False
        self._send({"command": command, **arguments})
        while self.busy:
            try:
                self._answer = self._receive()
                self.busy = "tick" in self._answer
                if self.busy:
                    self._tick(self._answer["tick"], on_tick)
            except KeyboardInterrupt:
                if stopping or command != "load":
                    raise
                stopping = True
                self._send({"command": "stop"})
        if "error" in self._answer:
            raise _rebuild(self._answer["error"], self.source)
        return self._answer["result"]

    def _tick(self, tick: dict[str, Any], on_tick: OnTick | None) -> None:
        self._finished += [RequestRecord(**record) for record in tick["finished"]]
        if on_tick is not None:
            on_tick(LoadStatus(**tick["status"]))

    def _send(self, value: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(_json_line(value))
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._death() from None

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise self._death()
        message: dict[str, Any] = json.loads(line)
        return message

    def _death(self) -> EngineDied:
        code = self._process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self._log.seek(0)
        said = self._log.read().decode("utf-8", "replace").strip().splitlines()
        hint = "out of memory? see `trtbuild plan`" if code == -signal.SIGKILL else None
        last = f", last words: {said[-1][:200]}" if said else ""
        return EngineDied(f"the engine's process ended ({how}{last})", self._finished, hint)

    def close(self) -> None:
        """End the process; one that is busy, or does not end by itself, is killed."""
        if self.busy:
            self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            self._process.kill()
            self._process.wait()
        self._log.close()


def _rebuild(error: dict[str, Any], source: EngineSource) -> Exception:
    """The exception the worker caught; its class decides the exit code, as if it had been raised here."""
    kind = getattr(errors, error["type"]) if error["type"] else None
    if kind is not None:
        rebuilt: Exception = kind(error["what"], where=error["where"], hint=error["hint"])
        return rebuilt
    return RuntimeError(f"{source.name}: {error['what']}")


class Fleet:
    """Workers opened when asked for, kept open while memory allows, the longest unused one closed when it does not."""

    def __init__(self, opening: Callable[[EngineProcess], None]) -> None:
        self._opening = opening
        self._open: dict[str, EngineProcess] = {}
        self.peaks: dict[str, int] = {}
        """Engine name → the largest resident size any of its processes has had, in bytes."""

    def get(self, source: EngineSource) -> EngineProcess:
        """The worker of an engine, opening it when it is not open."""
        process = self._open.pop(source.name, None)
        if process is None:
            self._make_room(source.size_bytes + _WORKER_BASE_BYTES)
            process = EngineProcess(source)
            try:
                self._opening(process)
            except BaseException:
                process.close()
                raise
        self._open[source.name] = process  # last in the dict: most recently used
        return process

    def fits(self, sources: Sequence[EngineSource]) -> bool:
        """Whether the workers of all these engines fit into the memory that is free now."""
        needed = sum(source.size_bytes + _WORKER_BASE_BYTES for source in sources)
        return needed < memory()[1]

    def _make_room(self, needed_bytes: int) -> None:
        while self._open and memory()[1] < needed_bytes:
            self.drop(next(iter(self._open)))

    def note_memory(self, source: EngineSource) -> int:
        """Ask an engine for its peak so far; keeps the largest."""
        peak = self.get(source).memory().peak_bytes
        self.peaks[source.name] = max(peak, self.peaks.get(source.name, 0))
        return self.peaks[source.name]

    def drop(self, name: str) -> None:
        """Close an engine's worker, keeping its peak memory if it still answers."""
        process = self._open.pop(name, None)
        if process is None:
            return
        if not process.busy:
            with contextlib.suppress(errors.TrtbuildError, OSError):
                self.peaks[name] = max(process.memory().peak_bytes, self.peaks.get(name, 0))
        process.close()

    def close(self) -> None:
        for name in list(self._open):
            self.drop(name)
