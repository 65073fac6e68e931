"""One engine in a process of its own: commands and answers are JSON lines on stdin and stdout.

A process of its own makes the engine's memory its own, keeps a crash from taking the measurement with it, and lets
several engines stay open while they are measured in turn. The load generator runs here, in the thread that steps the
engine; it sends what has finished every quarter second, so that what was measured before a crash is kept.
"""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from trtbuild.bench.admission import Admission, AdmittingDriver
from trtbuild.bench.driver import Driver, Request, Scorer
from trtbuild.bench.loadgen import LoadStatus, Prompt, Window, run_load
from trtbuild.bench.loads import load_from_json
from trtbuild.bench.records import RequestRecord
from trtbuild.bench.scoring import score_window
from trtbuild.bench.warmup import WarmupRule
from trtbuild.errors import TrtbuildError
from trtbuild.machine import process_memory
from trtbuild.targets.registry import resolve


class Connection:
    """The two pipes to the parent. Whatever else the process prints must not get between the lines."""

    def __init__(self) -> None:
        self._out: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)  # native libraries print to descriptor 1
        self._in = os.fdopen(os.dup(0), "rb", buffering=0)
        self._buffer = b""

    def send(self, kind: str, value: Any) -> None:
        self._out.write(json.dumps({kind: value}, separators=(",", ":")) + "\n")
        self._out.flush()

    def receive(self) -> dict[str, Any] | None:
        """The next command, None when the parent is gone."""
        while b"\n" not in self._buffer:
            chunk = self._in.read(1 << 20)
            if not chunk:
                return None
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        command: dict[str, Any] = json.loads(line)
        return command

    def wants_attention(self) -> bool:
        """Whether the parent has said something (or is gone) while a run is under way: either way the run ends."""
        return bool(self._buffer or select.select([self._in], [], [], 0)[0])


class _Ticker:
    """Sends what a run is doing; a word from the parent in the middle of a run ends it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def tick(self, status: LoadStatus, finished: Sequence[RequestRecord]) -> bool:
        self._connection.send("tick", {"status": asdict(status), "finished": [asdict(record) for record in finished]})
        return self._connection.wants_attention()


def window_from_json(value: Mapping[str, Any]) -> Window:
    """The `Window` whose `asdict` crossed the pipe; infinity travels as null."""
    fields: dict[str, Any] = {k: float("inf") if item is None else item for k, item in value.items() if k != "warmup"}
    return Window(**fields, warmup=WarmupRule(**value["warmup"]))


class Worker:
    """The commands; each is a method that takes the command's arguments and returns a JSON value."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._driver: Driver | None = None
        self._scorer: Scorer | None = None
        self._prompts: dict[str, list[Prompt]] = {}

    def open_driver(self, factory: str, path: str, admission: dict[str, Any] | None) -> Any:
        driver: Driver = resolve(factory)(Path(path))
        self._driver = driver if admission is None else AdmittingDriver(driver, Admission(**admission))
        return asdict(driver.memory())

    def open_scorer(self, factory: str, path: str) -> Any:
        self._scorer = resolve(factory)(Path(path))
        return None

    def prompts(self, name: str, prompts: list[tuple[list[int], int, bool]]) -> Any:
        self._prompts[name] = [Prompt(tuple(ids), tokens, ignore_eos) for ids, tokens, ignore_eos in prompts]
        return None

    def load(self, prompts: str, load: dict[str, Any], window: dict[str, Any]) -> Any:
        run = run_load(
            self._opened_driver(),
            self._prompts[prompts],
            load_from_json(load),
            window_from_json(window),
            _Ticker(self._connection),
        )
        return run.to_json()

    def answers(self, prompts: list[list[int]], max_new_tokens: int) -> Any:
        """Greedy answers as token ids; None for a prompt the engine refused."""
        driver, found = self._opened_driver(), [list[int]() for _ in prompts]
        failed: set[int] = set()
        for index, ids in enumerate(prompts):
            driver.submit(Request(index, ids, max_new_tokens))
        left = len(prompts)
        while left:
            for event in driver.step(driver.now()):
                found[event.request_id].extend(event.token_ids)
                if event.finish is not None:
                    left -= 1
                    if event.finish not in ("stop", "length"):
                        failed.add(event.request_id)
        return [None if index in failed else ids for index, ids in enumerate(found)]

    def score(self, ids: list[int], first: int, write: str | None, against: str | None) -> Any:
        assert self._scorer is not None
        return score_window(self._scorer, ids, first, write, against)

    def memory(self) -> Any:
        engine = None if self._driver is None else asdict(self._driver.memory())
        return {"engine": engine, **asdict(process_memory())}

    def _opened_driver(self) -> Driver:
        assert self._driver is not None
        return self._driver

    def close(self) -> None:
        for opened in (self._driver, self._scorer):
            if opened is not None:
                opened.close()


COMMANDS = ("open_driver", "open_scorer", "prompts", "load", "answers", "score", "memory")


def _failure(error: Exception) -> dict[str, Any]:
    if isinstance(error, TrtbuildError):
        return {"type": type(error).__name__, "what": error.what, "where": error.where, "hint": error.hint}
    return {"type": None, "what": f"{type(error).__name__}: {error}", "where": None, "hint": None}


def main() -> None:
    """Serve commands until the parent closes the pipe. Ctrl-C is the parent's to handle; it says `stop` if need be."""
    connection = Connection()
    worker = Worker(connection)
    while (command := connection.receive()) is not None:
        name = command.pop("command")
        if name not in COMMANDS:  # "stop": it has ended the run it was sent into
            continue
        try:
            connection.send("result", getattr(worker, name)(**command))
        except Exception as error:
            connection.send("error", _failure(error))
    worker.close()


if __name__ == "__main__":
    main()
    sys.exit(0)
