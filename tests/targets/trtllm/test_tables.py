"""The package's tables against the tables that were read from NVIDIA's source, and against PyPI's metadata rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from stand_ins import nvidia_machine
from trtllm_checkpoints import SHAPE

from trtbuild.checkpoint.spec import DecoderSpec, Quantization, RopeSpec
from trtbuild.checkpoint.trtllm_config import Ranks
from trtbuild.targets.base import Limits
from trtbuild.targets.trtllm.command import BuildSettings, build_command, effective_values
from trtbuild.targets.trtllm.flags import ALIASES, BUILD_FLAGS, GONE, OURS, parse_arguments
from trtbuild.targets.trtllm.process import Completed
from trtbuild.targets.trtllm.triage import CAUSES, diagnose
from trtbuild.targets.trtllm.version import (
    RELEASES,
    Window,
    explain_window,
    installed_version,
    release_of,
    requirements,
    window,
)

TABLE = Path(__file__).parents[2] / "data" / "trtllm" / "trtllm_build_flags.json"
RAW: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
ROWS = {row["flag"]: row for row in RAW["flags"] if "1.1-1.2" in row["seen_in"]}


def test_the_flags_are_those_of_the_releases() -> None:
    assert BUILD_FLAGS.keys() == ROWS.keys()
    assert {alias for row in ROWS.values() for alias in row.get("aliases", ())} == ALIASES.keys()


@pytest.mark.parametrize("name", BUILD_FLAGS)
def test_type_choices_and_default_of_each_flag(name: str) -> None:
    flag, row = BUILD_FLAGS[name], ROWS[name]
    assert flag.kind == ("str" if row["type"] == "enum" else row["type"])
    assert flag.choices == tuple(row.get("choices", ()))
    default = row["default"]
    if isinstance(default, str) and default.startswith("SUPPRESS"):
        default = "paged" if "PAGED" in default else None
    assert flag.default == default


def test_flags_that_are_gone_are_known_to_be() -> None:
    old = {row["flag"] for row in RAW["flags"] if "1.1-1.2" not in row["seen_in"]}
    named = {word for text in RAW["no_such_flags"] for word in text.replace("/", " ").split() if word.startswith("--")}
    assert old | named == GONE.keys()
    assert not GONE.keys() & BUILD_FLAGS.keys()
    assert set(OURS) <= BUILD_FLAGS.keys()


@pytest.mark.parametrize("kv_cache", [None, "INT8", "FP8"])
@pytest.mark.parametrize("algo", [None, "W8A16", "W8A8_SQ_PER_CHANNEL", "FP8", "W4A16_AWQ", "NVFP4"])
def test_every_command_we_make_is_one_the_tool_takes(algo: str | None, kv_cache: str | None) -> None:
    spec = DecoderSpec(
        "llama",
        num_layers=2,
        num_heads=8,
        num_kv_heads=4,
        head_size=32,
        norm_epsilon=1e-5,
        rope=RopeSpec(1e4),
        hidden_size=SHAPE["hidden_size"],
        intermediate_size=SHAPE["intermediate_size"],
        vocab_size=SHAPE["vocab_size"],
        max_position_embeddings=SHAPE["max_position_embeddings"],
    )
    settings = BuildSettings(spec, Quantization(algo, kv_cache), Ranks(), Limits())
    _, *words = build_command(settings, Path("c"), Path("o"), Path("t"), Path("t"))
    values, bad = parse_arguments(words)
    assert bad == []
    assert values["--max_batch_size"] == 16
    in_flight = ("--gpt_attention_plugin", "--remove_input_padding", "--kv_cache_type")
    assert [values[flag] for flag in in_flight] == ["auto", "enable", "paged"]


def test_what_is_given_last_wins_and_the_rest_has_its_default() -> None:
    values = effective_values(["--gemm_plugin", "auto", "--gemm_plugin=fp8", "--max_decoder_seq_len", "7"])
    assert (values["--gemm_plugin"], values["--max_seq_len"]) == ("fp8", 7)
    assert (values["--max_num_tokens"], values["--tokens_per_block"]) == (8192, 32)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (None, Window.ABSENT),
        ("0.21.0", Window.TOO_OLD),
        ("not a version", Window.TOO_OLD),
        ("1.0.0", Window.BUILDS),
        ("1.2.0rc6.post3", Window.BUILDS),
        ("1.2.1", Window.BUILDS),
        ("1.2.99", Window.BUILDS),
        ("1.3.0rc1", Window.REMOVED),
        ("1.3.0rc15", Window.REMOVED),
        ("1.4.0rc1", Window.REMOVED),
        ("2.0", Window.REMOVED),
    ],
)
def test_the_version_window(version: str | None, expected: Window) -> None:
    assert window(version) is expected
    if expected is not Window.BUILDS:
        reason, hint = explain_window(version)
        assert "1.2.1" in hint
        assert version is None or version in reason
    if expected is Window.REMOVED:
        for named in ("--format unified-hf", "nvcr.io/nvidia/tensorrt-llm/release:1.2.1", "TensorRT-Edge-LLM"):
            assert named in explain_window(version)[1]
    if expected is Window.ABSENT:
        assert "--container" in explain_window(version)[1]
        assert "--dry-run" in explain_window(version)[1]


def test_the_installed_version_comes_from_metadata_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_machine(tmp_path, monkeypatch, version="1.1.0")
    assert installed_version() == "1.1.0"  # there is metadata and no package that could be imported


def test_requirements_of_a_release_against_this_environment() -> None:
    release = release_of("1.2.1")
    assert release is not None
    found = {need.package: need for need in requirements(release)}
    assert (found["numpy"].wanted, found["tensorrt"].wanted) == ("<2", "~=10.14.1")
    numpy_major = int((found["numpy"].installed or "0").split(".")[0])
    assert found["numpy"].fits is (numpy_major < 2)
    assert found["onnx"].fits is True
    assert all(need.fits is None for need in found.values() if need.installed is None)
    assert release_of("1.2.0rc6") is not None
    assert release_of("9.9") is None


def test_only_releases_before_the_removal_build_engines() -> None:
    for release in RELEASES:
        assert release.engines is ("tensorrt" in release.requires)


SAID = {
    "max_workers must be greater than 0": "no GPU",
    "Version tag does not match. Current Version: 228, Serialized Engine Version: 237": "tag 228",
    "expecting compute 8.0 got compute 8.9, please rebuild.": "8.0 against 8.9",
    "Assertion failed: mpiSize == tp * pp (x.cpp:1)": "several ranks",
    "MPI size 1 != TP size 2 * PP size 1": "several ranks",
    "TrtGptModelInflightBatching requires GPT attention plugin with packed input and paged KV cache.": "paged KV",
    "Number of bytes for rows and cols must be a multiple of 32": "size per rank",
    "No valid weight only groupwise GEMM tactic": "group size",
    "KeyError: 'architecture'": "not a TensorRT-LLM checkpoint",
    "Calibration failure occurred with no scaling factors": "without scaling factors",
    "Weight-only quantization is not supported on SM 100 (Blackwell)": "SM 100-119",
    "libmpi.so.40: cannot open shared object file": "libmpi.so.40 is missing",
    "Encounter error 'wrong shape' for parameter 'a.b'": "tensor a.b does not fit the config: wrong shape",
    "KeyError: 'output_tokens'": "lacks output_tokens",
    "AssertionError: engine is not None": "cannot be read",
    "Error: No such option: --streaming": "does not know --streaming",
    "error: argument --x: invalid choice: 'y' (choose from 'z')": "does not take 'y'",
    "Could not find any implementation for node {ForeignNode[a]}": "no kernel for {ForeignNode[a]}",
}


@pytest.mark.parametrize("line", SAID)
def test_each_known_message_has_its_cause(line: str) -> None:
    error = diagnose(Completed(("trtllm-build",), 1, ("[I] fine", line, "RuntimeError: later")), Path("x.log"))
    assert SAID[line] in str(error)
    assert error.hint
    assert "x.log" in str(error)


def test_the_first_cause_decides() -> None:
    lines = ("Number of bytes for rows and cols must be a multiple of 32", "CUDA out of memory")
    assert "size per rank" in str(diagnose(Completed(("t",), 1, lines), Path("log")))
    assert len(CAUSES) >= 25
