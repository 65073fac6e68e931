"""Measuring errors: what INT8 does to the outputs of each linear and each layer, on the samples of a record.

The error of a linear is measured on some rows (tokens) of the record's samples and some of its outputs, as

    Σ_t weight_t · ‖ŷ_t − y_t‖² / reference_t / Σ_t weight_t

where reference_t is ‖y_t‖² for linears that read the residual stream (of q, k and v, or fc and gate, each by itself)
and the square of the residual stream they write to for dense and proj. A token weighs more when others attend to it:
the few that collect most of the attention carry the largest activations of the model, and clipping those destroys it
although they are hardly ever more than one row in a thousand.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trtbuild.calibrate.forward import (
    Layer,
    Rotary,
    apply_linear,
    attend,
    decoder_layer,
    each_sample,
    gated,
)
from trtbuild.calibrate.record import SMOOTHING_GROUPS, MeasuredSample
from trtbuild.checkpoint.linear import Linear
from trtbuild.checkpoint.spec import Array

_ROWS = 512
_ALWAYS = 4
"""How many first tokens, and how many of the most attended, errors are measured on in every sample."""
_TOKENS_FOR_EACH = 64
"""Tokens of a sample for each of those: a short one has fewer, or many short ones would outgrow _ROWS."""


@dataclass(frozen=True)
class Rows:
    """The tokens that errors are measured on, and what each stands for.

    `positions` [R_i] are those of each sample, `index` [R] the same counted through all samples; `weights` F32 [R]
    belong to them, `all_weights` F32 [N] to every token.
    """

    positions: tuple[Array, ...]
    index: Array
    weights: Array
    all_weights: Array


@dataclass(frozen=True)
class Captured:
    """One layer over the measured samples: the inputs F32 [N, in] of each group, all samples one below the other,
    and the hidden states F32 [T, hidden] that leave the layer, by sample."""

    inputs: Mapping[str, Array]
    outputs: tuple[Array, ...]

    def rows_of(self, group: str, rows: Rows) -> Array:
        """Inputs F32 [R, in] of a group on the chosen rows."""
        return np.asarray(self.inputs[group][rows.index])


def choose_rows(samples: Sequence[MeasuredSample]) -> Rows:
    """The first tokens and the most attended of each sample, and every n-th of the others, standing for the rest."""
    total = sum(len(sample.ids) for sample in samples)
    stride = max(1, total // _ROWS)
    positions, weights, all_weights, index = [], [], [], []
    before = 0
    for sample in samples:
        length = len(sample.ids)
        always = np.zeros(length, bool)
        count = max(1, min(_ALWAYS, length // _TOKENS_FOR_EACH))
        always[:count] = True
        always[np.argsort(-sample.received, kind="stable")[:count]] = True
        chosen = always.copy()
        chosen[::stride] = True
        others = int((~always).sum())
        each = others / max(1, int((chosen & ~always).sum()))
        at = np.flatnonzero(chosen)
        read = (1 + sample.received) / 2
        positions.append(at)
        index.append(before + at)
        weights.append(np.where(always[at], 1.0, each) * read[at])
        all_weights.append(read)
        before += length
    return Rows(
        tuple(positions),
        np.concatenate(index),
        np.concatenate(weights).astype(np.float32),
        np.concatenate(all_weights).astype(np.float32),
    )


def _capture_sample(
    index: int, states: Sequence[Array], layer: Layer, tables: Mapping[int, Rotary]
) -> tuple[dict[str, Array], Array]:
    inputs: dict[str, Array] = {}

    def observe(name: str, value: Array) -> None:
        if name in SMOOTHING_GROUPS:
            inputs[name] = value

    x = states[index]
    return inputs, decoder_layer(x, layer, tables[len(x)], observe)


def capture(states: Sequence[Array], layer: Layer, tables: Mapping[int, Rotary], threads: int | None) -> Captured:
    """Run the layer in floating point over the hidden states of the measured samples."""
    work = functools.partial(_capture_sample, states=states, layer=layer, tables=tables)
    parts = list(each_sample(work, range(len(states)), threads))
    inputs = {group: np.concatenate([part[0].pop(group) for part in parts]) for group in SMOOTHING_GROUPS}
    return Captured(inputs, tuple(part[1] for part in parts))


READS_RESIDUAL = ("attention.qkv", "mlp.fc")
"""Groups whose errors are relative to their own outputs; those of the others to the residual stream they write to."""

_LEAST_SHARE = 0.1


def floored(squares: Array) -> Array:
    """Squared sizes to divide errors by: a token with next to no output must not decide alone.

    The floor is a share of the median, because a few tokens may be a thousand times larger than all others.
    """
    floor = max(_LEAST_SHARE * float(np.median(squares)), float(np.finfo(np.float32).tiny))
    return np.asarray(np.maximum(squares, np.float32(floor)))


def token_squares(captured: Captured) -> Array:
    """‖x_t‖² F32 [N] of the hidden states that leave the layer."""
    return np.concatenate([np.square(output).sum(axis=1) for output in captured.outputs])


def harm(
    layer: Layer, quantized: Mapping[str, Linear], captured: Captured, rows: Rows, tables: Mapping[int, Rotary]
) -> float:
    """Error of the layer's output when only one group is quantized, relative to the residual stream.

    `quantized` holds the group's linears as they would run (`forward.dequantized`), by module.
    """
    change = _CHANGES[next(iter(quantized))](layer, quantized, captured, rows, tables)
    reference = floored(token_squares(captured)[rows.index])
    return float(rows.weights @ (np.square(change).sum(axis=1) / reference) / rows.weights.sum())


_Change = Callable[[Layer, Mapping[str, Linear], Captured, Rows, Mapping[int, Rotary]], Array]


def _change_directly(
    layer: Layer, quantized: Mapping[str, Linear], captured: Captured, rows: Rows, tables: Mapping[int, Rotary]
) -> Array:
    """dense and proj write to the residual stream themselves."""
    del tables
    ((module, linear),) = quantized.items()
    x = captured.rows_of(module, rows)
    return np.asarray(apply_linear(x, linear) - apply_linear(x, layer.linears[module]))


def _change_through_proj(
    layer: Layer, quantized: Mapping[str, Linear], captured: Captured, rows: Rows, tables: Mapping[int, Rotary]
) -> Array:
    del tables
    x = captured.rows_of("mlp.fc", rows)
    inner = gated(apply_linear(x, quantized["mlp.fc"]), apply_linear(x, quantized["mlp.gate"]), layer)
    return np.asarray((inner - captured.rows_of("mlp.proj", rows)) @ layer.linears["mlp.proj"].weight.T)


def _change_through_attention(
    layer: Layer, quantized: Mapping[str, Linear], captured: Captured, rows: Rows, tables: Mapping[int, Rotary]
) -> Array:
    linear = quantized["attention.qkv"]
    lengths = [len(output) for output in captured.outputs]
    inputs = np.split(captured.inputs["attention.qkv"], np.cumsum(lengths)[:-1])
    mixed = [
        attend(apply_linear(x, linear), layer, tables[len(x)])[at] for x, at in zip(inputs, rows.positions, strict=True)
    ]
    change = np.concatenate(mixed) - captured.rows_of("attention.dense", rows)
    return np.asarray(change @ layer.linears["attention.dense"].weight.T)


_CHANGES: Mapping[str, _Change] = {
    "attention.qkv": _change_through_attention,
    "attention.dense": _change_directly,
    "mlp.fc": _change_through_proj,
    "mlp.proj": _change_directly,
}
"""Smoothing group → how its error reaches the residual stream, as a change F32 [R, hidden] of the layer's output."""
