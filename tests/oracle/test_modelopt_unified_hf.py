"""Unified Hugging Face checkpoints against modelopt's own exporter, from the same quantized model."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import write_huggingface
from hub_builders import cast
from safetensors.numpy import load_file

from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.safetensors import read_header
from trtbuild.checkpoint.spec import Quantization
from trtbuild.checkpoint.trtllm import read_checkpoint
from trtbuild.quantize.unified_hf import write_unified_hf

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
mtq = pytest.importorskip("modelopt.torch.quantization")

DECODER_TYPES = {"llama": "llama", "qwen2": "qwen", "qwen3": "qwen"}
EXCLUDED = [
    {"quantizer_name": "*layers.0.mlp.down_proj*", "enable": False},
    {"quantizer_name": "*layers.1.self_attn.[qkv]_proj*", "enable": False},
]


def quantized_model(source: Path, config: str, extra: list[dict[str, Any]]) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float16)
    torch.manual_seed(1)

    def calibrate(quantized: Any) -> None:
        for _ in range(2):
            quantized(torch.randint(0, model.config.vocab_size, (2, 32)))

    recipe = copy.deepcopy(getattr(mtq, config))
    recipe["quant_cfg"] += extra
    return mtq.quantize(model, recipe, calibrate)


def assert_same_tensors(ours: Path, theirs: Path) -> None:
    found, wanted = (read_header(folder / "model.safetensors").tensors for folder in (ours, theirs))
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert found[name].read().tobytes() == tensor.read().tobytes(), name


def export(model: Any, folder: Path) -> Path:
    from modelopt.torch.export import export_hf_checkpoint

    with torch.inference_mode():
        export_hf_checkpoint(model, dtype=torch.float16, export_dir=folder)
    return folder


@pytest.mark.parametrize("config", ["INT8_SMOOTHQUANT_CFG", "INT8_WEIGHT_ONLY_CFG"])
@pytest.mark.parametrize("family", DECODER_TYPES)
@pytest.mark.parametrize("extra", ["plain", "excluded"])
def test_quantized(config: str, family: str, extra: str, tmp_path: Path) -> None:
    from modelopt.torch.export import export_tensorrt_llm_checkpoint

    source = write_huggingface(tmp_path / "hf", family)
    model = quantized_model(source, config, {"plain": [], "excluded": EXCLUDED}[extra])
    with torch.inference_mode():
        export_tensorrt_llm_checkpoint(
            copy.deepcopy(model),
            DECODER_TYPES[family],
            dtype=torch.float16,
            export_dir=tmp_path / "hub",
            inference_tensor_parallel=1,
        )
    theirs = export(model, tmp_path / "theirs")
    ours = tmp_path / "ours"
    ours.mkdir()
    hub = read_checkpoint(tmp_path / "hub", model_folder=source)
    write_unified_hf(hub, ours)
    assert_same_tensors(ours, theirs)
    said, meant = (json.loads((folder / "hf_quant_config.json").read_text()) for folder in (ours, theirs))
    assert said["quantization"] == meant["quantization"]
    said, meant = (json.loads((f / "config.json").read_text())["quantization_config"] for f in (ours, theirs))
    assert said == {**meant, "producer": said["producer"]}


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "phi3"])
@pytest.mark.parametrize("tied", [False, True])
def test_float_and_weight_only_of_our_own(family: str, tied: bool, tmp_path: Path) -> None:
    source = write_huggingface(tmp_path / "hf", family, tie_word_embeddings=tied)
    decoder = cast(open_model(str(source)), np.float16)
    for algo, config in ((None, None), ("W8A16", "INT8_WEIGHT_ONLY_CFG")):
        if config is None:
            model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float16)
        else:
            model = quantized_model(source, config, [])
        theirs = export(model, tmp_path / f"theirs_{algo}")
        ours = tmp_path / f"ours_{algo}"
        ours.mkdir()
        write_unified_hf(dataclasses.replace(decoder, quantization=Quantization(algo)), ours)
        assert_same_tensors(ours, theirs)


def test_transformers_reads_the_float_export(tmp_path: Path) -> None:
    source = write_huggingface(tmp_path / "hf", "qwen3")
    ours = tmp_path / "ours"
    ours.mkdir()
    write_unified_hf(open_model(str(source)), ours, max_shard_bytes=50_000)
    assert len(list(ours.glob("model-*.safetensors"))) > 1
    assert load_file(next(iter(ours.glob("model-*.safetensors"))))
    ids = torch.arange(20)[None]
    logits = [
        transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(ids).logits
        for folder in (source, ours)
    ]
    assert torch.equal(*logits)
