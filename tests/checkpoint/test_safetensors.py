"""The safetensors header reader against the reference implementation, and everything a header can get wrong."""

from __future__ import annotations

import json
import resource
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from trtbuild.checkpoint.safetensors import read_header
from trtbuild.errors import InputRefused

ARRAYS = {
    "f64": np.arange(6, dtype=np.float64).reshape(2, 3),
    "f32": np.arange(6, dtype=np.float32).reshape(3, 2),
    "f16": np.arange(5, dtype=np.float16),
    "bf16": np.arange(4, dtype=np.float32).astype(ml_dtypes.bfloat16).reshape(2, 2),
    "i64": np.array(7, np.int64),
    "i8": np.arange(-3, 4, dtype=np.int8),
    "u8": np.arange(9, dtype=np.uint8),
    "bool": np.array([True, False]),
    "empty": np.empty((0, 4), np.float32),
}


def test_reads_what_the_reference_implementation_writes(tmp_path: Path) -> None:
    save_file(ARRAYS, tmp_path / "x.safetensors", metadata={"format": "pt"})
    file = read_header(tmp_path / "x.safetensors")
    assert file.metadata == {"format": "pt"}
    assert set(file.tensors) == set(ARRAYS)
    for name, array in ARRAYS.items():
        read = file.tensors[name].lazy().read()
        assert (read.dtype, read.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(read, array)


def test_arrays_are_views_of_the_mapped_file(tmp_path: Path) -> None:
    save_file(ARRAYS, tmp_path / "x.safetensors")
    read = read_header(tmp_path / "x.safetensors").tensors["f32"].read()
    assert not read.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        read[0, 0] = 1


def test_pages_leave_with_the_array(tmp_path: Path) -> None:
    """Reading a large file tensor by tensor keeps one tensor resident, not the file."""
    tensors = {f"t{i}": np.ones((1 << 22,), np.float32) for i in range(8)}
    save_file(tensors, tmp_path / "x.safetensors")

    def resident_bytes() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    stored = read_header(tmp_path / "x.safetensors").tensors
    before = resident_bytes()
    for tensor in stored.values():
        assert tensor.read().sum() == 1 << 22
        assert resident_bytes() - before < 3 * tensor.size_bytes


def _write(path: Path, header: Any, data: bytes = b"", *, length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(raw) if length is None else length).to_bytes(8, "little") + raw + data)
    return path


def _entry(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}


HEADERS: dict[str, tuple[Any, bytes, str]] = {
    "not JSON": (b"{", b"", "not valid JSON"),
    "not UTF-8": (b"\xff\xfe", b"", "not valid JSON"),
    "deep": (b"[" * 100_000, b"", "not valid JSON"),
    "a list": ([], b"", "not a JSON object"),
    "twice": (b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{}}', b"", "not valid JSON"),
    "metadata": ({"__metadata__": [1]}, b"", "__metadata__"),
    "no dtype": ({"a": {"shape": [2], "data_offsets": [0, 8]}}, bytes(8), "tensor a has no dtype"),
    "entry a number": ({"a": 3}, bytes(8), "tensor a has no dtype"),
    "one offset": ({"a": _entry(data_offsets=[8])}, bytes(8), "tensor a has no dtype"),
    "unknown dtype": ({"a": _entry(dtype="F4")}, bytes(8), "tensor a has type 'F4'"),
    "dtype a list": ({"a": _entry(dtype=[])}, bytes(8), "tensor a has type"),
    "negative": ({"a": _entry(shape=[-2])}, bytes(8), "not counts"),
    "fraction": ({"a": _entry(shape=[2.0])}, bytes(8), "not counts"),
    "bool": ({"a": _entry(shape=[True, 2])}, bytes(8), "not counts"),
    "shape a string": ({"a": _entry(shape="22")}, bytes(8), "not counts"),
    "dimensions": ({"a": _entry(shape=[1] * 9 + [2])}, bytes(8), "not counts"),
    "size": ({"a": _entry(shape=[3])}, bytes(8), "12 bytes, but its data has 8"),
    "huge": ({"a": _entry(shape=[1 << 62, 1 << 62])}, bytes(8), "but its data has 8"),
    "reversed": ({"a": _entry(data_offsets=[8, 0])}, bytes(8), "but its data has -8"),
    "truncated": ({"a": _entry()}, bytes(5), "truncated: tensor a ends at byte"),
    "overlap": ({"a": _entry(), "b": _entry(data_offsets=[4, 12])}, bytes(12), "tensor b does not start where"),
    "gap": ({"a": _entry(), "b": _entry(data_offsets=[12, 20])}, bytes(20), "tensor b does not start where"),
    "rest": ({"a": _entry()}, bytes(10), "2 bytes after the last tensor"),
}


@pytest.mark.parametrize("fault", HEADERS)
def test_a_header_that_does_not_describe_the_file_is_refused(tmp_path: Path, fault: str) -> None:
    header, data, words = HEADERS[fault]
    path = _write(tmp_path / "x.safetensors", header, data)
    with pytest.raises(InputRefused) as refused:
        read_header(path)
    assert words in str(refused.value)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("length", [3, 1 << 40, (1 << 64) - 1])
def test_a_header_length_beyond_the_file_is_refused(tmp_path: Path, length: int) -> None:
    path = _write(tmp_path / "x.safetensors", b"{", length=length)
    tracemalloc.start()
    try:
        with pytest.raises(InputRefused, match="cut off"):
            read_header(path)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").touch()
    with pytest.raises(InputRefused, match="cut off"):
        read_header(tmp_path / "x.safetensors")


def test_a_lfs_pointer_is_called_one(tmp_path: Path) -> None:
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4949453792\n"
    (tmp_path / "x.safetensors").write_text(text)
    with pytest.raises(InputRefused, match="Git-LFS pointer") as refused:
        read_header(tmp_path / "x.safetensors")
    assert "git lfs pull" in str(refused.value.hint)


def test_a_file_cut_after_its_header_was_read_is_refused(tmp_path: Path) -> None:
    save_file({"a": np.ones(100_000, np.float32)}, tmp_path / "x.safetensors")
    tensor = read_header(tmp_path / "x.safetensors").tensors["a"]
    with (tmp_path / "x.safetensors").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(InputRefused, match="became shorter"):
        tensor.read()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "I8", "BOOL", "X"]) | _JSON,
        "shape": st.lists(st.integers(-2, 1 << 65), max_size=3) | _JSON,
        "data_offsets": st.lists(st.integers(-9, 40), min_size=1, max_size=3) | _JSON,
    }
)


@settings(deadline=None, max_examples=200)
@given(header=st.dictionaries(st.text(max_size=6), _ENTRIES | _JSON, max_size=4) | _JSON, data=st.binary(max_size=40))
def test_any_header_is_read_or_refused(folder: Path, header: Any, data: bytes) -> None:
    path = _write(folder / "x.safetensors", json.dumps(header).encode(), data)
    try:
        file = read_header(path)
    except InputRefused as refused:
        assert "\n" not in str(refused)
    else:
        assert sum(tensor.read().nbytes for tensor in file.tensors.values()) == len(data)


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_any_damage_to_a_real_file_is_read_or_refused(folder: Path, data: st.DataObject) -> None:
    path = folder / "x.safetensors"
    save_file(ARRAYS, path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, min(len(content), 700) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content[: data.draw(st.integers(0, len(content)))]))
    try:
        for tensor in read_header(path).tensors.values():
            tensor.read()
    except InputRefused:
        pass
