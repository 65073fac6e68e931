"""`trtbuild build --target tensorrt-rtx`, and what the commands that meet such an engine say of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import write_huggingface

from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.trtllm import write_checkpoint
from trtbuild.targets.tensorrt_rtx import machine

LIMITS = ("--max-batch-size", "4", "--max-input-len", "32", "--max-seq-len", "64", "--max-num-tokens", "48")

_WITHOUT_NVIDIA = """
import importlib.metadata as metadata, sys
version = metadata.version
def hidden(name):
    if "tensorrt" in name:
        raise metadata.PackageNotFoundError(name)
    return version(name)
metadata.version = hidden
sys.modules["tensorrt_rtx"] = sys.modules["tensorrt"] = None
from trtbuild.cli.app import main
main()
"""


def trtbuild(*words: str | Path, nvidia: bool = True) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command, with or without NVIDIA's packages to be found."""
    start = ["-m", "trtbuild"] if nvidia else ["-c", _WITHOUT_NVIDIA]
    done = subprocess.run([sys.executable, *start, *map(str, words)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    decoder = open_model(str(write_huggingface(folder / "hf", "llama", dtype="float16")))
    (folder / "checkpoint").mkdir()
    write_checkpoint(decoder, folder / "checkpoint")
    return folder / "checkpoint"


def build(checkpoint: Path, out: Path, *words: str, nvidia: bool = True) -> tuple[int, str, str]:
    return trtbuild("build", checkpoint, "-o", out, "--target", "tensorrt-rtx", *LIMITS, *words, nvidia=nvidia)


def documented(*words: str | Path, nvidia: bool = True) -> dict[str, Any]:
    code, out, err = trtbuild(*words, "--json", nvidia=nvidia)
    assert code == 0, err
    document: dict[str, Any] = json.loads(out)
    return document


@pytest.mark.skipif(machine.installed() is None, reason="TensorRT-RTX is not installed")
def test_built_here_inspected_anywhere_run_on_its_gpu_only(checkpoint: Path, tmp_path: Path) -> None:
    engine = tmp_path / "engine"
    code, out, err = build(checkpoint, engine, "--sm", "86,120", "-q")
    assert (code, out.strip()) == (0, str(engine)), err
    for nvidia in (True, False):
        document = documented("inspect", engine, nvidia=nvidia)
        assert document["settings"]["sms"] == [86, 120]
        assert document["settings"]["library_version"] == "1.7.1.116"
        assert document["damaged"] == []
        assert "as it should" in document["engine_file"]
    if machine.first_gpu() is None:
        code, out, err = trtbuild("bench", engine, "-o", tmp_path / "bench")
        assert code == 4
        assert "needs an NVIDIA GPU (SM86, SM120)" in " ".join(err.split())
        assert not (tmp_path / "bench").exists()


@pytest.mark.skipif(machine.first_gpu() is not None, reason="there is a GPU here")
@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--sm", "90"), 5, "offered: 75, 80, 86, 89, 120, 121"),
        (("--sm", "86,100"), 5, "SM100"),
        ((), 4, "no GPU is here"),
        (("--sm", "86", "--kv-cache", "u8"), 5, "kv_cache"),
        (("--sm", "86", "--max-seq-len", "4096"), 5, "256 positions"),
    ],
)
def test_what_cannot_be_built_is_told_before_anything_is_written(
    words: tuple[str, ...], code: int, told: str, checkpoint: Path, tmp_path: Path
) -> None:
    found, out, err = build(checkpoint, tmp_path / "engine", *words)
    assert found == code, err
    assert told in " ".join(err.split())
    assert out == ""
    assert not list(tmp_path.iterdir())


def test_without_the_package_a_plan_is_still_shown(checkpoint: Path, tmp_path: Path) -> None:
    code, _, err = build(checkpoint, tmp_path / "engine", "--sm", "89", nvidia=False)
    assert code == 4
    assert "trtbuild[rtx]" in " ".join(err.split())
    words = ("build", checkpoint, "--target", "tensorrt-rtx", "--sm", "89", "--dry-run", *LIMITS)
    document = documented(*words, nvidia=False)
    assert document["dry_run"] is True
    assert document["footprint"]["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 2
    assert not list(tmp_path.iterdir())
