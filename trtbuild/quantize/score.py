"""How far a quantized model is from its baseline: perplexity, KL divergence and top-1 agreement, in bounded memory."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trtbuild.calibrate.forward import each_sample, head_blocks
from trtbuild.checkpoint.spec import Array, Decoder

_TOKENS = 128
"""Rows of logits held at once, per thread."""


@dataclass(frozen=True)
class Score:
    """`kl` is the mean KL(baseline ‖ candidate) in nats per token, `top1_pct` where both rank the same token first.

    `perplexity_error_pct` is the standard error of the perplexity's change, from the differences of the tokens' losses.
    On some thousand tokens it is as large as the changes INT8 makes; that of `kl` is far smaller, because every token
    of the vocabulary counts in it and not the one that happened to come next.
    """

    perplexity: float
    baseline_perplexity: float
    kl: float
    top1_pct: float
    perplexity_error_pct: float = 0.0

    @property
    def perplexity_change_pct(self) -> float:
        return 100 * (self.perplexity / self.baseline_perplexity - 1)


def score_entry(score: Score) -> dict[str, float]:
    """A score as `quantization.json` has it."""
    return {
        "perplexity": score.perplexity,
        "baseline_perplexity": score.baseline_perplexity,
        "perplexity_change_pct": score.perplexity_change_pct,
        "perplexity_error_pct": score.perplexity_error_pct,
        "kl": score.kl,
        "top1_pct": score.top1_pct,
    }


def score_line(entry: Mapping[str, float]) -> str:
    """A `score_entry` in half a line."""
    return (
        f"perplexity {entry['perplexity_change_pct']:+.2f} ± {entry['perplexity_error_pct']:.2f} %, "
        f"KL {entry['kl']:.4f}, top-1 {entry['top1_pct']:.1f} %"
    )


@dataclass(frozen=True)
class Scored:
    """Per token of one sample under one model, its logits summed up: log Σ exp, the logit of the token that came next
    (0 for the last token, which has none), and the most likely token."""

    log_mass: Array
    target: Array
    best_id: Array


@dataclass(frozen=True)
class Baseline:
    """The model that candidates are compared with, on some samples: its hidden states F32 [T, hidden] after the final
    norm, its `Scored`, and `mean_head` F32 [T, hidden] = Σ_v p_v · head_v, each by sample.

    With `mean_head` the part of the KL divergence that needs both models' logits, Σ_v p_v (a_v − b_v), is a product of
    `hidden` terms, so that the baseline meets the head once for all candidates.
    """

    samples: tuple[Array, ...]
    states: tuple[Array, ...]
    scored: tuple[Scored, ...]
    mean_head: tuple[Array, ...]


class _Running:
    """What is known of one sample's tokens after some blocks of the head."""

    def __init__(self, state: Array, ids: Array, with_mean: bool) -> None:
        self._state = state
        self._targets = np.append(ids[1:], -1).astype(np.int64)
        self._peak = np.full(len(ids), -np.inf)
        self._mass = np.zeros(len(ids))
        self._target = np.zeros(len(ids))
        self._best_id = np.zeros(len(ids), np.int64)
        self._mean = np.zeros_like(state) if with_mean else None

    def add(self, first: int, block: Array) -> None:
        for start in range(0, len(self._state), _TOKENS):
            self._add_rows(slice(start, min(start + _TOKENS, len(self._state))), first, block)

    def _add_rows(self, rows: slice, first: int, block: Array) -> None:
        logits = self._state[rows] @ block.T
        top = logits.argmax(axis=1)
        value = logits[np.arange(len(logits)), top]
        targets = self._targets[rows]
        here = np.flatnonzero((targets >= first) & (targets < first + len(block)))
        self._target[rows.start + here] = logits[here, targets[here] - first]
        self._best_id[rows] = np.where(value > self._peak[rows], top + first, self._best_id[rows])
        raised = np.maximum(self._peak[rows], value)
        shrink = np.exp(self._peak[rows] - raised)
        logits -= raised[:, None].astype(np.float32)
        weight = np.exp(logits, out=logits)
        self._mass[rows] = self._mass[rows] * shrink + weight.sum(axis=1)
        self._peak[rows] = raised
        if self._mean is not None:
            self._mean[rows] *= shrink[:, None].astype(np.float32)
            self._mean[rows] += weight @ block

    def scored(self) -> Scored:
        return Scored(self._peak + np.log(self._mass), self._target, self._best_id)

    def mean_head(self) -> Array:
        assert self._mean is not None
        return np.asarray(self._mean / self._mass[:, None].astype(np.float32))


def _through_head(
    decoder: Decoder, samples: Sequence[Array], states: Sequence[Array], with_mean: bool, threads: int | None
) -> list[_Running]:
    running = [_Running(state, ids, with_mean) for state, ids in zip(states, samples, strict=True)]
    for first, block in head_blocks(decoder):
        for _ in each_sample(functools.partial(_Running.add, first=first, block=block), running, threads):
            pass
    return running


def baseline_of(
    decoder: Decoder, samples: Sequence[Array], states: Sequence[Array], threads: int | None = None
) -> Baseline:
    """What candidates are scored against: `samples` are token ids, `states` what `decoder` makes of them."""
    running = _through_head(decoder, samples, states, True, threads)
    return Baseline(
        tuple(samples),
        tuple(states),
        tuple(one.scored() for one in running),
        tuple(one.mean_head() for one in running),
    )


def score(decoder: Decoder, baseline: Baseline, states: Sequence[Array], threads: int | None = None) -> Score:
    """Compare hidden states F32 [T, hidden] (after the final norm) of a candidate with those of the baseline, through
    the head of `decoder`.

    Each token but the first of a sample is predicted. Perplexity is over those.
    """
    losses, divergences, agreements = [], [], []
    candidates = _through_head(decoder, baseline.samples, states, False, threads)
    for index, running in enumerate(candidates):
        a, b = baseline.scored[index], running.scored()
        change = baseline.states[index] - states[index]
        shared = np.einsum("th,th->t", baseline.mean_head[index], change)
        losses.append(np.stack([a.log_mass - a.target, b.log_mass - b.target])[:, :-1])
        divergences.append(shared - a.log_mass + b.log_mass)
        agreements.append(a.best_id == b.best_id)
    tokens = np.concatenate(losses, axis=1)
    loss = tokens.mean(axis=1)
    rise = tokens[1] - tokens[0]
    return Score(
        perplexity=float(np.exp(loss[1])),
        baseline_perplexity=float(np.exp(loss[0])),
        kl=float(np.concatenate(divergences).mean()),
        top1_pct=float(100 * np.concatenate(agreements).mean()),
        perplexity_error_pct=float(100 * np.exp(loss[1] - loss[0]) * rise.std() / np.sqrt(max(1, len(rise)))),
    )
