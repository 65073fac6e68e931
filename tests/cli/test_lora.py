"""`quantize --lora` on the command line: what is merged and noted, weights, several adapters, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from builders import family_config, write_huggingface
from cli.conftest import Run
from lora_files import write_lora

from trtbuild.checkpoint.opening import open_decoder

CONFIG = family_config("llama", num_hidden_layers=1)
MODULE = "transformer.layers.0.attention.dense"
FACTORS = "base_model.model.model.layers.0.self_attn.o_proj"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_huggingface(tmp_path / "model", num_hidden_layers=1)


def dense(checkpoint: Path, name: str = "weight") -> np.ndarray:
    return np.asarray(open_decoder(str(checkpoint)).tensors[f"{MODULE}.{name}"].read())


def product(tensors: dict[str, np.ndarray]) -> np.ndarray:
    return np.asarray(tensors[f"{FACTORS}.lora_B.weight"] @ tensors[f"{FACTORS}.lora_A.weight"])


def test_adapters_with_weights_are_merged_into_the_checkpoint_and_noted(
    trtbuild: Run, model: Path, tmp_path: Path
) -> None:
    one = write_lora(tmp_path / "one", CONFIG, ("o_proj",), rank=4, lora_alpha=4)
    two = write_lora(tmp_path / "b=c", CONFIG, ("o_proj",), rank=2, lora_alpha=4, seed=1)
    plain, merged = tmp_path / "plain", tmp_path / "merged"
    assert trtbuild("quantize", model, "-o", plain, "-p", "fp32").code == 0
    weighted = f"{tmp_path / 'b=c'}=-0.25"
    done = trtbuild("quantize", model, "-o", merged, "-p", "fp32", "--lora", tmp_path / "one", "--lora", weighted)
    assert done.code == 0, done.err
    expected = dense(plain) + product(one) - 0.25 * 2 * product(two)
    np.testing.assert_allclose(dense(merged), expected, rtol=1e-5, atol=1e-5)
    assert "with weight -0.25" in done.err
    settings = json.loads((merged / "manifest.json").read_text())
    assert settings["inputs"]["model"] != json.loads((plain / "manifest.json").read_text())["inputs"]["model"]


def test_int8_is_calibrated_on_the_merged_model(trtbuild: Run, model: Path, tmp_path: Path) -> None:
    write_lora(tmp_path / "lora", CONFIG, ("v_proj",), lora_alpha=16)
    plain, merged = tmp_path / "plain", tmp_path / "merged"
    common = ("-p", "int8", "--calibration", "max", "--samples", 4, "--seq-len", 32)
    assert trtbuild("quantize", model, "-o", plain, *common).code == 0
    done = trtbuild("quantize", model, "-o", merged, *common, "--lora", tmp_path / "lora", "--json")
    assert done.code == 0, done.err
    assert dense(merged).dtype == np.int8
    # the adapter makes V, and so what the dense linear reads, several times larger
    name = "activation_scaling_factor"
    smoothed = [
        dense(path, name) / dense(path, "prequant_scaling_factor").astype(np.float32) for path in (plain, merged)
    ]
    assert np.median(smoothed[1] / smoothed[0]) > 2
    assert any("LoRA adapter" in note for note in done.document["notes"])


def test_a_record_of_the_model_without_the_adapter_is_refused(trtbuild: Run, model: Path, tmp_path: Path) -> None:
    write_lora(tmp_path / "lora", CONFIG, ("v_proj",))
    record, out = tmp_path / "record", tmp_path / "out"
    assert trtbuild("calibrate", model, "-o", record, "--samples", 4, "--seq-len", 32).code == 0
    done = trtbuild("quantize", model, "-o", out, "-p", "int8", "--record", record, "--lora", tmp_path / "lora")
    assert done.code == 3
    assert "another model" in done.err
    assert not out.exists()


@pytest.mark.parametrize(
    ("value", "code", "named"),
    [
        ("{lora}=half", 2, "not a number"),
        ("{lora}=nan", 3, "nan"),
        ("{model}", 3, "adapter_config.json"),
        ("{missing}", 3, "missing"),
        ("{wide}", 3, "trained on another model"),
    ],
)
def test_what_cannot_be_merged_is_one_line_and_writes_nothing(
    trtbuild: Run, model: Path, tmp_path: Path, value: str, code: int, named: str
) -> None:
    write_lora(tmp_path / "lora", CONFIG, ("o_proj",))
    write_lora(tmp_path / "wide", family_config("llama", hidden_size=96), ("o_proj",))
    given = value.format(**{name: tmp_path / name for name in ("lora", "model", "missing", "wide")})
    done = trtbuild("quantize", model, "-o", tmp_path / "out", "-p", "fp16", "--lora", given)
    assert done.code == code, done.err
    assert named in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()
