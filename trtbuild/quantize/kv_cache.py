"""Scales of a quantized KV cache, from the ranges of K and V that calibration saw."""

from __future__ import annotations

from collections.abc import Mapping

from trtbuild.calibrate.record import Record
from trtbuild.errors import UsageError

KV_KINDS: Mapping[str, tuple[str, float]] = {"int8": ("INT8", 127.0), "fp8": ("FP8", 448.0)}
"""Name on the command line → kv_cache_quant_algo, and the largest value the type stores."""


def kv_kind(name: str) -> tuple[str, float]:
    """Raises UsageError for a name that is not a KV cache type."""
    if name not in KV_KINDS:
        raise UsageError(f"no KV cache type is called {name!r}", hint=f"types: {', '.join(KV_KINDS)}")
    return KV_KINDS[name]


def kv_ranges(record: Record) -> list[tuple[float, float]]:
    """Largest |K| (after the rotary embedding) and |V| of each layer."""
    layers = [record.layer(index) for index in range(record.info.num_layers)]
    return [(layer.k.amax, layer.v.amax) for layer in layers]


def kv_scales(ranges: list[tuple[float, float]], largest: float) -> list[tuple[float, float]]:
    """Scales of K and V of each layer: range / largest stored value, 1 where the range is zero."""
    return [(k / largest if k else 1.0, v / largest if v else 1.0) for k, v in ranges]
