"""The definition of the model: a decoder in numpy, FP32, one layer at a time.

    x = embedding[ids]                                                     [T, hidden]
    for each layer:
        a = rms_norm(x, input_layernorm)
        q, k, v = split(a · Wqkvᵀ + b)                                     [heads | kv_heads | kv_heads, head_size]
        q, k = rms_norm over head_size, where the family has QK-norm;  then rotary embedding
        x = x + attention(q, k, v) · Wdenseᵀ + b                           causal, within the sliding window
        m = rms_norm(x, post_layernorm)
        x = x + (silu(m · Wfcᵀ + b) * (m · Wgateᵀ + b)) · Wprojᵀ + b
    logits = rms_norm(x, ln_f) · headᵀ                                     [T, vocab]

It calibrates, and it is the oracle of every engine, so quantized linears and KV caches are computed by their meaning
(`checkpoint/linear.py`) in floating point. Results are the same to the bit for any batch, order and thread count: a
task is one sample, and BLAS runs single-threaded inside it (`each_sample`).
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import ml_dtypes
import numpy as np

from trtbuild.checkpoint.linear import Linear, read_linear
from trtbuild.checkpoint.rope import inverse_frequencies
from trtbuild.checkpoint.spec import (
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    LINEAR_MODULES,
    Array,
    Decoder,
    DecoderSpec,
    layer_prefix,
)
from trtbuild.errors import InputRefused

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

Observe = Callable[[str, Array], None]
"""Called with the input of every linear under its module's name ("mlp.fc" stands for fc and gate), and with
"attention.k" and "attention.v" [T, kv_heads, head_size] as the KV cache would hold them."""

_QUERY_BLOCK = 64
"""Rows of attention scores held at once; fixed, because the shape of a matmul decides its rounding."""
_FP8_MAX = 448.0
"""Largest finite value of float8 e4m3fn."""
_HEAD_BLOCK = 16384
"""Rows of the head turned into FP32 at once."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Layer:
    """One decoder layer in memory: linears dequantized to FP32, norms FP32."""

    spec: DecoderSpec
    window: int | None
    input_norm: Array
    post_norm: Array
    q_norm: Array | None
    k_norm: Array | None
    linears: Mapping[str, Linear]
    kv_cache: KvCache | None = None


@dataclass(frozen=True)
class KvCache:
    """A quantized KV cache: `kind` is INT8 or FP8, `scale` multiplies the stored value."""

    kind: str
    scale: float


@dataclass(frozen=True)
class Rotary:
    """Cosines and sines F32 [T, rotary_dim / 2], times the attention factor of the rope type."""

    cos: Array
    sin: Array


def dequantized(linear: Linear) -> Linear:
    """The same linear with its weight in FP32; what it does to its input is unchanged."""
    weight = np.asarray(linear.weight, np.float32)
    if linear.weight_scale is not None:
        weight = weight * linear.weight_scale[:, None]
    prequant = None if linear.prequant_scale is None else np.asarray(linear.prequant_scale, np.float32)
    bias = None if linear.bias is None else np.asarray(linear.bias, np.float32)
    return replace(linear, weight=weight, bias=bias, weight_scale=None, prequant_scale=prequant)


def _read_f32(decoder: Decoder, name: str) -> Array:
    return np.asarray(decoder.tensors[name].read(), np.float32)


def _read_kv_cache(decoder: Decoder, prefix: str) -> KvCache | None:
    kind = decoder.quantization.kv_cache_quant_algo
    scale = decoder.tensors.get(f"{prefix}.attention.kv_cache_scaling_factor")
    if kind is None or scale is None:
        return None
    if kind not in KV_ROUNDING:
        raise InputRefused(f"KV cache of type {kind} cannot be run outside a GPU engine", where=decoder.location)
    return KvCache(kind, float(scale.read().reshape(())))


