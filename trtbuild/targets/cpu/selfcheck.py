"""Before an engine is called built: what it computes against the numpy forward of the same checkpoint.

The engine runs a few sequences in one piece, and again in pieces down to single tokens (decoding with a past). Its
KV cache is FP32 here, so that what differs is the graph and the kernels alone.

Float activations are compared by logits. Quantized ones cannot be: a sum that differs in its last bit now and then
rounds to the next of 256 levels, and thirty layers turn one such step into a difference of ten percent, in the numpy
forward as in any engine. So there each layer of the engine is compared on the very input it had.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trtbuild.calibrate.forward import (
    Layer,
    Rotary,
    decoder_layer,
    each_sample,
    embed,
    head_blocks,
    hidden_states,
    read_layer,
    rms_norm,
    rotary_table,
    single_threaded_blas,
)
from trtbuild.checkpoint.spec import FINAL_NORM, Array, Decoder
from trtbuild.targets.cpu.loading import MODEL_XML
from trtbuild.targets.cpu.slices import each_slice, slice_bounds
from trtbuild.targets.sizes import layer_bytes

TOLERANCE = 1e-3
"""Largest relative difference of logits or of a layer's output. Wrong arithmetic (saturation, a lost scale, bfloat16
where FP32 was asked) shows as 0.01 and more."""

_LENGTHS = (24, 9)


@dataclass(frozen=True)
class CheckResult:
    """The largest relative differences met, of the sequences in one piece and in pieces."""

    method: str
    prompt: float
    decode: float

    @property
    def passed(self) -> bool:
        return max(self.prompt, self.decode) <= TOLERANCE


@dataclass(frozen=True)
class EngineStates:
    """What the engine computed for one sequence: hidden states before and after each layer, and logits."""

    hidden: list[Array]
    logits: Array


Compare = Callable[[Decoder, Sequence[Sequence[int]], Sequence[Sequence[EngineStates]]], tuple[float, ...]]
"""(decoder, sequences, way to run → sequence → states) → largest difference of each way."""


def _in_one_piece(ids: Sequence[int]) -> range:
    del ids
    return range(0)


def _in_pieces(ids: Sequence[int]) -> range:
    """Cuts that leave half the sequence as a prompt, feed two tokens one by one, and the rest as a late chunk."""
    half = len(ids) // 2
    return range(half, min(half + 3, len(ids)))


def compare_logits(
    decoder: Decoder, sequences: Sequence[Sequence[int]], ways: Sequence[Sequence[EngineStates]]
) -> tuple[float, ...]:
    """‖engine − numpy‖ / ‖numpy‖ over the logits of each sequence."""
    states = hidden_states(decoder, [np.asarray(ids) for ids in sequences])
    expected = _project(decoder, states)
    return tuple(
        max(relative_difference(run.logits, rows) for run, rows in zip(way, expected, strict=True)) for way in ways
    )


def compare_layers(
    decoder: Decoder, sequences: Sequence[Sequence[int]], ways: Sequence[Sequence[EngineStates]]
) -> tuple[float, ...]:
    """The worst layer's difference, relative to what the layer adds, each layer on the engine's own input to it.

    Of a layer's rows the median counts, and of the sequences the best: a level rounded the other way moves a few rows
    of one sequence (all rows, when it is the first token's), an error of arithmetic moves all of them. Embedding and
    head are compared as a whole, the head on the engine's last hidden states.
    """
    tables = [rotary_table(decoder.spec, len(ids)) for ids in sequences]
    embedded = embed(decoder, [np.asarray(ids) for ids in sequences])
    worst = [max(map(relative_difference, (run.hidden[0] for run in way), embedded)) for way in ways]
    for index in range(decoder.spec.num_layers):
        error_of = functools.partial(_layer_error, layer=read_layer(decoder, index), index=index)
        for number, way in enumerate(ways):
            errors = list(each_sample(error_of, list(zip(way, tables, strict=True))))
            worst[number] = max(worst[number], min(errors))
    norm, epsilon = np.asarray(decoder.tensors[FINAL_NORM].read(), np.float32), decoder.spec.norm_epsilon
    for number, way in enumerate(ways):
        expected_logits = _project(decoder, [rms_norm(run.hidden[-1], norm, epsilon) for run in way])
        worst[number] = max(worst[number], *(map(relative_difference, (run.logits for run in way), expected_logits)))
    return tuple(worst)


def _layer_error(run: tuple[EngineStates, Rotary], layer: Layer, index: int) -> float:
    """Median over the rows of ‖engine − numpy‖ / ‖what the layer adds‖; infinite when a value is not finite."""
    states, rotary = run
    entered, left = states.hidden[index], states.hidden[index + 1]
    expected = decoder_layer(entered, layer, rotary)
    rows = np.linalg.norm(left - expected, axis=1) / np.linalg.norm(expected - entered, axis=1)
    return float(np.median(rows)) if np.isfinite(rows).all() else float("inf")


def _project(decoder: Decoder, states: Sequence[Array]) -> list[Array]:
    """Logits of hidden states behind the final norm, the head read once for all."""
    logits = [np.empty((len(state), decoder.spec.vocab_size), np.float32) for state in states]
    with single_threaded_blas():
        for start, block in head_blocks(decoder):
            for rows, state in zip(logits, states, strict=True):
                np.matmul(state, block.T, out=rows[:, start : start + len(block)])
    return logits


def relative_difference(values: Array, reference: Array) -> float:
    """‖values − reference‖ / ‖reference‖; infinite when a value is not finite."""
    difference = float(np.linalg.norm(values - reference) / np.linalg.norm(reference))
    return difference if np.isfinite(difference) else float("inf")


CHECKS: Mapping[str | None, tuple[str, Compare]] = {
    None: ("logits", compare_logits),
    "W8A16": ("logits", compare_logits),
    "W8A8_SQ_PER_CHANNEL": ("layers", compare_layers),
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN": ("layers", compare_layers),
}
"""quant_algo → how its engines are compared."""


def check_engine(folder: Path, decoder: Decoder, max_seq_len: int, properties: Mapping[str, Any]) -> CheckResult:
    """Compare the built model of `folder` with the checkpoint it was built from; raises nothing for a difference."""
    rng = np.random.default_rng(0)
    lengths = [min(length, max_seq_len) for length in _LENGTHS]
    sequences = [[int(t) for t in rng.integers(0, decoder.spec.vocab_size, length)] for length in lengths]
    ways = _run(folder / MODEL_XML, decoder, {**properties, "KV_CACHE_PRECISION": "f32"}, sequences)
    method, compare = CHECKS[decoder.quantization.quant_algo]
    prompt, decode = compare(_as_checked(decoder, max_seq_len), sequences, ways)
    return CheckResult(method, prompt, decode)


def _run(
    model_xml: Path, decoder: Decoder, properties: Mapping[str, Any], sequences: Sequence[Sequence[int]]
) -> list[list[EngineStates]]:
    """The engine's states for both ways to run each sequence; what a slice computes enters the next one."""
    spec = decoder.spec
    hidden: list[list[list[Array]]] = [[[] for _ in sequences] for _ in range(2)]
    bounds = slice_bounds(spec.num_layers, layer_bytes(spec, decoder.quantization))
    for part in each_slice(model_xml, properties, spec.num_layers, bounds):
        for cuts, way in zip((_in_one_piece, _in_pieces), hidden, strict=True):
            for ids, states in zip(sequences, way, strict=True):
                states += part.run(ids, states[-1] if states else None, cuts(ids))
    return [[EngineStates(states[:-1], states[-1]) for states in way] for way in hidden]


def _as_checked(decoder: Decoder, max_seq_len: int) -> Decoder:
    """The decoder with a float KV cache, and the long rope factors from the first token on if the engine has them."""
    spec, scaling = decoder.spec, decoder.spec.rope.scaling or {}
    if "long_factor" in scaling and max_seq_len > scaling["original_max_position_embeddings"]:
        rope = dataclasses.replace(spec.rope, scaling={**scaling, "short_factor": scaling["long_factor"]})
        spec = dataclasses.replace(spec, rope=rope)
    quantization = dataclasses.replace(decoder.quantization, kv_cache_quant_algo=None)
    return dataclasses.replace(decoder, spec=spec, quantization=quantization)
