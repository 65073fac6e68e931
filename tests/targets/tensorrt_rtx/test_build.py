"""Engines really built by TensorRT-RTX on this machine, GPU or not."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import onnx
import pytest
from builders import write_huggingface
from int8_builders import int8_decoder

from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.spec import Decoder
from trtbuild.checkpoint.trtllm import write_checkpoint
from trtbuild.errors import InputRefused, MachineLacks, TrtbuildError
from trtbuild.graph.decoder import write_onnx
from trtbuild.progress import silent
from trtbuild.quantize.cast import quantize
from trtbuild.quantize.precisions import PRECISIONS
from trtbuild.store.manifest import damaged_files
from trtbuild.targets.base import BuildOptions, Limits, read_engine
from trtbuild.targets.registry import load_target
from trtbuild.targets.tensorrt_rtx import build as building
from trtbuild.targets.tensorrt_rtx import loading, machine
from trtbuild.targets.tensorrt_rtx.geometry import geometry

RTX = load_target("tensorrt-rtx")
LIMITS = Limits(max_batch_size=4, max_input_len=32, max_seq_len=64, max_num_tokens=48)

pytestmark = pytest.mark.skipif(machine.installed() is None, reason="TensorRT-RTX is not installed")


def checkpoint(folder: Path, precision: str, family: str = "llama", **changes: Any) -> Path:
    """A tiny checkpoint in a precision; quantized activations by plain maxima."""
    decoder = open_model(str(write_huggingface(folder / "hf", family, **changes)))
    row = PRECISIONS[precision]
    if row.needs_calibration:
        decoder = int8_decoder(quantize(decoder, PRECISIONS["fp16"]), row.quant_algo or "")
    else:
        decoder = quantize(decoder, row)
    (folder / "checkpoint").mkdir()
    write_checkpoint(decoder, folder / "checkpoint")
    return folder / "checkpoint"


def built(folder: Path, precision: str, *sms: int, **changes: Any) -> Path:
    path = checkpoint(folder, precision, **changes)
    return RTX.build(path, folder / "engine", LIMITS, BuildOptions(sms=sms), silent)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An FP16 engine for two GPUs, its source in `hf` beside it."""
    return built(tmp_path_factory.mktemp("engine"), "fp16", 86, 120)


@pytest.fixture
def copied(engine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(engine, tmp_path / "engine"))