def read_layer(decoder: Decoder, index: int) -> Layer:
    """Read layer `index` into FP32 memory, whatever its quantization.

    Raises InputRefused for a quantization or an activation function that has no meaning here.
    """
    spec, prefix = decoder.spec, layer_prefix(index)
    if spec.hidden_act not in ACTIVATIONS:
        raise InputRefused(
            f"activation {spec.hidden_act!r} is not known",
            where=decoder.location,
            hint=f"known: {', '.join(ACTIVATIONS)}",
        )
    return Layer(
        spec=spec,
        window=spec.window_of(index),
        input_norm=_read_f32(decoder, f"{prefix}.input_layernorm.weight"),
        post_norm=_read_f32(decoder, f"{prefix}.post_layernorm.weight"),
        q_norm=_read_f32(decoder, f"{prefix}.attention.q_layernorm.weight") if spec.qk_norm else None,
        k_norm=_read_f32(decoder, f"{prefix}.attention.k_layernorm.weight") if spec.qk_norm else None,
        linears={module: dequantized(read_linear(decoder, index, module)) for module in LINEAR_MODULES},
        kv_cache=_read_kv_cache(decoder, prefix),
    )


def rotary_table(spec: DecoderSpec, length: int) -> Rotary:
    """Cosines and sines of positions 0 … length − 1."""
    inverse, factor = inverse_frequencies(spec, length)
    angles = np.arange(length, dtype=np.float32)[:, None] * inverse[None, :]
    return Rotary(np.cos(angles) * np.float32(factor), np.sin(angles) * np.float32(factor))


def rms_norm(x: Array, weight: Array, epsilon: float) -> Array:
    """x / sqrt(mean(x²) + ε) · weight over the last axis; ε is inside the root."""
    mean_square = np.mean(np.square(x), axis=-1, keepdims=True)
    normed: Array = x * (1 / np.sqrt(mean_square + np.float32(epsilon)))
    normed *= weight
    return normed


def fake_quantize(x: Array, scale: Array | float) -> Array:
    """What INT8 keeps of x: clip(rint(x / scale), −128, 127) · scale."""
    x = x / np.float32(scale) if isinstance(scale, float) else x / scale
    np.rint(x, out=x)
    np.clip(x, -128, 127, out=x)
    x *= np.float32(scale) if isinstance(scale, float) else scale
    return x


def token_scales(x: Array) -> Array:
    """Dynamic scales F32 [T, 1] of int8-pt: max|x| / 127 of each token, 1 where the token is zero."""
    scales = np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)
    return np.where(scales == 0, np.float32(1), scales)


def apply_linear(x: Array, linear: Linear) -> Array:
    """x [T, in] → [T, out] by the meaning of checkpoint/linear.py; `linear` must be `dequantized`."""
    if linear.prequant_scale is not None:
        x = x * linear.prequant_scale
    if linear.per_token:
        x = fake_quantize(x, token_scales(x))
    elif linear.activation_scale is not None:
        x = fake_quantize(x, linear.activation_scale)
    y: Array = x @ linear.weight.T
    if linear.bias is not None:
        y += linear.bias
    return y


def rotate(x: Array, rotary: Rotary) -> Array:
    """Rotary embedding of x [T, heads, head_size]: dimension i turns with dimension i + rotary_dim/2."""
    half = rotary.cos.shape[1]
    cos, sin = rotary.cos[:, None, :], rotary.sin[:, None, :]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)


def _int8_cache(x: Array, scale: float) -> Array:
    return fake_quantize(x, scale)


def _fp8_cache(x: Array, scale: float) -> Array:
    stored = np.clip(x / np.float32(scale), -_FP8_MAX, _FP8_MAX).astype(ml_dtypes.float8_e4m3fn)
    return stored.astype(np.float32) * np.float32(scale)


KV_ROUNDING: Mapping[str, Callable[[Array, float], Array]] = {"INT8": _int8_cache, "FP8": _fp8_cache}
"""kv_cache_quant_algo → what the cache keeps of K and V."""


def _silu(x: Array) -> Array:
    denominator = np.negative(x)
    with np.errstate(over="ignore"):  # exp(−x) = inf gives the right limit, 0
        np.exp(denominator, out=denominator)
    denominator += 1
    return np.divide(x, denominator, out=denominator)


ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {"silu": _silu}
"""hidden_act → function."""


