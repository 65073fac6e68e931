"""The only thing that prints: data on stdout, everything said to a person on stderr."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtbuild.errors import Failure
from trtbuild.progress import Advance

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDTH = 100
"""Tables fit this many columns."""

_SHOW_AFTER_SECONDS = 1.0


class Mode(Enum):
    """What stdout carries: text for a person, one JSON document, or only the path of the result."""

    HUMAN = "human"
    JSON = "json"
    QUIET = "quiet"


@dataclass
class Console:
    """The output of one command. It is also the `Progress` that library code reports to."""

    mode: Mode = Mode.HUMAN
    _notes: list[str] = field(default_factory=list)

    def result(
        self, document: Mapping[str, Any], human: Callable[[], RenderableType], *, path: Path | None = None
    ) -> None:
        """Print the result of the command in the mode asked for; `human` is only rendered when needed."""
        if self.mode is Mode.JSON:
            _write_json(document)
        elif self.mode is Mode.QUIET:
            if path is not None:
                sys.stdout.write(f"{path}\n")
        else:
            _stdout().print(human())

    def plain(self, text: str) -> None:
        """Print text as it is, for output that other programs read (a table to paste, a script)."""
        sys.stdout.write(text if text.endswith("\n") else text + "\n")

    def note(self, text: str) -> None:
        if self.mode is not Mode.QUIET and text not in self._notes:
            self._notes.append(text)
            _stderr().print(f"[dim]·[/dim] {_escape(text)}", soft_wrap=True, highlight=False)

    @contextlib.contextmanager
    def task(self, title: str, total: float) -> Iterator[Advance]:
        """A progress bar on a terminal once the task has taken a second; nothing anywhere else."""
        if self.mode is Mode.QUIET or not sys.stderr.isatty():
            yield lambda _: None
            return
        with _bars.open(title, total) as advance:
            yield advance

    def status(self, text: str) -> None:
        """Replace the line under the progress bars; nothing when there are none."""
        _bars.say(text)

    def failure(self, failure: Failure) -> None:
        """One line for a person; in JSON mode the same as a document on stdout, so that scripts need not parse text."""
        if self.mode is Mode.JSON:
            document = {"error": {"what": failure.line, "hint": failure.hint, "exit_code": failure.exit_code}}
            _write_json(document)
        hint = f" ({failure.hint})" if failure.hint else ""
        sys.stderr.write(f"trtbuild: {failure.line}{hint}\n".replace("\n", " ").rstrip() + "\n")


@dataclass
class _Bars:
    """One live display shared by nested tasks; a bar appears only when its task lasts, also when nothing advances."""

    _live: Any = None
    _progress: Any = None
    _line: str = ""
    _open: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @contextlib.contextmanager
    def open(self, title: str, total: float) -> Iterator[Advance]:
        done = 0.0
        task: Any = None
        over = False

        def show() -> None:
            nonlocal task
            with self._lock:
                if not over:
                    task = self._display().add_task(title, total=total, completed=done)

        def advance(units: float) -> None:
            nonlocal done
            with self._lock:
                done += units
                if task is not None:
                    self._progress.update(task, completed=done)

        timer = threading.Timer(_SHOW_AFTER_SECONDS, show)
        timer.daemon = True
        with self._lock:
            self._open += 1
        timer.start()
        try:
            yield advance
        finally:
            timer.cancel()
            with self._lock:
                over = True
                self._open -= 1
                if task is not None:
                    self._progress.remove_task(task)
                if self._open == 0 and self._live is not None:
                    self._live.stop()
                    self._live, self._line = None, ""

    def say(self, text: str) -> None:
        """One more line under the bars, for what changes too fast to be a note."""
        self._line = text

    def _display(self) -> Any:
        if self._live is None:
            from rich.console import Group
            from rich.live import Live
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
            from rich.text import Text

            columns = (BarColumn(bar_width=30), MofNCompleteColumn(), TimeRemainingColumn())
            self._progress = Progress(TextColumn("{task.description}"), *columns)
            self._live = Live(
                get_renderable=lambda: Group(self._progress, *([Text(self._line, "dim")] if self._line else [])),
                console=_stderr(),
                transient=True,
                refresh_per_second=4,
            )
            self._live.start()
        return self._progress


_bars = _Bars()


def _write_json(document: Mapping[str, Any]) -> None:
    import json

    sys.stdout.write(json.dumps(document, indent=1, ensure_ascii=False, default=_jsonable) + "\n")


def _stdout() -> Any:
    from rich.console import Console as RichConsole

    return RichConsole(file=sys.stdout, width=None if sys.stdout.isatty() else WIDTH, soft_wrap=False)


@functools.cache
def _stderr() -> Any:
    """One console for notes and bars, so that a note printed while a bar is shown does not tear it."""
    from rich.console import Console as RichConsole

    return RichConsole(stderr=True)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _jsonable(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON form")
