"""What stays in float: no more than the budget needs, in order of harm per byte."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from trtbuild.quantize.budget import MARGIN, Budget, by_harm, decide
from trtbuild.quantize.score import Score


def _choices(harms: Sequence[float]) -> list[Any]:
    return [SimpleNamespace(harm=harm, weights=100 + i, key=(i, "g")) for i, harm in enumerate(harms)]


def _score(kl: float) -> Score:
    return Score(10 * (1 + kl), 10, kl, 100)


@pytest.mark.parametrize("limit", [0.0, 0.003, 0.02, 0.05, 1.0])
@pytest.mark.parametrize("distortion", [0.5, 1.0, 2.0])
def test_finds_a_number_that_holds_where_one_less_does_not(limit: float, distortion: float) -> None:
    harms = [0.01 / (i + 1) for i in range(12)]
    choices = _choices(harms[::-1])
    tried: list[int] = []

    def evaluate(floats: Sequence[Any]) -> Score:
        tried.append(len(floats))
        lost = sum(choice.harm for choice in choices) - sum(choice.harm for choice in floats)
        return _score(max(lost, 0) ** distortion if lost > 1e-12 else 0.0)

    decision = decide(choices, Budget(None, limit), evaluate)
    assert decision.holds
    assert list(decision.floats) == by_harm(choices)[: len(decision.floats)]
    used = {attempt.floats: attempt.used for attempt in decision.attempts}
    assert used[len(decision.floats)] <= 1
    below = [count for count in used if count < len(decision.floats)]
    assert all(used[count] > 1 for count in below)
    at = {len(decision.floats) - 1} & set(below)
    assert at or used[len(decision.floats)] >= 0.9 or not decision.floats
    assert len(tried) == len(set(tried)) <= 7


def test_says_when_nothing_holds() -> None:
    decision = decide(_choices([1.0, 2.0]), Budget(None, 0.01), lambda floats: _score(0.5 + 0 * len(floats)))
    assert not decision.holds
    assert len(decision.floats) == 2


def test_both_limits_count() -> None:
    budget = Budget(perplexity_change_pct=0.5, kl=0.01)
    assert budget.used(Score(10.05, 10.0, 0.001, 100)) == pytest.approx(1.0)
    assert budget.used(Score(9.0, 10.0, 0.02, 100)) == pytest.approx(2.0 / MARGIN)
    assert Budget(None, None).used(Score(20.0, 10.0, 3.0, 0)) == 0
    assert Budget(0.0, None).used(Score(10.0, 10.0, 0.0, 100)) == 0


def test_a_perplexity_over_its_limit_by_chance_costs_few_groups() -> None:
    """The KL is the same for every number: a measured change of one error above the limit is no reason to leave half
    of the model in float, and the next guess only moves on."""
    choices, tried = _choices([1.0] * 40), []

    def evaluate(floats: Sequence[Any]) -> Score:
        tried.append(len(floats))
        change = 0.0070 if len(floats) < 3 else 0.0045
        return Score(10 * (1 + change), 10, 0.004, 100, perplexity_error_pct=0.25)

    decision = decide(choices, Budget(0.5, 0.01), evaluate)
    assert decision.holds
    assert max(tried) <= 6
