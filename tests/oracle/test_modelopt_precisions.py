"""Quantizing through modelopt: the same tensors as modelopt run by hand, with what it loses put back."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import write_huggingface

from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.safetensors import read_header
from trtbuild.checkpoint.spec import EMBEDDING, HEAD
from trtbuild.checkpoint.trtllm import read_checkpoint, validate_checkpoint
from trtbuild.errors import MachineLacks
from trtbuild.quantize.forms import UNIFIED_HF, Serving
from trtbuild.quantize.modelopt import modelopt_to, quantize_with_modelopt
from trtbuild.quantize.modelopt_recipes import RECIPES
from trtbuild.quantize.precisions import PRECISIONS

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
mtq = pytest.importorskip("modelopt.torch.quantization")

SIZES: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 250, "rope_theta": 500000.0}
KV = {"int8": 8, "fp8": (4, 3)}


def samples() -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, SIZES["vocab_size"], 24).astype(np.int32) for _ in range(2)]


def by_hand(source: Path, folder: Path, name: str, kv_cache: str | None) -> Path:
    from modelopt.torch.export import export_tensorrt_llm_checkpoint

    recipe = RECIPES[name]
    config = copy.deepcopy(getattr(mtq, recipe.config))
    if recipe.algorithm:
        config["algorithm"] = dict(recipe.algorithm)
    if kv_cache:
        quantizer = {"num_bits": KV[kv_cache], "axis": None}
        if isinstance(config["quant_cfg"], dict):  # before 0.44
            config["quant_cfg"]["*[kv]_bmm_quantizer"] = {**quantizer, "enable": True}
        else:
            config["quant_cfg"].append({"quantizer_name": "*[kv]_bmm_quantizer", "cfg": quantizer, "enable": True})
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()

    def calibrate(quantized: Any) -> None:
        with torch.no_grad():
            for ids in samples():
                quantized(torch.from_numpy(ids.astype(np.int64))[None])

    mtq.quantize(model, config, calibrate)
    with torch.inference_mode():
        export_tensorrt_llm_checkpoint(
            model, "llama", dtype=torch.float16, export_dir=folder, inference_tensor_parallel=1
        )
    return folder


@pytest.mark.parametrize(
    ("name", "kv_cache"),
    [*((name, None) for name in RECIPES), ("int8-sq", "int8"), ("fp8", "fp8")],
)
def test_same_tensors_as_by_hand(name: str, kv_cache: str | None, tmp_path: Path, capfd: Any) -> None:
    source = write_huggingface(tmp_path / "hf", "llama", **SIZES, num_hidden_layers=1)
    decoder = open_model(str(source))
    out = tmp_path / "ours"
    capfd.readouterr()
    modelopt_to(decoder, out, name, samples(), kv_cache=kv_cache)
    assert capfd.readouterr().out == ""
    written = read_checkpoint(out)
    assert written.notes == ()
    theirs = read_header(by_hand(source, tmp_path / "theirs", name, kv_cache) / "rank0.safetensors").tensors
    ours = read_header(out / "rank0.safetensors").tensors
    assert set(ours) == set(theirs)
    for tensor in theirs.values():
        array = tensor.read()
        if tensor.name in (EMBEDDING, HEAD):
            array = array[: SIZES["vocab_size"]]
        assert ours[tensor.name].read().tobytes() == array.tobytes(), tensor.name
    assert written.spec.rope == decoder.spec.rope
    assert written.spec.vocab_size == SIZES["vocab_size"]
    assert written.assets == decoder.assets
    assert written.quantization.kv_cache_quant_algo == (kv_cache.upper() if kv_cache else None)
    assert [finding for finding in validate_checkpoint(out) if finding.fatal] == []
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".trtbuild")]


@pytest.mark.parametrize(("family", "name"), [("qwen2", "fp8"), ("qwen3", "int8-sq"), ("mistral", "int4-awq")])
def test_other_families_over_ranks(family: str, name: str, tmp_path: Path) -> None:
    decoder = open_model(str(write_huggingface(tmp_path / "hf", family, **SIZES, tie_word_embeddings=True)))
    out = tmp_path / "out"
    out.mkdir()
    quantize_with_modelopt(decoder, PRECISIONS[name], samples(), out, serving=Serving(tp=2, pp=2))
    assert len(list(out.glob("rank*.safetensors"))) == 4
    again = read_checkpoint(out)
    assert again.spec.family == family
    assert again.spec.tie_word_embeddings
    assert validate_checkpoint(out) == []


@pytest.mark.parametrize("name", ["fp8", "nvfp4"])
def test_unified_form_is_modelopts_own(name: str, tmp_path: Path) -> None:
    decoder = open_model(str(write_huggingface(tmp_path / "hf", "phi3", **SIZES)))
    out = tmp_path / "out"
    out.mkdir()
    quantize_with_modelopt(decoder, PRECISIONS[name], samples(), out, form=UNIFIED_HF, kv_cache="fp8")
    assert {"hf_quant_config.json", "llm_api.yaml", "tokenizer.json", "config.json"} <= {p.name for p in out.iterdir()}


def test_an_old_modelopt_cannot_export_nvfp4_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trtbuild.quantize import modelopt_recipes

    monkeypatch.setattr(modelopt_recipes, "modelopt_version", lambda: (0, 37))
    decoder = open_model(str(write_huggingface(tmp_path / "hf", "llama", **SIZES)))
    out = tmp_path / "out"
    out.mkdir()
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(MachineLacks, match="needs a GPU"):
        quantize_with_modelopt(decoder, PRECISIONS["nvfp4"], samples(), out)
