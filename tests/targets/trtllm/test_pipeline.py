"""Checkpoint → engine → measurement against the stand-ins, for every precision at tp 1, tp 2 and pp 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from stand_ins import nvidia_machine
from trtllm_checkpoints import ALGOS, write_trtllm

from trtbuild.progress import silent
from trtbuild.store.manifest import damaged_files
from trtbuild.targets.base import BuildOptions, Limits, read_engine
from trtbuild.targets.registry import load_target
from trtbuild.targets.serving import Request

LIMITS = Limits(max_batch_size=4, max_input_len=128, max_seq_len=256, max_num_tokens=512)
REQUESTS = [Request(i, list(range(1, 20 + i)), 16, ignore_eos=True) for i in range(8)]
TARGET = load_target("trtllm")


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("precision", ALGOS)
def test_built_and_measured(precision: str, tp: int, pp: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sm = 100 if precision == "nvfp4" else 89
    machine = nvidia_machine(tmp_path / "machine", monkeypatch, gpus=tp * pp, sm=sm)
    checkpoint = write_trtllm(tmp_path, precision, tp=tp, pp=pp)

    out = TARGET.build(checkpoint, tmp_path / "engine", LIMITS, BuildOptions(), silent)
    engine = read_engine(out)
    assert (engine.target, engine.limits.max_seq_len) == ("trtllm", 256)
    assert not damaged_files(out, engine.manifest, check_hashes=True)
    assert sorted(p.name for p in out.glob("rank*.engine")) == [f"rank{r}.engine" for r in range(tp * pp)]
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert config["build_config"]["kv_cache_type"] == "KVCacheType.PAGED"
    assert config["build_config"]["plugin_config"]["use_paged_context_fmha"] is (precision != "fp32")
    (call,) = machine.calls("trtllm-build")
    assert call[call.index("--workers") + 1] == str(tp * pp)
    assert (engine.settings["tp"], engine.settings["pp"], engine.settings["sm"]) == (tp, pp, sm)
    assert (out / "tokenizer" / "tokenizer.json").is_file()
    assert "Total time of building all engines" in (out / "build.log").read_text(encoding="utf-8")
    assert not list(tmp_path.glob(".trtbuild-*"))

    assert TARGET.measure is not None
    measured = TARGET.measure(out, REQUESTS, [1, 4])
    latency, throughput = measured.loads
    assert (latency.concurrency, throughput.concurrency, throughput.requests) == (1, 4, 8)
    assert throughput.output_tokens == 8 * 16
    assert throughput.throughput_tok_s == pytest.approx(8 * 16 / throughput.seconds)
    assert latency.ttft_ms is not None
    assert throughput.tpot_ms is not None
    element = 4 if precision == "fp32" else 2
    assert measured.memory.kv_bytes_per_token == 2 * 2 // pp * 4 // tp * 32 * element
    assert measured.memory.pool_tokens == LIMITS.pool_tokens
    commands = [call[call.index("--workspace") + 2] for call in machine.calls("trtllm-bench")]
    assert commands == ["latency", "throughput"]
