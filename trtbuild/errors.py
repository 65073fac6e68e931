"""What can go wrong, as one table: the class says the exit code, the instance says what, where and what to do."""

from __future__ import annotations

import difflib
import errno
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path


def one_line(text: str) -> str:
    """The text with control characters escaped: names out of files may hold line breaks and terminal codes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


class TrtbuildError(Exception):
    """An expected failure, told to the user as one line.

    `what` names the fault, `where` the file, tensor or line it was found in, `hint` what to do about it.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str | Path | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = one_line(what)
        self.where = None if where is None else one_line(str(where))
        self.hint = None if hint is None else one_line(hint)

    def __str__(self) -> str:
        return self.what if self.where is None else f"{self.where}: {self.what}"


class UsageError(TrtbuildError):
    """The command line or a profile asks for something that does not exist."""

    exit_code = 2


class InputRefused(TrtbuildError):
    """A model, data file or output path that cannot be used as it is."""

    exit_code = 3


class MachineLacks(TrtbuildError):
    """A package, a GPU or a driver that this step needs is not here."""

    exit_code = 4


class DoesNotFit(TrtbuildError):
    """The plan exceeds the disk, memory or engine limits it was checked against."""

    exit_code = 5


class VerdictFailed(TrtbuildError):
    """Everything was built and measured, and no precision meets the profile."""

    exit_code = 6


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """The question that names the closest of the known words, None when none is close."""
    close = difflib.get_close_matches(word, list(known), 1)
    return f"did you mean {close[0]}?" if close else None


@dataclass(frozen=True)
class Failure:
    """What the console prints of an exception, and the exit code of the process."""

    line: str
    hint: str | None
    exit_code: int


def _explain_ours(error: BaseException) -> Failure:
    assert isinstance(error, TrtbuildError)
    return Failure(str(error), error.hint, error.exit_code)


_OS_HINTS = {
    errno.ENOSPC: "free some space, or choose another disk with -o",
    errno.EDQUOT: "free some space, or choose another disk with -o",
    errno.EFBIG: "raise the file size limit (ulimit -f), or choose another disk with -o",
    errno.EACCES: "check the permissions of that path",
    errno.EPERM: "check the permissions of that path",
    errno.EROFS: "choose a writable folder with -o",
}


def _explain_os(error: BaseException) -> Failure:
    assert isinstance(error, OSError)
    reason = os.strerror(error.errno) if error.errno else str(error)
    line = one_line(f"{error.filename}: {reason}" if error.filename else reason)
    return Failure(line, _OS_HINTS.get(error.errno or 0), InputRefused.exit_code)


def _explain_memory(error: BaseException) -> Failure:
    return Failure(
        f"out of memory {error}".strip(),
        "see `trtbuild plan` for what this model needs",
        DoesNotFit.exit_code,
    )


def _explain_interrupt(error: BaseException) -> Failure:
    del error
    return Failure("interrupted; what was complete is kept", "run the same command again to continue", 130)


def _explain_bug(error: BaseException) -> Failure:
    return Failure(
        f"bug in trtbuild: {type(error).__name__}: {error}",
        "set TRTBUILD_DEBUG=1 for the traceback and report it",
        1,
    )


EXPLANATIONS: tuple[tuple[type[BaseException], Callable[[BaseException], Failure]], ...] = (
    (TrtbuildError, _explain_ours),
    (OSError, _explain_os),
    (MemoryError, _explain_memory),
    (KeyboardInterrupt, _explain_interrupt),
    (BaseException, _explain_bug),
)


def explain(error: BaseException) -> Failure:
    """Return the line, hint and exit code of any exception; the first matching row of the table wins."""
    return next(explanation(error) for kind, explanation in EXPLANATIONS if isinstance(error, kind))
