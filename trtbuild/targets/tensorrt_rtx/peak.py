"""The most memory this process held while something ran."""

from __future__ import annotations

import contextlib
import re
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


def _high_water_bytes() -> int:
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB", _STATUS.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        found = None
    if found is not None:
        return int(found.group(1)) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@contextlib.contextmanager
def peak_memory() -> Iterator[Callable[[], int]]:
    """Yield a function that answers the peak resident memory, in bytes, since the block was entered.

    Linux forgets the earlier peak on request (value 5 in clear_refs, man 5 proc); where it may not be asked, the
    answer is the peak of the whole process.
    """
    with contextlib.suppress(OSError):
        _CLEAR_REFS.write_text("5", encoding="ascii")
    yield _high_water_bytes
