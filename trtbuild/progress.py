"""How long work reports itself without knowing who listens; only the command line shows bars."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol

Advance = Callable[[float], None]


class Progress(Protocol):
    """Receives named tasks with a known total, and notes worth telling a person."""

    def task(self, title: str, total: float) -> contextlib.AbstractContextManager[Advance]:
        """Open a task of `total` units; the value of the context is called with the units done since the last call."""
        ...

    def note(self, text: str) -> None:
        """Tell the person something that is neither a result nor an error."""
        ...


def _ignore(units: float) -> None:
    del units


class _Silent:
    @contextlib.contextmanager
    def task(self, title: str, total: float) -> Iterator[Advance]:
        del title, total
        yield _ignore

    def note(self, text: str) -> None:
        del text


silent: Progress = _Silent()
