"""The build against the strict stand-in: every precision, tp 1, tp 2, pp 2, containers, failures, interruptions."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stand_ins import nvidia_machine
from trtllm_checkpoints import write_trtllm

from trtbuild.errors import DoesNotFit, InputRefused, MachineLacks, TrtbuildError
from trtbuild.progress import silent
from trtbuild.targets.base import BuildOptions, Limits, read_engine
from trtbuild.targets.registry import load_target

LIMITS = Limits(max_batch_size=4, max_input_len=128, max_seq_len=256, max_num_tokens=512)
TARGET = load_target("trtllm")


def test_the_timing_cache_is_kept_in_our_place_and_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = nvidia_machine(tmp_path / "machine", monkeypatch)
    checkpoint = write_trtllm(tmp_path)
    monkeypatch.chdir(tmp_path)
    TARGET.build(checkpoint, tmp_path / "engine", LIMITS, BuildOptions(), silent)
    (cache,) = (machine.root / "cache").rglob("*.cache")
    assert cache.name == "tensorrt_llm-1.2.1-sm89.cache"
    assert not (tmp_path / "model.cache").exists()
    assert not list((tmp_path / "engine").glob("*.cache"))
    (call,) = machine.calls("trtllm-build")
    assert call[call.index("--input_timing_cache") + 1] == str(cache)


@pytest.mark.parametrize("kv_cache", ["INT8", "FP8"])
def test_a_quantized_kv_cache_without_fp8_weights_loses_paged_context(
    kv_cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvidia_machine(tmp_path / "machine", monkeypatch)
    checkpoint = write_trtllm(tmp_path, kv_cache=kv_cache)
    out = TARGET.build(checkpoint, tmp_path / "engine", LIMITS, BuildOptions(), silent)
    assert read_engine(out).settings["paged_context"] is False


def test_in_a_container_with_the_folders_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = nvidia_machine(tmp_path / "machine, one", monkeypatch, version=None)
    checkpoint = write_trtllm(tmp_path / "模型 été")
    out = TARGET.build(checkpoint, tmp_path / "模型 été" / "engine", LIMITS, BuildOptions(container="auto"), silent)
    assert read_engine(out).settings["tensorrt_llm"] == "1.2.1"
    (call,) = machine.calls("docker")
    assert "nvcr.io/nvidia/tensorrt-llm/release:1.2.1" in call
    (inner,) = machine.calls("trtllm-build")
    assert inner[inner.index("--checkpoint_dir") + 1] == str(checkpoint)  # the stand-in undoes the mounts
    words = call[call.index("trtllm-build") :]
    assert words[words.index("--checkpoint_dir") + 1] == "/checkpoint"


def test_the_command_shown_is_the_command_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = nvidia_machine(tmp_path / "machine", monkeypatch)
    checkpoint = write_trtllm(tmp_path, "int8")
    (shown,) = TARGET.commands(checkpoint, tmp_path / "engine", LIMITS, BuildOptions())
    assert not machine.calls("trtllm-build")
    TARGET.build(checkpoint, tmp_path / "engine", LIMITS, BuildOptions(), silent)
    (run,) = machine.calls("trtllm-build")
    paths = ("--output_dir", "--output_timing_cache")
    hidden = {run.index(flag) + 1 for flag in paths}
    assert [w for i, w in enumerate(shown[1:]) if i not in hidden] == [w for i, w in enumerate(run) if i not in hidden]


def test_extra_arguments_reach_the_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_machine(tmp_path / "machine", monkeypatch)
    options = BuildOptions(extra=("--profiling_verbosity", "detailed", "--opt_num_tokens=64"))
    out = TARGET.build(write_trtllm(tmp_path), tmp_path / "engine", LIMITS, options, silent)
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))["build_config"]
    assert (config["profiling_verbosity"], config["opt_num_tokens"]) == ("detailed", 64)


def test_one_gpu_builds_two_ranks_in_one_process_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_machine(tmp_path / "machine", monkeypatch, gpus=1)
    checkpoint = write_trtllm(tmp_path, tp=2)
    (command,) = TARGET.commands(checkpoint, tmp_path / "engine", LIMITS, BuildOptions())
    assert command[command.index("--workers") + 1] == "1"
    from trtbuild.checkpoint.trtllm import read_checkpoint

    findings = TARGET.preflight(read_checkpoint(checkpoint), LIMITS, BuildOptions())
    assert [(f.rule, f.fatal) for f in findings] == [("gpus-for-ranks", False)]


@pytest.mark.parametrize(
    ("version", "gpus", "text"),
    [
        (None, 1, "not installed"),
        ("0.21.0", 1, "older than 1.0"),
        ("1.3.0rc29", 1, "no engine path"),
        ("1.2.1", 0, "needs an NVIDIA GPU"),
    ],
)
def test_where_it_cannot_be_built_nothing_is_written(
    version: str | None, gpus: int, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = nvidia_machine(tmp_path / "machine", monkeypatch, version=version, gpus=gpus)
    checkpoint = write_trtllm(tmp_path)
    with pytest.raises(MachineLacks, match=text) as caught:
        TARGET.build(checkpoint, tmp_path / "engine", LIMITS, BuildOptions(), silent)
    assert caught.value.hint
    assert not machine.calls("trtllm-build")
    assert not (tmp_path / "engine").exists()
    assert not TARGET.capability().build.ok
    (command,) = TARGET.commands(checkpoint, tmp_path / "engine", LIMITS, BuildOptions())
    assert command[0] == "trtllm-build"


FAILURES: list[tuple[str, type[TrtbuildError], str]] = [
    ("[TRT] [E] tensor volume exceeds 2147483647, dimensions are [9000000,4096]", DoesNotFit, "2^31"),
    (
        "requires 210571452800 bytes of scratch space, but only 47697362944 is available",
        DoesNotFit,
        "47697362944 are free",
    ),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", DoesNotFit, "GPU is out of memory"),
    (
        "RuntimeError: Required but not provided tensors:{'lm_head.per_channel_scale'}",
        InputRefused,
        "per_channel_scale",
    ),
    ("ImportError: /x/libth.so: undefined symbol: _ZN3c10", MachineLacks, "does not match the torch"),
    ("PRTE ERROR: Bad parameter in file a.c", MachineLacks, "MPI"),
    (
        "trtllm-build: error: unrecognized arguments: --max_output_len 5",
        MachineLacks,
        "does not know --max_output_len 5",
    ),
    ("KeyError: 'rope_scaling'", InputRefused, "transformers is older"),
    ("OSError: [Errno 28] No space left on device", InputRefused, "disk is full"),
    ("KILL", DoesNotFit, "out of host memory"),
    ("something nobody has seen", InputRefused, "something nobody has seen"),
]


@pytest.mark.parametrize(("message", "error", "text"), FAILURES)
def test_a_failed_run_is_triaged_and_its_log_kept(
    message: str, error: type[TrtbuildError], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = nvidia_machine(tmp_path / "machine", monkeypatch)
    checkpoint = write_trtllm(tmp_path)
    machine.fails_with("BUILD", message)
    with pytest.raises(TrtbuildError) as caught:
        TARGET.build(checkpoint, tmp_path / "engine", LIMITS, BuildOptions(), silent)
    assert type(caught.value) is error
    assert text in str(caught.value)
    log = tmp_path / "engine.build.log"
    assert str(log) in str(caught.value)
    assert message == "KILL" or message in log.read_text(encoding="utf-8")
    assert not (tmp_path / "engine").exists()
    assert not list(tmp_path.glob(".trtbuild-*"))


def test_an_engine_that_is_not_what_was_asked_for_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = nvidia_machine(tmp_path / "machine", monkeypatch)
    checkpoint = write_trtllm(tmp_path)
    real = machine.root / "bin" / "trtllm-build"
    spoil = (
        "import json, pathlib, sys; p = pathlib.Path(sys.argv[1]) / 'config.json'; c = json.loads(p.read_text());"
        "c['build_config']['kv_cache_type'] = 'KVCacheType.CONTINUOUS'; c['version'] = '1.0.0';"
        "c['build_config']['plugin_config']['remove_input_padding'] = False; p.write_text(json.dumps(c));"
        "(p.parent / 'rank0.engine').unlink()"
    )
    script = real.read_text().replace("exec ", "") + f'\nout=$4; {sys.executable} -c "{spoil}" "$out"\n'
    real.write_text(script)
    with pytest.raises(InputRefused) as caught:
        TARGET.build(checkpoint, tmp_path / "engine", LIMITS, BuildOptions(), silent)
    for said in ("version 1.0.0 instead of 1.2.1", "rank0.engine is missing", "not paged", "padded"):
        assert said in str(caught.value)
    assert not (tmp_path / "engine").exists()


def test_an_interrupted_build_takes_the_tool_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = nvidia_machine(tmp_path / "machine", monkeypatch)
    checkpoint = write_trtllm(tmp_path)
    slow = machine.root / "bin" / "trtllm-build"
    pid_file = tmp_path / "pid"
    slow.write_text(f"#!/bin/sh\necho $$ > '{pid_file}'\nexec sleep 60\n")
    code = (
        # a job in the background of a script inherits an ignored SIGINT
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[3]);"
        "from trtbuild.targets.registry import load_target; from trtbuild.targets.base import BuildOptions, Limits;"
        "from trtbuild.progress import silent;"
        "build = load_target('trtllm').build;"
        "build(Path(sys.argv[1]), Path(sys.argv[2]), Limits(4, 128, 256, 512), BuildOptions(), silent)"
    )
    arguments = [str(checkpoint), str(tmp_path / "engine"), str(machine.root / "site")]
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while not (pid_file.exists() and pid_file.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) != 0
    tool = Path(f"/proc/{pid_file.read_text().strip()}/stat")
    assert not tool.exists() or tool.read_text().rsplit(")", 1)[1].split()[0] == "Z"
    assert not (tmp_path / "engine").exists()