@pytest.mark.parametrize(
    ("precision", "sms"),
    [
        ("fp32", (89,)),
        ("fp16", (86, 120)),
        ("bf16", (80,)),
        ("int8-wo", (75, 89)),
        ("int8", (89,)),
        ("int8-pt", (121,)),
    ],
)
def test_every_precision_builds(precision: str, sms: tuple[int, ...], tmp_path: Path) -> None:
    engine = read_engine(built(tmp_path, precision, *sms))
    plan = (engine.path / "model.engine").read_bytes()
    assert plan[:4] == b"vtrt"
    assert engine.settings["plan_bytes"] == len(plan)
    assert engine.settings["sms"] == list(sms)
    assert engine.settings["quant_algo"] == PRECISIONS[precision].quant_algo
    assert engine.settings["peak_build_memory_bytes"] > len(plan)
    assert engine.limits == dataclasses.replace(LIMITS, kv_pool_tokens=4 * 64)
    assert machine.installed() is not None
    assert set(engine.manifest.packages) == {"tensorrt-rtx-cu13"}
    assert {"tokenizer.json", "generation_config.json", "config.json"} <= set(engine.manifest.files)
    assert not damaged_files(engine.path, engine.manifest, check_hashes=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint", "engine", "hf"]


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("mistral", {"sliding_window": 8}),
        ("qwen3", {}),
        ("phi3", {"partial_rotary_factor": 0.5}),
        ("llama", {"num_key_value_heads": 4, "head_dim": 80, "mlp_bias": True}),
    ],
)
def test_every_family_builds(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    assert read_engine(built(tmp_path, "fp16", 89, family=family, **changes)).settings["dtype"] == "float16"


def test_the_geometry_is_written_down_and_read_back(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "first_gpu", lambda: machine.Gpu(0, "a card", 8 << 30, 8 << 30, 86, "1"))
    loaded = loading.load_engine(engine)
    decoder = open_model(str(engine.parent / "hf"))
    assert loaded.geometry == dataclasses.replace(geometry(decoder.spec, LIMITS), dtype="float16")
    assert loaded.stop_token_ids == (2,)


def test_running_needs_the_gpu_the_engine_is_for(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for gpu, words in (
        (None, "SM86, SM120.*none is visible"),
        (machine.Gpu(0, "RTX 4090", 8 << 30, 8 << 30, 89, "1"), "SM86, SM120.*RTX 4090 .SM89."),
    ):
        monkeypatch.setattr(loading, "first_gpu", lambda gpu=gpu: gpu)
        for opening in (RTX.open_driver, RTX.open_scorer):
            with pytest.raises(MachineLacks, match=words):
                opening(engine)
    fitting = machine.Gpu(0, "RTX 3090", 8 << 30, 8 << 30, 86, "1")
    monkeypatch.setattr(loading, "first_gpu", lambda: fitting)
    other = machine.Installed(machine.FLAVOURS[0], "tensorrt-rtx-cu13", "9.9")
    monkeypatch.setattr(loading, "installed", lambda: other)
    with pytest.raises(MachineLacks, match=r"1\.7\.1.*9\.9"):
        RTX.open_driver(engine)


def test_an_engine_that_lost_its_file_is_refused(copied: Path) -> None:
    (copied / "model.engine").write_bytes(b"vtrt")
    with pytest.raises(InputRefused, match="is missing or cut short"):
        loading.load_engine(copied)


def test_inspecting_needs_no_package(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "installed", lambda: None)
    assert "as it should" in RTX.examine(copied)["engine_file"]
    (copied / "model.engine").write_bytes(b"PK\x03\x04")
    assert "no engine" in RTX.examine(copied)["engine_file"]
    (copied / "model.engine").unlink()
    assert RTX.examine(copied)["engine_file"] == "missing"


def test_progress_runs_from_nothing_to_the_whole(tmp_path: Path) -> None:
    parts: list[float] = []

    class Recorder:
        def task(self, title: str, total: float) -> Any:
            @contextlib.contextmanager
            def opened() -> Any:
                assert total > 0
                yield (parts.append if title == "building the engine" else lambda _: None)

            return opened()

        def note(self, text: str) -> None: ...

    path = checkpoint(tmp_path, "fp16")
    RTX.build(path, tmp_path / "engine", LIMITS, BuildOptions(sms=(89,)), Recorder())
    assert sum(parts) == pytest.approx(1.0)
    assert len(parts) > 5
    assert min(parts) >= 0


@pytest.mark.parametrize("raised", [KeyboardInterrupt, OSError])
def test_an_interrupted_build_leaves_nothing(raised: type[BaseException], tmp_path: Path) -> None:
    class Interrupting:
        def task(self, title: str, total: float) -> Any:
            del total

            def advance(units: float) -> None:
                del units
                if title == "building the engine":
                    raise raised

            return contextlib.nullcontext(advance)

        def note(self, text: str) -> None: ...

    path = checkpoint(tmp_path, "fp16")
    with pytest.raises(raised):
        RTX.build(path, tmp_path / "engine", LIMITS, BuildOptions(sms=(89,)), Interrupting())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint", "hf"]


def test_a_full_disk_is_told_as_it_is(tmp_path: Path) -> None:
    decoder, model = graph(tmp_path)
    with pytest.raises(OSError, match="No space left"):
        building.build_plan(model, Path("/dev/full"), geometry(decoder.spec, LIMITS), (89,), silent)


def graph(folder: Path) -> tuple[Decoder, Path]:
    decoder = open_model(str(write_huggingface(folder / "hf", "llama", dtype="float16")))
    return decoder, write_onnx(decoder, folder, max_seq_len=64, compute="float16", slots=64)


def broken(tmp_path: Path, change: Any) -> TrtbuildError:
    """The error of building a graph that `change` has spoilt."""
    decoder, path = graph(tmp_path)
    model = onnx.load(path, load_external_data=False)
    change(model.graph)
    onnx.save(model, path)
    with pytest.raises(TrtbuildError) as caught:
        building.build_plan(path, tmp_path / "plan", geometry(decoder.spec, LIMITS), (89,), silent)
    return caught.value


def node_of(graph: Any, name: str) -> Any:
    return next(node for node in graph.node if node.name == name)


def test_an_operator_the_parser_does_not_know_is_named_with_its_node(tmp_path: Path) -> None:
    def change(spoilt: Any) -> None:
        node_of(spoilt, "transformer.layers.1.mlp.proj/MatMul").op_type = "MatMulBitwise"

    error = broken(tmp_path, change)
    assert isinstance(error, InputRefused)
    assert error.where == "transformer.layers.1.mlp.proj/MatMul"
    assert "MatMulBitwise" in error.what
    assert "newer" in (error.hint or "")


def test_a_type_error_is_named_with_its_node(tmp_path: Path) -> None:
    def change(spoilt: Any) -> None:
        node_of(spoilt, "transformer.layers.0.attention/residual").input[1] = "cache/first"

    error = broken(tmp_path, change)
    assert error.where == "transformer.layers.0.attention/residual"
    assert "same input types" in error.what
    assert "Int64" in error.what
    assert "cudaError" not in error.what
    assert "/_src/" not in error.what


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    def change(spoilt: Any) -> None:
        names = [initializer.name for initializer in spoilt.initializer]
        del spoilt.initializer[names.index("transformer.layers.1.mlp.fc.weight")]

    error = broken(tmp_path, change)
    assert error.where is not None
    assert "transformer.layers.1.mlp.fc.weight" in f"{error.where} {error.what}"


def test_an_input_no_profile_covers_is_named(tmp_path: Path) -> None:
    def change(spoilt: Any) -> None:
        spoilt.input.append(onnx.helper.make_tensor_value_info("beam_idx", onnx.TensorProto.INT64, ["batch"]))
        spoilt.node.append(onnx.helper.make_node("Identity", ["beam_idx"], ["beams"], name="beams"))
        spoilt.output.append(onnx.helper.make_tensor_value_info("beams", onnx.TensorProto.INT64, ["batch"]))

    assert "beam_idx" in str(broken(tmp_path, change))


def test_a_missing_package_is_told_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = checkpoint(tmp_path, "fp16")
    monkeypatch.setattr(machine, "FLAVOURS", ())
    with pytest.raises(MachineLacks, match="neither TensorRT-RTX nor TensorRT") as caught:
        building.build(path, tmp_path / "engine", LIMITS, BuildOptions(sms=(89,)), silent)
    assert "trtbuild[rtx]" in (caught.value.hint or "")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint", "hf"]


def test_the_tokenizer_of_another_folder_travels_along(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, "fp16")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).unlink()
    options = BuildOptions(sms=(89,), tokenizer=tmp_path / "hf")
    engine = RTX.build(path, tmp_path / "engine", LIMITS, options, silent)
    assert (engine / "tokenizer.json").read_bytes() == (tmp_path / "hf" / "tokenizer.json").read_bytes()
    assert json.loads((engine / "generation_config.json").read_text())["eos_token_id"] == [2]