def attention(q: Array, k: Array, v: Array, window: int | None, received: Array | None = None) -> Array:
    """Causal grouped-query attention: q [T, heads, d], k and v [T, kv_heads, d] → [T, heads · d].

    Query t sees keys t − window + 1 … t. Scores of one KV head and `_QUERY_BLOCK` queries are held at a time.
    To `received` F32 [T], where given, the attention each token gets from all queries and heads is added.
    """
    length, heads, size = q.shape
    kv_heads = k.shape[1]
    group = heads // kv_heads
    out = np.empty((length, heads, size), np.float32)
    root = np.float32(1 / np.sqrt(size))
    for start in range(0, length, _QUERY_BLOCK):
        stop = min(start + _QUERY_BLOCK, length)
        first = 0 if window is None else max(0, start - window + 1)
        masked = start if window is None else first  # without a window, every query sees all keys before its block
        distance = np.arange(start, stop)[:, None] - np.arange(masked, stop)[None, :]
        hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
        for head in range(kv_heads):
            own = slice(head * group, (head + 1) * group)
            queries = np.ascontiguousarray(q[start:stop, own].transpose(1, 0, 2)).reshape(-1, size)
            queries *= root
            scores = (queries @ k[first:stop, head].T).reshape(group, stop - start, stop - first)
            np.copyto(scores[:, :, masked - first :], -np.inf, where=hidden)
            scores -= scores.max(axis=-1, keepdims=True)
            np.exp(scores, out=scores)
            total = scores.sum(axis=-1, keepdims=True)
            if received is not None:
                received[first:stop] += (scores / total).sum(axis=(0, 1))
            mixed = (scores.reshape(-1, stop - first) @ v[first:stop, head]).reshape(group, stop - start, size)
            out[start:stop, own] = (mixed / total).transpose(1, 0, 2)
    return out.reshape(length, heads * size)


def attend(
    qkv: Array, layer: Layer, rotary: Rotary, observe: Observe | None = None, received: Array | None = None
) -> Array:
    """Output of the qkv linear [T, q_rows + 2 kv_rows] → input of the dense linear [T, q_rows]."""
    spec, length = layer.spec, len(qkv)
    q, k, v = np.split(qkv, [spec.q_rows, spec.q_rows + spec.kv_rows], axis=1)
    q = q.reshape(length, spec.num_heads, spec.head_size)
    k = k.reshape(length, spec.num_kv_heads, spec.head_size)
    v = v.reshape(length, spec.num_kv_heads, spec.head_size)
    if layer.q_norm is not None and layer.k_norm is not None:
        q = rms_norm(q, layer.q_norm, spec.norm_epsilon)
        k = rms_norm(k, layer.k_norm, spec.norm_epsilon)
    q, k = rotate(q, rotary), rotate(k, rotary)
    if observe is not None:
        observe("attention.k", k)
        observe("attention.v", v)
    if layer.kv_cache is not None:
        store = KV_ROUNDING[layer.kv_cache.kind]
        k, v = store(k, layer.kv_cache.scale), store(v, layer.kv_cache.scale)
    return attention(q, k, v, layer.window, received)


def gated(fc: Array, gate: Array, layer: Layer) -> Array:
    """Outputs of fc and gate [T, intermediate] → input of the proj linear."""
    inner = ACTIVATIONS[layer.spec.hidden_act](fc)
    inner *= gate
    return inner


def decoder_layer(
    x: Array, layer: Layer, rotary: Rotary, observe: Observe | None = None, received: Array | None = None
) -> Array:
    """One layer over one sample: hidden states F32 [T, hidden] → [T, hidden]."""
    epsilon, linears = layer.spec.norm_epsilon, layer.linears

    def linear(name: str, value: Array) -> Array:
        return apply_linear(value, linears[name])

    def seen(name: str, value: Array) -> Array:
        if observe is not None:
            observe(name, value)
        return value

    a = seen("attention.qkv", rms_norm(x, layer.input_norm, epsilon))
    mixed = seen("attention.dense", attend(linear("attention.qkv", a), layer, rotary, observe, received))
    x = x + linear("attention.dense", mixed)
    m = seen("mlp.fc", rms_norm(x, layer.post_norm, epsilon))
    inner = seen("mlp.proj", gated(linear("mlp.fc", m), linear("mlp.gate", m), layer))
    return x + linear("mlp.proj", inner)


