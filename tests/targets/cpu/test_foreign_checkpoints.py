"""Checkpoints that modelopt wrote become running engines; they carry no tokenizer, so one is given."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from cpu_engines import CPU, LIMITS, as_checkpoint, generate, tokens

from trtbuild.calibrate.forward import logits
from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.trtllm import read_checkpoint
from trtbuild.errors import InputRefused
from trtbuild.progress import silent
from trtbuild.quantize.cast import quantize
from trtbuild.quantize.precisions import PRECISIONS
from trtbuild.targets.base import BuildOptions, read_engine
from trtbuild.targets.serving import Request

DATA = Path(__file__).parents[2] / "data"
LLAMA = DATA / "tiny-llama"


def _float16(folder: Path) -> Path:
    """What modelopt's fp16 export is, byte for byte (tests/checkpoint holds us to that)."""
    return as_checkpoint(
        dataclasses.replace(quantize(open_model(str(LLAMA)), PRECISIONS["fp16"]), assets={}), folder / "fp16"
    )


@pytest.mark.parametrize("name", ["fp16", "int8def-0.37", "sq_kvbmm-0.37", "wo8-0.47"])
def test_a_modelopt_checkpoint_runs(name: str, tmp_path: Path) -> None:
    checkpoint = _float16(tmp_path) if name == "fp16" else DATA / "modelopt" / name
    with pytest.raises(InputRefused, match=r"tokenizer\.json"):
        CPU.build(checkpoint, tmp_path / "engine", LIMITS, BuildOptions(), silent)
    engine = CPU.build(checkpoint, tmp_path / "engine", LIMITS, BuildOptions(tokenizer=LLAMA, kv_cache="f32"), silent)
    decoder = read_checkpoint(checkpoint, model_folder=LLAMA)
    float_cache = dataclasses.replace(decoder.quantization, kv_cache_quant_algo=None)
    ids = tokens(decoder, 30)
    expected = logits(dataclasses.replace(decoder, quantization=float_cache), ids)
    assert np.linalg.norm(CPU.open_scorer(engine).logits(ids) - expected) / np.linalg.norm(expected) <= 1e-3
    answer, finish = generate(engine, [Request(0, ids, 5, ignore_eos=True)])[0]
    assert (len(answer), finish) == (5, "length")
    assert (engine / "tokenizer.json").read_bytes() == (LLAMA / "tokenizer.json").read_bytes()


def test_an_int8_kv_cache_runs_quantized(tmp_path: Path) -> None:
    checkpoint = DATA / "modelopt" / "sq_kvbmm-0.37"
    engine = CPU.build(checkpoint, tmp_path / "engine", LIMITS, BuildOptions(tokenizer=LLAMA), silent)
    assert read_engine(engine).settings["kv_cache"] == "u8"
