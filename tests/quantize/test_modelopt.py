"""What quantizing through modelopt refuses and prepares without modelopt (the runs themselves: tests/oracle)."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from builders import write_huggingface
from hub_builders import cast

from trtbuild.checkpoint.opening import open_model
from trtbuild.errors import InputRefused, MachineLacks, UsageError
from trtbuild.quantize.forms import UNIFIED_HF, Serving
from trtbuild.quantize.modelopt import modelopt_to, quantize_with_modelopt
from trtbuild.quantize.modelopt_recipes import RECIPES, quant_config
from trtbuild.quantize.precisions import PRECISIONS

SAMPLES = [np.arange(8, dtype=np.int32)]
MODELOPT_NAMES = sorted(name for name, precision in PRECISIONS.items() if precision.through_modelopt)


def test_every_precision_through_modelopt_has_a_recipe() -> None:
    assert sorted(RECIPES) == MODELOPT_NAMES


@pytest.mark.parametrize("name", ["int4-awq", "w4a8-awq"])
def test_groups_that_do_not_divide_are_refused_by_layer_name_before_anything_else(name: str, tmp_path: Path) -> None:
    decoder = open_model(str(write_huggingface(tmp_path / "hf", hidden_size=128, intermediate_size=192)))
    with pytest.raises(InputRefused, match=r"layers\.0\.mlp\.proj: 192 inputs are not a multiple of 128"):
        quantize_with_modelopt(decoder, PRECISIONS[name], SAMPLES, tmp_path)


def test_groups_are_counted_on_each_rank(tmp_path: Path) -> None:
    decoder = open_model(str(write_huggingface(tmp_path / "hf", hidden_size=128, intermediate_size=256)))
    with pytest.raises(InputRefused, match=r"attention\.dense: 64 inputs on each of 2 ranks"):
        quantize_with_modelopt(decoder, PRECISIONS["int4-awq"], SAMPLES, tmp_path, serving=Serving(tp=2))


def test_phi3_has_no_export(tmp_path: Path) -> None:
    decoder = open_model(str(write_huggingface(tmp_path / "hf", "phi3")))
    with pytest.raises(InputRefused, match="no TensorRT-LLM export for phi3") as caught:
        quantize_with_modelopt(decoder, PRECISIONS["fp8"], SAMPLES, tmp_path)
    assert "unified-hf" in str(caught.value.hint)


def test_unified_checkpoints_have_no_int8_kv_cache(tmp_path: Path) -> None:
    decoder = open_model(str(write_huggingface(tmp_path / "hf")))
    with pytest.raises(InputRefused, match="no INT8 KV cache"):
        quantize_with_modelopt(decoder, PRECISIONS["fp8"], SAMPLES, tmp_path, form=UNIFIED_HF, kv_cache="int8")


@pytest.mark.parametrize(("precision", "kv_cache"), [("int8", None), ("fp8", "int3")])
def test_names_that_mean_nothing_here(precision: str, kv_cache: str | None, tmp_path: Path) -> None:
    decoder = open_model(str(write_huggingface(tmp_path / "hf")))
    with pytest.raises(UsageError):
        modelopt_to(decoder, tmp_path / "out", precision, SAMPLES, kv_cache=kv_cache)
    assert not (tmp_path / "out").exists()


def test_a_missing_package_is_exit_code_4_with_the_pip_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package == "torch":
            raise importlib.metadata.PackageNotFoundError(package)
        return "1.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    decoder = cast(open_model(str(write_huggingface(tmp_path / "hf"))), np.float16)
    with pytest.raises(MachineLacks, match=r"not installed here: torch$") as caught:
        quantize_with_modelopt(decoder, PRECISIONS["fp8"], SAMPLES, tmp_path)
    assert caught.value.exit_code == 4
    assert caught.value.hint == 'pip install "trtbuild[modelopt]"'


def test_an_old_modelopt_without_the_export_is_named_before_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.37.0")
    decoder = open_model(str(write_huggingface(tmp_path / "hf", "qwen2")))
    with pytest.raises(MachineLacks, match=r"nvidia-modelopt 0\.37\.0 has no TensorRT-LLM export for qwen2") as caught:
        quantize_with_modelopt(decoder, PRECISIONS["fp8"], SAMPLES, tmp_path)
    assert caught.value.hint == 'pip install "nvidia-modelopt>=0.47", or --format unified-hf'


DICT_FORM = {"quant_cfg": {"*weight_quantizer": {"num_bits": 8, "axis": 0}, "default": {"enable": False}}}
LIST_FORM = {"quant_cfg": [{"quantizer_name": "*weight_quantizer", "cfg": {"num_bits": 8, "axis": 0}}]}


@pytest.mark.parametrize(("kv_cache", "bits"), [("int8", 8), ("fp8", (4, 3))])
def test_both_forms_of_the_config(kv_cache: str, bits: Any) -> None:
    for form in (DICT_FORM, LIST_FORM):
        module = SimpleNamespace(INT8_SMOOTHQUANT_CFG={**form, "algorithm": "smoothquant"})
        config = quant_config(RECIPES["int8-sq"], kv_cache, module)
        assert config["algorithm"] == {"method": "smoothquant", "alpha": 0.5}
        if isinstance(form["quant_cfg"], dict):
            added = config["quant_cfg"]["*[kv]_bmm_quantizer"]
            assert added == {"num_bits": bits, "axis": None, "enable": True}
            assert "*[kv]_bmm_quantizer" not in form["quant_cfg"]
        else:
            name = "*[kv]_bmm_quantizer"
            added = {"quantizer_name": name, "cfg": {"num_bits": bits, "axis": None}, "enable": True}
            assert config["quant_cfg"] == [*form["quant_cfg"], added]
