"""From stored tensors to the hub's: lazy views, row slices and concatenations, and the checks on names and shapes."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from trtbuild.checkpoint.spec import Array, DecoderSpec, Tensor
from trtbuild.errors import InputRefused
from trtbuild.store.fingerprint import fingerprint_json

_CHUNK_BYTES = 1 << 20


def row_slice(tensor: Tensor, part: int, parts: int) -> Tensor:
    """Rows `part` of `parts` equal shares, still lazy."""
    rows = tensor.shape[0] // parts
    shape = (rows, *tensor.shape[1:])

    def read() -> Array:
        return tensor.read()[part * rows : (part + 1) * rows]

    return Tensor(tensor.dtype, shape, tensor.source, read)


def concatenated(tensors: list[Tensor]) -> Tensor:
    """Tensors of one dtype and equal width stacked along rows, assembled when read."""
    if len(tensors) == 1:
        return tensors[0]
    first = tensors[0]
    for other in tensors[1:]:
        if other.dtype != first.dtype:
            raise InputRefused(f"is {other.dtype}, but {first.source} is {first.dtype}", where=other.source)
        if other.shape[1:] != first.shape[1:]:
            raise InputRefused(
                f"has shape {list(other.shape)}, which does not go with {list(first.shape)} of {first.source}",
                where=other.source,
            )
    shape = (sum(t.shape[0] for t in tensors), *first.shape[1:])

    def read() -> Array:
        return np.concatenate([t.read() for t in tensors])

    return Tensor(first.dtype, shape, ", ".join(t.source for t in tensors), read)


def check_shapes(spec: DecoderSpec, tensors: Mapping[str, Tensor], config_source: str) -> None:
    """Compare every tensor with the shape the spec demands; the first difference is refused naming both sides."""
    for name, shape in spec.float_shapes().items():
        tensor = tensors[name]
        if tensor.shape != shape:
            raise InputRefused(
                f"has shape {list(tensor.shape)}, but {config_source} asks for {list(shape)} ({name})",
                where=tensor.source,
                hint="the config and the weights do not belong together",
            )


def listed(names: Iterable[str], shown: int = 3) -> str:
    """The first `shown` names and how many more there are."""
    names = list(names)
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


@dataclasses.dataclass(frozen=True)
class Extent:
    """Bytes of a file that hold one tensor, and what those bytes mean (`kind`, `shape`)."""

    name: str
    kind: str
    shape: tuple[int, ...]
    path: Path
    offset_bytes: int
    size_bytes: int


def content_fingerprint(spec: DecoderSpec, extents: Iterable[Extent]) -> Callable[[], str]:
    """A function giving the SHA-256 of spec and tensors' bytes; hashed at the first call, remembered after.

    It does not depend on how tensors are spread over files. Reads each file once, in chunks of 1 MiB.
    """
    ordered = sorted(extents, key=lambda extent: extent.name)

    @functools.cache
    def fingerprint() -> str:
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            digests = list(pool.map(_digest, ordered))
        described = [[e.name, e.kind, list(e.shape), digest] for e, digest in zip(ordered, digests, strict=True)]
        return fingerprint_json({"spec": dataclasses.asdict(spec), "tensors": described})

    return fingerprint


def _digest(extent: Extent) -> str:
    digest = hashlib.sha256()
    buffer = bytearray(_CHUNK_BYTES)
    left = extent.size_bytes
    with extent.path.open("rb", buffering=0) as file:
        file.seek(extent.offset_bytes)
        while left:
            count = file.readinto(memoryview(buffer)[: min(left, _CHUNK_BYTES)])
            if not count:
                raise InputRefused("the file became shorter while it was being read", where=extent.path)
            digest.update(memoryview(buffer)[:count])
            left -= count
    return digest.hexdigest()
