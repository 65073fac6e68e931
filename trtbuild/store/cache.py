"""Where things are kept that only save time and may be deleted whenever one likes."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """`name` under the user's cache directory (XDG_CACHE_HOME, else ~/.cache); not created."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "trtbuild" / name
