"""Quality: windows, paired differences against direct computation, judgements at and across a limit."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from simulated import make_engine, open_scorer

from trtbuild.bench.lm_eval_model import EngineAnswers
from trtbuild.bench.quality import (
    Budget,
    Scores,
    answer_quality,
    cut_windows,
    judge_quality,
    score_quality,
)
from trtbuild.bench.quality_session import ScoreCache, _pack, _unpack
from trtbuild.bench.scoring import score_window
from trtbuild.bench.workload import engine_tokenizer


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(1, 20), st.data())
def test_every_token_but_the_first_is_scored_once(length: int, window: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, window))
    ids = list(range(length))
    scored = [i for w in cut_windows(ids, window, stride) for i in w.ids[w.first :]]
    if window > 1 and stride < window:
        assert scored == ids[1:]
    else:  # windows that do not overlap cannot give their first token a context
        assert scored == [i for i in ids if i % window]
    assert all(len(w.ids) <= window for w in cut_windows(ids, window, stride))


class TableScorer:
    """Logits that depend on the position only."""

    def __init__(self, logits: np.ndarray) -> None:
        self.table = logits.astype(np.float32)

    def logits(self, ids: list[int]) -> np.ndarray:
        return self.table[: len(ids)]

    def close(self) -> None:
        pass


def test_scores_are_those_of_the_definition(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    base, ours = rng.normal(0, 3, (200, 50)), rng.normal(0, 3, (200, 50))
    ids = rng.integers(0, 50, 200).tolist()
    file = tmp_path / "base.npy"
    theirs = score_window(TableScorer(base), ids, 10, str(file), None)
    mine = score_window(TableScorer(ours), ids, 10, None, str(file))
    assert len(theirs["logp"]) == 190 and "kl" not in theirs
    p, q = (np.exp(x) / np.exp(x).sum(1, keepdims=True) for x in (base.astype(np.float32), ours.astype(np.float32)))
    rows = np.arange(9, 199)
    np.testing.assert_allclose(mine["logp"], np.log(q[rows, ids[10:]]), rtol=1e-6)
    np.testing.assert_allclose(mine["kl"], (p * np.log(p / q)).sum(1)[rows], rtol=1e-5)
    assert mine["top1"] == ours[rows].argmax(1).tolist()
    same = score_window(TableScorer(base), ids, 10, None, str(file))
    assert max(np.abs(same["kl"])) == 0


def make_scores(logp: list[list[float]], top1: list[list[int]], kl: list[list[float]] | None = None) -> Scores:
    scores = Scores()
    for i, values in enumerate(logp):
        scores.add({"logp": values, "top1": top1[i], **({"kl": kl[i]} if kl else {})})
    return scores


def test_perplexity_and_its_paired_change() -> None:
    base = make_scores([[-1.0, -2.0], [-3.0]], [[1, 2], [3]])
    ours = make_scores([[-1.1, -2.2], [-3.0]], [[1, 9], [3]], [[0.1, 0.2], [0.3]])
    found = score_quality(ours, base)
    assert found["perplexity"] == pytest.approx(math.exp(6.3 / 3))
    assert found["perplexity_change_pct"] == pytest.approx(math.expm1(0.1) * 100)
    low, high = found["perplexity_change_pct_interval"]
    assert low <= found["perplexity_change_pct"] <= high
    assert found["top1_pct"] == pytest.approx(200 / 3) and found["kl"] == pytest.approx(0.2)


def test_pairing_sees_a_small_loss_that_unpaired_intervals_would_hide() -> None:
    rng = np.random.default_rng(1)
    hard = rng.normal(-3, 1, 60)  # texts differ far more than precisions do
    base = make_scores([[h] * 50 for h in hard], [[0] * 50] * 60)
    ours = make_scores([[h - 0.01 + rng.normal(0, 0.005)] * 50 for h in hard], [[0] * 50] * 60)
    low, high = score_quality(ours, base)["perplexity_change_pct_interval"]
    assert 0.8 < low < 1.005 < high < 1.2


def test_answers_are_compared_as_text_and_as_ids() -> None:
    base = [[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11], None, list(range(100, 140))]
    ours = [[1, 2, 3, 4, 5, 6], None, [5], [*range(100, 132), 1, 1, 1]]
    found = answer_quality(ours, base, lambda ids: " ".join(f"w{i}" for i in ids))
    assert found["exact_32_pct"] == pytest.approx(200 / 3)
    assert found["answers"] == 3 and found["answers_failed"] == 1 and found["answers_left_out"] == 1
    assert 50 < found["bleu"] < 100 and 50 < found["chrf"] < 100
    same = answer_quality(base, base, lambda ids: " ".join(f"w{i}" for i in ids))
    assert same["bleu"] == pytest.approx(100) and same["exact_32_pct"] == 100


def test_bleu_is_sacrebleus() -> None:
    from sacrebleu import corpus_bleu

    words = [
        "the",
        "cat",
        "sat",
        "on",
        "a",
        "mat",
        "and",
        "saw",
        "two",
        "small",
        "dogs",
        "猫",
        "坐",
        "在",
        "垫子",
        "上",
    ]
    base = [[0, 1, 2, 3, 4, 5, 6, 7], [11, 12, 13, 14, 15], [8, 9, 10, 6, 0, 1]]
    ours = [[0, 1, 2, 3, 0, 5, 6, 7], [11, 12, 13, 14, 15], [8, 9, 10, 6, 4, 1]]

    def decode(ids: list[int]) -> str:
        return " ".join(words[i] for i in ids)

    expected = corpus_bleu([decode(x) for x in ours], [[decode(x) for x in base]], tokenize="zh").score
    assert answer_quality(ours, base, decode)["bleu"] == pytest.approx(expected)


def quality(change: float, low: float, high: float) -> dict[str, object]:
    return {"perplexity_change_pct": change, "perplexity_change_pct_interval": [low, high]}


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        (quality(1, 0.5, 1.9), "pass"),
        (quality(1.9, 1.5, 2.3), "inconclusive"),
        (quality(3, 2.1, 4), "fail"),
        ({}, "inconclusive"),
    ],
)
def test_a_budget_passes_fails_or_stays_open(measured: dict[str, object], verdict: str) -> None:
    (judgement,) = judge_quality(measured, Budget(max_perplexity_change_pct=2.0))
    assert judgement.verdict == verdict and judgement.reason


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        (quality(-0.1, -0.2, -0.05), "pass"),
        (quality(0.03, 0.02, 0.04), "pass"),  # rounding
        (quality(0.3, -0.1, 0.7), "pass"),  # not distinguishable from none
        (quality(0.3, 0.1, 0.5), "fail"),
    ],
)
def test_no_loss_beyond_measurement_error(measured: dict[str, object], verdict: str) -> None:
    (judgement,) = judge_quality(measured, Budget(within_measurement_error=True))
    assert judgement.verdict == verdict


def test_agreement_is_better_when_higher() -> None:
    measured = {"top1_pct": 97.0, "top1_pct_interval": [96.5, 97.5]}
    assert judge_quality(measured, Budget(min_top1_pct=96.0))[0].verdict == "pass"
    assert judge_quality(measured, Budget(min_top1_pct=98.0))[0].verdict == "fail"
    assert judge_quality(measured, Budget(min_top1_pct=97.0))[0].verdict == "inconclusive"


def test_tasks_ask_the_engine_itself(tmp_path: Path) -> None:
    source = make_engine(tmp_path, "engine", tokenizer=True, loss=0.1)
    answering = EngineAnswers(source, engine_tokenizer(source.path))
    encode = answering._tokenizer.encode
    try:
        whole = encode("abc def")
        table = open_scorer(source.path).table.astype(np.float64)
        logp = table - np.log(np.exp(table).sum(1, keepdims=True))

        def total(ids: list[int], first: int) -> float:
            return sum(logp[ids[i - 1], ids[i]] for i in range(first, len(ids)))

        said, greedy = answering.continuation("abc ", "def")
        assert said == pytest.approx(total(whole, 3)) and not greedy
        bos = answering._tokenizer.bos_token_id
        assert answering.continuation("", "abc")[0] == pytest.approx(total([bos, *encode("abc")], 1))
        assert answering.whole_text("abc def") == pytest.approx(total([bos, *whole], 1))
        best = answering._tokenizer.decode([int(table[encode("abc")[-1]].argmax())])
        assert answering.continuation("abc", best)[1] == (encode("abc" + best)[3:] == encode(best))
        text = answering.generate("abc", {"until": ["#"], "max_gen_toks": 9})
        assert text == answering._tokenizer.decode(range(1, 10)).split("#")[0]
    finally:
        answering.close()


def test_answers_survive_the_cache(tmp_path: Path) -> None:
    answers = [[1, 2], None, [], [3]]
    cache = ScoreCache(tmp_path)
    assert cache.load({"a": 1}) is None
    cache.save({"a": 1}, _pack(answers))
    assert _unpack(cache.load({"a": 1})) == answers
    assert cache.load({"a": 2}) is None
    for file in tmp_path.iterdir():
        file.write_bytes(file.read_bytes()[:20])
    assert cache.load({"a": 1}) is None
