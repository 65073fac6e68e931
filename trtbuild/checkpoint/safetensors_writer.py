"""Writing safetensors files in a stream: the header first, from known shapes, then one tensor after another.

Names are ordered as the reference implementation orders them (widest type first, then by name), so a file written
here is the file it would write, byte for byte.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from trtbuild.checkpoint.safetensors import DTYPES
from trtbuild.checkpoint.spec import Array

_SPELLING: Mapping[np.dtype[Any], str] = {dtype: spelled for spelled, dtype in DTYPES.items()}
_WIDEST_FIRST = (
    *("U64", "I64", "F64", "F32", "U32", "I32", "BF16", "F16", "U16", "I16"),
    *("F8_E4M3", "F8_E5M2", "I8", "U8", "BOOL"),
)
_ALIGNMENT_BYTES = 8


@dataclass(frozen=True)
class Layout:
    """dtype and shape of a tensor that is still to be written."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def _header(layouts: Mapping[str, Layout], metadata: Mapping[str, str] | None) -> tuple[bytes, dict[str, int]]:
    """The encoded header and name → offset in the file, both in file order."""
    order = sorted(layouts, key=lambda name: (_WIDEST_FIRST.index(_SPELLING[layouts[name].dtype]), name))
    document: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    position = 0
    begins = {}
    for name in order:
        layout = layouts[name]
        begins[name] = position
        document[name] = {
            "dtype": _SPELLING[layout.dtype],
            "shape": list(layout.shape),
            "data_offsets": [position, position + layout.size_bytes],
        }
        position += layout.size_bytes
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % _ALIGNMENT_BYTES)
    encoded = len(text).to_bytes(8, "little") + text
    return encoded, {name: len(encoded) + begin for name, begin in begins.items()}


class StreamedFile:
    """An open safetensors file whose tensors may come in any order, each exactly once."""

    def __init__(self, file: IO[bytes], layouts: Mapping[str, Layout], metadata: Mapping[str, str] | None) -> None:
        header, self._offsets = _header(layouts, metadata)
        self._layouts = dict(layouts)
        self._file = file
        file.write(header)
        file.truncate(len(header) + sum(layout.size_bytes for layout in layouts.values()))

    @property
    def missing(self) -> list[str]:
        """Names that have not been written yet."""
        return list(self._offsets)

    def write(self, name: str, array: Array) -> None:
        """Write one tensor; its dtype and shape must be the announced ones (ValueError otherwise)."""
        layout = self._layouts[name]
        if array.dtype != layout.dtype or array.shape != layout.shape:
            raise ValueError(f"{name}: announced {layout.dtype}{layout.shape}, got {array.dtype}{array.shape}")
        self._file.seek(self._offsets.pop(name))
        self._file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


@contextlib.contextmanager
def streamed_file(
    path: Path, layouts: Mapping[str, Layout], metadata: Mapping[str, str] | None = None
) -> Iterator[StreamedFile]:
    """Open `path` for writing the tensors of `layouts`; a tensor left out is an error (ValueError)."""
    with path.open("wb") as file:
        streamed = StreamedFile(file, layouts, metadata)
        yield streamed
        if streamed.missing:
            raise ValueError(f"{path}: never written: {', '.join(streamed.missing[:5])}")
