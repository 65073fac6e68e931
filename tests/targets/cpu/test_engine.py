"""Checkpoint to engine, and the engine against the numpy forward of the same checkpoint."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import write_huggingface
from cpu_engines import CPU, LIMITS, as_checkpoint, built, generate, tokens
from int8_builders import int8_decoder

from trtbuild.calibrate.forward import logits
from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.spec import LINEAR_MODULES, Decoder, Quantization, Tensor, module_path
from trtbuild.errors import DoesNotFit, InputRefused, TrtbuildError, UsageError
from trtbuild.progress import silent
from trtbuild.store.manifest import MANIFEST_NAME
from trtbuild.targets.base import BuildOptions, read_engine
from trtbuild.targets.cpu import build as build_module
from trtbuild.targets.cpu.machine import int8_features
from trtbuild.targets.cpu.properties import EXACT, NATIVE, kv_bytes_per_token, plugin_properties, usable_kernels
from trtbuild.targets.cpu.scorer import CpuScorer
from trtbuild.targets.cpu.selfcheck import check_engine
from trtbuild.targets.serving import Request

W8A8, PER_TOKEN = "W8A8_SQ_PER_CHANNEL", "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN"
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + 0.2 * i for i in range(8)],
}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, tied, biased": ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "mistral beyond its window": ("mistral", {"sliding_window": 16}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "phi3 beyond its first window, long factors": (
        "phi3",
        {"rope_scaling": LONGROPE, "original_max_position_embeddings": 64, "sliding_window": 40},
    ),
}


@pytest.mark.parametrize("case", FAMILIES)
def test_every_family_scores_and_generates_as_the_forward_says(case: str, tmp_path: Path) -> None:
    family, changes = FAMILIES[case]
    decoder = open_model(str(write_huggingface(tmp_path / "hf", family, **changes)))
    engine = built(decoder, tmp_path)
    ids = tokens(decoder, 90)
    scorer = CPU.open_scorer(engine)
    assert np.abs(scorer.logits(ids) - logits(decoder, ids)).max() <= 1e-3
    (answer, finish) = generate(engine, [Request(0, ids[:80], 12, ignore_eos=True)])[0]
    assert (len(answer), finish) == (12, "length")
    rows = logits(decoder, [*ids[:80], *answer])[79:-1]
    assert np.all(rows.max(axis=1) - rows[np.arange(12), answer] <= 1e-3)  # greedy, up to a tie
    scorer.close()


@pytest.mark.parametrize(
    "kernels",
    [
        EXACT,
        pytest.param(
            NATIVE,
            marks=pytest.mark.skipif(
                not int8_features(), reason="needs VNNI or AMX: without, the native kernels saturate"
            ),
        ),
    ],
)
def test_w8a8_means_what_the_forward_means(llama: Decoder, kernels: str, tmp_path: Path) -> None:
    decoder = int8_decoder(llama, W8A8)
    engine = built(decoder, tmp_path, kv_cache="f32")
    scorer = CpuScorer(engine / "openvino_model.xml", plugin_properties("f32", kernels), 128)
    ids = tokens(decoder, 40)
    expected = logits(decoder, ids)
    difference = np.linalg.norm(scorer.logits(ids) - expected) / np.linalg.norm(expected)
    assert difference <= 1e-3
    assert np.linalg.norm(logits(llama, ids) - expected) / np.linalg.norm(expected) > 1e-2  # and not the float model


@pytest.mark.parametrize("algo", ["W8A16", PER_TOKEN])
def test_other_int8_means_what_the_forward_means(llama: Decoder, algo: str, tmp_path: Path) -> None:
    weight_only = dataclasses.replace(llama, quantization=Quantization("W8A16"))
    decoder = weight_only if algo == "W8A16" else int8_decoder(llama, algo)
    scorer = CPU.open_scorer(built(decoder, tmp_path, kv_cache="f32"))
    ids = tokens(decoder, 40)
    expected = logits(decoder, ids)
    assert np.linalg.norm(scorer.logits(ids) - expected) / np.linalg.norm(expected) <= 1e-3


def test_w8a8_that_saturates_sixteen_bits_is_exact(llama: Decoder, tmp_path: Path) -> None:
    """Weights of 127 and activations near the top of their range: what INT8 kernels without VNNI get wrong."""
    decoder = int8_decoder(llama, W8A8)
    tensors = dict(decoder.tensors)
    for layer in range(decoder.spec.num_layers):
        for module in LINEAR_MODULES:
            path = module_path(layer, module)
            weight = np.where(decoder.tensors[f"{path}.weight"].read() >= 0, 127, -127).astype(np.int8)
            scale = np.full(weight.shape[0], 1 / (127 * np.sqrt(weight.shape[1])), np.float32)
            small = np.asarray([0.008], np.float32)
            for name, array in (
                ("weight", weight),
                ("weights_scaling_factor", scale),
                ("activation_scaling_factor", small),
            ):
                tensors[f"{path}.{name}"] = Tensor(array.dtype, array.shape, name, lambda array=array: array)
    decoder = dataclasses.replace(decoder, tensors=tensors)
    scorer = CPU.open_scorer(built(decoder, tmp_path, kv_cache="f32"))
    ids = tokens(decoder, 40)
    expected = logits(decoder, ids)
    assert np.linalg.norm(scorer.logits(ids) - expected) / np.linalg.norm(expected) <= 1e-3


def test_an_engine_checked_with_other_instructions_falls_back() -> None:
    settings = {"int8_kernels": NATIVE, "int8_features": ["amx_int8", "another"]}
    assert usable_kernels(settings) == EXACT
    assert plugin_properties("f16", usable_kernels(settings))["LP_TRANSFORMS_MODE"] == "NO"
    assert usable_kernels({"int8_kernels": NATIVE, "int8_features": sorted(int8_features())}) == NATIVE
    assert usable_kernels({"int8_kernels": None}) is None


@pytest.mark.parametrize("algo", [None, W8A8])
def test_an_engine_that_differs_is_not_built(
    llama: Decoder, algo: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One weight matrix of one layer wrong by a hundredth must not pass."""
    decoder = llama if algo is None else int8_decoder(llama, algo)
    name = "transformer.layers.1.mlp.proj." + ("weight" if algo is None else "weights_scaling_factor")
    write = build_module.write_onnx

    def write_wrongly(decoder: Decoder, *args: Any, **kwargs: Any) -> Path:
        wrong = decoder.tensors[name].read() * np.float32(1.01)
        tensor = dataclasses.replace(decoder.tensors[name], read=lambda: wrong)
        return write(dataclasses.replace(decoder, tensors={**decoder.tensors, name: tensor}), *args, **kwargs)

    monkeypatch.setattr(build_module, "write_onnx", write_wrongly)
    with pytest.raises(TrtbuildError, match="differs from the checkpoint"):
        built(decoder, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint"]


def test_kernels_that_fail_the_check_give_way(llama: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing_natively(*args: Any) -> Any:
        result = check_engine(*args)
        native = "LP_TRANSFORMS_MODE" not in args[2]
        return dataclasses.replace(result, prompt=0.2) if native else result

    monkeypatch.setattr(build_module, "int8_features", lambda: frozenset({"avx_vnni"}))
    monkeypatch.setattr(build_module, "check_engine", failing_natively)
    engine = built(int8_decoder(llama, W8A8), tmp_path)
    assert read_engine(engine).settings["int8_kernels"] == EXACT


def test_weights_of_sixteen_bits_stay_sixteen_bits(tmp_path: Path) -> None:
    for dtype in ("float16", "bfloat16"):
        decoder = open_model(str(write_huggingface(tmp_path / dtype / "hf", "llama", dtype=dtype)))
        engine = built(decoder, tmp_path / dtype)
        import openvino

        compiled = openvino.Core().compile_model(engine / "openvino_model.xml", "CPU", plugin_properties("f32", None))
        linears = [
            node
            for node in compiled.get_runtime_model().get_ops()
            if node.get_rt_info()["layerType"].astype(str) == "FullyConnected"
        ]
        assert len(linears) == 11
        assert {n.input_value(1).get_element_type().get_type_name() for n in linears} == {
            "f16" if dtype == "float16" else "bf16"
        }
        scorer = CPU.open_scorer(engine)
        ids = tokens(decoder, 20)
        assert np.abs(scorer.logits(ids) - logits(decoder, ids)).max() <= 3e-3  # the cache has 16 bits too


@pytest.mark.parametrize("kv_cache", ["f32", "f16", "u8"])
def test_the_kv_cache_precision_is_what_was_asked(llama: Decoder, kv_cache: str, tmp_path: Path) -> None:
    engine = built(llama, tmp_path, kv_cache=kv_cache)
    driver = CPU.open_driver(engine)
    driver.submit(Request(0, tokens(llama, 40), 2))
    while not any(event.finish for event in driver.step(None)):
        pass
    memory = driver.memory()
    assert memory.kv_bytes_per_token == kv_bytes_per_token(llama.spec, kv_cache)
    assert memory.kv_pool_tokens == 4 * 128
    # what the pipeline itself allocated
    assert driver._pipeline.get_metrics().kv_cache_size_in_bytes == memory.kv_pool_bytes
    driver.close()


def test_a_quantized_kv_cache_costs_little_and_is_said(llama: Decoder, tmp_path: Path) -> None:
    quantized = dataclasses.replace(llama, quantization=Quantization(kv_cache_quant_algo="INT8"))
    findings = CPU.preflight(quantized, LIMITS, BuildOptions())
    assert any(f.rule == "kv_cache" and "u8" in f.text and not f.fatal for f in findings)
    engine = built(llama, tmp_path, kv_cache="u8")
    assert read_engine(engine).settings["kv_cache"] == "u8"
    ids = tokens(llama, 60)
    scorer = CPU.open_scorer(engine)
    difference = np.abs(scorer.logits_in_chunks(ids, range(20, 60)) - logits(llama, ids)).max()
    assert 1e-5 < difference < 0.3


@pytest.fixture
def copied(engine: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of the engine with a manifest that may be changed."""
    copy = tmp_path / "engine"
    copy.mkdir()
    for file in engine.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    yield copy


def test_another_version_is_refused_with_the_command_that_helps(copied: Path) -> None:
    manifest = json.loads((copied / MANIFEST_NAME).read_text())
    installed = manifest["packages"]["openvino"]
    manifest["packages"]["openvino"] = "2025.1.0"
    (copied / MANIFEST_NAME).write_text(json.dumps(manifest))
    with pytest.raises(InputRefused, match=rf"2025\.1\.0.*{installed}") as caught:
        CPU.open_driver(copied)
    assert f"trtbuild build CHECKPOINT -o {copied}" in (caught.value.hint or "")


def test_a_damaged_engine_or_another_targets_is_refused(copied: Path, tmp_path: Path) -> None:
    with (copied / "openvino_model.bin").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(InputRefused, match=r"openvino_model\.bin is missing or cut short"):
        CPU.open_scorer(copied)
    manifest = json.loads((copied / MANIFEST_NAME).read_text())
    manifest["settings"]["target"] = "trtllm"
    (copied / MANIFEST_NAME).write_text(json.dumps(manifest))
    with pytest.raises(InputRefused, match="trtllm"):
        CPU.open_scorer(copied)
    with pytest.raises(InputRefused, match="no such folder"):
        CPU.open_scorer(tmp_path / "nothing")


def test_what_cannot_be_built_is_refused_before_anything_is_written(llama: Decoder, tmp_path: Path) -> None:
    bare = as_checkpoint(dataclasses.replace(llama, assets={}), tmp_path / "bare")
    whole = as_checkpoint(llama, tmp_path / "whole")
    fp8 = as_checkpoint(llama, tmp_path / "fp8")
    config = json.loads((fp8 / "config.json").read_text())
    config["quantization"] = {"quant_algo": "FP8"}
    (fp8 / "config.json").write_text(json.dumps(config))
    out = tmp_path / "engine"
    cases = (
        (bare, LIMITS, BuildOptions(), "tokenizer.json"),
        (whole, dataclasses.replace(LIMITS, max_seq_len=4096), BuildOptions(), "256 positions"),
        (whole, LIMITS, BuildOptions(kv_cache="fp3"), "fp3"),
        (fp8, LIMITS, BuildOptions(), "FP8"),
        (whole, LIMITS, BuildOptions(tokenizer=tmp_path), "tokenizer.json"),
    )
    for checkpoint, limits, options, message in cases:
        with pytest.raises((InputRefused, DoesNotFit, UsageError), match=message):
            CPU.build(checkpoint, out, limits, options, silent)
        assert not out.exists()


def test_a_path_with_spaces_and_other_alphabets(llama: Decoder, tmp_path: Path) -> None:
    engine = built(llama, tmp_path / "模型 été" / "a b")
    ids = tokens(llama, 10)
    assert np.abs(CPU.open_scorer(engine).logits(ids) - logits(llama, ids)).max() <= 1e-3
    assert generate(engine, [Request(0, ids, 2, ignore_eos=True)])[0][1] == "length"


def test_scoring_beyond_the_engine_is_refused(llama: Decoder, engine: Path) -> None:
    scorer = CPU.open_scorer(engine)
    for length in (0, 129):
        with pytest.raises(InputRefused, match="do not fit"):
            scorer.logits(tokens(llama, length))
