"""Our sharding rules against the real exporter: modelopt's checkpoint for tp 1, cut by us, is modelopt's for tp 2."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from builders import write_huggingface

from trtbuild.checkpoint.trtllm import read_checkpoint, validate_checkpoint, write_checkpoint

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
mtq = pytest.importorskip("modelopt.torch.quantization")

SIZES: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 250}
"""Wide enough for AWQ: 128 inputs on each of two ranks."""

CONFIGS = (
    *("INT8_DEFAULT_CFG", "INT8_SMOOTHQUANT_CFG", "INT8_WEIGHT_ONLY_CFG", "FP8_DEFAULT_CFG"),
    *("INT4_AWQ_CFG", "W4A8_AWQ_BETA_CFG", "NVFP4_DEFAULT_CFG"),
)
KNOWN = {"rotary-base", "rotary-scaling", "prequant-missing", "activation-scales-equal", "qwen-type"}
"""Faults of these exports that the validator is right to find."""


def export(model: Any, decoder_type: str, folder: Path, tp: int, pp: int) -> Path:
    from modelopt.torch.export import export_tensorrt_llm_checkpoint

    with torch.inference_mode():
        export_tensorrt_llm_checkpoint(
            copy.deepcopy(model),
            decoder_type,
            dtype=torch.float16,
            export_dir=folder,
            inference_tensor_parallel=tp,
            inference_pipeline_parallel=pp,
        )
    return folder


def assert_equal_files(ours: Path, theirs: Path) -> None:
    ranks = sorted(path.name for path in theirs.glob("rank*.safetensors"))
    assert ranks == sorted(path.name for path in ours.glob("rank*.safetensors"))
    for rank in ranks:
        assert (ours / rank).read_bytes() == (theirs / rank).read_bytes(), rank


def load(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.mark.parametrize(("family", "decoder_type"), [("llama", "llama"), ("qwen2", "qwen"), ("qwen3", "qwen")])
@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (4, 1), (1, 2), (2, 2)])
def test_float_families(family: str, decoder_type: str, tp: int, pp: int, tmp_path: Path) -> None:
    from hub_builders import cast

    from trtbuild.checkpoint.opening import open_model

    source = write_huggingface(tmp_path / "hf", family, vocab_size=95)
    theirs = export(load(source), decoder_type, tmp_path / "theirs", tp, pp)
    ours = tmp_path / "ours"
    ours.mkdir()
    write_checkpoint(cast(open_model(str(source)), "float16"), ours, tp=tp, pp=pp)
    assert_equal_files(ours, theirs)
    said, meant = (json.loads((folder / "config.json").read_text()) for folder in (ours, theirs))
    for key in ("architecture", "num_key_value_heads", "head_size", "vocab_size", "position_embedding_type", "dtype"):
        assert said[key] == meant[key], key
    assert validate_checkpoint(ours) == []


@pytest.mark.parametrize("config", CONFIGS)
def test_quantized_layouts(config: str, tmp_path: Path) -> None:
    source = write_huggingface(tmp_path / "hf", "llama", **SIZES)
    model = load(source)
    torch.manual_seed(1)

    def calibrate(quantized: Any) -> None:
        for _ in range(2):
            quantized(torch.randint(0, SIZES["vocab_size"], (2, 32)))

    mtq.quantize(model, copy.deepcopy(getattr(mtq, config)), calibrate)
    whole = export(model, "llama", tmp_path / "tp1pp1", 1, 1)
    for tp, pp in ((1, 1), (2, 1), (1, 2)):
        theirs = export(model, "llama", tmp_path / f"tp{tp}pp{pp}", tp, pp)
        ours = tmp_path / f"ours_tp{tp}pp{pp}"
        ours.mkdir()
        write_checkpoint(read_checkpoint(whole), ours, tp=tp, pp=pp)
        assert_equal_files(ours, theirs)
        if config != "INT8_WEIGHT_ONLY_CFG":
            assert {finding.rule for finding in validate_checkpoint(theirs)} <= KNOWN
