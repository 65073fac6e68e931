"""trtllm-bench against the strict stand-in: data set, command, report, memory split, refusals, launch lines."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import types
from pathlib import Path

import pytest
import yaml
from stand_ins import NvidiaMachine, nvidia_machine
from trtllm_checkpoints import write_trtllm

from trtbuild.errors import DoesNotFit, InputRefused, MachineLacks
from trtbuild.progress import silent
from trtbuild.targets.base import BuildOptions, Limits
from trtbuild.targets.registry import load_target
from trtbuild.targets.serving import Request
from trtbuild.targets.trtllm.engine import read_config
from trtbuild.targets.trtllm.gpu_memory import GpuMemorySampler
from trtbuild.targets.trtllm.launch import OPTIONS_NAME, launch_lines
from trtbuild.targets.trtllm.report import read_memory, read_report

TARGET = load_target("trtllm")
LIMITS = Limits(max_batch_size=4, max_input_len=128, max_seq_len=256, max_num_tokens=512)
REQUESTS = [Request(i, list(range(1, 20 + i)), 16, ignore_eos=True) for i in range(8)]

PUBLISHED_LOG = """\
Loaded engine size: 6695 MiB
[MemUsageChange] Allocated 1134.01 MiB for execution context memory.
[MemUsageChange] Allocated 43.29 MB GPU memory for runtime buffers.
[MemUsageChange] Allocated 180.30 MB GPU memory for decoder.
Memory usage when calculating max tokens in paged kv cache: total: 79.10 GiB, available: 70.48 GiB
Number of tokens per block: 64.
[MemUsageChange] Allocated 63.44 GiB for max tokens in paged KV cache (259840).
"""
"""From `docs/source/reference/memory.md` of TensorRT-LLM."""


def build(folder: Path, precision: str = "fp16", *, tp: int = 1, pp: int = 1, kv_cache: str | None = None) -> Path:
    checkpoint = write_trtllm(folder, precision, tp=tp, pp=pp, kv_cache=kv_cache)
    return TARGET.build(checkpoint, folder / "engine", LIMITS, BuildOptions(), silent)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NvidiaMachine:
    return nvidia_machine(tmp_path / "machine", monkeypatch)


def test_an_int8_kv_cache_halves_the_pool_and_turns_chunks_off(machine: NvidiaMachine, tmp_path: Path) -> None:
    assert TARGET.measure is not None
    plain = TARGET.measure(build(tmp_path / "a"), REQUESTS, [4]).memory
    small = TARGET.measure(build(tmp_path / "b", kv_cache="INT8"), REQUESTS, [4]).memory
    assert plain.pool_bytes is not None
    assert small.pool_bytes is not None
    assert (plain.pool_tokens, small.pool_tokens) == (1024, 1024)
    assert plain.kv_bytes_per_token == 2 * (small.kv_bytes_per_token or 0)
    assert "--disable_chunked_context" in machine.calls("trtllm-bench")[1]


def test_answers_that_may_stop_are_told_where(machine: NvidiaMachine, tmp_path: Path) -> None:
    assert TARGET.measure is not None
    requests = [dataclasses.replace(request, ignore_eos=False) for request in REQUESTS]
    TARGET.measure(build(tmp_path), requests, [4])
    (call,) = machine.calls("trtllm-bench")
    assert call[call.index("--eos_id") + 1] == "2"


def test_the_published_memory_log_is_split() -> None:
    memory = read_memory(PUBLISHED_LOG.splitlines(), 262144, None)
    assert memory.weights_bytes == 6695 << 20
    assert memory.activation_bytes == round(1134.01 * 2**20)
    assert memory.buffer_bytes == 223_590_000
    assert memory.pool_tokens == 259840
    assert memory.pool_bytes == round(63.44 * 2**30)
    assert memory.pool_bytes / memory.pool_tokens == pytest.approx(262144, rel=1e-3)
    assert memory.free_before_pool_bytes is not None
    assert memory.pool_bytes == pytest.approx(0.9 * memory.free_before_pool_bytes, rel=1e-3)


def test_what_the_tool_does_not_report_is_none(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    report = {
        "request_info": {"num_requests": 3, "avg_input_length": 10.0, "avg_output_length": 1.0},
        "performance": {"total_latency_ms": 50.0, "request_throughput_req_s": 60.0},
        "streaming_metrics": {"tpot_percentiles": {"p50": 0.0}, "ttft_percentiles": {"p50": 4.0, "p99": 5.0}},
    }
    path.write_text(json.dumps(report), encoding="utf-8")
    load = read_report(path, 2)
    assert (load.throughput_tok_s, load.tpot_ms, load.latency_ms) == (None, None, None)  # one token has no TPOT
    assert load.ttft_ms == {"p50": 4.0, "p99": 5.0}
    assert read_memory([], None, None).pool_bytes is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"request_info": {}, "performance": {}}'])
def test_a_broken_report_is_one_line(content: str, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    with pytest.raises(InputRefused, match="no report"):
        read_report(path, 1)
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputRefused, match="not a report"):
        read_report(path, 1)


def test_requests_beyond_the_engine_are_refused_before_the_tool_is_called(
    machine: NvidiaMachine, tmp_path: Path
) -> None:
    assert TARGET.measure is not None
    engine = build(tmp_path)
    with pytest.raises(InputRefused, match=r"200 \+ 57 = 257 tokens is above the engine's max_seq_len 256"):
        TARGET.measure(engine, [Request(0, [1] * 200, 57)], [4])
    with pytest.raises(InputRefused, match="no request"):
        TARGET.measure(engine, [], [4])
    assert not machine.calls("trtllm-bench")


def test_an_engine_of_another_release_or_gpu_is_refused_with_both_named(
    machine: NvidiaMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert TARGET.measure is not None
    engine = build(tmp_path)
    machine.install("1.1.0")
    with pytest.raises(MachineLacks, match=r"built by tensorrt_llm 1\.2\.1, here is 1\.1\.0") as caught:
        TARGET.measure(engine, REQUESTS, [4])
    assert "trtbuild build" in (caught.value.hint or "")
    machine.install("1.2.1")
    monkeypatch.setenv("STAND_IN_SM", "80")
    with pytest.raises(MachineLacks, match="built for SM 89, the GPU here is SM 80"):
        TARGET.measure(engine, REQUESTS, [4])
    assert not machine.calls("trtllm-bench")


def test_a_failed_run_is_triaged_and_its_log_kept(machine: NvidiaMachine, tmp_path: Path) -> None:
    assert TARGET.measure is not None
    engine = build(tmp_path)
    machine.fails_with("BENCH", "[TensorRT-LLM][ERROR] CUDA out of memory")
    with pytest.raises(DoesNotFit, match="GPU is out of memory"):
        TARGET.measure(engine, REQUESTS, [4])
    assert "CUDA out of memory" in (tmp_path / "engine.bench.log").read_text(encoding="utf-8")


def test_engines_from_a_container_are_measured_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = nvidia_machine(tmp_path / "m", monkeypatch, version=None)
    checkpoint = write_trtllm(tmp_path)
    engine = TARGET.build(checkpoint, tmp_path / "engine", LIMITS, BuildOptions(container="auto"), silent)
    assert TARGET.measure is not None
    assert TARGET.measure(engine, REQUESTS, [4]).loads[0].requests == 8
    inner = machine.calls("docker")[1]
    assert inner[inner.index("--engine_dir") + 1] == "/engine"


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (1, 2)])
def test_launch_lines_start_the_engine(tp: int, pp: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_machine(tmp_path / "m", monkeypatch, gpus=tp * pp)
    serve, run, triton = launch_lines(build(tmp_path, tp=tp, pp=pp))
    assert subprocess.run(serve.words, capture_output=True, check=False).returncode == 0
    spoiled = [word if word != str(tp) else "3" for word in serve.words]
    assert subprocess.run(spoiled, capture_output=True, check=False).returncode == 1
    assert (run.words[:3] == ("mpirun", "-n", str(tp * pp))) is (tp * pp > 1)
    assert triton.words[triton.words.index("--world_size") + 1] == str(tp * pp)


def test_runtime_options_follow_the_engine(machine: NvidiaMachine, tmp_path: Path) -> None:
    del machine
    checkpoint = write_trtllm(tmp_path, family="mistral", kv_cache="INT8", sliding_window=64)
    limits = dataclasses.replace(LIMITS, kv_pool_tokens=512)
    engine = TARGET.build(checkpoint, tmp_path / "engine", limits, BuildOptions(), silent)
    options = yaml.safe_load((engine / OPTIONS_NAME).read_text(encoding="utf-8"))["kv_cache_config"]
    assert options == {
        "enable_block_reuse": False,
        "free_gpu_memory_fraction": 0.9,
        "max_tokens": 512,
        "max_attention_window": [64],
    }


def test_nvml_is_preferred_and_gives_growth_over_what_was_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([100, 400, 900, 700])
    fake = types.ModuleType("pynvml")
    last = [100]

    def used(handle: int) -> types.SimpleNamespace:
        del handle
        last[0] = next(readings, last[0])
        return types.SimpleNamespace(used=last[0])

    fake.nvmlInit = lambda: None  # type: ignore[attr-defined]
    fake.nvmlDeviceGetCount = lambda: 1  # type: ignore[attr-defined]
    fake.nvmlDeviceGetHandleByIndex = lambda index: index  # type: ignore[attr-defined]
    fake.nvmlDeviceGetMemoryInfo = used  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    with GpuMemorySampler() as sampler:
        while last[0] != 700:
            pass
    assert sampler.peak_bytes == 800


def test_without_a_gpu_there_is_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with GpuMemorySampler() as sampler:
        pass
    assert sampler.peak_bytes is None


def test_an_engine_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match="not a TensorRT-LLM engine"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text('{"version": "1"}', encoding="utf-8")
    with pytest.raises(InputRefused, match="not the config"):
        read_config(tmp_path)
