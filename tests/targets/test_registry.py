"""The table of targets, and the rules about limits that hold for all of them."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from builders import write_huggingface

from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.spec import DecoderSpec
from trtbuild.errors import InputRefused, UsageError
from trtbuild.targets.base import Limits, Target, fit_limits, limit_findings, read_engine
from trtbuild.targets.registry import TARGETS, default_target, load_target

GOOD = Limits(max_batch_size=4, max_input_len=100, max_seq_len=128, max_num_tokens=64)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> DecoderSpec:
    return open_model(str(write_huggingface(tmp_path_factory.mktemp("spec") / "hf", "llama"))).spec


@pytest.mark.parametrize("name", TARGETS)
def test_every_row_is_a_target_of_that_name_and_needs_no_heavy_package(name: str) -> None:
    assert isinstance(load_target(name), Target)
    assert load_target(name).name == name
    heavy = "openvino openvino_genai onnx tensorrt tensorrt_rtx tensorrt_llm torch"
    script = (
        f"import sys; from trtbuild.targets.registry import load_target; load_target({name!r}).capability();"
        f"print([m for m in {heavy!r}.split() if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_name_that_does_not_exist_is_answered_with_the_closest() -> None:
    with pytest.raises(UsageError, match="did you mean tensorrt-rtx"):
        load_target("tensorrt_rtx")
    with pytest.raises(UsageError) as caught:
        load_target("npu")
    assert "cpu" in (caught.value.hint or "")


def test_without_a_gpu_the_default_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtbuild.targets.registry.has_gpu", lambda: False)
    assert default_target() == "cpu"


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"max_batch_size": 0}, "max_batch_size"),
        ({"max_num_tokens": -1}, "max_num_tokens"),
        ({"max_input_len": 129}, "max_input_len"),
        ({"max_seq_len": 257}, "max_position_embeddings"),
        ({"kv_pool_tokens": 127}, "kv_pool"),
    ],
)
def test_each_rule_about_limits(spec: DecoderSpec, changes: dict[str, int], rule: str) -> None:
    assert limit_findings(spec, GOOD) == []
    findings = limit_findings(spec, dataclasses.replace(GOOD, **changes))
    assert rule in [finding.rule for finding in findings]
    assert all(finding.hint for finding in findings)


def test_defaults_shrink_to_the_model_and_given_values_stay(spec: DecoderSpec) -> None:
    fitted = fit_limits(Limits(max_input_len=1024, max_seq_len=2048), spec, {})
    assert (fitted.max_input_len, fitted.max_seq_len) == (255, 256)
    assert fit_limits(Limits(), spec, {"max_seq_len": 4096}).max_seq_len == 4096
    assert fit_limits(Limits(), spec, {"max_batch_size": 2}).max_batch_size == 2


def test_what_is_not_an_engine_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(InputRefused):
            read_engine(path)
