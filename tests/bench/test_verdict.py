"""The verdict and the comparison of two runs, on whole benchmarks of simulated engines with planted faults."""

from __future__ import annotations

import copy
import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from simulated import make_engine

from trtbuild.bench.benchmark import BenchResult, failure_of, measure_sources
from trtbuild.bench.compare import compare_runs
from trtbuild.bench.quality_session import ScoreCache
from trtbuild.bench.report.text import terminal_report
from trtbuild.bench.settings import Overrides
from trtbuild.profile import Evaluation, Profile, Quality, Workload

PROFILE = Profile(
    name="simulated",
    description="A simulated server.",
    workload=Workload(
        prompt_tokens=(16,), output_tokens=12, concurrency=(1, 8), min_requests=60, min_seconds=0, warmup_requests=16
    ),
    evaluation=Evaluation(windows=60, window_tokens=128, answers=4, answer_tokens=16),
    quality=Quality(max_perplexity_change_pct=2.0),
)


def run(
    folder: Path, changes: dict[str, dict[str, Any]], profile: Profile = PROFILE, cache: Path | None = None
) -> BenchResult:
    """fp32 (slow, the baseline), fp16 (twice as fast), int8 (three times); `changes` plants faults."""
    folder.mkdir(exist_ok=True)
    base = {
        "fp32": {"step": ["smooth", 0.012, 0.0012], "noise": 0.01, "seed": 1},
        "fp16": {"step": ["smooth", 0.006, 0.0006], "noise": 0.01, "seed": 2, "loss": 0.0002},
        "int8": {"step": ["smooth", 0.004, 0.0004], "noise": 0.01, "seed": 3, "loss": 0.005},
    }
    sources = [make_engine(folder, n, tokenizer=True, **{**s, **changes.get(n, {})}) for n, s in base.items()]
    return measure_sources(sources, sources[0], profile, Overrides(), ScoreCache(cache))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> BenchResult:
    return run(tmp_path_factory.mktemp("good"), {})


def test_the_fastest_within_the_budget_is_shipped(good: BenchResult) -> None:
    assert good.verdict.ship == "int8" and failure_of(good.document) is None
    assert "2.00 times" not in good.verdict.sentence and "perplexity" in good.verdict.sentence
    assert set(good.verdict.others) == {"fp32", "fp16"}
    fp32, fp16, int8 = good.document["results"]
    assert fp32["quality"]["perplexity_change_pct"] is None and fp32["quality"]["kl"] is None
    assert 0 < fp16["quality"]["kl"] < int8["quality"]["kl"] < 0.01
    assert fp16["quality"]["top1_pct"] == pytest.approx(100, abs=0.5)
    assert fp16["quality"]["bleu"] == pytest.approx(100)
    line = next(x for x in terminal_report(good.document).splitlines() if x.startswith("quality against fp32"))
    assert "7620 tokens, 60 windows of 128, stride 128, without BOS; 4 questions" in line


def test_the_same_run_repeated_gives_the_same_verdict_and_no_regression(good: BenchResult, tmp_path: Path) -> None:
    again = run(tmp_path / "again", {name: {"seed": 100 + i} for i, name in enumerate(("fp32", "fp16", "int8"))})
    assert again.verdict.ship == good.verdict.ship
    found = compare_runs(good.document, again.document)
    assert found.failure() is None, found.text()
    assert not found.remarks


def test_a_planted_slowdown_of_ten_percent_is_caught(good: BenchResult, tmp_path: Path) -> None:
    slow = run(tmp_path / "slow", {"int8": {"step": ["smooth", 0.0044, 0.00044]}})
    found = compare_runs(good.document, slow.document)
    assert {change.engine for change in found.regressions} == {"int8"}
    assert any(
        c.what.startswith("throughput_tok_s") and c.change_pct == pytest.approx(-9.1, abs=1) for c in found.regressions
    )
    assert found.failure().exit_code == 6 and "int8" in str(found.failure())
    back = compare_runs(slow.document, good.document)
    assert not back.regressions and any(c.verdict == "improvement" for c in back.changes)


def test_a_planted_quality_loss_is_caught_by_verdict_and_comparison(good: BenchResult, tmp_path: Path) -> None:
    worse = run(tmp_path / "worse", {"int8": {"loss": 0.06}})
    assert worse.verdict.ship == "fp16"
    assert worse.verdict.verdict_of("int8") == "fail"
    assert "perplexity" in worse.verdict.others["int8"]
    found = compare_runs(good.document, worse.document)
    assert [change.what for change in found.regressions] == ["perplexity"]


def test_a_small_loss_that_the_budget_allows_is_still_a_regression(good: BenchResult, tmp_path: Path) -> None:
    worse = run(tmp_path / "worse", {"int8": {"loss": 0.012}})
    assert worse.verdict.ship == "int8"
    assert [change.what for change in compare_runs(good.document, worse.document).regressions] == ["perplexity"]


def test_nothing_passes_a_budget_nothing_can_meet(tmp_path: Path) -> None:
    strict = dataclasses.replace(PROFILE, quality=Quality(min_top1_pct=100.0), precisions=("fp32", "int8"))
    result = run(
        tmp_path / "strict", {"fp32": {"fail_every": 10}, "fp16": {"loss": 0.3}, "int8": {"loss": 0.3}}, strict
    )
    assert result.verdict.ship is None and failure_of(result.document).exit_code == 6


def test_scores_are_computed_once_and_cached_by_what_decided_them(tmp_path: Path, monkeypatch: Any) -> None:
    first = run(tmp_path / "a", {}, cache=tmp_path / "cache")
    monkeypatch.setattr("trtbuild.bench.quality_session._score", None)  # would fail if called
    second = run(tmp_path / "a", {}, cache=tmp_path / "cache")
    for before, after in zip(first.document["results"], second.document["results"], strict=True):
        assert before["quality"] == after["quality"]
    with pytest.raises(TypeError):
        run(tmp_path / "b", {"int8": {"loss": 0.5}}, cache=tmp_path / "cache")


def test_runs_that_cannot_be_compared_say_why(good: BenchResult) -> None:
    other = copy.deepcopy(good.document)
    other["machine"]["cpu"] = "another"
    other["quality"]["tokens_scored"] += 1
    other["results"][2]["name"] = "int4"
    found = compare_runs(good.document, other)
    assert len(found.remarks) == 4
    assert not any(change.what == "perplexity" for change in found.changes)
    assert "not distinguishable" in found.text()


def test_quality_is_not_judged_when_told_to_leave_it_out_and_is_open_without_a_baseline(tmp_path: Path) -> None:
    source = make_engine(tmp_path, "int8", tokenizer=True)
    fast = measure_sources([source], None, PROFILE, Overrides(quality=False, repeats=1), ScoreCache(None))
    assert fast.verdict.ship == "int8" and fast.verdict.sentence.endswith("; quality was not looked at.")
    alone = measure_sources([source], None, PROFILE, Overrides(repeats=1), ScoreCache(None))
    assert alone.verdict.ship is None and failure_of(alone.document).exit_code == 6
    assert alone.document["results"][0]["quality"]["perplexity"] > 1
    assert "give one with --baseline" in alone.verdict.others["int8"]
