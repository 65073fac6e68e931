"""The shapes an engine is built for: two phases, one KV row per sequence in flight, one optimization profile each.

A sequence keeps its row of the cache from admission to its end; the token at position p lives in slot p of the row.

    context      one sequence, 1 … context_tokens new tokens (chunked context)
    generation   rows 0 … n − 1 together, one new token each
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from trtbuild.checkpoint.spec import DecoderSpec
from trtbuild.targets.base import Limits
from trtbuild.targets.sizes import DTYPE_BYTES

CONTEXT, GENERATION = 0, 1
"""The phases, which are also the indices of their optimization profiles."""

SLOT_MULTIPLE = 32
"""Slots of a row are rounded up to this, so that each row begins on the 256 bytes TensorRT wants of an address."""

LOGITS_ROWS = 256
"""Most positions of one context chunk whose logits may be asked for; bounds the largest output."""

Profile = Mapping[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]
"""Input → least, best and greatest shape."""


@dataclass(frozen=True)
class Geometry:
    """Everything about an engine's tensors that its manifest records and its executor needs."""

    rows: int
    slots: int
    context_tokens: int
    logits_rows: int
    num_layers: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    dtype: str

    @property
    def row_bytes(self) -> int:
        """Bytes of one sequence's row in one of the 2 · num_layers cache tensors."""
        return self.num_kv_heads * self.slots * self.head_size * DTYPE_BYTES[self.dtype]

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_size * DTYPE_BYTES[self.dtype]

    @property
    def cache_names(self) -> list[str]:
        """`{layer}.{kind}` of each cache tensor: `past_key_values.` and `present.` go before it."""
        return [f"{layer}.{kind}" for layer in range(self.num_layers) for kind in ("key", "value")]

    def cache_shape(self, batch: int) -> tuple[int, int, int, int]:
        return batch, self.num_kv_heads, self.slots, self.head_size


def geometry(spec: DecoderSpec, limits: Limits) -> Geometry:
    """The shapes for a decoder within limits; a pool smaller than max_batch_size sequences gives fewer rows."""
    slots = math.ceil(limits.max_seq_len / SLOT_MULTIPLE) * SLOT_MULTIPLE
    context_tokens = min(limits.max_num_tokens, limits.max_input_len)
    return Geometry(
        rows=max(1, min(limits.max_batch_size, limits.pool_tokens // limits.max_seq_len)),
        slots=slots,
        context_tokens=context_tokens,
        logits_rows=min(context_tokens, LOGITS_ROWS),
        num_layers=spec.num_layers,
        num_kv_heads=spec.num_kv_heads,
        head_size=spec.head_size,
        vocab_size=spec.vocab_size,
        dtype=spec.dtype,
    )


def profiles(shape: Geometry) -> tuple[Profile, Profile]:
    """The optimization profiles of the context and the generation phase, in the order of their indices."""
    context = _profile(shape, batch=1, sequence=shape.context_tokens, logits=shape.logits_rows)
    return context, _profile(shape, batch=shape.rows, sequence=1, logits=1)


def _profile(shape: Geometry, *, batch: int, sequence: int, logits: int) -> Profile:
    """From one sequence and one token up to the given numbers, which are also what is optimized for."""
    tokens = ((1, 1), (batch, sequence), (batch, sequence))
    cache = (shape.cache_shape(1), shape.cache_shape(batch), shape.cache_shape(batch))
    return {
        "input_ids": tokens,
        "position_ids": tokens,
        "attention_mask": ((1, 1), (batch, max(sequence, shape.slots // 2)), (batch, shape.slots)),
        "logits_at": ((1,), (1,), (logits,)),
        **{f"past_key_values.{name}": cache for name in shape.cache_names},
    }
