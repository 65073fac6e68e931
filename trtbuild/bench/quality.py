"""Quality against the baseline: the same text, windows and questions for every engine, and only paired differences.

Perplexity depends on window, stride, BOS and token count, so all four are part of the result. Intervals are bootstrap
intervals over whole windows (answers), drawn together for both sides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from trtbuild.bench.statistics import Interval, paired_bootstrap

EXACT_TOKENS = 32
"""How many first tokens of an answer must be the same for an exact match."""


@dataclass(frozen=True)
class ScoreWindow:
    """Token ids of which `ids[first:]` are scored, each given all the ids before it."""

    ids: tuple[int, ...]
    first: int


def cut_windows(ids: Sequence[int], window: int, stride: int) -> list[ScoreWindow]:
    """Cut a text into windows of at most `window` tokens, `stride` apart; a later window scores only what the one
    before did not, so no token is scored twice. The first token of a window has no context and is never scored: with
    `stride` below `window` that is the text's first token only.
    """
    if not 1 <= stride <= window:
        raise ValueError(f"stride {stride} must be between 1 and the window {window}")
    cut: list[ScoreWindow] = []
    scored = 1  # nothing precedes the first token
    for start in range(0, max(1, len(ids)), stride):
        part = tuple(int(i) for i in ids[start : start + window])
        first = max(1, scored - start)
        if len(part) > first:
            cut.append(ScoreWindow(part, first))
        scored = max(scored, start + len(part))
        if start + window >= len(ids):
            break
    return cut


@dataclass
class Scores:
    """What an engine said about the windows: one array per window. `kl` is empty for the baseline itself."""

    logp: list[npt.NDArray[np.float64]] = field(default_factory=list)
    top1: list[npt.NDArray[np.int64]] = field(default_factory=list)
    kl: list[npt.NDArray[np.float64]] = field(default_factory=list)

    def add(self, scores: Mapping[str, Any]) -> None:
        self.logp.append(np.asarray(scores["logp"], np.float64))
        self.top1.append(np.asarray(scores["top1"], np.int64))
        if "kl" in scores:
            self.kl.append(np.asarray(scores["kl"], np.float64))

    @property
    def tokens(self) -> int:
        return sum(len(part) for part in self.logp)


Answers = list[list[int] | None]


def perplexity(scores: Scores) -> float:
    """exp of the mean negative log-probability over every scored token."""
    return math.exp(-sum(float(part.sum()) for part in scores.logp) / scores.tokens)


def score_quality(ours: Scores, baseline: Scores) -> dict[str, Any]:
    """Perplexity, its paired change in percent, KL divergence and top-1 agreement, each with a 95 % interval."""
    counts = np.array([len(part) for part in ours.logp], np.float64)
    drop = np.array([float((theirs - mine).sum()) for mine, theirs in zip(ours.logp, baseline.logp, strict=True)])

    def change_pct(rows: npt.NDArray[np.intp]) -> float:
        return float(math.expm1(drop[rows].sum() / counts[rows].sum()) * 100)

    def mean_of(parts: Sequence[npt.NDArray[Any]], scale: float = 1.0) -> Interval:
        sums = np.array([float(part.sum()) for part in parts]) * scale
        return paired_bootstrap(len(sums), lambda rows: float(sums[rows].sum() / counts[rows].sum()))

    same = [mine == theirs for mine, theirs in zip(ours.top1, baseline.top1, strict=True)]
    measured = {
        "perplexity_change_pct": paired_bootstrap(len(counts), change_pct),
        "top1_pct": mean_of(same, 100.0),
        "kl": mean_of(ours.kl) if ours.kl else None,
    }
    return {"perplexity": perplexity(ours), **_with_intervals(measured)}


def answer_quality(ours: Answers, baseline: Answers, decode: Callable[[Sequence[int]], str]) -> dict[str, Any]:
    """BLEU and chrF of greedy answers against the baseline's, and how many begin with the same tokens.

    A question the engine refused or failed counts as an empty, wrong answer; one the baseline could not answer leaves
    both sides and is counted.
    """
    pairs = [(mine or [], theirs) for mine, theirs in zip(ours, baseline, strict=True) if theirs is not None]
    if not pairs:
        return {}
    exact = np.array([mine[:EXACT_TOKENS] == theirs[:EXACT_TOKENS] for mine, theirs in pairs], np.float64) * 100
    texts = [(decode(mine), decode(theirs)) for mine, theirs in pairs]
    measured = {
        "exact_32_pct": paired_bootstrap(len(exact), lambda rows: float(exact[rows].mean())),
        **_overlap([mine for mine, _ in texts], [theirs for _, theirs in texts]),
    }
    failed = sum(mine is None for mine, theirs in zip(ours, baseline, strict=True) if theirs is not None)
    left_out = len(baseline) - len(pairs)
    return {
        **_with_intervals(measured),
        "answers": len(pairs),
        "answers_failed": failed,
        "answers_left_out": left_out,
    }


def _overlap(ours: list[str], baseline: list[str]) -> dict[str, Interval | None]:
    """sacrebleu's BLEU and chrF, in percent; its tokenizer `zh` splits Chinese by character and the rest as `13a`.

    The interval of BLEU resamples answers, adding up each one's n-gram counts.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    bleu = BLEU(tokenize="zh", effective_order=True)
    pairs = [bleu.sentence_score(mine, [theirs]) for mine, theirs in zip(ours, baseline, strict=True)]
    correct, total = np.array([p.counts for p in pairs]), np.array([p.totals for p in pairs])
    lengths = np.array([(p.sys_len, p.ref_len) for p in pairs])

    def corpus(rows: npt.NDArray[np.intp]) -> float:
        sums = (correct[rows].sum(0).tolist(), total[rows].sum(0).tolist(), *map(int, lengths[rows].sum(0)))
        return float(BLEU.compute_bleu(*sums).score)

    chrf = float(CHRF().corpus_score(ours, [baseline]).score)
    return {"bleu": paired_bootstrap(len(pairs), corpus), "chrf": Interval(chrf, None, None)}


