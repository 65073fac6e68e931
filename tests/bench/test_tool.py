"""Engines that trtllm-bench measures, through `run_bench`: same document, same reports, nulls where nothing is said."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from stand_ins import NvidiaMachine, nvidia_machine
from trtllm_checkpoints import write_trtllm

from trtbuild.bench.benchmark import run_bench
from trtbuild.bench.report.writing import write_reports
from trtbuild.bench.settings import Overrides
from trtbuild.bench.slo import Slo
from trtbuild.bench.tool import bounded_attainment, memory_parts
from trtbuild.profile import load_profile
from trtbuild.progress import silent
from trtbuild.targets.base import BuildOptions, Limits
from trtbuild.targets.measured import ToolLoad, ToolMemory
from trtbuild.targets.registry import load_target

LIMITS = Limits(max_batch_size=8, max_input_len=120, max_seq_len=200, max_num_tokens=256)
OVERRIDES = Overrides(concurrency=(1, 4), synthetic=True, quality=False)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NvidiaMachine:
    return nvidia_machine(tmp_path / "machine", monkeypatch)


def build(folder: Path, precision: str, **changes: str) -> Path:
    checkpoint = write_trtllm(folder / f"from-{precision}", precision, **changes)
    return load_target("trtllm").build(checkpoint, folder / precision, LIMITS, BuildOptions(), silent)


def test_the_document_is_that_of_every_engine(machine: NvidiaMachine, tmp_path: Path) -> None:
    engines = [build(tmp_path, "fp16"), build(tmp_path, "int8")]
    found = run_bench(engines, load_profile("ci"), overrides=OVERRIDES).document
    fp16, int8 = found["results"]
    assert [r["precision"] for r in found["results"]] == ["fp16", "int8"]
    assert [load["load"] for load in fp16["loads"]] == ["closed loop, 1 in flight", "closed loop, 4 in flight"]
    for result in (fp16, int8):
        assert result["target"] == "trtllm"
        assert result["throughput_tok_s"] == result["loads"][1]["throughput_tok_s"] > 0
        assert result["ttft_ms"]["mean"] > 0
        assert result["latency_ms"]["p99"] is None  # too few requests for one
        assert result["kv_pool_tokens"] == LIMITS.pool_tokens
        assert (result["quality"], result["knee"], result["error"]) == (None, None, None)
        assert len(result["curve"]) == 2
    assert int8["weights_bytes"] <= fp16["weights_bytes"]
    assert len(machine.calls("trtllm-bench")) == 4
    json.dumps(found, allow_nan=False)


def test_every_report_can_be_written_of_it(machine: NvidiaMachine, tmp_path: Path) -> None:
    del machine
    result = run_bench([build(tmp_path, "fp16")], load_profile("ci"), overrides=OVERRIDES)
    out = tmp_path / "reports"
    out.mkdir()
    write_reports(result.document, out)
    assert "fp16" in (out / "bench.md").read_text(encoding="utf-8")


def test_an_engine_the_tool_fails_on_is_given_up_and_says_why(machine: NvidiaMachine, tmp_path: Path) -> None:
    engine = build(tmp_path, "fp16")
    machine.fails_with("BENCH", "PRTE ERROR: Bad parameter")
    result = run_bench([engine], load_profile("ci"), overrides=OVERRIDES)
    (entry,) = result.document["results"]
    assert "MPI cannot start" in entry["error"]
    assert entry["throughput_tok_s"] is None
    assert "fp16 was given up" in result.document["first_line"]
    assert result.verdict.ship is None


def load(**summaries: dict[str, float]) -> ToolLoad:
    return ToolLoad(4, 1000, 10.0, 1000, 1000, 100.0, 100.0, **{"ttft_ms": None, "tpot_ms": None, **summaries})


SPREAD = {"min": 1.0, "p50": 5.0, "p90": 8.0, "p95": 9.0, "p99": 10.0, "max": 20.0}


@pytest.mark.parametrize(
    ("slo", "good", "verdict"),
    [
        (Slo(latency_ms=20.0), 1000, "pass"),
        (Slo(latency_ms=15.0), 990, "inconclusive"),  # 990 of 1000 is the share asked for, not beyond doubt
        (Slo(latency_ms=15.0, share=0.95), 990, "pass"),
        (Slo(latency_ms=6.0), 500, "fail"),  # p90 is above: at most 900 of 1000
        (Slo(latency_ms=0.5), 0, "fail"),
    ],
)
def test_an_objective_is_judged_by_what_percentiles_bound(slo: Slo, good: int, verdict: str) -> None:
    found = bounded_attainment(load(latency_ms=SPREAD), slo)
    assert found is not None
    assert (found["good"], found["requests"], found["verdict"]) == (good, 1000, verdict)


def test_misses_of_several_limits_add_up() -> None:
    found = bounded_attainment(load(latency_ms=SPREAD, ttft_ms=SPREAD), Slo(latency_ms=9.0, ttft_ms=8.0, share=0.8))
    assert found is not None
    assert (found["good"], found["verdict"]) == (850, "pass")
    assert bounded_attainment(load(latency_ms=SPREAD), Slo(tpot_ms=5.0)) is None


def test_the_peak_counts_the_pool_that_was_asked_for() -> None:
    memory = ToolMemory(
        weights_bytes=7 << 30,
        pool_bytes=63 << 30,
        pool_tokens=(63 << 30) // 131072,
        kv_bytes_per_token=131072,
        peak_bytes=72 << 30,
    )
    limits = dataclasses.replace(LIMITS, kv_pool_tokens=8192)
    parts = memory_parts(memory, limits)
    assert parts is not None
    assert parts["kv_pool_bytes"] == 8192 * 131072
    assert parts["peak_bytes"] == (72 - 63 + 1) << 30
    assert parts["rest_bytes"] == 2 << 30
    assert parts["measured_peak_bytes"] == 72 << 30
    assert memory_parts(dataclasses.replace(memory, peak_bytes=None), limits) is None
