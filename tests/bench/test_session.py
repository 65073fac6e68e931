"""Whole benchmarks on simulated engines, each in a worker process of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from simulated import make_engine as engine

from trtbuild.bench.benchmark import BenchResult, failure_of, measure_sources
from trtbuild.bench.engines import EngineSource
from trtbuild.bench.measurement import LiveStatus
from trtbuild.bench.quality_session import ScoreCache
from trtbuild.bench.remote import EngineDied, EngineProcess, Fleet
from trtbuild.bench.report.text import plain_table, terminal_report
from trtbuild.bench.report.writing import read_bench, write_reports
from trtbuild.bench.settings import Overrides
from trtbuild.errors import InputRefused, UsageError
from trtbuild.profile import Profile, Slo, Workload

WORK = Workload(
    prompts="synthetic",
    prompt_tokens=(8,),
    output_tokens=16,
    concurrency=(1, 8),
    min_requests=40,
    min_seconds=0,
    warmup_requests=16,
)
PROFILE = Profile(name="simulated", description="A simulated server.", workload=WORK)


def bench(
    sources: list[EngineSource], profile: Profile = PROFILE, watcher: Any = None, **overrides: Any
) -> BenchResult:
    return measure_sources(
        sources, None, profile, Overrides(quality=False, **overrides), ScoreCache(None), watcher=watcher
    )


class Watch:
    def __init__(self) -> None:
        self.seen: list[LiveStatus] = []

    def show(self, status: LiveStatus) -> None:
        self.seen.append(status)


def test_two_engines_are_measured_in_turn_and_the_faster_one_is_shipped(tmp_path: Path) -> None:
    watch = Watch()
    sources = [
        engine(tmp_path, "slow", noise=0.02, seed=1),
        engine(tmp_path, "fast", step=["smooth", 0.006, 0.0006], noise=0.02),
    ]
    result = bench(sources, watcher=watch)
    assert result.verdict.ship == "fast" and failure_of(result.document) is None
    slow, fast = result.document["results"]
    assert fast["throughput_tok_s"] / slow["throughput_tok_s"] == pytest.approx(1 / 0.6, rel=0.02)
    assert slow["throughput_tok_s"] == pytest.approx(8 / 0.018, rel=0.02)
    for entry in (slow, fast):
        low, high = entry["intervals"]["throughput_tok_s"]
        assert low < entry["throughput_tok_s"] < high
        assert [len(load["repeats"]) for load in entry["loads"]] == [3, 3]
        assert entry["peak_memory_bytes"] > 1e7
        assert entry["quality"] is None and entry["knee"] is None
    order = [name for i, name in enumerate(s.engine for s in watch.seen) if i == 0 or name != watch.seen[i - 1].engine]
    assert order[:6] == ["slow", "fast"] * 3
    assert {(s.repeat, s.repeats) for s in watch.seen} == {(1, 3), (2, 3), (3, 3)}
    assert "1.67 times better" in result.verdict.others["slow"]


def test_noisy_throughputs_are_measured_until_the_difference_asked_for_can_be_told(tmp_path: Path) -> None:
    workload = dataclasses.replace(WORK, max_repeats=40, resolution_pct=18.0)
    profile = dataclasses.replace(PROFILE, workload=workload)
    sources = [engine(tmp_path, "a", noise=0.8, seed=1), engine(tmp_path, "b", noise=0.8, seed=2)]

    def rounds(result: BenchResult) -> list[list[int]]:
        return [[len(load["repeats"]) for load in entry["loads"]] for entry in result.document["results"]]

    def widest_pct(result: BenchResult) -> float:
        ends = [(e["intervals"]["throughput_tok_s"], e["throughput_tok_s"]) for e in result.document["results"]]
        return max((high - low) / value * 100 for (low, high), value in ends)

    short = bench(sources, profile, repeats=3)
    assert rounds(short) == [[3, 3], [3, 3]] and widest_pct(short) > 12
    on = bench(sources, profile)
    (alone, headline), again = rounds(on)
    assert alone == 3 and 3 < headline < 40 and again == [alone, headline]
    assert widest_pct(on) <= 12


def test_reports_are_written_and_read_back(tmp_path: Path) -> None:
    result = bench([engine(tmp_path, "only", noise=0.01)])
    out = write_reports(result.document, tmp_path / "out 结果")
    document = read_bench(out)
    assert document["schema"] == 1
    for key in ("precision", "target", "engine", "weights_bytes", "kv_bytes_per_token", "kv_pool_tokens"):
        assert document["results"][0][key] is not None
    assert document["results"][0]["ttft_ms"]["p50"] == pytest.approx(18, rel=0.05)
    assert document["results"][0]["ttft_ms"]["p99"] is None  # 120 requests are too few
    assert {f.name for f in out.iterdir()} == {"bench.json", "bench.md", "bench.csv", "report.html", "manifest.json"}
    text = terminal_report(document)
    assert text.splitlines()[0] == f"{document['results'][0]['requests']} requests, none failed"
    assert "can be told apart from about" in text
    assert "Little's law N = X·R holds" in text and "is no bottleneck" in text
    assert plain_table(document).splitlines()[0].split() == (
        ["precision", "latency", "(ms)", "memory", "(GB)", "throughput", "(req/s)"]
    )
    assert all(len(line) <= 100 for line in terminal_report(document).splitlines() if line.startswith("only "))
    write_reports(result.document, out)  # a folder of ours may be replaced
    with pytest.raises(InputRefused):
        read_bench(tmp_path)


def test_errors_are_in_the_first_line_and_above_one_percent_the_run_fails(tmp_path: Path) -> None:
    result = bench([engine(tmp_path, "bad", fail_every=20), engine(tmp_path, "good")])
    first = terminal_report(result.document).splitlines()[0]
    assert "requests failed" in first and result.document["error_pct"] > 1
    failure = failure_of(result.document)
    assert failure is not None and failure.exit_code == 6
    assert result.document["results"][0]["verdict"] == "fail"
    assert result.document["results"][0]["loads"][0]["error_messages"][0].endswith("simulated failure")
    assert result.verdict.ship == "good"


def test_an_engine_that_dies_half_way_is_given_up_and_the_other_is_measured(tmp_path: Path) -> None:
    result = bench([engine(tmp_path, "dying", die_after=1000), engine(tmp_path, "well")])
    dying, well = result.document["results"]
    assert "exit code 9" in dying["error"] and dying["verdict"] == "fail"
    assert dying["loads"][0]["requests"] > 0  # what was measured before is kept
    assert dying["loads"][0]["repeats"][0]["partial"] in (True, False)
    assert well["verdict"] == "pass" and result.verdict.ship == "well"
    assert "dying was given up" in result.document["first_line"]


def test_a_worker_killed_from_outside_is_an_engine_that_died(tmp_path: Path) -> None:
    process = EngineProcess(engine(tmp_path, "victim"))
    try:
        process.open_driver(None)
        process._process.kill()
        with pytest.raises(EngineDied, match="SIGKILL"):
            process.memory()
    finally:
        process.close()


def test_one_single_request_and_no_warmup(tmp_path: Path) -> None:
    result = bench([engine(tmp_path, "one")], concurrency=(1,), requests=1, warmup=0, repeats=1)
    entry = result.document["results"][0]
    assert entry["requests"] == 1 and entry["latency_ms"]["n"] == 1
    assert entry["latency_ms"]["p50"] is None and entry["intervals"]["throughput_tok_s"] is None
    assert entry["loads"][0]["repeats"][0]["warmup"]["stable"] is None
    report = terminal_report(result.document)
    assert "no warm-up was asked for" in report and "max 176" in report


@pytest.mark.parametrize("tokens", [0, 1])
def test_answers_of_no_and_of_one_token_have_no_tpot(tmp_path: Path, tokens: int) -> None:
    result = bench([engine(tmp_path, "short", answer_tokens=tokens)], repeats=2)
    entry = result.document["results"][0]
    assert entry["tpot_ms"] is None and entry["errors"] == 0
    assert (entry["throughput_tok_s"] is None) == (tokens == 0)
    write_reports(result.document, tmp_path / "out")
    row = terminal_report(result.document).splitlines()[6].split()
    assert row[0] == "short" and "–" in row and "0" not in row


def test_an_interrupt_keeps_the_partial_result_and_says_so(tmp_path: Path) -> None:
    class Impatient:
        calls = 0

        def show(self, _: LiveStatus) -> None:
            self.calls += 1
            if self.calls == 3:
                raise KeyboardInterrupt

    result = bench([engine(tmp_path, "long")], watcher=Impatient(), requests=100_000)
    assert result.partial and result.document["partial"]
    assert "partial" in result.document["first_line"]
    assert result.verdict.sentence.startswith("Provisional")
    assert isinstance(failure_of(result.document), KeyboardInterrupt)


def test_the_objective_is_judged_at_its_rate_and_capacity_is_found(tmp_path: Path) -> None:
    work = dataclasses.replace(WORK, find_knee=True, max_concurrency=32, min_requests=500)
    slo = Slo(latency_p99_ms=16 * 22.5, rate_qps=5.0)  # a step of 22.5 ms is 12 in flight
    result = bench([engine(tmp_path, "server")], dataclasses.replace(PROFILE, workload=work, slo=slo))
    entry = result.document["results"][0]
    assert entry["capacity"]["concurrency"] == pytest.approx(12, abs=1)
    assert entry["capacity"]["failed_at"] is not None
    assert 10 <= entry["rate_capacity"]["rate_qps"] <= 20  # 34 a second are answered at 12 in flight
    assert "requests/s meet the objective" in terminal_report(result.document)
    judged = entry["loads"][-1]
    assert judged["kind"] == "open" and judged["slo"]["verdict"] == "pass"
    assert judged["goodput_req_s"] == pytest.approx(5.0, rel=0.1)
    assert entry["knee"]["concurrency"] is None and entry["knee"]["best"] >= 16  # it saturates smoothly


def test_a_rate_above_capacity_is_stopped_and_fails_with_a_reason(tmp_path: Path) -> None:
    work = dataclasses.replace(WORK, min_requests=5000)
    profile = dataclasses.replace(PROFILE, workload=work, slo=Slo(ttft_ms=100.0, rate_qps=200.0))
    result = bench([engine(tmp_path, "small", slots=8)], profile, repeats=1)
    assert "the queue only grows" in result.verdict.others["small"]
    assert failure_of(result.document).exit_code == 6


def test_a_trace_is_replayed_scaled_and_clipped_and_says_so(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = [f"2023-11-16 18:15:{i:02d}.1234567,{10 + i},{5 + i}" for i in range(40)]
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    result = bench([engine(tmp_path, "server")], trace=trace, trace_speed=2.0, trace_requests=30, warmup=0, repeats=1)
    load = result.document["results"][0]["loads"][0]
    assert load["load"] == "replay of trace.csv: 30 of 40 requests, 2 times as fast"
    assert load["requests"] == 30
    assert load["output_tokens"]["mean"] == pytest.approx(5 + 14.5)
    assert load["input_tokens"]["max"] == 39


def test_settings_that_contradict_themselves_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no order"):
        bench([engine(tmp_path, "x")], order="longest")
    with pytest.raises(UsageError, match="no engine"):
        bench([])


def test_engines_that_do_not_fit_together_are_closed_and_opened_again(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("trtbuild.bench.remote.memory", lambda: (1 << 30, 0))
    sources = [engine(tmp_path, "a"), engine(tmp_path, "b")]
    fleet = Fleet(lambda process: contextlib.suppress(process.open_driver(None)))
    try:
        first = fleet.get(sources[0])
        fleet.get(sources[1])
        assert first._process.poll() is not None and list(fleet.peaks) == ["a"]
        assert not fleet.fits(sources)
    finally:
        fleet.close()
    result = bench(sources, repeats=2)
    assert [entry["verdict"] for entry in result.document["results"]] == ["pass", "pass"]
