"""LoRA adapters merged into a decoder: which rows change, what is refused. Against peft: tests/oracle/test_lora.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from builders import FAMILIES, family_config, write_huggingface
from lora_files import write_lora

from trtbuild.checkpoint.lora import merge_lora
from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.spec import EMBEDDING, HEAD, Decoder
from trtbuild.errors import InputRefused

QKV = "transformer.layers.1.attention.qkv.weight"


@pytest.fixture
def base(tmp_path: Path) -> Decoder:
    return open_model(str(write_huggingface(tmp_path / "base", "llama")))


def _write(folder: Path, targets: tuple[str, ...] = ("q_proj",), family: str = "llama", **settings: Any) -> Path:
    write_lora(folder, family_config(family), targets, **settings)
    return folder


def _refusal(base: Decoder, folder: Path) -> str:
    with pytest.raises(InputRefused) as refused:
        merge_lora(base, [(folder, 1.0)])
    return f"{refused.value} | {refused.value.hint}"


def test_only_the_rows_of_the_target_change(tmp_path: Path, base: Decoder) -> None:
    tensors = write_lora(tmp_path / "k", family_config("llama"), ("k_proj",), lora_alpha=2)
    merged = merge_lora(base, [(tmp_path / "k", 0.5)])
    before, after = base.tensors[QKV].read(), merged.tensors[QKV].read()
    name = "base_model.model.model.layers.1.self_attn.k_proj"
    delta = 0.5 * (2 / 4) * tensors[f"{name}.lora_B.weight"] @ tensors[f"{name}.lora_A.weight"]
    np.testing.assert_array_equal(after[:64], before[:64])
    np.testing.assert_allclose(after[64:96], before[64:96] + delta, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(after[96:], before[96:])
    assert merged.tensors["transformer.layers.1.mlp.fc.weight"] is base.tensors["transformer.layers.1.mlp.fc.weight"]
    assert any("LoRA adapter" in note and "weight 0.5" in note for note in merged.notes)


def test_the_halves_of_a_fused_linear_get_their_own_rows(tmp_path: Path) -> None:
    base = open_model(str(write_huggingface(tmp_path / "base", "phi3")))
    tensors = write_lora(tmp_path / "l", family_config("phi3"), ("gate_up_proj",), lora_alpha=4)
    merged = merge_lora(base, [(tmp_path / "l", 1.0)])
    name = "base_model.model.model.layers.0.mlp.gate_up_proj"
    halves = np.split(tensors[f"{name}.lora_B.weight"] @ tensors[f"{name}.lora_A.weight"], 2)
    for module, delta in zip(("mlp.fc", "mlp.gate"), halves, strict=True):
        path = f"transformer.layers.0.{module}.weight"
        expected = base.tensors[path].read() + delta
        np.testing.assert_allclose(merged.tensors[path].read(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_adapter_at_all_changes_nothing(tmp_path: Path, family: str) -> None:
    base = open_model(str(write_huggingface(tmp_path / "base", family)))
    merged = merge_lora(base, [])
    assert merged.spec == base.spec
    assert merged.tensors == base.tensors


def test_the_fingerprint_tells_adapters_and_weights_apart(tmp_path: Path, base: Decoder) -> None:
    one, two = _write(tmp_path / "one"), _write(tmp_path / "two", seed=1)
    again = _write(tmp_path / "again")
    prints = [
        merge_lora(base, list(adapters)).fingerprint()
        for adapters in ([(one, 1.0)], [(two, 1.0)], [(one, 0.5)], [(one, 1.0), (two, 1.0)])
    ]
    assert len({base.fingerprint(), *prints}) == 5
    assert merge_lora(base, [(again, 1.0)]).fingerprint() == prints[0]


def test_an_adapted_head_is_no_longer_the_embedding(tmp_path: Path) -> None:
    base = open_model(str(write_huggingface(tmp_path / "base", "llama", tie_word_embeddings=True)))
    for target in ("lm_head", "embed_tokens"):
        merged = merge_lora(base, [(_write(tmp_path / target, (target,)), 1.0)])
        changed, kept = (HEAD, EMBEDDING) if target == "lm_head" else (EMBEDDING, HEAD)
        assert not merged.spec.tie_word_embeddings
        np.testing.assert_array_equal(merged.tensors[kept].read(), base.tensors[kept].read())
        assert np.abs(merged.tensors[changed].read() - base.tensors[changed].read()).max() > 0.1
        assert any("no longer tied" in note for note in merged.notes)
    assert merge_lora(base, [(_write(tmp_path / "q"), 1.0)]).spec.tie_word_embeddings


def test_a_whole_head_trained_along_replaces_the_old_one(tmp_path: Path, base: Decoder) -> None:
    head = np.full((96, 64), 0.5, np.float32)
    folder = _write(tmp_path / "l", extra={"base_model.model.lm_head.weight": head}, modules_to_save=["lm_head"])
    np.testing.assert_array_equal(merge_lora(base, [(folder, 1.0)]).tensors[HEAD].read(), head)
    with pytest.raises(InputRefused, match="replaced by another adapter as well"):
        merge_lora(
            base, [(folder, 1.0), (_write(tmp_path / "m", extra={"base_model.model.lm_head.weight": head}), 1.0)]
        )
    short = {"base_model.model.lm_head.weight": head[:90]}
    assert "has shape [90, 64], the model's is [96, 64]" in _refusal(base, _write(tmp_path / "s", extra=short))


def test_adapters_in_half_precision(tmp_path: Path, base: Decoder) -> None:
    tensors = write_lora(tmp_path / "l", family_config("llama"), ("q_proj",))
    half = {name: values.astype(ml_dtypes.bfloat16) for name, values in tensors.items()}
    folder = _write(tmp_path / "half", extra=half)
    name = "base_model.model.model.layers.1.self_attn.q_proj"
    a, b = (half[f"{name}.lora_{side}.weight"].astype(np.float32) for side in "AB")
    expected = base.tensors[QKV].read()[:64] + 2 * b @ a
    np.testing.assert_allclose(merge_lora(base, [(folder, 1.0)]).tensors[QKV].read()[:64], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"peft_type": "IA3"}, "peft_type is IA3"),
        ({"use_dora": True}, "use_dora is set"),
        ({"lora_bias": True}, "lora_bias is set"),
        ({"layer_replication": [[0, 1]]}, "layer_replication is set"),
        ({"target_parameters": ["x"]}, "target_parameters is set"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'"),
        ({"init_lora_weights": "olora"}, "init_lora_weights is 'olora'"),
        ({"r": 5}, "do not have the rank 5"),
        ({"r": 0}, "r is 0"),
        ({"lora_alpha": None}, "lora_alpha is missing"),
        ({"use_rslora": "yes"}, "use_rslora is 'yes'"),
        ({"rank_pattern": {"q_proj": 3}}, "do not have the rank 3"),
        ({"rank_pattern": {"(": 3}}, "rank_pattern has the malformed pattern '('"),
        ({"alpha_pattern": {"q_proj": "x"}}, "q_proj is 'x'"),
    ],
)
def test_settings_that_are_not_merged(tmp_path: Path, base: Decoder, settings: dict[str, Any], words: str) -> None:
    message = _refusal(base, _write(tmp_path / "l", **settings))
    assert words in message
    assert "l/adapter_" in message


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("base_model.model.model.layers.0.mlp.gate.lora_A.weight", "changes model.layers.0.mlp.gate, which this model"),
        ("base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight", "model.layers.7.self_attn.q_proj"),
        ("base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight", "has lora_A only"),
        ("base_model.model.model.layers.0.self_attn.q_proj.bias", "neither a LoRA factor"),
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector", "neither a LoRA factor"),
    ],
)
def test_tensors_without_a_place(tmp_path: Path, base: Decoder, name: str, words: str) -> None:
    message = _refusal(base, _write(tmp_path / "l", extra={name: np.ones((4, 64), np.float32)}))
    assert words in message
    assert str(tmp_path) in message


def test_an_adapter_of_another_model(tmp_path: Path, base: Decoder) -> None:
    write_lora(tmp_path / "l", family_config("llama", hidden_size=32), ("q_proj",))
    message = _refusal(base, tmp_path / "l")
    assert "lora_A [4, 32]" in message
    assert "A needs 64 columns and B 64 rows" in message
    assert "trained on another model" in message


def test_folders_that_are_no_adapter(tmp_path: Path, base: Decoder) -> None:
    (tmp_path / "l").mkdir()
    assert "no adapter_config.json" in _refusal(base, tmp_path / "l")
    folder = _write(tmp_path / "l")
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    assert "only pickled weights" in _refusal(base, folder)
    (folder / "adapter_model.bin").unlink()
    assert "no weights" in _refusal(base, folder)
    (folder / "adapter_model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    assert "Git-LFS pointer" in _refusal(base, folder)
    (folder / "adapter_config.json").write_text(json.dumps([1]))
    assert "adapter_config.json: not a JSON object" in _refusal(base, folder)


@pytest.mark.parametrize("weight", [float("nan"), float("inf")])
def test_a_weight_that_is_no_number(tmp_path: Path, base: Decoder, weight: float) -> None:
    with pytest.raises(InputRefused, match="the weight of an adapter cannot be"):
        merge_lora(base, [(_write(tmp_path / "l"), weight)])
