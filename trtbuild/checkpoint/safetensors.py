"""safetensors files, header first: everything is checked before a byte of weights is read, and weights stay mapped.

Format: 8 bytes little-endian header length, a JSON header name → {dtype, shape, data_offsets}, then the data, which
the offsets cover without gap or overlap. Source: the safetensors README, section "Format".
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from trtbuild.checkpoint.lfs import refuse_pointer
from trtbuild.checkpoint.spec import Array, Tensor
from trtbuild.errors import InputRefused

DTYPES: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
"""Spelling in the header → numpy dtype."""

_MAX_HEADER_BYTES = 100_000_000  # the limit of the reference implementation
_MAX_DIMENSIONS = 8


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies: `offset_bytes` counts from the start of the file `path`."""

    name: str
    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset_bytes: int
    size_bytes: int

    @property
    def source(self) -> str:
        return f"{self.path}:{self.name}"

    def read(self) -> Array:
        """The tensor as a read-only view of the mapped file.

        Each call maps the tensor's own pages, so they leave this process's memory with the array.
        Raises InputRefused when the file shrank since its header was read.
        """
        if self.size_bytes == 0:
            return np.empty(self.shape, self.dtype)
        return map_bytes(self.path, self.offset_bytes, self.size_bytes).view(self.dtype).reshape(self.shape)

    def lazy(self) -> Tensor:
        return Tensor(self.dtype, self.shape, self.source, self.read)


def map_bytes(path: Path, offset_bytes: int, size_bytes: int) -> Array:
    """uint8 [size_bytes] mapped from a file, read-only. Raises InputRefused when the file ends before that."""
    start = offset_bytes - offset_bytes % mmap.ALLOCATIONGRANULARITY
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), offset_bytes + size_bytes - start, offset=start, access=mmap.ACCESS_READ)
    except ValueError as error:
        raise InputRefused("the file became shorter while it was being read", where=path) from error
    return np.frombuffer(mapped, np.uint8, count=size_bytes, offset=offset_bytes - start)


@dataclass(frozen=True)
class SafetensorsFile:
    """Header of one file: its tensors by name, in file order, and the `__metadata__` strings."""

    path: Path
    tensors: Mapping[str, StoredTensor]
    metadata: Mapping[str, str]


def read_header(path: Path) -> SafetensorsFile:
    """Read and check the header of a safetensors file.

    Raises InputRefused for a Git-LFS pointer, a truncated or foreign file, and any header that does not describe the
    data exactly. Memory is bounded by the size of the file.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(64)
        refuse_pointer(head, path)
        length = int.from_bytes(head[:8], "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
            raise _broken(path, "not a safetensors file, or its header is cut off")
        file.seek(8)
        raw = file.read(length)
    return _parse(path, raw, data_start=8 + length, data_bytes=size - 8 - length)


def _broken(path: Path, what: str) -> InputRefused:
    return InputRefused(what, where=path, hint="download the file again and compare its size with the original")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name appears twice")
    return result


def _parse(path: Path, raw: bytes, *, data_start: int, data_bytes: int) -> SafetensorsFile:
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _broken(path, f"the safetensors header is not valid JSON ({type(error).__name__})") from error
    if not isinstance(header, dict):
        raise _broken(path, "the safetensors header is not a JSON object")
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict):
        raise _broken(path, "__metadata__ of the safetensors header is not an object")
    tensors = [_stored(path, name, entry, data_start, data_bytes) for name, entry in header.items()]
    tensors.sort(key=lambda tensor: (tensor.offset_bytes, tensor.size_bytes))
    position = data_start
    for tensor in tensors:
        if tensor.offset_bytes != position:
            raise _broken(path, f"tensor {tensor.name} does not start where the one before it ends")
        position += tensor.size_bytes
    if position != data_start + data_bytes:
        raise _broken(path, f"{data_start + data_bytes - position} bytes after the last tensor belong to none")
    return SafetensorsFile(path, {t.name: t for t in tensors}, {str(k): str(v) for k, v in metadata.items()})


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _stored(path: Path, name: str, entry: Any, data_start: int, data_bytes: int) -> StoredTensor:
    try:
        spelled, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise _broken(path, f"tensor {name} has no dtype, shape or data_offsets") from error
    if not isinstance(shape, list) or not all(map(_is_count, [*shape, begin, end])) or len(shape) > _MAX_DIMENSIONS:
        raise _broken(path, f"tensor {name} has a shape or data_offsets that are not counts")
    dtype = DTYPES.get(spelled) if isinstance(spelled, str) else None
    if dtype is None:
        raise InputRefused(
            f"tensor {name} has type {spelled!r}, which cannot be read",
            where=path,
            hint=f"known types: {', '.join(DTYPES)}",
        )
    size = math.prod(shape) * dtype.itemsize
    if end - begin != size:
        raise _broken(path, f"tensor {name} is {shape} of {spelled}, {size} bytes, but its data has {end - begin}")
    if end > data_bytes:
        raise _broken(
            path, f"truncated: tensor {name} ends at byte {data_start + end}, the file at {data_start + data_bytes}"
        )
    return StoredTensor(name, path, dtype, tuple(shape), data_start + begin, size)
