"""The whole flow on a tiny model through the command line: run, reuse, JSON and quiet output, exit codes."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from builders import write_huggingface
from cli.conftest import Done, Run

from trtbuild import machine, pipeline

PROFILE = """\
name: tiny
description: As little as can be measured.
precisions: [fp32, fp16, int8-wo, int8]
calibration: {method: max, samples: 6, seq_len: 32}
limits: {max_batch_size: 4, max_input_len: 64, max_seq_len: 128, max_num_tokens: 128}
quality: {max_perplexity_change_pct: 50.0}
workload:
  prompt_tokens: [8]
  output_tokens: 4
  concurrency: [2]
  repeats: 1
  min_requests: 4
  min_seconds: 0
  max_seconds: 10
  warmup_requests: 0
evaluation: {windows: 2, window_tokens: 32, answers: 2, answer_tokens: 4}
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_huggingface(tmp_path / "model", vocab_size=96)
    (tmp_path / "tiny.yaml").write_text(PROFILE)
    return tmp_path


def notes(done: Done) -> list[str]:
    return [line.removeprefix("· ") for line in done.err.splitlines()]


def test_run_makes_everything_once(trtbuild: Run, place: Path) -> None:
    arguments = ("run", place / "model", "--profile", place / "tiny.yaml", "--target", "cpu", "-o", place / "out")
    done = trtbuild(*arguments, "--json")
    assert done.code == 0, done.err
    document = done.document
    assert document["schema"] == 1
    assert [row["precision"] for row in document["results"]] == ["fp32", "fp16", "int8-wo", "int8"]
    for row in document["results"]:
        assert row["target"] == "cpu"
        assert row["weights_bytes"] > 0 and row["kv_bytes_per_token"] > 0 and row["kv_pool_tokens"] >= 128
        assert row["throughput_tok_s"] > 0
        assert row["latency_ms"]["p99"] is None, "four requests have no 99th percentile"
        assert row["verdict"] in ("pass", "fail", "inconclusive")
    baseline, fp16 = document["results"][:2]
    assert baseline["quality"]["perplexity_change_pct"] in (0, None)
    assert abs(fp16["quality"]["perplexity_change_pct"]) < 1
    bench = place / "out" / "bench"
    for name in ("bench.json", "bench.md", "bench.csv", "report.html", "manifest.json"):
        assert (bench / name).stat().st_size > 0
    assert json.loads((bench / "bench.json").read_text())["results"] == document["results"]

    again = trtbuild(*arguments, "-q")
    assert again.code == 0
    assert again.out.strip() == str(bench)

    shutil.rmtree(place / "out" / "engines" / "cpu-fp16")
    third = trtbuild(*arguments)
    reused = [line for line in notes(third) if line.endswith(": reused")]
    assert len(reused) == 1 + 4 + 3, "the record, the checkpoints, and the engines that were still there"
    assert "engine cpu fp16" in notes(third)
    assert "int8-wo" in third.out and max(map(len, third.out.splitlines())) < 140


