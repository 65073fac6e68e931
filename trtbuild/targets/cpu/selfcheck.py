"""Before an engine is called built: what it computes against the numpy forward of the same checkpoint.

Each check runs a prompt in one piece and again in pieces down to single tokens (decoding with a past), and lets the
paged pipeline generate. The KV cache is FP32 here, so that what differs is the graph and the kernels alone.

Float activations are compared by logits. Quantized ones cannot be: a sum that differs in its last bit now and then
rounds to the next of 256 levels, and thirty layers turn one such step into a difference of ten percent, in the numpy
forward as in any engine. So there each layer of the engine is compared on the very input it had.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trtbuild.calibrate.forward import decoder_layer, embed, logits, read_layer, rotary_table
from trtbuild.checkpoint.spec import Array, Decoder, layer_prefix
from trtbuild.errors import TrtbuildError
from trtbuild.targets.base import Limits
from trtbuild.targets.cpu.driver import CpuDriver
from trtbuild.targets.cpu.loading import MODEL_XML
from trtbuild.targets.cpu.scorer import CpuScorer, StatefulModel, compile_model
from trtbuild.targets.serving import Request

TOLERANCE = 1e-3
"""Largest relative difference of logits or of a layer's output. Wrong arithmetic (saturation, a lost scale, bfloat16
where FP32 was asked) shows as 0.01 and more."""

_LENGTHS = (33, 24)
_GENERATED = 8


@dataclass(frozen=True)
class CheckResult:
    """The largest relative differences met.

    `generation` is how far below the best logit a token chosen by the paged pipeline lies, in standard deviations of
    the row's logits.
    """

    method: str
    prompt: float
    decode: float
    generation: float
    generation_tolerance: float

    @property
    def passed(self) -> bool:
        return max(self.prompt, self.decode) <= TOLERANCE and self.generation <= self.generation_tolerance


Compare = Callable[[Path, Mapping[str, Any], Decoder, Sequence[Sequence[int]]], tuple[float, float]]
"""(model folder, properties, decoder, token sequences) → largest difference of the prompt, and of decoding."""


def _pieces(ids: Sequence[int]) -> range:
    """Cuts that leave half the sequence as a prompt and feed the rest token by token."""
    return range(len(ids) // 2, len(ids))


def compare_logits(
    folder: Path, properties: Mapping[str, Any], decoder: Decoder, sequences: Sequence[Sequence[int]]
) -> tuple[float, float]:
    """‖engine − numpy‖ / ‖numpy‖ over the logits of each sequence."""
    expected = [logits(decoder, ids) for ids in sequences]
    scorer = CpuScorer(folder / MODEL_XML, properties, max(map(len, sequences)))
    pairs = list(zip(sequences, expected, strict=True))
    prompt = max(relative_difference(scorer.logits(ids), reference) for ids, reference in pairs)
    decode = max(relative_difference(scorer.logits_in_chunks(ids, _pieces(ids)), ref) for ids, ref in pairs)
    scorer.close()
    return prompt, decode


def compare_layers(
    folder: Path, properties: Mapping[str, Any], decoder: Decoder, sequences: Sequence[Sequence[int]]
) -> tuple[float, float]:
    """The worst layer's difference, relative to what the layer adds, each layer on the engine's own input to it.

    Of a layer's rows the median counts, and of the sequences the best: a level rounded the other way moves a few rows
    of one sequence (all rows, when it is the first token's), an error of arithmetic moves all of them.
    """
    model = StatefulModel(_compile_with_hidden_states(folder / MODEL_XML, properties, decoder.spec.num_layers))
    ways: list[list[list[Array]]] = [[], []]
    for ids in sequences:
        for way, cuts in zip(ways, (range(0), _pieces(ids)), strict=True):
            way.append(model.run(ids, cuts))
    model.close()
    tables = [rotary_table(decoder.spec, len(ids)) for ids in sequences]
    worst = [0.0, 0.0]
    for index in range(decoder.spec.num_layers):
        layer = read_layer(decoder, index)
        for number, way in enumerate(ways):
            errors = []
            for states, rotary in zip(way, tables, strict=True):
                entered, left = states[1 + index], states[2 + index]
                expected = decoder_layer(entered, layer, rotary)
                errors.append(_median_row(left - expected, expected - entered))
            worst[number] = max(worst[number], min(errors))
    embedded = embed(decoder, [np.asarray(ids) for ids in sequences])
    for number, way in enumerate(ways):
        lost = max(relative_difference(states[1], rows) for states, rows in zip(way, embedded, strict=True))
        worst[number] = max(worst[number], lost)
    return worst[0], worst[1]


def _compile_with_hidden_states(model_xml: Path, properties: Mapping[str, Any], num_layers: int) -> Any:
    """The engine's model with the hidden states before and after each layer as outputs behind the logits."""
    import openvino

    model = openvino.Core().read_model(model_xml)
    nodes = {node.get_friendly_name(): node for node in model.get_ops()}
    first = nodes.get("embedding/Gather/Cast", nodes["embedding/Gather"])
    layers = [nodes[f"{layer_prefix(index)}.mlp/residual"] for index in range(num_layers)]
    model.add_outputs([node.output(0) for node in (first, *layers)])
    return compile_model(model, properties)


def _median_row(difference: Array, size: Array) -> float:
    rows = np.linalg.norm(difference, axis=1) / np.linalg.norm(size, axis=1)
    return float(np.median(rows)) if np.isfinite(rows).all() else float("inf")


def relative_difference(values: Array, reference: Array) -> float:
    """‖values − reference‖ / ‖reference‖; infinite when a value is not finite."""
    difference = float(np.linalg.norm(values - reference) / np.linalg.norm(reference))
    return difference if np.isfinite(difference) else float("inf")


_QUANTIZED_ACTIVATIONS: tuple[str, Compare, float] = ("layers", compare_layers, 0.5)
_FLOAT_ACTIVATIONS: tuple[str, Compare, float] = ("logits", compare_logits, 1e-2)
CHECKS: Mapping[str | None, tuple[str, Compare, float]] = {
    None: _FLOAT_ACTIVATIONS,
    "W8A16": _FLOAT_ACTIVATIONS,
    "W8A8_SQ_PER_CHANNEL": _QUANTIZED_ACTIVATIONS,
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN": _QUANTIZED_ACTIVATIONS,
}
"""quant_algo → name of the comparison, the comparison, tolerance of generation."""


def check_engine(folder: Path, decoder: Decoder, limits: Limits, properties: Mapping[str, Any]) -> CheckResult:
    """Compare the built model of `folder` with the checkpoint it was built from; raises nothing for a difference."""
    rng = np.random.default_rng(0)
    lengths = [min(length, limits.max_seq_len) for length in _LENGTHS]
    sequences = [[int(t) for t in rng.integers(0, decoder.spec.vocab_size, length)] for length in lengths]
    properties = {**properties, "KV_CACHE_PRECISION": "f32"}
    method, compare, generation_tolerance = CHECKS[decoder.quantization.quant_algo]
    # The pipeline is gone before the next model is compiled: the weights are packed in memory once at a time.
    generated = _generate(folder, sequences, limits, properties, decoder.spec.vocab_size)
    scorer = CpuScorer(folder / MODEL_XML, properties, limits.max_seq_len)
    regret = max(_regret(scorer, prompt_ids, answer) for prompt_ids, answer in generated)
    scorer.close()
    prompt, decode = compare(folder, properties, _as_checked(decoder, limits.max_seq_len), sequences)
    return CheckResult(method, prompt, decode, regret, generation_tolerance)


def _as_checked(decoder: Decoder, max_seq_len: int) -> Decoder:
    """The decoder with a float KV cache, and the long rope factors from the first token on if the engine has them."""
    spec, scaling = decoder.spec, decoder.spec.rope.scaling or {}
    if "long_factor" in scaling and max_seq_len > scaling["original_max_position_embeddings"]:
        rope = dataclasses.replace(spec.rope, scaling={**scaling, "short_factor": scaling["long_factor"]})
        spec = dataclasses.replace(spec, rope=rope)
    quantization = dataclasses.replace(decoder.quantization, kv_cache_quant_algo=None)
    return dataclasses.replace(decoder, spec=spec, quantization=quantization)


def _generate(
    folder: Path, sequences: list[list[int]], limits: Limits, properties: Mapping[str, Any], vocab_size: int
) -> list[tuple[list[int], list[int]]]:
    """(prompt, greedy tokens) of each sequence, cut where it leaves no room to answer, all in flight together."""
    length = min(limits.max_seq_len, max(_LENGTHS) + _GENERATED)
    small = Limits(len(sequences), length, length, limits.max_num_tokens)
    prompts = [ids[: max(1, length - _GENERATED)] for ids in sequences]
    driver = CpuDriver(folder, small, properties, vocab_size=vocab_size)
    answers: list[list[int]] = [[] for _ in prompts]
    for number, prompt in enumerate(prompts):
        driver.submit(Request(number, prompt, _GENERATED, ignore_eos=True))
    waiting = set(range(len(prompts)))
    while waiting:
        for event in driver.step(None):
            if event.error is not None:
                raise TrtbuildError(f"the engine refuses to generate: {event.error}")
            answers[event.request_id] += event.token_ids
            if event.finish is not None:
                waiting.discard(event.request_id)
    driver.close()
    return list(zip(prompts, answers, strict=True))


def _regret(scorer: CpuScorer, prompt: list[int], answer: list[int]) -> float:
    rows = scorer.logits([*prompt, *answer])[len(prompt) - 1 : -1]
    chosen = rows[np.arange(len(answer)), answer]
    return float(((rows.max(axis=1) - chosen) / rows.std(axis=1)).max())
