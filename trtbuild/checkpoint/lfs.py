"""Git-LFS pointers: the few lines of text that stand where `git clone` without git-lfs leaves a large file."""

from __future__ import annotations

from pathlib import Path

from trtbuild.errors import InputRefused

_PREFIX = b"version https://git-lfs"


def refuse_pointer(head: bytes, path: Path) -> None:
    """Raise InputRefused when the first bytes of a file are those of a pointer."""
    if head.startswith(_PREFIX):
        raise InputRefused(
            "this is a Git-LFS pointer, not the file itself",
            where=path,
            hint="run `git lfs pull` in that folder, or download the file again",
        )
