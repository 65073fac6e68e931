"""Rotary embedding frequencies of every rope type, as one table.

Source of the formulas: transformers `modeling_rope_utils.py` (default, linear, dynamic, yarn, longrope, llama3),
against which they are tested. Computed in float64, rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from trtbuild.checkpoint.fields import Fields, is_number
from trtbuild.checkpoint.spec import Array, DecoderSpec
from trtbuild.errors import InputRefused

_Float64 = npt.NDArray[np.float64]
_Formula = Callable[[DecoderSpec, Mapping[str, Any], "int | None"], tuple[_Float64, float]]

_ORIGINAL = "original_max_position_embeddings"


def rotary_dim(spec: DecoderSpec) -> int:
    """How many of the head_size dimensions rotate (the first ones)."""
    return int(spec.head_size * spec.rope.rotary_pct)


def inverse_frequencies(spec: DecoderSpec, max_seq_len: int | None = None) -> tuple[Array, float]:
    """Inverse frequencies F32 [rotary_dim / 2] and the factor that multiplies both cos and sin.

    The angle of pair i at position p is p · inv_freq[i]. `max_seq_len` is the longest sequence the caller will run,
    None for the model's own first choice: longrope switches to its long factors above the original window, and
    dynamic scaling, whose frequencies then change with each token, is refused above it.
    """
    scaling = spec.rope.scaling or {}
    rope_type = scaling.get("rope_type", "default")
    inv_freq, attention_factor = _formula_of(rope_type)(spec, scaling, max_seq_len)
    return inv_freq.astype(np.float32), attention_factor


def _formula_of(rope_type: Any, where: str | None = None) -> _Formula:
    formula = ROPE_TYPES.get(rope_type) if isinstance(rope_type, str) else None
    if formula is None:
        raise InputRefused(
            f"rope type {rope_type!r} is not supported", where=where, hint=f"supported: {', '.join(ROPE_TYPES)}"
        )
    return formula


def _plain(base: float, dim: int) -> _Float64:
    frequencies: _Float64 = np.power(float(base), -(np.arange(0, dim, 2, dtype=np.float64) / dim))
    return frequencies


def _plain_of(spec: DecoderSpec) -> _Float64:
    return _plain(spec.rope.base, rotary_dim(spec))


def _default(spec: DecoderSpec, scaling: Mapping[str, Any], max_seq_len: int | None) -> tuple[_Float64, float]:
    del scaling, max_seq_len
    return _plain_of(spec), 1.0


def _linear(spec: DecoderSpec, scaling: Mapping[str, Any], max_seq_len: int | None) -> tuple[_Float64, float]:
    del max_seq_len
    return _plain_of(spec) / scaling["factor"], 1.0


def _dynamic(spec: DecoderSpec, scaling: Mapping[str, Any], max_seq_len: int | None) -> tuple[_Float64, float]:
    del scaling
    if max_seq_len is not None and max_seq_len > spec.max_position_embeddings:
        raise InputRefused(
            f"dynamic rope scaling cannot reach {max_seq_len} tokens: above the window its frequencies change with "
            "every token",
            hint=f"keep max_seq_len at or below {spec.max_position_embeddings}",
        )
    return _plain_of(spec), 1.0


def llama3_factors(scaling: Mapping[str, Any], base: float, dim: int) -> _Float64:
    """What a llama3 scaling divides each plain frequency by, float64 [dim / 2]."""
    factor, low, high = scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling[_ORIGINAL] * _plain(base, dim) / (2 * math.pi)
    # share of the unscaled frequency: none below `low` turns per original window, all above `high`
    share = np.clip((turns - low) / (high - low), 0.0, 1.0)
    factors: _Float64 = 1 / ((1 - share) / factor + share)
    return factors


def _llama3(spec: DecoderSpec, scaling: Mapping[str, Any], max_seq_len: int | None) -> tuple[_Float64, float]:
    del max_seq_len
    return _plain_of(spec) / llama3_factors(scaling, spec.rope.base, rotary_dim(spec)), 1.0


def _yarn(spec: DecoderSpec, scaling: Mapping[str, Any], max_seq_len: int | None) -> tuple[_Float64, float]:
    del max_seq_len
    dim, plain = rotary_dim(spec), _plain_of(spec)
    original = scaling["original_max_position_embeddings"]
    factor = scaling.get("factor") or spec.max_position_embeddings / original

    def dimension_of(turns: float) -> float:
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(spec.rope.base))

    low = dimension_of(scaling.get("beta_fast") or 32)
    high = dimension_of(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    scaled_share = np.clip((np.arange(dim // 2) - low) / (high - low), 0.0, 1.0)
    return plain / factor * scaled_share + plain * (1 - scaled_share), _yarn_attention_factor(scaling, factor)


def _yarn_attention_factor(scaling: Mapping[str, Any], factor: float) -> float:
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])

    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return mscale(scaling["mscale"]) / mscale(scaling["mscale_all_dim"])
    return mscale(1.0)


def _longrope(spec: DecoderSpec, scaling: Mapping[str, Any], max_seq_len: int | None) -> tuple[_Float64, float]:
    original = scaling["original_max_position_embeddings"]
    long = max_seq_len is not None and max_seq_len > original
    factors = np.asarray(scaling["long_factor" if long else "short_factor"], np.float64)
    attention_factor = scaling.get("attention_factor")
    if attention_factor is None:
        factor = scaling.get("factor") or spec.max_position_embeddings / original
        attention_factor = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return _plain_of(spec) / factors, float(attention_factor)


ROPE_TYPES: dict[str, _Formula] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
"""rope_type → formula. `su` is an older spelling of longrope, normalised when a config is read."""

_SPELLINGS = {"su": "longrope"}

_NUMBERS: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("original_max_position_embeddings",),
    "longrope": ("original_max_position_embeddings",),
}
"""rope_type → settings it cannot do without."""

_OPTIONAL_NUMBERS = ("factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")


def read_scaling(
    raw: Mapping[str, Any], where: str, *, rotary_pairs: int, original_window: int
) -> dict[str, Any] | None:
    """Check a `rope_scaling` or `rope_parameters` dict and return it in one spelling, None when it scales nothing.

    The result names its type `rope_type` and always states the `original_max_position_embeddings` its type needs
    (`original_window` where the dict is silent). Raises InputRefused naming the setting.
    """
    rope_type = raw.get("rope_type", raw.get("type")) or "default"
    rope_type = _SPELLINGS.get(rope_type, rope_type) if isinstance(rope_type, str) else rope_type
    _formula_of(rope_type, where)
    if rope_type == "default":
        return None
    scaling = {k: v for k, v in raw.items() if k not in ("type", "rope_theta", "partial_rotary_factor")}
    scaling["rope_type"] = rope_type
    if _ORIGINAL in _NUMBERS[rope_type] and scaling.get(_ORIGINAL) is None:
        scaling[_ORIGINAL] = original_window
    fields = Fields(scaling, where)
    for name in _NUMBERS[rope_type]:
        fields.number(name)
    for name in _OPTIONAL_NUMBERS:
        if scaling.get(name) is not None:
            fields.number(name)
    if rope_type == "llama3" and scaling["high_freq_factor"] <= scaling["low_freq_factor"]:
        raise fields.refuse("high_freq_factor", "must be greater than low_freq_factor")
    if rope_type == "longrope":
        for name in ("short_factor", "long_factor"):
            _check_factors(fields, name, rotary_pairs)
    return scaling


def _check_factors(fields: Fields, name: str, rotary_pairs: int) -> None:
    values = fields.get(name)
    if not isinstance(values, list) or not all(is_number(v) and v > 0 for v in values):
        raise fields.refuse(name, "must be a list of numbers above zero")
    if len(values) != rotary_pairs:
        raise fields.refuse(name, f"has {len(values)} numbers, the rotary embedding has {rotary_pairs} pairs")
