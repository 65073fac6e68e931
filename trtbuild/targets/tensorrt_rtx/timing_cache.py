"""Kernel timings kept from build to build, one file per library version and set of GPUs.

TensorRT-RTX times nothing when it builds (its kernels are chosen on the GPU, at run time), and documents its timing
cache as without effect since 1.2, so only full TensorRT gets one. That path needs a GPU and was not run here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtbuild.store.atomic import atomic_file
from trtbuild.store.cache import cache_folder
from trtbuild.targets.tensorrt_rtx.machine import Installed


def cache_path(installed: Installed, sms: Sequence[int]) -> Path | None:
    """The file for these GPUs; None for a library whose cache does nothing."""
    if not installed.flavour.timing_cache:
        return None
    name = f"{installed.flavour.module}-{installed.version}-sm{'-'.join(map(str, sorted(sms)))}.cache"
    return cache_folder("timing") / name


def attach(config: Any, path: Path | None) -> None:
    """Give the builder config what an earlier build left; a cache it refuses (another device) is begun anew."""
    if path is None or not hasattr(config, "create_timing_cache"):
        return
    try:
        content = path.read_bytes()
    except OSError:
        content = b""
    if not config.set_timing_cache(config.create_timing_cache(content), False):
        config.set_timing_cache(config.create_timing_cache(b""), False)


def keep(config: Any, path: Path | None) -> None:
    """Write back what the build added. A cache that cannot be written costs time later, not the engine now."""
    if path is None or not hasattr(config, "get_timing_cache"):
        return
    cache = config.get_timing_cache()
    if cache is None:
        return
    try:
        with atomic_file(path) as temporary:
            temporary.write_bytes(bytes(cache.serialize()))
    except OSError:
        return
