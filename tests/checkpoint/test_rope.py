"""Rope settings in every spelling give the frequencies transformers gives; what cannot be meant is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import write_huggingface
from rope_cases import CASES

from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.rope import inverse_frequencies
from trtbuild.errors import InputRefused

EXPECTED = json.loads((Path(__file__).parents[1] / "data" / "rope" / "transformers.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES)
def test_frequencies_are_those_of_transformers(tmp_path: Path, case: str) -> None:
    family, changes, lengths = CASES[case]
    folder = write_huggingface(tmp_path, family, **{"num_hidden_layers": 1, **changes})
    spec = open_model(str(folder)).spec
    for length, expected in zip(lengths, EXPECTED[case], strict=True):
        inv_freq, attention_factor = inverse_frequencies(spec, length)
        assert inv_freq.dtype == np.float32
        np.testing.assert_allclose(inv_freq, expected["inv_freq"], rtol=1e-6)
        assert attention_factor == pytest.approx(expected["attention_factor"], rel=1e-9)


def _refusal(folder: Path, **changes: Any) -> str:
    with pytest.raises(InputRefused) as refused:
        open_model(str(write_huggingface(folder, "llama", num_hidden_layers=1, **changes)))
    return f"{refused.value} {refused.value.hint}"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rope_scaling": {"rope_type": "mrope", "factor": 2.0}}, ["mrope", "supported: default, linear"]),
        ({"rope_scaling": {"rope_type": ["yarn"]}}, ["not supported"]),
        ({"rope_scaling": {"type": "linear"}}, ["config.json", "factor is missing"]),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, ["factor is 0"]),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, ["factor is '2'"]),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, ["low_freq_factor is missing"]),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4, "high_freq_factor": 4}},
            ["high_freq_factor must be greater"],
        ),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}}, ["short_factor has 1 numbers", "8 pairs"]),
        ({"rope_scaling": {"rope_type": "longrope"}}, ["short_factor must be a list"]),
        ({"rope_scaling": "yarn"}, ["rope_scaling must be an object"]),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1e4}, "sliding_attention": {"rope_theta": 1e6}}},
            ["differs by layer type", "sliding_attention"],
        ),
        ({"rope_theta": -1.0}, ["rope_theta is -1.0"]),
        ({"partial_rotary_factor": 0.05}, ["partial_rotary_factor"]),
        ({"partial_rotary_factor": 2.0}, ["partial_rotary_factor"]),
    ],
)
def test_settings_that_mean_nothing_are_named(tmp_path: Path, changes: dict[str, Any], words: list[str]) -> None:
    message = _refusal(tmp_path, **changes)
    for word in words:
        assert word in message


def test_a_null_scaling_is_the_default_type(tmp_path: Path) -> None:
    assert open_model(str(write_huggingface(tmp_path, "llama", rope_scaling=None))).spec.rope.scaling is None


def test_dynamic_scaling_is_refused_beyond_its_window(tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path, "llama", rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    spec = open_model(str(folder)).spec
    assert inverse_frequencies(spec, spec.max_position_embeddings)[0][0] == 1.0
    with pytest.raises(InputRefused, match="dynamic rope scaling cannot reach 257 tokens"):
        inverse_frequencies(spec, 257)
