"""The header of a GGUF file, read with bounds: no count in the file can make it read or allocate past its own size.

Format: magic "GGUF", version, tensor and key counts, typed key/value pairs, tensor infos, then aligned data.
Source: ggml's docs/gguf.md.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trtbuild.checkpoint.lfs import refuse_pointer
from trtbuild.errors import InputRefused

_SCALARS: Mapping[int, str] = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""Value type → struct letter. 8 is a string, 9 an array."""
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4
_MAX_NESTING = 2
_SHORTEST_KEY_BYTES = 8 + 4 + 1
_SHORTEST_INFO_BYTES = 8 + 4 + 8 + 4 + 8
_SPLIT_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.gguf)", re.IGNORECASE)


@dataclass(frozen=True)
class GgufTensor:
    """Where a tensor lies. `shape` is rows first, as numpy has it (the file lists it the other way round)."""

    name: str
    path: Path
    type_name: str
    shape: tuple[int, ...]
    offset_bytes: int
    size_bytes: int

    @property
    def source(self) -> str:
        return f"{self.path}:{self.name}"


@dataclass(frozen=True)
class GgufFile:
    """Metadata and tensors of a model, merged over its split files.

    Numbers come as int, float or bool, 32-bit floats as their shortest decimal; arrays of numbers as numpy arrays,
    arrays of strings as lists.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


def read_gguf(path: Path) -> GgufFile:
    """Read the headers of a GGUF file and of its splits. Raises InputRefused for anything malformed or missing."""
    match = _SPLIT_NAME.fullmatch(path.name)
    if match is None:
        return _read_one(path)
    stem, _, total, suffix = match.groups()
    paths = [path.with_name(f"{stem}-{n:05d}-of-{total}{suffix}") for n in range(1, int(total) + 1)]
    missing = [p.name for p in paths if not p.is_file()]
    if missing:
        raise InputRefused(f"missing {', '.join(missing)}", where=path.parent, hint="download the missing files")
    parts = [_read_one(p) for p in paths]
    tensors: dict[str, GgufTensor] = {}
    for part in parts:
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise InputRefused(f"tensor {name} is in {tensors[name].path.name} as well", where=part.path)
            tensors[name] = tensor
    return GgufFile(path, parts[0].metadata, tensors)


def _read_one(path: Path) -> GgufFile:
    size = path.stat().st_size
    if size < 24:
        raise _broken(path, "not a GGUF file")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        return _Reader(path, mapped).file()


def _broken(path: Path, what: str) -> InputRefused:
    return InputRefused(what, where=path, hint="download the file again and compare its size with the original")


class _Reader:
    """A cursor over the mapped file; every read checks what is left."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.size = len(data)
        self.position = 0

    def file(self) -> GgufFile:
        refuse_pointer(self.data[:64], self.path)
        if self.take(4) != b"GGUF":
            raise _broken(self.path, "not a GGUF file")
        version = self.scalar("I")
        if version not in (2, 3):
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in (2, 3)
            raise InputRefused(
                "a big-endian GGUF file" if swapped else f"GGUF version {version}",
                where=self.path,
                hint="only little-endian GGUF of version 2 or 3 is read; convert it with llama.cpp",
            )
        tensor_count, key_count = self.scalar("Q"), self.scalar("Q")
        if key_count * _SHORTEST_KEY_BYTES + tensor_count * _SHORTEST_INFO_BYTES > self.size:
            raise _broken(self.path, f"truncated: {tensor_count} tensors and {key_count} keys do not fit in the file")
        metadata: dict[str, Any] = {}
        for _ in range(key_count):
            name = self.string()
            metadata[name] = self.value(self.scalar("I"), 0)
        infos = [self.info() for _ in range(tensor_count)]
        return GgufFile(self.path, metadata, self.place(infos, metadata.get("general.alignment", 32)))

    def take(self, count: int) -> bytes:
        end = self.position + count
        if end > self.size:
            raise _broken(self.path, f"truncated: {count} bytes are needed at byte {self.position} of {self.size}")
        part = self.data[self.position : end]
        self.position = end
        return part

    def scalar(self, letter: str) -> Any:
        value = struct.unpack("<" + letter, self.take(struct.calcsize("<" + letter)))[0]
        return float(str(np.float32(value))) if letter == "f" else value

    def string(self) -> str:
        return self.take(self.scalar("Q")).decode("utf-8", errors="replace")

    def value(self, kind: int, nesting: int) -> Any:
        letter = _SCALARS.get(kind)
        if letter is not None:
            return self.scalar(letter)
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY and nesting < _MAX_NESTING:
            return self.array(nesting)
        raise _broken(self.path, f"metadata value of unknown type {kind} at byte {self.position}")

    def array(self, nesting: int) -> Any:
        kind, count = self.scalar("I"), self.scalar("Q")
        letter = _SCALARS.get(kind)
        if letter is not None:
            dtype = np.dtype("<" + letter)
            return np.frombuffer(self.take(count * dtype.itemsize), dtype)
        if count * 8 > self.size - self.position:
            raise _broken(self.path, f"truncated: an array of {count} values does not fit in the file")
        if kind == _STRING:
            return self.strings(count)
        return [self.value(kind, nesting + 1) for _ in range(count)]

    def strings(self, count: int) -> list[str]:
        """As `string`, without a call per value: a vocabulary and its merges are half a million of them."""
        data, position, size = self.data, self.position, self.size
        unpack = struct.Struct("<Q").unpack_from
        found = []
        for _ in range(count):
            start = position + 8
            if start > size:
                break
            position = start + unpack(data, position)[0]
            if position > size:
                break
            found.append(data[start:position].decode("utf-8", errors="replace"))
        if len(found) < count:
            raise _broken(self.path, f"truncated: an array of {count} strings is cut off")
        self.position = position
        return found

    def info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.string()
        dimensions = self.scalar("I")
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise _broken(self.path, f"tensor {name} has {dimensions} dimensions")
        shape = struct.unpack(f"<{dimensions}Q", self.take(8 * dimensions))
        return name, tuple(reversed(shape)), self.scalar("I"), self.scalar("Q")

    def place(self, infos: list[tuple[str, tuple[int, ...], int, int]], alignment: Any) -> dict[str, GgufTensor]:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise _broken(self.path, f"general.alignment is {alignment!r}, a power of two is needed")
        start = self.position + -self.position % alignment
        tensors: dict[str, GgufTensor] = {}
        for name, shape, type_id, offset in infos:
            try:
                kind = GGMLQuantizationType(type_id)
            except ValueError as error:
                raise InputRefused(f"tensor {name} has unknown type {type_id}", where=self.path) from error
            block, block_bytes = GGML_QUANT_SIZES[kind]
            size = math.prod(shape) // block * block_bytes
            if name in tensors or offset % alignment or shape[-1] % block:
                raise _broken(self.path, f"tensor {name} is listed twice, misaligned or not a whole number of blocks")
            if start + offset + size > self.size:
                raise _broken(
                    self.path,
                    f"truncated: tensor {name} ends at byte {start + offset + size}, the file at {self.size}",
                )
            tensors[name] = GgufTensor(name, self.path, kind.name, shape, start + offset, size)
        return tensors