def test_what_does_not_fit_is_left_out_of_a_run(trtbuild: Run, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = (place / "model", "--profile", place / "tiny.yaml", "--target", "cpu")
    needed = {row["precision"]: row["needed_bytes"] for row in trtbuild("plan", *arguments, "--json").document["rows"]}

    def room(memory_bytes: int) -> None:
        small = dataclasses.replace(machine.this_machine(), available_bytes=memory_bytes)
        monkeypatch.setattr(pipeline, "this_machine", lambda: small)

    room(needed["fp32"] - 1)
    done = trtbuild("run", *arguments, "-o", place / "out", "--json")
    assert done.code == 0, done.err
    results = done.document["results"]
    assert [row["precision"] for row in results] == ["fp16", "int8-wo", "int8"]
    assert done.document["quality"]["baseline"] == "fp16" and results[2]["quality"]["kl"] > 0
    assert any(note.startswith("fp32 is left out: fp32 on cpu needs ") for note in notes(done))
    assert "quality is compared with fp16, because fp32 is left out" in notes(done)
    room(min(needed.values()) - 1)
    done = trtbuild("run", *arguments, "-o", place / "none")
    assert done.code == 5 and "needs" in done.err
    assert not any((place / "none").iterdir())


def test_engines_that_differ_in_their_kv_cache_only_share_no_scores(trtbuild: Run, place: Path) -> None:
    checkpoint, engines = place / "ckpt", []
    assert trtbuild("quantize", place / "model", "-o", checkpoint, "-p", "fp32").code == 0
    for kind in ("f32", "u8"):
        engines.append(place / kind)
        limits = ("--max-batch-size", 2, "--max-seq-len", 128, "--max-input-len", 64)
        done = trtbuild("build", checkpoint, "-o", engines[-1], "--target", "cpu", "--kv-cache", kind, *limits)
        assert done.code == 0, done.err
    done = trtbuild("bench", *engines, "--profile", place / "tiny.yaml", "-o", place / "bench", "--json")
    exact, rounded = (row["fingerprint"] for row in done.document["results"])
    assert exact != rounded, "scores are kept by it"


def test_an_engine_tells_what_it_is_and_what_it_was_made_from(trtbuild: Run, place: Path) -> None:
    model, checkpoint, engine = place / "model", place / "ckpt", place / "engine"
    assert trtbuild("quantize", model, "-o", checkpoint, "-p", "int8-wo", "-q").out.strip() == str(checkpoint)
    limits = ("--max-batch-size", 2, "--max-seq-len", 64, "--max-input-len", 32)
    dry = trtbuild("build", checkpoint, "--target", "cpu", *limits, "--dry-run", "--json")
    assert dry.code == 0 and dry.document["limits"]["max_seq_len"] == 64
    assert not engine.exists()
    assert trtbuild("build", checkpoint, "-o", engine, "--target", "cpu", *limits).code == 0
    told = trtbuild("inspect", engine, "--json").document
    assert told["kind"] == "engine" and told["settings"]["target"] == "cpu"
    assert told["settings"]["limits"]["max_batch_size"] == 2
    assert told["damaged"] == []
    (engine / "openvino_model.bin").write_bytes(b"")
    assert trtbuild("inspect", engine, "--json").document["damaged"] == ["openvino_model.bin"]


def test_limits_that_cannot_be_are_refused_before_anything_is_written(trtbuild: Run, place: Path) -> None:
    assert trtbuild("quantize", place / "model", "-o", place / "ckpt", "-p", "fp16").code == 0
    done = trtbuild("build", place / "ckpt", "-o", place / "e", "--target", "cpu", "--max-seq-len", 100_000)
    assert done.code == 5
    assert "256" in done.err
    assert not (place / "e").exists()


def test_a_plan_needs_no_weights_and_names_what_fits(trtbuild: Run, tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = trtbuild("plan", tmp_path, "--gpu", "A10 24GB", "-p", "fp16", "--json")
    assert done.code == 5
    first = json.JSONDecoder().raw_decode(done.out)[0]
    assert 69e9 < first["parameters"] < 71e9
    assert first["rows"][0]["fits"] is False


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("quantize", "x", "-o", "y", "-p", "int9"), "int8"),
        (("build", "x", "-o", "y", "--target", "cpuu"), "x"),
        (("profiles", "show", "chatt"), "chat"),
        (("bnech",), "bench"),
        (("build", "x", "--sm", "abc", "-o", "y"), "x"),
    ],
)
def test_wrong_usage_is_one_line_with_the_closest_name(
    trtbuild: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = trtbuild(*arguments)
    assert done.code in (2, 3)
    assert len(done.err.strip().splitlines()) == 1
    assert named in done.err
    assert list(tmp_path.iterdir()) == []


def test_errors_are_documents_with_json(trtbuild: Run, tmp_path: Path) -> None:
    done = trtbuild("inspect", tmp_path / "nowhere", "--json")
    assert done.code == 3
    assert done.document["error"]["exit_code"] == 3
    assert "nowhere" in done.document["error"]["what"]


@pytest.mark.parametrize(
    "command",
    ["inspect", "plan", "calibrate", "quantize", "build", "bench", "run", "doctor"],
)
def test_every_command_has_help_with_an_example(trtbuild: Run, command: str) -> None:
    done = trtbuild(command, "--help")
    assert done.code == 0
    assert f"Example:  trtbuild {command}" in " ".join(done.out.split("\n")).replace("  Example", "  Example")
    assert "--json" in done.out and "--quiet" in done.out


def test_profiles_and_doctor_answer_in_json(trtbuild: Run) -> None:
    names = [profile["name"] for profile in trtbuild("profiles", "list", "--json").document["profiles"]]
    assert {"chat", "finance", "realtime-voice", "long-document", "ci"} <= set(names)
    chat = trtbuild("profiles", "show", "chat", "--json").document
    assert chat["limits"]["max_seq_len"] == 3072
    assert chat["slo"] == {"ttft_ms": None, "tpot_ms": None, "latency_p99_ms": 800, "rate_qps": 20}
    report = trtbuild("doctor", "--json").document
    assert {target["name"] for target in report["targets"]} == {"cpu", "tensorrt-rtx", "trtllm"}
    human = trtbuild("doctor").out
    assert max(map(len, human.splitlines())) <= 100


def test_shell_completion_is_offered(trtbuild: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TRTBUILD_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "trtbuild qu")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert "quantize" in trtbuild().out
