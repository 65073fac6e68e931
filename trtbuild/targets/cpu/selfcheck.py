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
from concurrent.futures import Executor, Future
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

_LENGTHS, _PROMPT = (24, 12), 10
"""Lengths of the sequences, and of the prompt when one comes in pieces (10 + 1 + 1 + 12, 10 + 1 + 1): few different
ones, because kernels are generated for each number of rows."""

_THREADED_BYTES = 1 << 25
"""Layers smaller than this are run on one thread: waking others for a few rows costs more than they give."""

_LEAST_SHARE = 1e-5
"""What a layer adds counts as at least this share of the row it adds to: a dead layer adds nothing."""


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


@dataclass(frozen=True)
class Reference:
    """Token sequences, and of each what the numpy forward says without asking any engine.

    `decoder` is the checkpoint's with a float KV cache and the rope factors of the engine.
    """

    decoder: Decoder
    sequences: list[Array]
    expected: Future[list[Array]]


Compare = Callable[[Reference, Sequence[Sequence[EngineStates]]], tuple[float, ...]]
"""(reference, way to run → sequence → states) → largest difference of each way."""


@dataclass(frozen=True)
class Check:
    """How engines of one kind are compared; `expect` gives the arrays of the reference, one for each sequence."""

    method: str
    expect: Callable[[Decoder, Sequence[Array]], list[Array]]
    compare: Compare


def _in_one_piece(ids: Array) -> range:
    del ids
    return range(0)


def _in_pieces(ids: Array) -> range:
    """Cuts that leave a prompt, feed two tokens one by one, and the rest as a late chunk."""
    prompt = _PROMPT if len(ids) > _PROMPT else len(ids) // 2
    return range(prompt, min(prompt + 3, len(ids)))


def expect_logits(decoder: Decoder, sequences: Sequence[Array]) -> list[Array]:
    return _project(decoder, hidden_states(decoder, sequences))


def compare_logits(reference: Reference, ways: Sequence[Sequence[EngineStates]]) -> tuple[float, ...]:
    """‖engine − numpy‖ / ‖numpy‖ over the logits of each sequence."""
    expected = reference.expected.result()
    return tuple(max(map(relative_difference, (run.logits for run in way), expected)) for way in ways)


def compare_layers(reference: Reference, ways: Sequence[Sequence[EngineStates]]) -> tuple[float, ...]:
    """The worst layer's difference, relative to what the layer adds, each layer on the engine's own input to it.

    Of a layer's rows the median counts, and of the sequences the best: a level rounded the other way moves a few rows
    of one sequence (all rows, when it is the first token's), an error of arithmetic moves all of them. Embedding and
    head are compared as a whole, the head on the engine's last hidden states.
    """
    decoder, embedded = reference.decoder, reference.expected.result()
    tables = [rotary_table(decoder.spec, len(ids)) for ids in reference.sequences]
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
    added = np.maximum(np.linalg.norm(expected - entered, axis=1), _LEAST_SHARE * np.linalg.norm(expected, axis=1))
    rows = np.linalg.norm(left - expected, axis=1) / added
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


_BY_LOGITS = Check("logits", expect_logits, compare_logits)
_BY_LAYERS = Check("layers", embed, compare_layers)
CHECKS: Mapping[str | None, Check] = {
    None: _BY_LOGITS,
    "W8A16": _BY_LOGITS,
    "W8A8_SQ_PER_CHANNEL": _BY_LAYERS,
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN": _BY_LAYERS,
}
"""quant_algo → how its engines are compared."""


def reference(decoder: Decoder, max_seq_len: int, background: Executor) -> Reference:
    """What an engine of this checkpoint will be compared with, computed while the engine is written and run."""
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, decoder.spec.vocab_size, min(length, max_seq_len)) for length in _LENGTHS]
    checked = _as_checked(decoder, max_seq_len)
    expected = background.submit(CHECKS[decoder.quantization.quant_algo].expect, checked, sequences)
    return Reference(checked, sequences, expected)


def check_engine(folder: Path, expected: Reference, properties: Mapping[str, Any]) -> CheckResult:
    """Compare the built model of `folder` with the reference; raises nothing for a difference."""
    ways = _run(folder / MODEL_XML, expected, {**properties, "KV_CACHE_PRECISION": "f32"})
    check = CHECKS[expected.decoder.quantization.quant_algo]
    prompt, decode = check.compare(expected, ways)
    return CheckResult(check.method, prompt, decode)


def _run(model_xml: Path, expected: Reference, properties: Mapping[str, Any]) -> list[list[EngineStates]]:
    """The engine's states for both ways to run each sequence; what a slice computes enters the next one."""
    spec = expected.decoder.spec
    hidden: list[list[list[Array]]] = [[[] for _ in expected.sequences] for _ in range(2)]
    size_bytes = layer_bytes(spec, expected.decoder.quantization)
    if size_bytes < _THREADED_BYTES:
        properties = {**properties, "INFERENCE_NUM_THREADS": "1"}
    bounds = slice_bounds(spec.num_layers, size_bytes)
    for part in each_slice(model_xml, properties, spec.num_layers, bounds):
        for cuts, way in zip((_in_one_piece, _in_pieces), hidden, strict=True):
            for ids, states in zip(expected.sequences, way, strict=True):
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
