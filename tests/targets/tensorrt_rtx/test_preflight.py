"""Everything that can be refused before anything is written, on any machine, with or without TensorRT."""

from __future__ import annotations

import dataclasses
import importlib

import pytest
from builders import write_huggingface

from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.spec import Decoder, Quantization
from trtbuild.errors import DoesNotFit, MachineLacks
from trtbuild.machine import Gpu
from trtbuild.targets.base import BuildOptions, Finding, Limits, refuse_fatal
from trtbuild.targets.registry import load_target
from trtbuild.targets.tensorrt_rtx import machine
from trtbuild.targets.tensorrt_rtx.geometry import CONTEXT, GENERATION, geometry, profiles

RTX = load_target("tensorrt-rtx")
preflight = importlib.import_module("trtbuild.targets.tensorrt_rtx.preflight")
LIMITS = Limits(max_batch_size=4, max_input_len=32, max_seq_len=64, max_num_tokens=48)
GPU = Gpu(0, "a card", 8 << 30, 8 << 30, 89, "1")


@pytest.fixture(params=["tensorrt_rtx", "tensorrt", None])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Each library that may be installed, or none; no GPU."""
    flavour = next((f for f in machine.FLAVOURS if f.module == request.param), None)
    found = None if flavour is None else machine.Installed(flavour, flavour.distributions[0], "1")
    for module in (machine, preflight):
        monkeypatch.setattr(module, "installed", lambda: found)
        monkeypatch.setattr(module, "first_gpu", lambda: None)
    name: str | None = request.param
    return name


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return open_model(str(write_huggingface(tmp_path_factory.mktemp("hf") / "hf", "llama", dtype="float16")))


def rules(decoder: Decoder, limits: Limits = LIMITS, *, fatal: bool = True, **options: object) -> dict[str, Finding]:
    options = {"sms": (89,), **options}
    found = RTX.preflight(decoder, limits, BuildOptions(**options))  # type: ignore[arg-type]
    return {finding.rule: finding for finding in found if finding.fatal is fatal}


def with_dtype(decoder: Decoder, dtype: str) -> Decoder:
    return dataclasses.replace(decoder, spec=dataclasses.replace(decoder.spec, dtype=dtype))


def with_algo(decoder: Decoder, algo: str, kv: str | None = None) -> Decoder:
    return dataclasses.replace(decoder, quantization=Quantization(algo, kv))


@pytest.mark.parametrize("sm", [50, 87, 90, 100, 103])
def test_an_sm_that_is_not_offered_names_those_that_are(sm: int, decoder: Decoder, library: str | None) -> None:
    finding = rules(decoder, sms=(89, sm))["sm"]
    if library != "tensorrt":
        assert f"SM{sm}" in finding.text
        assert finding.hint == "offered: 75, 80, 86, 89, 120, 121"
    with pytest.raises(DoesNotFit):
        refuse_fatal([finding], "here")


def test_what_is_offered_is_refused_by_nobody(decoder: Decoder, library: str | None) -> None:
    for sm in (75, 80, 86, 89, 120, 121):
        assert ("sm" in rules(decoder, sms=(sm,))) is (library == "tensorrt")  # full TensorRT builds for its own GPU


def test_no_sm_without_a_gpu_lacks_one(decoder: Decoder, library: str | None) -> None:
    del library
    finding = rules(decoder, sms=())["sm"]
    with pytest.raises(MachineLacks, match="no SM version is given"):
        refuse_fatal([finding], "here")


def test_no_sm_takes_the_gpu_that_is_here(
    decoder: Decoder, library: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "first_gpu", lambda: GPU)
    assert "sm" not in rules(decoder, sms=())
    assert ("sm" in rules(decoder, sms=(86,))) is (library == "tensorrt")
    monkeypatch.setattr(preflight, "first_gpu", lambda: dataclasses.replace(GPU, sm=90))
    assert ("sm" in rules(decoder, sms=())) is (library != "tensorrt")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_turing_computes_in_half_precision_only(dtype: str, decoder: Decoder) -> None:
    assert "sm75_dtype" not in rules(decoder, sms=(75, 89))
    assert "sm75_dtype" in rules(with_dtype(decoder, dtype), sms=(75, 89))
    assert "sm75_dtype" not in rules(with_dtype(decoder, dtype), sms=(80, 89))


@pytest.mark.parametrize("algo", ["FP8", "W4A16_AWQ", "NVFP4"])
def test_an_algorithm_without_a_graph_is_refused(algo: str, decoder: Decoder) -> None:
    assert algo in rules(with_algo(decoder, algo))["quant_algo"].text


def test_what_differs_from_tensorrt_llm_is_told_and_refuses_nothing(decoder: Decoder) -> None:
    assert rules(with_algo(decoder, "W8A16")) == {}
    assert rules(with_algo(decoder, "W8A16"), fatal=False) == {}
    for algo in ("W8A8_SQ_PER_CHANNEL", "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN"):
        assert rules(with_algo(decoder, algo)) == {}
        assert "unfused" in rules(with_algo(decoder, algo), fatal=False)["quant_algo"].text
    assert "INT8" in rules(with_algo(decoder, "W8A16", "INT8"), fatal=False)["kv_cache"].text


@pytest.mark.parametrize(
    ("limits", "rule"),
    [
        (dataclasses.replace(LIMITS, max_batch_size=0), "max_batch_size"),
        (dataclasses.replace(LIMITS, max_seq_len=512), "max_position_embeddings"),
        (dataclasses.replace(LIMITS, max_num_tokens=3), "max_num_tokens"),
        (dataclasses.replace(LIMITS, kv_pool_tokens=63), "kv_pool"),
        (dataclasses.replace(LIMITS, max_batch_size=1 << 20, max_num_tokens=1 << 20), "tensor_volume"),
    ],
)
def test_limits_that_cannot_be(limits: Limits, rule: str, decoder: Decoder) -> None:
    assert rule in rules(decoder, limits)


def test_the_volume_rule_names_the_largest_batch_that_fits(decoder: Decoder) -> None:
    limits = dataclasses.replace(LIMITS, max_batch_size=1 << 20, max_num_tokens=1 << 20)
    most = int((rules(decoder, limits)["tensor_volume"].hint or "").rsplit(" ", 1)[1])
    assert "tensor_volume" not in rules(decoder, dataclasses.replace(limits, max_batch_size=most))
    assert "tensor_volume" in rules(decoder, dataclasses.replace(limits, max_batch_size=most + 1))


def test_a_small_pool_gives_fewer_rows_and_says_so(decoder: Decoder) -> None:
    limits = dataclasses.replace(LIMITS, kv_pool_tokens=150)
    assert rules(decoder, limits) == {}
    assert "2 sequences" in rules(decoder, limits, fatal=False)["kv_pool"].text
    assert geometry(decoder.spec, limits).rows == 2


@pytest.mark.parametrize(
    ("options", "rule"),
    [({"kv_cache": "u8"}, "kv_cache"), ({"container": "image"}, "container"), ({"extra": ("--paged",)}, "extra")],
)
def test_options_that_mean_nothing_here(options: dict[str, object], rule: str, decoder: Decoder) -> None:
    assert rule in rules(decoder, **options)
    assert rules(decoder, kv_cache="f16") == {}


def test_the_profiles_cover_both_phases_to_the_limits(decoder: Decoder) -> None:
    shape = geometry(decoder.spec, LIMITS)
    both = profiles(shape)
    assert both[CONTEXT]["input_ids"] == ((1, 1), (1, 32), (1, 32))
    assert both[GENERATION]["input_ids"] == ((1, 1), (4, 1), (4, 1))
    assert [both[phase]["attention_mask"][2] for phase in (CONTEXT, GENERATION)] == [(1, 64), (4, 64)]
    for name in ("past_key_values.0.key", "past_key_values.1.value"):
        assert both[GENERATION][name] == ((1, 2, 64, 16), (4, 2, 64, 16), (4, 2, 64, 16))
    for profile in both:
        for least, best, greatest in profile.values():
            assert all(a <= b <= c for a, b, c in zip(least, best, greatest, strict=True))


def test_rows_begin_on_256_bytes(decoder: Decoder) -> None:
    for dtype in ("float32", "float16", "bfloat16"):
        spec = dataclasses.replace(decoder.spec, num_kv_heads=1, head_size=8, dtype=dtype)
        for length in (33, 64, 65, 100):
            shape = geometry(spec, dataclasses.replace(LIMITS, max_seq_len=length))
            assert shape.row_bytes % 256 == 0
            assert length <= shape.slots < length + 32


def test_capability_tells_building_from_running(library: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = RTX.capability()
    assert found.build.ok is (library == "tensorrt_rtx")
    assert not found.run.ok
    assert found.run.hint
    monkeypatch.setattr(machine, "first_gpu", lambda: GPU)
    found = RTX.capability()
    assert (found.build.ok, found.run.ok) == ((library is not None),) * 2


def test_the_footprint_is_that_of_the_formats(decoder: Decoder) -> None:
    plain = RTX.footprint(decoder.spec, decoder.quantization, LIMITS, BuildOptions())
    assert plain.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2
    tied = dataclasses.replace(decoder.spec, tie_word_embeddings=True)
    shared = RTX.footprint(tied, decoder.quantization, LIMITS, BuildOptions())
    assert plain.weights_bytes - shared.weights_bytes == 96 * 64 * 2
    assert plain.disk_bytes > plain.weights_bytes
