"""Unified Hugging Face checkpoints: names, shards, configs and refusals (values: tests/oracle)."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from builders import LLAMA3_ROPE, write_huggingface
from hub_builders import cast, in_memory, quantized
from safetensors.numpy import load_file

from trtbuild.checkpoint.huggingface import read_config_spec
from trtbuild.checkpoint.huggingface_config import config_of
from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.spec import Quantization
from trtbuild.errors import InputRefused
from trtbuild.profile import EngineLimits
from trtbuild.quantize.unified_hf import write_unified_hf

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama3": ("llama", {"rope_scaling": LLAMA3_ROPE}),
    "mistral": ("mistral", {"sliding_window": 64, "head_dim": 32}),
    "qwen2": (
        "qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": 32,
            "layer_types": ["full_attention", "sliding_attention"],
            "eos_token_id": [2, 5],
        },
    ),
    "qwen3": ("qwen3", {"attention_bias": True}),
    "phi3": (
        "phi3",
        {
            "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
            "original_max_position_embeddings": 64,
            "sliding_window": 99,
        },
    ),
    "phi3 partial": ("phi3", {"partial_rotary_factor": 0.5}),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_config_of_a_spec_reads_back_as_that_spec(case: str, tmp_path: Path) -> None:
    family, changes = CONFIGS[case]
    spec = read_config_spec(write_huggingface(tmp_path / "hf", family, **changes) / "config.json")
    (tmp_path / "config.json").write_text(json.dumps(config_of(spec)), encoding="utf-8")
    assert read_config_spec(tmp_path / "config.json") == spec


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "phi3"])
def test_a_float_export_is_the_model_again(family: str, tmp_path: Path) -> None:
    decoder = open_model(str(write_huggingface(tmp_path / "hf", family)))
    write_unified_hf(decoder, tmp_path, max_shard_bytes=40_000)
    again = open_model(str(tmp_path))
    assert again.spec == decoder.spec
    assert again.assets == decoder.assets
    assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 2
    for name, tensor in decoder.tensors.items():
        np.testing.assert_array_equal(again.tensors[name].read(), tensor.read())


def test_smoothquant_names_and_scalars(tmp_path: Path) -> None:
    decoder = quantized(tmp_path / "hf", "W8A8_SQ_PER_CHANNEL")
    path = "transformer.layers.1.mlp.proj"
    exclude = Quantization("W8A8_SQ_PER_CHANNEL", "FP8", ("*lm_head", path))
    decoder = in_memory(decoder, {f"{path}.weight": np.ones((64, 128), np.float16)}, exclude)
    write_unified_hf(decoder, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    qkv = "transformer.layers.0.attention.qkv"
    v = "model.layers.0.self_attn.v_proj"
    np.testing.assert_array_equal(tensors[f"{v}.weight"], decoder.tensors[f"{qkv}.weight"].read()[96:])
    np.testing.assert_array_equal(
        tensors[f"{v}.weight_scale"], decoder.tensors[f"{qkv}.weights_scaling_factor"].read()[96:]
    )
    np.testing.assert_array_equal(
        tensors[f"{v}.pre_quant_scale"], decoder.tensors[f"{qkv}.prequant_scaling_factor"].read()
    )
    assert tensors[f"{v}.input_scale"].shape == ()
    assert tensors[f"{v}.v_scale"] == np.float32(0.1)
    assert tensors["model.layers.1.mlp.down_proj.weight"].dtype == np.float16
    assert "model.layers.1.mlp.down_proj.weight_scale" not in tensors
    block = json.loads((tmp_path / "hf_quant_config.json").read_text())["quantization"]
    assert block == {
        "quant_algo": "W8A8_SQ_PER_CHANNEL",
        "kv_cache_quant_algo": "FP8",
        "exclude_modules": ["lm_head", "model.embed_tokens", "model.layers.1.mlp.down_proj"],
    }


def test_weight_only_is_quantized_on_the_way(tmp_path: Path) -> None:
    decoder = cast(open_model(str(write_huggingface(tmp_path / "hf", "phi3"))), np.float16)
    write_unified_hf(dataclasses.replace(decoder, quantization=Quantization("W8A16")), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    gate_up = "model.layers.0.mlp.gate_up_proj"
    weight, scale = tensors[f"{gate_up}.weight"], tensors[f"{gate_up}.weight_scale"]
    assert (weight.dtype, weight.shape, scale.shape) == (np.int8, (256, 64), (256,))
    gate = decoder.tensors["transformer.layers.0.mlp.fc.weight"].read().astype(np.float32)
    assert (np.abs(weight[:128] * scale[:128, None] - gate) <= scale[:128, None] * 0.5001).all()


def plugin(folder: Path) -> Any:
    return quantized(folder, "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN")


def int8_kv(folder: Path) -> Any:
    return quantized(folder, "W8A8_SQ_PER_CHANNEL")


def half_fused(folder: Path) -> Any:
    decoder = cast(open_model(str(write_huggingface(folder, "phi3"))), np.float16)
    excluded = ("*lm_head", "transformer.layers.0.mlp.fc")
    return dataclasses.replace(decoder, quantization=Quantization("W8A16", exclude_modules=excluded))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (plugin, "has no unified Hugging Face form"),
        (int8_kv, "no INT8 KV cache"),
        (half_fused, "are one linear of this model, but only one of them is quantized"),
    ],
)
def test_what_has_no_such_form_is_refused(make: Any, message: str, tmp_path: Path) -> None:
    decoder = make(tmp_path / "hf")
    with pytest.raises(InputRefused, match=message):
        write_unified_hf(decoder, tmp_path)
    assert not list(tmp_path.glob("*.safetensors"))


def test_limits_of_a_profile_become_llm_api_options(tmp_path: Path) -> None:
    decoder = open_model(str(write_huggingface(tmp_path / "hf")))
    limits = EngineLimits(max_batch_size=4, max_input_len=64, max_seq_len=96, max_num_tokens=32, kv_pool_tokens=200)
    write_unified_hf(decoder, tmp_path, limits=limits, tp=2)
    assert yaml.safe_load((tmp_path / "llm_api.yaml").read_text(encoding="utf-8")) == {
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 1,
        "max_batch_size": 4,
        "max_num_tokens": 32,
        "max_seq_len": 96,
        "enable_chunked_prefill": True,
        "kv_cache_config": {
            "dtype": "auto",
            "enable_block_reuse": True,
            "free_gpu_memory_fraction": 0.9,
            "max_tokens": 200,
        },
        "scheduler_config": {"capacity_scheduler_policy": "GUARANTEED_NO_EVICT"},
    }
