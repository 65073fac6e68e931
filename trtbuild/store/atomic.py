"""Whole or not at all: files and directories appear under their name only when they are complete and on disk."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from trtbuild.errors import InputRefused
from trtbuild.store.manifest import read_manifest

_TEMPORARY_PREFIX = ".trtbuild-"
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fsync_tree(directory: Path) -> None:
    for parent, _, names in os.walk(directory):
        for name in names:
            _fsync(Path(parent, name))
        _fsync(Path(parent))


def _exchange(first: Path, second: Path) -> None:
    """Swap two directories in one step (renameat2, Linux), so that no moment exists with neither in place.

    File systems and kernels without it get two renames, with a moment in between.
    """
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        failed = errno.ENOSYS
    else:
        failed = rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE)
    if failed:
        aside = second.with_name(f"{first.name}-aside")
        second.rename(aside)
        first.rename(second)
        aside.rename(first)


def _remove_abandoned(parent: Path, stem: str) -> None:
    """Delete temporary siblings of a target whose writing process is gone (it was killed)."""
    for path in parent.glob(f"{_TEMPORARY_PREFIX}*"):
        name, _, owner = path.name.removeprefix(_TEMPORARY_PREFIX).rpartition("-")
        name, _, pid = name.rpartition("-")
        if owner and name == stem and pid.isdigit() and not _alive(int(pid)):
            shutil.rmtree(path, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def check_replaceable(path: Path) -> None:
    """Raise InputRefused unless `path` is free, an empty folder, or a folder that trtbuild wrote."""
    if path.is_file():
        raise InputRefused("is a file, not a folder", where=path, hint="choose another output with -o")
    if path.is_dir() and any(path.iterdir()) and read_manifest(path) is None:
        raise InputRefused(
            "this folder holds something trtbuild did not write",
            where=path,
            hint="choose an empty or new folder with -o",
        )


@contextlib.contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling of `path` to fill; fsync it and rename it to `path` when the block succeeds.

    A folder that trtbuild wrote earlier under that name is replaced; any other content is refused.
    When the block raises, nothing remains. Raises InputRefused or OSError.
    """
    path = path.absolute()
    check_replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path.parent, path.name)
    prefix = f"{_TEMPORARY_PREFIX}{path.name}-{os.getpid()}-"
    temporary = Path(tempfile.mkdtemp(prefix=prefix, dir=path.parent))
    temporary.chmod(0o755)
    try:
        yield temporary
        _fsync_tree(temporary)
        if path.exists():
            _exchange(temporary, path)
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.rename(path)
        _fsync(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling of `path` to write; fsync it and rename it to `path` when the block succeeds."""
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=_TEMPORARY_PREFIX, suffix=path.suffix, dir=path.parent)
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        _fsync(temporary)
        temporary.replace(path)
        _fsync(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
