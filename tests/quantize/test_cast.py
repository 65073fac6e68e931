"""Floating precisions: cast lazily, and nothing lost silently."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from builders import write_huggingface

from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.spec import Decoder, Quantization, Tensor
from trtbuild.errors import InputRefused, UsageError
from trtbuild.quantize.cast import quantize
from trtbuild.quantize.precisions import PRECISIONS, precision_of


@pytest.fixture()
def decoder(tmp_path: Path) -> Decoder:
    return open_model(str(write_huggingface(tmp_path / "m")))


def _with(decoder: Decoder, name: str, array: np.ndarray) -> Decoder:
    tensor = Tensor(array.dtype, array.shape, f"file:{name}", lambda: array)
    return dataclasses.replace(decoder, tensors={**decoder.tensors, name: tensor})


@pytest.mark.parametrize("precision", [name for name, row in PRECISIONS.items() if not row.needs_calibration])
def test_every_tensor_is_cast(decoder: Decoder, precision: str) -> None:
    row = precision_of(precision)
    cast = quantize(decoder, row)
    assert cast.spec.dtype == row.dtype
    assert cast.quantization == Quantization(quant_algo=row.quant_algo)
    assert cast.fingerprint() != decoder.fingerprint()
    for name, tensor in cast.tensors.items():
        array = tensor.read()
        assert array.dtype.name == row.dtype
        assert np.array_equal(array, decoder.tensors[name].read().astype(array.dtype))


def test_overflow_and_damage_are_named(decoder: Decoder) -> None:
    name = "transformer.layers.1.mlp.proj.weight"
    array = decoder.tensors[name].read().copy()
    array[3, 4] = 70000
    large = _with(decoder, name, array)
    assert np.isfinite(quantize(large, precision_of("bf16")).tensors[name].read().astype(np.float32)).all()
    with pytest.raises(InputRefused, match=r"70000.*overflows to infinity in float16") as refused:
        quantize(large, precision_of("fp16")).tensors[name].read()
    assert name in str(refused.value)
    array[3, 4] = np.nan
    with pytest.raises(InputRefused, match="nan"):
        quantize(large, precision_of("fp32")).tensors[name].read()


def test_a_quantized_decoder_is_refused(decoder: Decoder) -> None:
    quantized = dataclasses.replace(decoder, quantization=Quantization(quant_algo="FP8"))
    with pytest.raises(InputRefused, match="already quantized"):
        quantize(quantized, precision_of("fp16"))


def test_an_unknown_precision_names_the_closest() -> None:
    with pytest.raises(UsageError, match="int8wo") as refused:
        precision_of("int8wo")
    assert refused.value.hint is not None
    assert "did you mean int8-wo?" in refused.value.hint