def _with_intervals(measured: Mapping[str, Interval | None]) -> dict[str, Any]:
    """`name` and `name_interval` for each; an end that does not exist makes the interval null."""
    flat: dict[str, Any] = {}
    for name, interval in measured.items():
        flat[name] = None if interval is None else interval.value
        ends = None if interval is None or interval.low is None else [interval.low, interval.high]
        flat[f"{name}_interval"] = ends
    return flat


@dataclass(frozen=True)
class Budget:
    """What a precision may lose; None does not limit.

    `within_measurement_error` asks that the interval of the perplexity change reach zero, or the change stay below
    `rounding_pct`, which mere rounding of equal models explains.
    """

    max_perplexity_change_pct: float | None = None
    max_kl: float | None = None
    min_top1_pct: float | None = None
    within_measurement_error: bool = False
    rounding_pct: float = 0.05


@dataclass(frozen=True)
class Judgement:
    """One question with its answer: "pass", "fail" or "inconclusive", and the sentence that says why."""

    question: str
    verdict: str
    reason: str


def judge_quality(quality: Mapping[str, Any], budget: Budget) -> list[Judgement]:
    """Every limit of the budget against the measured interval: above it, below it, or across it (inconclusive)."""
    judgements = []
    limits = (
        ("perplexity", "perplexity_change_pct", budget.max_perplexity_change_pct, 1, "{:+.2f} %"),
        ("KL", "kl", budget.max_kl, 1, "{:.5f} nats"),
        ("top-1", "top1_pct", budget.min_top1_pct, -1, "{:.2f} %"),
    )
    for title, key, limit, sign, form in limits:
        if limit is not None:
            judgements.append(_judge_limit(title, quality, key, limit, sign, form))
    if budget.within_measurement_error:
        judgements.append(_judge_no_loss(quality, budget.rounding_pct))
    return judgements


def _judge_limit(title: str, quality: Mapping[str, Any], key: str, limit: float, sign: int, form: str) -> Judgement:
    value = quality.get(key)
    if value is None:
        return _unmeasured(title, title, quality)
    low, high = quality.get(f"{key}_interval") or (value, value)
    best, worst = (low, high) if sign > 0 else (high, low)
    verdict = "pass" if worst * sign <= limit * sign else "fail" if best * sign > limit * sign else "inconclusive"
    word = "at most" if sign > 0 else "at least"
    spread = f" ({form.format(low)} to {form.format(high)})"
    return Judgement(title, verdict, f"{title} {form.format(value)}{spread}, {word} {form.format(limit)} asked")


def _unmeasured(question: str, what: str, quality: Mapping[str, Any]) -> Judgement:
    why = "" if quality.get("baseline") else ": there is no baseline to compare with, give one with --baseline"
    return Judgement(question, "inconclusive", f"{what} was not measured{why}")


def _judge_no_loss(quality: Mapping[str, Any], rounding_pct: float) -> Judgement:
    value = quality.get("perplexity_change_pct")
    if value is None:
        return _unmeasured("no loss", "perplexity", quality)
    low, _ = quality.get("perplexity_change_pct_interval") or (value, value)
    if value <= rounding_pct:
        return Judgement(
            "no loss", "pass", f"perplexity {value:+.3f} %, which rounding explains (≤ {rounding_pct:g} %)"
        )
    if low <= 0:
        return Judgement("no loss", "pass", f"perplexity {value:+.3f} %, not distinguishable from none")
    return Judgement("no loss", "fail", f"perplexity {value:+.3f} %, a loss beyond measurement error")
