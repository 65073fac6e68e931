"""Spec and tensors of every family against the model transformers loads from the same folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rope_frequencies
import torch
import transformers
from builders import FAMILIES, write_huggingface
from rope_cases import CASES as ROPE_CASES

from trtbuild.checkpoint.architectures import ARCHITECTURES
from trtbuild.checkpoint.huggingface import read_config_spec
from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.rope import inverse_frequencies
from trtbuild.checkpoint.spec import EMBEDDING, FINAL_NORM, HEAD

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((family, {}) for family in FAMILIES),
    ("llama", {"tie_word_embeddings": True}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 32}),
    ("llama", {"num_key_value_heads": None}),
    ("mistral", {"sliding_window": 16}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}),
    ("qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
    (
        "qwen3",
        {
            "use_sliding_window": True,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    ("phi3", {"sliding_window": 16, "partial_rotary_factor": 0.5}),
]


def _expected(model: Any) -> dict[str, np.ndarray]:
    """The hub's tensors from a live transformers model, taken from its modules rather than its files."""
    expected = {
        EMBEDDING: model.get_input_embeddings().weight,
        FINAL_NORM: model.model.norm.weight,
        HEAD: model.get_output_embeddings().weight,
    }
    for i, layer in enumerate(model.model.layers):
        at, mlp, hub = layer.self_attn, layer.mlp, f"transformer.layers.{i}"
        for name, module in {
            "input_layernorm": layer.input_layernorm,
            "post_layernorm": layer.post_attention_layernorm,
        }.items():
            expected[f"{hub}.{name}.weight"] = module.weight
        if hasattr(at, "q_norm"):
            expected[f"{hub}.attention.q_layernorm.weight"] = at.q_norm.weight
            expected[f"{hub}.attention.k_layernorm.weight"] = at.k_norm.weight
        fused = hasattr(at, "qkv_proj")
        for kind in ("weight", "bias"):
            qkv = [at.qkv_proj] if fused else [at.q_proj, at.k_proj, at.v_proj]
            gate_up = list(getattr(mlp.gate_up_proj, kind).chunk(2)) if fused and kind == "weight" else []
            pieces = {
                "attention.qkv": [getattr(m, kind) for m in qkv],
                "attention.dense": [getattr(at.o_proj, kind)],
                "mlp.fc": gate_up[:1] if fused else [getattr(mlp.gate_proj, kind)],
                "mlp.gate": gate_up[1:] if fused else [getattr(mlp.up_proj, kind)],
                "mlp.proj": [getattr(mlp.down_proj, kind)],
            }
            for name, parts in pieces.items():
                if parts and parts[0] is not None:
                    expected[f"{hub}.{name}.{kind}"] = torch.cat(parts)
    return {name: tensor.detach().float().numpy() for name, tensor in expected.items()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("family", "changes"), VARIANTS)
def test_weights_and_rope_are_those_transformers_loads(
    tmp_path: Path, family: str, changes: dict[str, Any], dtype: str
) -> None:
    folder = write_huggingface(tmp_path / "m", family, dtype=dtype, shards=3, **changes)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    decoder = open_model(str(folder))
    expected = _expected(model)
    assert set(expected) == set(decoder.tensors)
    for name, values in expected.items():
        np.testing.assert_array_equal(decoder.tensors[name].read().astype(np.float32), values, err_msg=name)
    inv_freq, attention_factor = inverse_frequencies(decoder.spec)
    np.testing.assert_allclose(inv_freq, model.model.rotary_emb.inv_freq.numpy(), rtol=1e-6)
    assert attention_factor == model.model.rotary_emb.attention_scaling
    types = getattr(model.config, "layer_types", None)
    everywhere = getattr(model.config, "sliding_window", None) if types is None else None
    for layer in range(2):
        sliding = types[layer] == "sliding_attention" if types else everywhere is not None
        assert decoder.spec.window_of(layer) == (model.config.sliding_window if sliding else None)


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_what_a_silent_config_means(tmp_path: Path, family: str) -> None:
    """Fields that config.json leaves out take the default of the family's config class."""
    folder = write_huggingface(tmp_path / "m", family)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    needed = ("model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")
    silent = {**{k: config[k] for k in needed}, "num_attention_heads": 32, "hidden_size": 4096}
    (folder / "config.json").write_text(json.dumps(silent), encoding="utf-8")
    spec = read_config_spec(folder / "config.json")
    theirs = transformers.AutoConfig.from_pretrained(folder)
    head = getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
    assert spec.head_size == head
    assert spec.num_kv_heads == theirs.num_key_value_heads
    assert spec.max_position_embeddings == theirs.max_position_embeddings
    assert spec.norm_epsilon == theirs.rms_norm_eps
    assert spec.tie_word_embeddings == theirs.tie_word_embeddings
    assert spec.rope.base == theirs.rope_parameters["rope_theta"]
    types = getattr(theirs, "layer_types", None)
    assert spec.sliding_window == (None if types else getattr(theirs, "sliding_window", None))


@pytest.mark.parametrize("case", ROPE_CASES)
def test_the_stored_rope_frequencies_are_still_those_of_transformers(case: str) -> None:
    stored = json.loads(rope_frequencies.STORED.read_text(encoding="utf-8"))[case]
    for old, new in zip(stored, rope_frequencies.frequencies(case), strict=True):
        assert old["max_seq_len"] == new["max_seq_len"]
        np.testing.assert_allclose(old["inv_freq"], new["inv_freq"], rtol=1e-6)
        assert old["attention_factor"] == pytest.approx(new["attention_factor"], rel=1e-9)
