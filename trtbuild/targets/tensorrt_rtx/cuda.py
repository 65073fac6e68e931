"""The few calls of the CUDA driver API that an executor makes, through the driver's own library.

libcuda comes with every NVIDIA driver, so no package is needed. The device's primary context is used, which is the one
TensorRT's runtime uses as well. Written from the CUDA Driver API reference; it was never run here, for want of a GPU:
tests drive the executor over a stand-in for this class whose device memory is host memory.
"""

from __future__ import annotations

import ctypes
from typing import Any

from trtbuild.checkpoint.spec import Array
from trtbuild.errors import DoesNotFit, MachineLacks, TrtbuildError

_LIBRARIES = ("libcuda.so.1", "nvcuda.dll")
_OUT_OF_MEMORY = 2


class Cuda:
    """Device 0, one stream; addresses and the stream are plain integers, as TensorRT takes them.

    Raises MachineLacks where no driver or device is, DoesNotFit when memory runs out, TrtbuildError otherwise.
    """

    def __init__(self) -> None:
        self._lib = _load()
        self._call("cuInit", 0)
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._device = device
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        stream = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(stream), 1)  # 1: not synchronized with the default stream
        self.stream = int(stream.value or 0)

    def allocate(self, size_bytes: int) -> int:
        """Address of zeroed device memory."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size_bytes))
        self._call("cuMemsetD8_v2", address, ctypes.c_ubyte(0), ctypes.c_size_t(size_bytes))
        return int(address.value)

    def free(self, address: int) -> None:
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def upload(self, address: int, array: Array) -> None:
        """Copy a contiguous array to the device, in the stream's order."""
        self._call(
            "cuMemcpyHtoDAsync_v2",
            ctypes.c_uint64(address),
            ctypes.c_void_p(array.ctypes.data),
            ctypes.c_size_t(array.nbytes),
            ctypes.c_void_p(self.stream),
        )

    def download(self, array: Array, address: int) -> None:
        """Fill a contiguous array from the device, and wait for everything in the stream."""
        self._call(
            "cuMemcpyDtoHAsync_v2",
            ctypes.c_void_p(array.ctypes.data),
            ctypes.c_uint64(address),
            ctypes.c_size_t(array.nbytes),
            ctypes.c_void_p(self.stream),
        )
        self._call("cuStreamSynchronize", ctypes.c_void_p(self.stream))

    def close(self) -> None:
        """Give the stream and the context back; memory must be freed before."""
        if self.stream:
            self._call("cuStreamDestroy_v2", ctypes.c_void_p(self.stream))
            self._call("cuDevicePrimaryCtxRelease_v2", self._device)
            self.stream = 0

    def _call(self, name: str, *arguments: Any) -> None:
        result = int(getattr(self._lib, name)(*arguments))
        if result == 0:
            return
        text = ctypes.c_char_p()
        self._lib.cuGetErrorString(result, ctypes.byref(text))
        what = f"{name}: {(text.value or b'unknown').decode()} (CUDA error {result})"
        if result == _OUT_OF_MEMORY:
            raise DoesNotFit(what, hint="lower --max-batch-size or --max-seq-len; see `trtbuild plan --gpu`")
        if name in ("cuInit", "cuDeviceGet"):
            raise MachineLacks(what, hint="check the NVIDIA driver with nvidia-smi")
        raise TrtbuildError(what, hint="check the NVIDIA driver with nvidia-smi")


def _load() -> Any:
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise MachineLacks("no NVIDIA driver is installed (libcuda.so.1)", hint="install the driver, see nvidia-smi")
