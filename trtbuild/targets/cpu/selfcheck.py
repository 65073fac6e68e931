"""Before an engine is called built: its logits against the numpy forward of the same checkpoint.

Checked are a prompt in one piece, the same prompt in pieces down to single tokens (decoding with a past), and tokens
that the paged-attention pipeline generates. The KV cache is FP32 here, so that what differs is the graph and the
kernels alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trtbuild.calibrate.forward import logits
from trtbuild.checkpoint.spec import Array, Decoder, DecoderSpec
from trtbuild.errors import TrtbuildError
from trtbuild.targets.base import Limits
from trtbuild.targets.cpu.driver import CpuDriver
from trtbuild.targets.cpu.loading import MODEL_XML
from trtbuild.targets.cpu.scorer import CpuScorer
from trtbuild.targets.serving import Request

TOLERANCE: Mapping[str | None, float] = {
    None: 1e-3,
    "W8A16": 1e-3,
    "W8A8_SQ_PER_CHANNEL": 2e-2,
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN": 2e-2,
}
"""quant_algo → largest relative difference ‖engine − numpy‖ / ‖numpy‖ over the logits of a sequence.

Quantized activations get more: a sum that differs in its last bit may round to the next of 256 levels, and over many
layers a few such steps add up. Wrong arithmetic (saturation, a lost scale) shows as 0.1 and more."""

_LENGTHS = (33, 7)
_GENERATED = 8


@dataclass(frozen=True)
class CheckResult:
    """The largest differences met, relative to the size of the reference."""

    prompt: float
    decode: float
    generation: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return max(self.prompt, self.decode, self.generation) <= self.tolerance


@dataclass(frozen=True)
class Reference:
    """Token sequences and their logits by the numpy forward."""

    spec: DecoderSpec
    sequences: tuple[list[int], ...]
    logits: tuple[Array, ...]
    tolerance: float


def reference(decoder: Decoder, max_seq_len: int) -> Reference:
    """Run the numpy forward over short random sequences, once for all ways to run the engine."""
    rng = np.random.default_rng(0)
    lengths = [min(length, max_seq_len) for length in _LENGTHS]
    sequences = tuple([int(t) for t in rng.integers(0, decoder.spec.vocab_size, length)] for length in lengths)
    plain = _as_checked(decoder, max_seq_len)
    return Reference(
        decoder.spec,
        sequences,
        tuple(logits(plain, ids) for ids in sequences),
        TOLERANCE[decoder.quantization.quant_algo],
    )


def _as_checked(decoder: Decoder, max_seq_len: int) -> Decoder:
    """The decoder with a float KV cache, and the long rope factors from the first token on if the engine has them."""
    spec, scaling = decoder.spec, decoder.spec.rope.scaling or {}
    if "long_factor" in scaling and max_seq_len > scaling["original_max_position_embeddings"]:
        rope = dataclasses.replace(spec.rope, scaling={**scaling, "short_factor": scaling["long_factor"]})
        spec = dataclasses.replace(spec, rope=rope)
    quantization = dataclasses.replace(decoder.quantization, kv_cache_quant_algo=None)
    return dataclasses.replace(decoder, spec=spec, quantization=quantization)


def check_engine(folder: Path, expected: Reference, limits: Limits, properties: Mapping[str, Any]) -> CheckResult:
    """Run the built model of `folder` against the reference; raises nothing for a difference."""
    properties = {**properties, "KV_CACHE_PRECISION": "f32"}
    # The pipeline is gone before the scorer comes, so that the weights are packed in memory once at a time.
    generated = _generate(folder, expected, limits, properties)
    scorer = CpuScorer(folder / MODEL_XML, properties, limits.max_seq_len)
    prompt = _worst(expected, scorer.logits)
    decode = _worst(expected, lambda ids: scorer.logits_in_chunks(ids, range(len(ids) // 2, len(ids))))
    regret = max(_regret(scorer, prompt_ids, answer) for prompt_ids, answer in generated)
    scorer.close()
    return CheckResult(prompt, decode, regret, expected.tolerance)


def _worst(expected: Reference, run: Callable[[list[int]], Array]) -> float:
    return max(
        relative_difference(run(ids), reference)
        for ids, reference in zip(expected.sequences, expected.logits, strict=True)
    )


def relative_difference(values: Array, reference: Array) -> float:
    """‖values − reference‖ / ‖reference‖; infinite when a value is not finite."""
    difference = float(np.linalg.norm(values - reference) / np.linalg.norm(reference))
    return difference if np.isfinite(difference) else float("inf")


def _generate(
    folder: Path, expected: Reference, limits: Limits, properties: Mapping[str, Any]
) -> list[tuple[list[int], list[int]]]:
    """(prompt, greedy tokens) of each sequence, cut where it leaves no room to answer, all in flight together."""
    length = min(limits.max_seq_len, max(_LENGTHS) + _GENERATED)
    small = Limits(len(expected.sequences), length, length, limits.max_num_tokens)
    prompts = [ids[: max(1, small.max_seq_len - _GENERATED)] for ids in expected.sequences]
    driver = CpuDriver(folder, small, properties, (), expected.spec.vocab_size)
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
    """How far below the best logit the paged pipeline's choices lie, relative to the spread of the logits."""
    rows = scorer.logits([*prompt, *answer])[len(prompt) - 1 : -1]
    chosen = rows[np.arange(len(answer)), answer]
    return float(((rows.max(axis=1) - chosen) / rows.std(axis=1)).max())
