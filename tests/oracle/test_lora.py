"""Merged adapters against peft's own merge, for every family and every setting that is merged."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers
from builders import family_config, write_huggingface
from lora_files import write_lora

from trtbuild.calibrate.forward import logits
from trtbuild.checkpoint.lora import merge_lora
from trtbuild.checkpoint.opening import open_model

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PHI3 = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
CASES: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "llama": ("llama", ALL, {}),
    "mistral": ("mistral", ("q_proj", "v_proj"), {"lora_alpha": 32}),
    "qwen2": ("qwen2", ALL, {"use_rslora": True}),
    "qwen3": ("qwen3", ("o_proj", "down_proj"), {}),
    "phi3": ("phi3", PHI3, {}),
    "patterns": (
        "llama",
        ALL,
        {
            "rank_pattern": {"model.layers.0.self_attn.q_proj": 2, r"layers\.\d+\.mlp\.down_proj": 6},
            "alpha_pattern": {"up_proj": 3, "layers.1.self_attn.v_proj": 64},
            "ranks": {
                "model.layers.0.self_attn.q_proj": 2,
                "model.layers.0.mlp.down_proj": 6,
                "model.layers.1.mlp.down_proj": 6,
            },
        },
    ),
    "embedding-and-head": ("llama", ("embed_tokens", "lm_head", "q_proj"), {}),
    "fan_in_fan_out": ("llama", ("q_proj", "o_proj"), {"fan_in_fan_out": True}),
}


def _merged_logits(folder: Path, adapters: list[tuple[Path, float]], dtype: Any, ids: np.ndarray) -> np.ndarray:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    names = [f"a{i}" for i in range(len(adapters))]
    wrapped = peft.PeftModel.from_pretrained(model, str(adapters[0][0]), adapter_name=names[0])
    for name, (path, _) in zip(names[1:], adapters[1:], strict=True):
        wrapped.load_adapter(str(path), adapter_name=name)
    if any(weight != 1 for _, weight in adapters):
        wrapped.add_weighted_adapter(names, [weight for _, weight in adapters], "sum", combination_type="cat")
        names = ["sum"]
    merged = wrapped.merge_and_unload(adapter_names=names).float().eval()
    with torch.no_grad():
        return merged(torch.from_numpy(ids)[None]).logits[0].numpy()


IDS = np.random.default_rng(0).integers(0, 96, 24)


@pytest.mark.parametrize("case", CASES)
def test_merged_logits_equal_peft(tmp_path: Path, case: str) -> None:
    family, targets, changes = CASES[case]
    folder = write_huggingface(tmp_path / "m", family)
    write_lora(tmp_path / "lora", family_config(family), targets, **changes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = _merged_logits(folder, [(tmp_path / "lora", 1.0)], torch.float32, IDS)
    base = open_model(str(folder))
    found = logits(merge_lora(base, [(tmp_path / "lora", 1.0)]), IDS)
    assert np.abs(expected - logits(base, IDS)).max() > 0.1
    np.testing.assert_allclose(found, expected, atol=1e-3)


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.7, -0.3, 1.5)])
def test_several_adapters_add_up(tmp_path: Path, weights: tuple[float, ...]) -> None:
    folder = write_huggingface(tmp_path / "m", "llama")
    adapters = []
    for i, weight in enumerate(weights):
        targets = (ALL, ("q_proj", "down_proj"), ("v_proj", "q_proj"))[i]
        write_lora(tmp_path / str(i), family_config("llama"), targets, rank=2 + i, seed=i, lora_alpha=4)
        adapters.append((tmp_path / str(i), weight))
    expected = _merged_logits(folder, adapters, torch.float32, IDS)
    np.testing.assert_allclose(logits(merge_lora(open_model(str(folder)), adapters), IDS), expected, atol=1e-3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_weights_are_rounded_as_peft_rounds_them(tmp_path: Path, dtype: str) -> None:
    folder = write_huggingface(tmp_path / "m", "llama", dtype=dtype)
    write_lora(tmp_path / "lora", family_config("llama"), ALL, lora_alpha=1)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    merged = peft.PeftModel.from_pretrained(model, str(tmp_path / "lora")).merge_and_unload()
    decoder = merge_lora(open_model(str(folder)), [(tmp_path / "lora", 1.0)])
    for layer, block in enumerate(merged.model.layers):
        for module, theirs in {"mlp.fc": block.mlp.gate_proj, "attention.dense": block.self_attn.o_proj}.items():
            found = decoder.tensors[f"transformer.layers.{layer}.{module}.weight"].read()
            assert found.dtype.name == dtype
            expected = theirs.weight.detach().float().numpy()
            differs = found.astype(np.float32) != expected
            assert differs.mean() < 1e-3  # sums in another order may round to the neighbour
            np.testing.assert_allclose(found.astype(np.float32), expected, rtol=1e-2, atol=1e-5)


def test_an_adapter_that_peft_itself_saved(tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path / "m", "qwen2")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = peft.LoraConfig(
        r=4, target_modules="all-linear", init_lora_weights=False, modules_to_save=["lm_head"], task_type="CAUSAL_LM"
    )
    wrapped = peft.get_peft_model(model, config)
    with torch.no_grad():
        wrapped.base_model.model.lm_head.modules_to_save["default"].weight.mul_(1.5)
    wrapped.save_pretrained(tmp_path / "lora")
    merged = wrapped.merge_and_unload().eval()
    with torch.no_grad():
        expected = merged(torch.from_numpy(IDS)[None]).logits[0].numpy()
    found = logits(merge_lora(open_model(str(folder)), [(tmp_path / "lora", 1.0)]), IDS)
    np.testing.assert_allclose(found, expected, atol=1e-3)
