"""The most memory this process held while something ran."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from trtbuild.machine import process_memory

_CLEAR_REFS = Path("/proc/self/clear_refs")


@contextlib.contextmanager
def peak_memory() -> Iterator[Callable[[], int]]:
    """Yield a function that answers the peak resident memory, in bytes, since the block was entered.

    Linux forgets the earlier peak on request (value 5 in clear_refs, man 5 proc); where it may not be asked, the
    answer is the peak of the whole process.
    """
    with contextlib.suppress(OSError):
        _CLEAR_REFS.write_text("5", encoding="ascii")
    yield lambda: process_memory().peak_bytes
