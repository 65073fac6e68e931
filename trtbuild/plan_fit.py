"""Whether an engine fits a device, how large its KV pool is there, and else the largest setting that would fit."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

from trtbuild.checkpoint.spec import DecoderSpec, Quantization
from trtbuild.checkpoint.trtllm_sharding import legal_tp
from trtbuild.targets.base import BuildOptions, Footprint, Limits, Target

KV_BLOCK_TOKENS = 32
"""Tokens of a KV block, on every target."""

_SMALLEST_STEP = 256
"""max_num_tokens below which a search does not go: steps get too small to be worth running."""


@dataclass(frozen=True)
class Device:
    """Where an engine would live. `memory_bytes` is what it may use of it; 0 where no such device is known."""

    name: str
    memory_bytes: int
    bandwidth_gb_s: int | None = None
    sm: int | None = None


def _fixed_bytes(need: Footprint) -> int:
    return need.weights_bytes + need.activation_bytes + need.runtime_bytes


def needed_bytes(need: Footprint, limits: Limits) -> int:
    """Least device memory: where the pool takes what is left, room for one sequence of max_seq_len or the pool asked
    for; else exactly the pool."""
    if need.kv_free_fraction is None:
        return _fixed_bytes(need) + limits.pool_tokens * need.kv_bytes_per_token
    tokens = limits.kv_pool_tokens or limits.max_seq_len
    return _fixed_bytes(need) + math.ceil(tokens * need.kv_bytes_per_token / need.kv_free_fraction)


def pool_tokens(need: Footprint, limits: Limits, device: Device) -> int:
    """Tokens the KV pool will hold, in whole blocks."""
    if need.kv_free_fraction is None or not device.memory_bytes:
        return limits.pool_tokens
    free = max(0, device.memory_bytes - _fixed_bytes(need))
    tokens = int(free * need.kv_free_fraction) // need.kv_bytes_per_token
    if limits.kv_pool_tokens is not None:
        tokens = min(tokens, limits.kv_pool_tokens)
    return tokens // KV_BLOCK_TOKENS * KV_BLOCK_TOKENS


def largest_setting(
    spec: DecoderSpec,
    quantization: Quantization,
    limits: Limits,
    options: BuildOptions,
    device: Device,
    target: Target,
) -> str | None:
    """The largest setting that fits, as limits to give: one dial after the other is turned down as far as it must."""

    def fits(trial: Limits) -> bool:
        return needed_bytes(target.footprint(spec, quantization, trial, options), trial) <= device.memory_bytes

    def fits_with(trial: Limits, dial: str, value: int) -> bool:
        return fits(_turned(trial, dial, value))

    given: list[str] = []
    base = limits
    if base.kv_pool_tokens is not None:
        base = dataclasses.replace(base, kv_pool_tokens=base.max_seq_len)
        given.append(f"kv_pool_tokens {base.max_seq_len}")
    for dial, lowest in (("max_batch_size", 1), ("max_num_tokens", _SMALLEST_STEP), ("max_seq_len", KV_BLOCK_TOKENS)):
        start = getattr(base, dial)
        value = _highest(functools.partial(fits_with, base, dial), min(lowest, start), start)
        if value is not None:
            return ", ".join([*given, *([f"{dial} {value}"] if value != start else [])])
        base = _turned(base, dial, min(lowest, start))
        given.append(f"{dial} {getattr(base, dial)}")
    for tp in legal_tp(spec) if target.on_gpu else ():
        if tp <= options.tp:
            continue
        wider = dataclasses.replace(options, tp=tp)
        if needed_bytes(target.footprint(spec, quantization, limits, wider), limits) <= device.memory_bytes:
            return f"tensor parallelism over {tp} of these GPUs (--tp {tp})"
    return None


def _turned(limits: Limits, dial: str, value: int) -> Limits:
    turned = dataclasses.replace(limits, **{dial: value})
    longest = min(turned.max_input_len, max(1, turned.max_seq_len - 1))
    return dataclasses.replace(turned, max_input_len=longest)


def _highest(good: Callable[[int], bool], low: int, high: int) -> int | None:
    """The highest value of [low, high] that is good, None when none is; below a good value all are good."""
    if not good(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if good(middle) else (low, middle - 1)
    return low
