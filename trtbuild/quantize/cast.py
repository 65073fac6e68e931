"""Floating precisions: every tensor cast to one dtype, lazily, and nothing lost silently on the way."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from trtbuild.checkpoint.finite import all_finite, check_finite
from trtbuild.checkpoint.spec import Array, Decoder, Quantization, Tensor
from trtbuild.errors import InputRefused
from trtbuild.quantize.precisions import Precision
from trtbuild.store.fingerprint import fingerprint_json

DTYPES: Mapping[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


def checked_cast(array: Array, dtype: np.dtype[Any], source: str) -> Array:
    """Cast to `dtype`. Raises InputRefused when a value is NaN or infinite, or becomes infinite in `dtype`."""
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(dtype, copy=False)
    if all_finite(cast):
        return cast
    check_finite(array, source)
    largest = float(np.abs(array.astype(np.float32)).max())
    raise InputRefused(
        f"holds {largest:.6g}, which overflows to infinity in {dtype.name}",
        where=source,
        hint="use bf16 or fp32 for this model",
    )


def cast_tensor(tensor: Tensor, dtype: np.dtype[Any]) -> Tensor:
    """The same tensor in another floating dtype, still lazy; see `checked_cast`."""

    def read() -> Array:
        return checked_cast(tensor.read(), dtype, tensor.source)

    return Tensor(dtype, tensor.shape, tensor.source, read)


def refuse_quantized(decoder: Decoder) -> None:
    """Raise InputRefused when the decoder is quantized already."""
    if decoder.quantization.quant_algo is not None:
        raise InputRefused(
            f"is already quantized ({decoder.quantization.quant_algo})",
            where=decoder.location,
            hint="quantize the original model",
        )


def quantize(decoder: Decoder, precision: Precision) -> Decoder:
    """A decoder in a precision that needs no calibration (fp32, fp16, bf16, int8-wo), its tensors lazy.

    W8A16 keeps floating weights: TensorRT-LLM's loader quantizes them, and the CPU target by the same rule
    (`checkpoint.linear.quantize_weight_only`). Raises InputRefused when the decoder is quantized already, and on
    reading a tensor that is not finite in the new dtype.
    """
    refuse_quantized(decoder)
    if precision.needs_calibration:
        raise ValueError(f"{precision.name} needs calibration")
    dtype = DTYPES[precision.dtype]
    return dataclasses.replace(
        decoder,
        spec=dataclasses.replace(decoder.spec, dtype=precision.dtype),
        tensors={name: cast_tensor(tensor, dtype) for name, tensor in decoder.tensors.items()},
        quantization=Quantization(quant_algo=precision.quant_algo),
        fingerprint=lambda: fingerprint_json([decoder.fingerprint(), precision.name]),
    )
