"""What stays in float: groups are returned to float in order of harm per byte until the quality budget holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trtbuild.progress import Progress, silent
from trtbuild.quantize.choose import GroupChoice
from trtbuild.quantize.score import Score, score_entry, score_line

MARGIN = 0.8
"""Share of the KL limit that may be used on the validation split, because other text will differ a little."""
_AIM = 0.95
"""Share of the limits that a prediction aims at."""
_ENOUGH = 0.9
"""A number of floats that uses this share of the limits is not improved on."""
_LEAST_STEP = 0.05
"""Share of the groups that a guess moves on by at least after one that did not hold."""
_MOST_SCORES = 6


@dataclass(frozen=True)
class Budget:
    """What INT8 may cost on the validation split; None does not limit."""

    perplexity_change_pct: float | None
    kl: float | None

    def used(self, score: Score) -> float:
        """The larger share of the two limits that a score uses; at most 1 holds the budget.

        Of the KL only MARGIN of the limit may be used. The perplexity may reach its limit: it is known to within
        `perplexity_error_pct` only, and a margin would be decided by chance.
        """
        return self._used(score, score.perplexity_change_pct)

    def surely_used(self, score: Score) -> float:
        """The same, the perplexity counted without its standard error: what more groups in float can be asked to
        change."""
        return self._used(score, score.perplexity_change_pct - score.perplexity_error_pct)

    def _used(self, score: Score, change_pct: float) -> float:
        shares = [0.0]
        if self.perplexity_change_pct is not None:
            shares.append(_share(change_pct, self.perplexity_change_pct))
        if self.kl is not None:
            shares.append(_share(score.kl, MARGIN * self.kl))
        return max(shares)


def _share(value: float, limit: float) -> float:
    if limit > 0:
        return value / limit
    return 0.0 if value <= 0 else float("inf")


@dataclass(frozen=True)
class Attempt:
    """A number of groups left in float, and how the model then scored."""

    floats: int
    score: Score
    used: float


@dataclass(frozen=True)
class Decision:
    """The groups left in float, most harmful first, and all attempts; `holds` tells whether the budget is met."""

    floats: tuple[GroupChoice, ...]
    attempts: tuple[Attempt, ...]
    holds: bool

    @property
    def score(self) -> Score:
        return next(a.score for a in self.attempts if a.floats == len(self.floats))


def by_harm(choices: Sequence[GroupChoice]) -> list[GroupChoice]:
    """Groups in order of harm per byte, the worst first."""
    return sorted(choices, key=lambda choice: (-choice.harm / choice.weights, choice.key))


def decide(
    choices: Sequence[GroupChoice],
    budget: Budget,
    evaluate: Callable[[Sequence[GroupChoice]], Score],
    *,
    progress: Progress = silent,
) -> Decision:
    """Find how few groups must stay in float. `evaluate` scores the model with the given groups in float.

    The number is searched between one that breaks the budget and one that holds it; the first guesses assume that the
    loss is shared out as the measured harm is, those between two ends that it is a power of it.
    """
    order = by_harm(choices)
    left = [sum(choice.harm for choice in order[count:]) for count in range(len(order) + 1)]
    attempts: list[Attempt] = []
    broken, held, guess = -1, len(order) + 1, 0
    while True:
        score = evaluate(order[:guess])
        attempt = Attempt(guess, score, budget.used(score))
        attempts.append(attempt)
        progress.note(f"{guess} of {len(order)} groups in float: {score_line(score_entry(score))}")
        if attempt.used <= 1:
            held = guess
        else:
            broken = guess
        if held - broken <= 1 or broken == len(order) or _ENOUGH <= attempt.used <= 1:
            break
        if held <= len(order) and len(attempts) >= _MOST_SCORES:
            break
        used = {attempt.floats: attempt.used for attempt in attempts}
        if broken >= 0 and held <= len(order) and used[held] > 0 and 0 < left[held] < left[broken]:
            predicted = _between(used, left, broken, held)
        else:
            predicted = _after(attempt, budget.surely_used(score), left, broken)
        guess = min(max(predicted, broken + 1), held - 1)
    count = min(held, len(order))
    return Decision(tuple(order[:count]), tuple(attempts), held <= len(order))


def _after(last: Attempt, surely_used: float, left: Sequence[float], broken: int) -> int:
    """The fewest floats that hold if the share of the limits used is as the harm left; some more than did not hold."""
    predicted = _fewest(left, left[last.floats] * _AIM / surely_used if surely_used > 0 else left[0])
    if last.floats == broken:
        return max(predicted, broken + math.ceil(_LEAST_STEP * (len(left) - 1)))
    return predicted


def _between(used: Mapping[int, float], left: Sequence[float], broken: int, held: int) -> int:
    """The fewest floats that hold if the share of the limits used is a power of the harm left, through both ends."""
    power = math.log(used[broken] / used[held]) / math.log(left[broken] / left[held])
    return _fewest(left, left[held] * (_AIM / used[held]) ** (1 / power))


def _fewest(left: Sequence[float], allowed: float) -> int:
    """The fewest floats that leave no more harm than allowed."""
    return next((count for count, rest in enumerate(left) if rest <= allowed), len(left) - 1)
