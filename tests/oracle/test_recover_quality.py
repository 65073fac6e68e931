"""The recovery script on a tiny model: what it trains against is the checkpoint, and what it brings back is there."""

from __future__ import annotations

import argparse
import copy
import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from builders import write_huggingface

from trtbuild.calibrate.forward import logits
from trtbuild.checkpoint.lora import merge_lora
from trtbuild.checkpoint.opening import open_decoder, open_model
from trtbuild.quantize.run import quantize_to

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
IDS = np.random.default_rng(3).integers(3, 96, 40)


@pytest.fixture(scope="module")
def script() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return SimpleNamespace(**runpy.run_path(str(BENCHMARKS / "recover_quality.py"), run_name="recover_quality"))
    finally:
        sys.path.remove(str(BENCHMARKS))


def model_logits(model: torch.nn.Module) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(model(torch.from_numpy(IDS)[None]).logits[0].numpy())


def quantized(folder: Path, out: Path) -> Path:
    rng = np.random.default_rng(4)
    samples = [rng.integers(3, 96, 64).astype(np.int32) for _ in range(6)]
    quantize_to(
        open_model(str(folder)), out, "int8", samples=samples[:4], validation=samples[4:], calibration="max", threads=1
    )
    return out


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_the_student_starts_as_the_checkpoint_itself(script: Any, tmp_path: Path, family: str) -> None:
    # float16, as the checkpoint stores what it does not quantize: all that differs then is the order of sums
    folder = write_huggingface(tmp_path / "m", family, dtype="float16")
    checkpoint = open_decoder(str(quantized(folder, tmp_path / "c")))
    expected, plain = logits(checkpoint, IDS), logits(open_model(str(folder)), IDS)
    found = model_logits(script.student(folder, checkpoint, 4).eval())
    error, damage = np.abs(found - expected), np.abs(plain - expected)
    assert np.median(damage) > 0.01
    assert np.median(error) < 0.01 * np.median(damage)
    # a sum in another order can still land on the neighbouring level, and what follows it differs
    assert np.sqrt(np.square(error).mean()) < 0.1 * np.sqrt(np.square(damage).mean())


def test_the_adapter_meets_in_training_what_it_meets_merged(script: Any, tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path / "m")
    checkpoint = open_decoder(str(quantized(folder, tmp_path / "c")))
    (name, linear, rows), *_ = script.quantized_modules(checkpoint)
    model = script.student(folder, checkpoint, 4)
    module = model.base_model.model.get_submodule(name)
    x = np.random.default_rng(5).standard_normal((7, 64)).astype(np.float32)
    with torch.no_grad():
        module.lora_B["default"].weight.normal_()
        found = module(torch.from_numpy(x)).numpy()
    delta = (module.lora_B["default"].weight @ module.lora_A["default"].weight).detach().numpy() * 2
    factors = np.asarray(linear.prequant_scale, np.float32)
    merged = linear.weight[rows] * linear.weight_scale[rows, None] + delta / factors
    seen = np.clip(np.rint(x * factors / np.float32(linear.activation_scale)), -128, 127) * linear.activation_scale
    np.testing.assert_allclose(found, seen @ merged.T, rtol=1e-3, atol=1e-3)


def test_gradients_pass_through_the_rounding_but_not_where_it_clips(script: Any, tmp_path: Path) -> None:
    checkpoint = open_decoder(str(quantized(write_huggingface(tmp_path / "m"), tmp_path / "c")))
    _, linear, _ = next(iter(script.quantized_modules(checkpoint)))
    limit = 127 * linear.activation_scale / np.asarray(linear.prequant_scale, np.float32)
    share = torch.tensor([[0.3], [-0.9], [1.5], [-2.0]])
    x = (share * torch.from_numpy(limit)).requires_grad_()
    (rounded,) = script.RoundedInput(linear)(torch.nn.Identity(), (x,))
    assert not torch.equal(rounded[:2], x[:2])
    rounded.sum().backward()
    expected = (share.abs() < 1).float().expand(4, 64)
    torch.testing.assert_close(x.grad, expected, rtol=1e-5, atol=0)


def test_an_epoch_brings_quality_back(script: Any, tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path / "m")
    arguments = argparse.Namespace(
        model=str(folder),
        out=tmp_path / "out",
        calibration="max",
        samples=8,
        seq_len=64,
        share=0.005,
        windows=4,
        rank=8,
        learning_rate=1e-3,
    )
    document = script.run(arguments)
    float_row, before, after, control = document["rows"]
    assert [row["model"] for row in document["rows"]] == ["float", "quantized", "recovered", "float with the adapter"]
    assert control["int8_share_pct"] == 0 and control["kl"] > 0
    assert float_row["kl"] == 0 and before["int8_share_pct"] == after["int8_share_pct"] == 100
    assert after["kl"] < 0.8 * before["kl"]
    assert document["kl_recovered_pct"] == pytest.approx(100 * (1 - after["kl"] / before["kl"]))
    assert document["training"]["share_of_text_pct"] == pytest.approx(0.5, abs=0.1)
    assert len(document["training"]["kl_of_each_step"]) == document["training"]["samples"]
    json.dumps(document)
    assert script.table(document).count("\n") == 5

    # the adapter that was merged is peft's, and the second checkpoint is the one of the merged model
    base = open_model(str(folder))
    merged = merge_lora(copy.copy(base), [(tmp_path / "out" / "adapter", 1.0)])
    manifest = json.loads((tmp_path / "out" / "after" / "manifest.json").read_text())
    assert manifest["inputs"]["model"] == merged.fingerprint() != base.fingerprint()
