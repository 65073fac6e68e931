"""Every input that cannot be used gets one line with the place, exit code 3, and nothing is written."""

from __future__ import annotations

import json
import pickle
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from builders import random_tensors, write_huggingface
from cli.conftest import Run
from safetensors.numpy import load_file, save_file

Spoil = Callable[[Path], None]


def missing_shard(folder: Path) -> None:
    write_huggingface(folder, shards=3)
    (folder / "model.safetensors").unlink()
    (folder / "model-00002-of-00003.safetensors").unlink()


def lfs_pointer(folder: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 1\n"
    (folder / "model.safetensors").write_text(pointer)


def truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def pickle_only(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"a": 1}))


def other_shape(folder: Path) -> None:
    change_config(folder, hidden_size=128)


def no_head(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")


def quantized(folder: Path) -> None:
    change_config(folder, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})


def not_a_number(folder: Path) -> None:
    tensors = random_tensors(json.loads((folder / "config.json").read_text()))
    tensors["model.layers.0.mlp.down_proj.weight"][3, 5] = np.nan
    save_file(tensors, folder / "model.safetensors")


def infinite(folder: Path) -> None:
    tensors = random_tensors(json.loads((folder / "config.json").read_text()))
    tensors["model.layers.0.self_attn.q_proj.weight"][0, 0] = np.inf
    save_file(tensors, folder / "model.safetensors")


def unknown_family(folder: Path) -> None:
    change_config(folder, model_type="lama", architectures=["LamaForCausalLM"])


def openvino_folder(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    (folder / "openvino_model.xml").write_text("<net/>")
    (folder / "openvino_model.bin").write_bytes(b"")


def change_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


SPOILED: dict[str, tuple[Spoil, str]] = {
    "missing shard": (missing_shard, "model-00002-of-00003.safetensors"),
    "Git-LFS pointer": (lfs_pointer, "git lfs pull"),
    "truncated": (truncated, "model.safetensors"),
    "pickle only": (pickle_only, "pytorch_model.bin"),
    "shapes disagree": (other_shape, "128"),
    "untied without a head": (no_head, "lm_head"),
    "already quantized": (quantized, "quantiz"),
    "NaN weight": (not_a_number, "down_proj"),
    "Inf weight": (infinite, "q_proj"),
    "unknown family": (unknown_family, "llama"),
    "OpenVINO folder": (openvino_folder, "OpenVINO"),
}


def check_refused(done: object, parent: Path, named: str, before: set[Path]) -> None:
    assert done.code == 3, done.err  # type: ignore[attr-defined]
    lines = [line for line in done.err.splitlines() if line.startswith("trtbuild: ")]  # type: ignore[attr-defined]
    assert len(lines) == 1
    assert named in lines[0]
    assert "bug in trtbuild" not in lines[0]
    assert set(parent.rglob("*")) == before, "something was written"


@pytest.mark.parametrize("name", SPOILED)
def test_models_that_cannot_be_used(trtbuild: Run, llama: Path, tmp_path: Path, name: str) -> None:
    spoil, named = SPOILED[name]
    spoil(llama)
    before = set(tmp_path.rglob("*"))
    check_refused(trtbuild("quantize", llama, "-o", tmp_path / "out", "-p", "fp16"), tmp_path, named, before)


def test_no_such_folder(trtbuild: Run, tmp_path: Path) -> None:
    done = trtbuild("quantize", tmp_path / "nowhere", "-o", tmp_path / "out", "-p", "fp16")
    check_refused(done, tmp_path, "nowhere", set())


def test_each_command_names_the_right_one_for_another_kind(trtbuild: Run, llama: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "ckpt"
    assert trtbuild("quantize", llama, "-o", checkpoint, "-p", "fp16").code == 0
    before = set(tmp_path.rglob("*"))
    out = tmp_path / "out"
    check_refused(trtbuild("build", llama, "-o", out), tmp_path, "Hugging Face folder", before)
    check_refused(trtbuild("quantize", checkpoint, "-o", out, "-p", "fp16"), tmp_path, "build takes it", before)
    check_refused(trtbuild("bench", checkpoint, "-o", out), tmp_path, "not an engine", before)
    check_refused(trtbuild("quantize", llama, "-o", llama, "-p", "fp16"), tmp_path, "did not write", before)


DATA: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "data.jsonl"),
    "blank lines": (b"\n\n  \n", "data.jsonl"),
    "too short": (b'{"text": "hi"}\n', "needed"),
    "malformed": (b'{"text": "fine"}\n{"text": "comma",}\n', "line 2"),
    "not an object": (b'{"text": "fine"}\n[1, 2]\n', "line 2"),
    "unknown keys": (b'{"body": "what"}\n', "body"),
}


@pytest.mark.parametrize("name", DATA)
def test_calibration_data_that_cannot_be_used(trtbuild: Run, llama: Path, tmp_path: Path, name: str) -> None:
    content, named = DATA[name]
    data = tmp_path / "data.jsonl"
    data.write_bytes(content)
    before = set(tmp_path.rglob("*"))
    check_refused(trtbuild("calibrate", llama, "-o", tmp_path / "out", "--data", data), tmp_path, named, before)


def test_a_model_without_a_tokenizer(trtbuild: Run, llama: Path, tmp_path: Path) -> None:
    (llama / "tokenizer.json").unlink()
    before = set(tmp_path.rglob("*"))
    done = trtbuild("calibrate", llama, "-o", tmp_path / "out")
    check_refused(done, tmp_path, "tokenizer.json", before)


def test_a_tokenizer_larger_than_the_embedding(trtbuild: Run, tmp_path: Path) -> None:
    model = write_huggingface(tmp_path / "small", vocab_size=96)
    other = write_huggingface(tmp_path / "large", vocab_size=98)
    (model / "tokenizer.json").write_bytes((other / "tokenizer.json").read_bytes())
    before = set(tmp_path.rglob("*"))
    done = trtbuild("calibrate", model, "-o", tmp_path / "out")
    check_refused(done, tmp_path, "96", before)
    assert "98" in done.err


def test_an_output_that_cannot_be_written(trtbuild: Run, llama: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    before = set(tmp_path.rglob("*"))
    done = trtbuild("quantize", llama, "-o", tmp_path / "file" / "out", "-p", "fp16")
    check_refused(done, tmp_path, "file", before)


def test_a_full_disk_leaves_nothing(trtbuild: Run, llama: Path, tmp_path: Path) -> None:
    before = set(tmp_path.rglob("*"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        done = trtbuild("quantize", llama, "-o", tmp_path / "out", "-p", "fp32")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    check_refused(done, tmp_path, "too large", before)
