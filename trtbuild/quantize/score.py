"""How far a quantized model is from its baseline: perplexity, KL divergence and top-1 agreement, in bounded memory."""

from __future__ import annotations

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


class _Running:
    """Per token of one sample: log-sum-exp of both models, Σ p·(a − b), the target's logits, the best token."""

    def __init__(self, tokens: int) -> None:
        self.peak = np.full((2, tokens), -np.inf)
        self.mass = np.zeros((2, tokens))
        self.difference = np.zeros(tokens)
        self.target = np.zeros((2, tokens))
        self.best = np.full((2, tokens), -np.inf)
        self.best_id = np.zeros((2, tokens), np.int64)

    def add(self, first: int, logits: tuple[Array, Array], rows: slice, targets: Array) -> None:
        a, b = logits
        raised = np.maximum(self.peak[0, rows], a.max(axis=1))
        shrink = np.exp(self.peak[0, rows] - raised)
        weight = np.exp(a - raised[:, None].astype(np.float32))
        self.difference[rows] = self.difference[rows] * shrink + np.einsum("tv,tv->t", weight, a - b)
        self.mass[0, rows] = self.mass[0, rows] * shrink + weight.sum(axis=1)
        self.peak[0, rows] = raised
        raised = np.maximum(self.peak[1, rows], b.max(axis=1))
        shrink = np.exp(self.peak[1, rows] - raised)
        self.mass[1, rows] = self.mass[1, rows] * shrink + np.exp(b - raised[:, None].astype(np.float32)).sum(axis=1)
        self.peak[1, rows] = raised
        here = np.flatnonzero((targets >= first) & (targets < first + a.shape[1]))
        for which, values in enumerate((a, b)):
            self.target[which, rows.start + here] = values[here, targets[here] - first]
            top = values.argmax(axis=1)
            value = values[np.arange(len(values)), top]
            better = value > self.best[which, rows]
            self.best[which, rows] = np.where(better, value, self.best[which, rows])
            self.best_id[which, rows] = np.where(better, top + first, self.best_id[which, rows])

    def log_mass(self) -> Array:
        return np.asarray(self.peak + np.log(self.mass))


def score(
    decoder: Decoder,
    samples: Sequence[Array],
    baseline: Sequence[Array],
    candidate: Sequence[Array],
    threads: int | None = None,
) -> Score:
    """Compare hidden states F32 [T, hidden] (after the final norm) of two models through the head of `decoder`.

    `samples` are the token ids; each token but the first of a sample is predicted. Perplexity is over those.
    """
    running = [_Running(len(ids)) for ids in samples]
    targets = [np.append(ids[1:], -1).astype(np.int64) for ids in samples]
    for first, block in head_blocks(decoder):

        def add(index: int, first: int = first, block: Array = block) -> None:
            for start in range(0, len(samples[index]), _TOKENS):
                rows = slice(start, min(start + _TOKENS, len(samples[index])))
                logits = (baseline[index][rows] @ block.T, candidate[index][rows] @ block.T)
                running[index].add(first, logits, rows, targets[index][rows])

        for _ in each_sample(add, range(len(samples)), threads):
            pass
    losses, divergences, agreements = [], [], []
    for one in running:
        log_mass = one.log_mass()
        losses.append((log_mass - one.target)[:, :-1])
        divergences.append(one.difference / one.mass[0] - log_mass[0] + log_mass[1])
        agreements.append(one.best_id[0] == one.best_id[1])
    tokens = np.concatenate(losses, axis=1)
    loss = tokens.mean(axis=1)
    change = tokens[1] - tokens[0]
    return Score(
        perplexity=float(np.exp(loss[1])),
        baseline_perplexity=float(np.exp(loss[0])),
        kl=float(np.concatenate(divergences).mean()),
        top1_pct=float(100 * np.concatenate(agreements).mean()),
        perplexity_error_pct=float(100 * np.exp(loss[1] - loss[0]) * change.std() / np.sqrt(max(1, len(change)))),
    )
