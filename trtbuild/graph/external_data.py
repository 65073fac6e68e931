"""ONNX external data, written by ourselves: one file, one tensor after the other, never more than one in memory.

The layout is ONNX's own (`location`, `offset`, `length` of each initializer; offsets on page boundaries so that a
reader can map them): https://github.com/onnx/onnx/blob/main/docs/ExternalData.md
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from trtbuild.checkpoint.spec import Array

ALIGNMENT_BYTES = 4096
INLINE_BYTES = 1024
"""Tensors up to this size stay inside the model file."""

_CHUNK_BYTES = 1 << 24


def onnx_type(dtype: np.dtype[Any]) -> int:
    """The TensorProto.DataType of a numpy dtype (bfloat16 through ml_dtypes)."""
    import onnx

    if dtype.name == "bfloat16":
        return int(onnx.TensorProto.BFLOAT16)
    return int(onnx.helper.np_dtype_to_tensor_dtype(dtype))


class ExternalData:
    """The data file beside a model file; `add` turns an array into an initializer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("xb")

    def __enter__(self) -> ExternalData:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, name: str, array: Array) -> Any:
        """Write `array` and return its onnx.TensorProto."""
        import onnx

        proto = onnx.TensorProto(name=name, dims=array.shape, data_type=onnx_type(array.dtype))
        rows = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if rows.nbytes <= INLINE_BYTES:
            proto.raw_data = rows.tobytes()
            return proto
        offset = -(-self._file.tell() // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self._file.seek(offset)
        for start in range(0, rows.nbytes, _CHUNK_BYTES):
            self._file.write(rows[start : start + _CHUNK_BYTES].data)
        proto.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", self._path.name), ("offset", offset), ("length", rows.nbytes)):
            proto.external_data.add(key=key, value=str(value))
        return proto
