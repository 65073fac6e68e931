"""Streamed safetensors files against the reference implementation, byte for byte."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from trtbuild.checkpoint.safetensors import DTYPES, read_header
from trtbuild.checkpoint.safetensors_writer import Layout, streamed_file

SPELLINGS = ("F64", "F32", "F16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL")
"""Types that every release of `safetensors.numpy` writes; tests/oracle compares the rest with what modelopt wrote."""

TENSORS = st.dictionaries(
    st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=6),
    st.tuples(st.sampled_from(SPELLINGS), st.lists(st.integers(0, 4), max_size=3)),
    max_size=6,
)


def arrays_of(shapes: dict[str, tuple[str, list[int]]]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(len(shapes))
    return {
        name: rng.integers(0, 2, (*shape, DTYPES[spelled].itemsize), np.uint8).view(DTYPES[spelled]).reshape(shape)
        for name, (spelled, shape) in shapes.items()
    }


@given(shapes=TENSORS, backwards=st.booleans(), metadata=st.sampled_from([None, {"format": "pt"}]))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_files_equal_the_references(
    shapes: dict[str, tuple[str, list[int]]], backwards: bool, metadata: dict[str, str] | None, tmp_path: Path
) -> None:
    arrays = arrays_of(shapes)
    path = tmp_path / "file.safetensors"
    with streamed_file(path, {n: Layout(a.dtype, a.shape) for n, a in arrays.items()}, metadata) as file:
        for name in sorted(arrays, reverse=backwards):
            file.write(name, arrays[name])
    assert path.read_bytes() == save(arrays, metadata)
    stored = read_header(path).tensors
    assert {name: tensor.read().tobytes() for name, tensor in stored.items()} == {
        name: array.tobytes() for name, array in arrays.items()
    }


def test_columns_are_written_in_order(tmp_path: Path) -> None:
    array = np.arange(12, dtype=ml_dtypes.bfloat16).reshape(3, 4)[:, 1:3]
    with streamed_file(tmp_path / "f", {"a": Layout(array.dtype, array.shape)}) as file:
        file.write("a", array)
    np.testing.assert_array_equal(read_header(tmp_path / "f").tensors["a"].read(), array)


def test_what_was_announced_must_come(tmp_path: Path) -> None:
    layouts = {"a": Layout(np.dtype(np.float32), (2,)), "b": Layout(np.dtype(np.float32), (2,))}
    with (
        pytest.raises(ValueError, match="announced"),
        streamed_file(tmp_path / "f", layouts) as file,
    ):
        file.write("a", np.zeros(2, np.float16))
    with pytest.raises(ValueError, match="never written: b"), streamed_file(tmp_path / "f", layouts) as file:
        file.write("a", np.zeros(2, np.float32))
