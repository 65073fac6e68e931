"""Whole or not at all: files and directories appear under their name only when they are complete and on disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from trtbuild.errors import InputRefused
from trtbuild.store.manifest import read_manifest

_TEMPORARY_PREFIX = ".trtbuild-"


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
    temporary = Path(tempfile.mkdtemp(prefix=f"{_TEMPORARY_PREFIX}{path.name}-", dir=path.parent))
    temporary.chmod(0o755)
    try:
        yield temporary
        _fsync_tree(temporary)
        if path.exists():
            retired = Path(tempfile.mkdtemp(prefix=f"{_TEMPORARY_PREFIX}old-", dir=path.parent))
            path.rename(retired / path.name)
            temporary.rename(path)
            shutil.rmtree(retired, ignore_errors=True)
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