@functools.cache
def find_blas() -> ThreadpoolController:
    """The thread pools of the loaded BLAS.

    Looked for once, and not while another thread imports: the search holds the loader's lock and wants the
    interpreter's, an import of a compiled module the other way round.
    """
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextlib.contextmanager
def single_threaded_blas() -> Iterator[None]:
    """BLAS splits a matmul differently for each thread count, which changes its rounding: one thread per task."""
    with find_blas().limit(limits=1, user_api="blas"):
        yield


def each_sample(function: Callable[[T], R], items: Sequence[T], threads: int | None = None) -> Iterator[R]:
    """Results of `function` over `items` in their order, computed by `threads` (all cores) threads.

    At most two tasks per thread are in flight, so that memory does not grow with the number of items.
    """
    workers = threads or available_cores()
    with single_threaded_blas(), ThreadPoolExecutor(workers) as pool:
        waiting = []
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) >= 2 * workers:
                    yield waiting.pop(0).result()
            while waiting:
                yield waiting.pop(0).result()
        finally:
            for future in waiting:
                future.cancel()


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_ids(spec: DecoderSpec, ids: Sequence[int] | Array) -> Array:
    """Token ids as int64 [T]; raises InputRefused when there are none or one is outside the vocabulary."""
    array = np.asarray(ids, np.int64)
    if array.ndim != 1 or array.size == 0:
        raise InputRefused(f"token ids must be one non-empty row, not shape {list(array.shape)}")
    if array.min() < 0 or array.max() >= spec.vocab_size:
        worst = int(array.max()) if array.max() >= spec.vocab_size else int(array.min())
        raise InputRefused(
            f"token id {worst} is outside the vocabulary of {spec.vocab_size}",
            hint="the tokenizer does not belong to this model",
        )
    return array


def embed(decoder: Decoder, samples: Sequence[Array]) -> list[Array]:
    """Hidden states F32 [T, hidden] that enter the first layer."""
    table = decoder.tensors[EMBEDDING].read()
    return [np.asarray(table[check_ids(decoder.spec, ids)], np.float32) for ids in samples]


def _step(x: Array, layer: Layer, tables: Mapping[int, Rotary]) -> Array:
    return decoder_layer(x, layer, tables[len(x)])


def hidden_states(decoder: Decoder, samples: Sequence[Array], threads: int | None = None) -> list[Array]:
    """Hidden states F32 [T, hidden] after the final norm, of each sample; layers are read one at a time."""
    spec = decoder.spec
    states = embed(decoder, samples)
    tables = {length: rotary_table(spec, length) for length in {len(state) for state in states}}
    for index in range(spec.num_layers):
        layer = read_layer(decoder, index)
        states = list(each_sample(functools.partial(_step, layer=layer, tables=tables), states, threads))
    norm = _read_f32(decoder, FINAL_NORM)
    return [rms_norm(state, norm, spec.norm_epsilon) for state in states]


def head_blocks(decoder: Decoder) -> Iterator[tuple[int, Array]]:
    """The head in blocks: (first row, F32 [rows, hidden])."""
    head = decoder.tensors[HEAD].read()
    for start in range(0, decoder.spec.vocab_size, _HEAD_BLOCK):
        yield start, np.asarray(head[start : start + _HEAD_BLOCK], np.float32)


def logits(decoder: Decoder, ids: Sequence[int] | Array) -> Array:
    """Next-token logits F32 [T, vocab] of one sample."""
    (state,) = hidden_states(decoder, [check_ids(decoder.spec, ids)])
    out = np.empty((len(state), decoder.spec.vocab_size), np.float32)
    with single_threaded_blas():
        for start, block in head_blocks(decoder):
            out[:, start : start + len(block)] = state @ block.T
    return out
