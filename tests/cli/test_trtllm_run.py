"""`trtbuild run --target trtllm` from a Hugging Face folder to bench.json, against the strict stand-ins."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import write_huggingface
from cli.conftest import Run
from stand_ins import nvidia_machine

PROFILE = """\
name: tiny
description: Every precision trtbuild writes itself, on a machine that only looks like one with a GPU.
precisions: [fp32, fp16, bf16, int8-wo, int8]
calibration: {method: max, samples: 6, seq_len: 32}
limits: {max_batch_size: 4, max_input_len: 64, max_seq_len: 128, max_num_tokens: 256}
workload:
  prompt_tokens: [8]
  output_tokens: 4
  concurrency: [1, 2]
  repeats: 1
  min_requests: 4
  min_seconds: 0
  warmup_requests: 0
evaluation: {windows: 2, window_tokens: 32, answers: 0}
"""


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (1, 2)])
def test_run(trtbuild: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tp: int, pp: int) -> None:
    machine = nvidia_machine(tmp_path / "machine", monkeypatch, gpus=tp * pp, sm=89)
    model = write_huggingface(tmp_path / "model", vocab_size=128, hidden_size=128)
    profile = tmp_path / "tiny.yaml"
    profile.write_text(PROFILE)
    out = tmp_path / "out"
    done = trtbuild(
        *("run", model, "--profile", profile, "--target", "trtllm", "--tp", tp, "--pp", pp, "-o", out, "--json")
    )
    assert done.code == 0, done.err
    results = done.document["results"]
    assert [row["precision"] for row in results] == ["fp32", "fp16", "bf16", "int8-wo", "int8"]
    for row in results:
        assert row["target"] == "trtllm"
        assert row["throughput_tok_s"] > 0 and row["ttft_ms"] is not None
        assert row["kv_bytes_per_token"] > 0
        assert row["quality"] is None, "the logits of these engines are not read"
    assert len(machine.calls("trtllm-build")) == 5
    assert sorted(p.name for p in (out / "checkpoints" / "int8").glob("rank*")) == [
        f"rank{rank}.safetensors" for rank in range(tp * pp)
    ]
    assert (out / "bench" / "report.html").is_file()


def test_what_was_made_for_other_ranks_is_not_reused(
    trtbuild: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = nvidia_machine(tmp_path / "machine", monkeypatch, gpus=2, sm=89)
    model = write_huggingface(tmp_path / "model", vocab_size=128, hidden_size=128)
    profile = tmp_path / "tiny.yaml"
    profile.write_text(PROFILE.replace("[fp32, fp16, bf16, int8-wo, int8]", "[fp32, fp16]"))
    out = tmp_path / "out"

    def run(tp: int) -> list[str]:
        done = trtbuild("run", model, "--profile", profile, "--target", "trtllm", "--tp", tp, "-o", out)
        assert done.code == 0, done.err
        return [line for line in done.err.splitlines() if "made again" in line]

    assert run(1) == []
    assert run(1) == []
    assert len(machine.calls("trtllm-build")) == 2
    assert len(run(2)) == 4, "both checkpoints and both engines"
    assert (out / "checkpoints" / "fp16" / "rank1.safetensors").is_file()
    assert (out / "engines" / "trtllm-fp16" / "rank1.engine").is_file()
    assert len(machine.calls("trtllm-build")) == 4


def test_a_dry_run_tells_what_one_rank_needs(trtbuild: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_machine(tmp_path / "machine", monkeypatch, gpus=2, sm=89)
    model = write_huggingface(tmp_path / "model", vocab_size=128, hidden_size=128)
    weights = {}
    for tp in (1, 2):
        checkpoint = tmp_path / f"tp{tp}"
        assert trtbuild("quantize", model, "-o", checkpoint, "-p", "fp16", "--tp", tp).code == 0
        limits = ("--max-batch-size", 2, "--max-seq-len", 128, "--max-input-len", 64, "--max-num-tokens", 128)
        done = trtbuild("build", checkpoint, "--target", "trtllm", *limits, "--dry-run", "--json")
        assert done.code == 0, done.err
        weights[tp] = done.document["footprint"]["weights_bytes"]
    assert 0.4 < weights[2] / weights[1] < 0.7
