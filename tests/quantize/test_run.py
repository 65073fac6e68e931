"""The whole of quantization on tiny models: formats, evidence, exactness, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import write_huggingface
from safetensors.numpy import load_file, save_file

from trtbuild.calibrate.collect import calibrate_to
from trtbuild.calibrate.forward import hidden_states, logits
from trtbuild.calibrate.record import SMOOTHING_GROUPS, Record
from trtbuild.checkpoint.linear import read_linear
from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.spec import LINEAR_MODULES, Decoder, module_path
from trtbuild.checkpoint.trtllm import read_checkpoint, validate_checkpoint
from trtbuild.errors import InputRefused, UsageError
from trtbuild.quantize.budget import Budget
from trtbuild.quantize.run import hold_out, quantize_to
from trtbuild.quantize.score import baseline_of, score

NO_LIMIT = Budget(None, None)


def _samples(count: int = 10, seed: int = 0, length: int = 40) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 96, length) for _ in range(count)]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return open_model(str(write_huggingface(tmp_path_factory.mktemp("model") / "m", "llama")))


@pytest.fixture(scope="module")
def record(decoder: Decoder, tmp_path_factory: pytest.TempPathFactory) -> Record:
    return calibrate_to(decoder, _samples(), tmp_path_factory.mktemp("record") / "r")


def _document(folder: Path) -> Mapping[str, Any]:
    document: Mapping[str, Any] = json.loads((folder / "quantization.json").read_text(encoding="utf-8"))
    return document


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "phi3"])
@pytest.mark.parametrize("precision", ["int8", "int8-pt"])
def test_every_family_stays_close_and_valid(tmp_path: Path, family: str, precision: str) -> None:
    source = open_model(str(write_huggingface(tmp_path / "m", family)))
    calibration, validation = hold_out(_samples(), 80)
    document = quantize_to(
        source, tmp_path / "q", precision, samples=calibration, validation=validation, budget=NO_LIMIT
    )
    assert validate_checkpoint(tmp_path / "q") == []
    quantized = read_checkpoint(tmp_path / "q")
    assert document["int8_share"] == 1.0
    for layer in range(source.spec.num_layers):
        for module in LINEAR_MODULES:
            found, exact = read_linear(quantized, layer, module), read_linear(source, layer, module)
            assert found.weight.dtype == np.int8
            assert found.weight_scale is not None
            stored = found.weight.astype(np.float32) * found.weight_scale[:, None]
            if found.prequant_scale is not None:
                stored *= found.prequant_scale.astype(np.float32)
            if precision == "int8" or found.prequant_scale is not None:
                difference = np.abs(stored - exact.weight.astype(np.float32)).max(axis=1)
                assert (difference <= 0.1 * np.abs(exact.weight).max(axis=1)).all()
    # on text that calibration saw: 300 tokens are too few for a maximum to hold elsewhere
    a, b = logits(source, calibration[0]), logits(quantized, calibration[0])
    assert 0 < np.linalg.norm(a - b) < 0.06 * np.linalg.norm(a)


def test_the_result_does_not_depend_on_threads_or_order(decoder: Decoder, tmp_path: Path) -> None:
    samples, validation = hold_out(_samples(), 80)
    for name, threads, order in (("a", 1, 1), ("b", 4, -1)):
        quantize_to(
            decoder,
            tmp_path / name,
            "int8",
            samples=samples[::order],
            validation=validation,
            threads=threads,
            kv_cache="int8",
        )
    files = [{p.name: p.read_bytes() for p in sorted((tmp_path / name).iterdir())} for name in ("a", "b")]
    assert files[0] == files[1]


def test_a_record_gives_what_its_samples_give(decoder: Decoder, record: Record, tmp_path: Path) -> None:
    quantize_to(decoder, tmp_path / "a", "int8", record=record, budget=None)
    quantize_to(decoder, tmp_path / "b", "int8", samples=_samples(), budget=None)
    a, b = (load_file(tmp_path / name / "rank0.safetensors") for name in ("a", "b"))
    assert all(np.array_equal(a[name], b[name]) for name in a)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"], "nothing else may be left behind"


def test_choosing_by_error_beats_every_forced_method(decoder: Decoder, record: Record, tmp_path: Path) -> None:
    validation = _samples(4, seed=5)
    documents = {
        method: quantize_to(
            decoder, tmp_path / method, "int8", record=record, validation=validation, calibration=method, budget=None
        )
        for method in ("auto", "entropy", "max")
    }
    for method, document in documents.items():
        assert all(group["method"] == method for group in document["groups"]) or method == "auto"
        if method != "auto":
            assert document["auto"] is not None
            assert document["auto"]["kl"] == documents["auto"]["validation"]["kl"]
            assert method in document["summary"]
    for index, group in enumerate(documents["auto"]["groups"]):
        assert group["output_error"] <= min(documents[m]["groups"][index]["output_error"] for m in ("entropy", "max"))


def test_what_stays_in_float_is_named_and_is_the_source(decoder: Decoder, record: Record, tmp_path: Path) -> None:
    validation = _samples(4, seed=5)
    free = quantize_to(decoder, tmp_path / "free", "int8", record=record, validation=validation, budget=NO_LIMIT)
    limit = free["validation"]["kl"] / 2
    document = quantize_to(
        decoder, tmp_path / "q", "int8", record=record, validation=validation, budget=Budget(None, limit)
    )
    assert document["budget"]["holds"]
    assert document["validation"]["kl"] <= limit
    assert 0 < document["int8_share"] < 1
    quantized = read_checkpoint(tmp_path / "q")
    excluded = quantized.quantization.exclude_modules
    assert excluded is not None
    assert excluded[0] == "*lm_head"
    named = {path for group in document["groups"] if group["float"] for path in group["modules"]}
    assert set(excluded[1:]) == named
    for path in named:
        weight = quantized.tensors[f"{path}.weight"].read()
        assert np.array_equal(weight, decoder.tensors[f"{path}.weight"].read().astype(np.float16))
        assert f"{path}.weights_scaling_factor" not in quantized.tensors
    baseline = baseline_of(decoder, validation, hidden_states(decoder, validation))
    assert score(decoder, baseline, hidden_states(quantized, validation)).kl == pytest.approx(
        document["validation"]["kl"], rel=1e-5
    )


def test_shared_inputs_share_smoothing_and_scale(decoder: Decoder, record: Record, tmp_path: Path) -> None:
    quantize_to(decoder, tmp_path / "q", "int8", record=record, budget=None)
    tensors = load_file(tmp_path / "q" / "rank0.safetensors")
    for layer in range(decoder.spec.num_layers):
        fc, gate = module_path(layer, "mlp.fc"), module_path(layer, "mlp.gate")
        for name in ("prequant_scaling_factor", "activation_scaling_factor"):
            assert np.array_equal(tensors[f"{fc}.{name}"], tensors[f"{gate}.{name}"])


@pytest.mark.parametrize("kind", ["int8", "fp8"])
@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_kv_cache_scales(decoder: Decoder, record: Record, tmp_path: Path, kind: str, precision: str) -> None:
    document = quantize_to(decoder, tmp_path / "q", precision, record=record, kv_cache=kind, budget=None)
    assert validate_checkpoint(tmp_path / "q") == []
    quantized = read_checkpoint(tmp_path / "q")
    assert quantized.quantization.kv_cache_quant_algo == kind.upper()
    for layer, entry in enumerate(document["kv_cache"]["layers"]):
        seen = record.layer(layer)
        assert (entry["k_amax"], entry["v_amax"]) == (seen.k.amax, seen.v.amax)
        scale = quantized.tensors[f"transformer.layers.{layer}.attention.kv_cache_scaling_factor"].read()
        assert scale == pytest.approx(max(seen.k.amax, seen.v.amax) / (127 if kind == "int8" else 448))
    cost = document["kv_cache"]["cost"]
    assert f"The KV cache is kept in {kind.upper()}" in document["summary"]
    assert cost["kl_after"] > cost["kl_before"] >= 0


def _model_with(tmp_path: Path, changes: Mapping[str, Any]) -> Decoder:
    folder = write_huggingface(tmp_path / "m", "llama")
    tensors = load_file(folder / "model.safetensors")
    for name, change in changes.items():
        tensors[name] = change(tensors[name])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return open_model(str(folder))


def test_activations_of_zero_get_scale_one_and_a_note(tmp_path: Path) -> None:
    source = _model_with(tmp_path, {"model.layers.0.post_attention_layernorm.weight": np.zeros_like})
    document = quantize_to(source, tmp_path / "q", "int8", samples=_samples(), budget=None)
    assert validate_checkpoint(tmp_path / "q") == []
    groups = {(group["layer"], group["group"]): group for group in document["groups"]}
    for name in ("mlp.fc", "mlp.proj"):
        assert groups[0, name]["activation_scale"] == 1.0
        assert "scale 1" in groups[0, name]["notes"][0]
    assert np.isfinite(logits(read_checkpoint(tmp_path / "q"), _samples(1)[0])).all()


def test_dead_channels_constants_and_subnormals_are_defined(tmp_path: Path) -> None:
    def dead(norm: np.ndarray) -> np.ndarray:
        norm[3] = 0
        return norm

    source = _model_with(
        tmp_path,
        {
            "model.layers.0.input_layernorm.weight": dead,
            "model.layers.1.post_attention_layernorm.weight": lambda norm: norm * np.float32(1e-41),
        },
    )
    document = quantize_to(source, tmp_path / "q", "int8", samples=_samples(), budget=None)
    assert validate_checkpoint(tmp_path / "q") == []
    groups = {(group["layer"], group["group"]): group for group in document["groups"]}
    assert groups[0, "attention.qkv"]["dead_channels"] == 1
    quantized = read_checkpoint(tmp_path / "q")
    prequant = quantized.tensors["transformer.layers.0.attention.qkv.prequant_scaling_factor"].read()
    assert prequant[3] == 1
    assert np.isfinite(logits(quantized, _samples(1)[0])).all()


def test_evidence_is_complete(decoder: Decoder, record: Record, tmp_path: Path) -> None:
    quantize_to(decoder, tmp_path / "q", "int8", record=record, validation=_samples(2, seed=7), budget=NO_LIMIT)
    document = _document(tmp_path / "q")
    assert len(document["groups"]) == decoder.spec.num_layers * len(SMOOTHING_GROUPS)
    for group in document["groups"]:
        assert set(group["sqnr_db"]) == {"max", "entropy", "percentile", "mse"}
        assert len(group["output_errors"]) == 9 * 4
        assert group["output_error"] == min(trial["error"] for trial in group["output_errors"])
        assert 0 <= group["clipped_share"] < 0.05
        assert group["why"]
    assert document["record"]["samples"] == 10
    page = (tmp_path / "q" / "quantization.html").read_text(encoding="utf-8")
    assert page.count("<svg") == len(document["groups"])
    assert "http" not in page, "the page must not need the network"
    text = (tmp_path / "q" / "quantization.md").read_text(encoding="utf-8")
    assert document["summary"] in text
    assert text.count("| INT8 |") == len(document["groups"])


def test_refusals_leave_nothing(decoder: Decoder, record: Record, tmp_path: Path) -> None:
    out = tmp_path / "q"
    other = open_model(str(write_huggingface(tmp_path / "other", "llama", seed=3)))
    with pytest.raises(InputRefused, match="another model"):
        quantize_to(other, out, "int8", record=record)
    with pytest.raises(InputRefused, match="validation sample 0 was calibrated with"):
        quantize_to(decoder, out, "int8", record=record, validation=_samples(1))
    with pytest.raises(UsageError, match="no calibration is called"):
        quantize_to(decoder, out, "int8", record=record, calibration="minmax")
    with pytest.raises(UsageError, match="no KV cache type"):
        quantize_to(decoder, out, "int8", record=record, kv_cache="int4")
    quantize_to(decoder, out, "int8-wo")
    with pytest.raises(InputRefused, match="already quantized"):
        quantize_to(read_checkpoint(out), tmp_path / "again", "fp16")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "q"]


def test_hold_out_does_not_depend_on_order() -> None:
    samples = _samples(12)
    kept, held = hold_out(samples, 100)
    again, held_again = hold_out(samples[::-1], 100)
    assert [x.tolist() for x in kept] == [x.tolist() for x in again]
    assert [x.tolist() for x in held] == [x.tolist() for x in held_again]
    assert len(held) == 3
    assert len(kept) + len(held) == 12
    assert len(hold_out(samples, 10**6)[1]) == 6
