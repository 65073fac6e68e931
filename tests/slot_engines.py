"""Slot engines without a GPU: their ONNX graph by onnxruntime, directly or behind stand-ins for TensorRT and CUDA.

`OnnxExecutor` is an executor whose cache is a numpy array. `HostDevice` and `FakeTensorRt` stand below the real
executor instead: device memory is host memory, and an execution reads the addresses that were bound, runs the graph,
and writes its outputs to the addresses that were bound, so that a wrong address, shape, row or dtype shows in the
tokens. They are strict: what TensorRT would refuse (a shape outside the profile, an output of the cache that is not
its input, an address off its alignment, memory that was freed) fails the test.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from trtbuild.checkpoint.spec import Array, Decoder
from trtbuild.graph.decoder import write_onnx
from trtbuild.targets.base import Limits
from trtbuild.targets.tensorrt_rtx.api import Api
from trtbuild.targets.tensorrt_rtx.batching import Ints, Step
from trtbuild.targets.tensorrt_rtx.geometry import Geometry, geometry, profiles
from trtbuild.targets.tensorrt_rtx.machine import FLAVOURS, Installed

ALIGNMENT_BYTES = 256
_GUARD_BYTES = 4096


def write_graph(decoder: Decoder, folder: Path, limits: Limits) -> tuple[Path, Geometry]:
    """The slot graph in FP32 (whatever the weights are stored in), and the geometry that goes with it."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = geometry(decoder.spec, limits)
    path = write_onnx(decoder, folder, max_seq_len=limits.max_seq_len, compute="float32", slots=shape.slots)
    fields = {**shape.__dict__, "dtype": "float32"}
    return path, Geometry(**fields)


def session_of(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # it warns of every cache it copies instead of updating it in place
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        if "TensorScatter" in str(error) or "opset 24" in str(error):
            pytest.skip(f"onnxruntime {onnxruntime.__version__} does not run TensorScatter")
        raise


def check_profile(shape: Geometry, phase: int, shapes: dict[str, tuple[int, ...]]) -> None:
    for name, (least, _, greatest) in profiles(shape)[phase].items():
        actual = shapes[name]
        assert len(actual) == len(least), name
        assert all(lo <= n <= hi for lo, n, hi in zip(least, actual, greatest, strict=True)), (name, actual)


class OnnxExecutor:
    """Runs steps on a cache in a numpy array, which begins full of noise: whatever is read must have been written."""

    def __init__(self, path: Path, shape: Geometry) -> None:
        self.geometry = shape
        self.weights_bytes = 0
        self.steps: list[Step] = []
        self.closed = False
        rng = np.random.default_rng(9)
        self._cache = {
            f"past_key_values.{name}": rng.standard_normal(shape.cache_shape(shape.rows)).astype(np.float32)
            for name in shape.cache_names
        }
        self._session = session_of(path)

    def tokens(self, step: Step) -> Ints:
        return self._run(step, "tokens")

    def logits(self, step: Step) -> Array:
        return self._run(step, "logits")

    def _run(self, step: Step, output: str) -> Any:
        self.steps.append(step)
        rows = slice(step.first_row, step.first_row + len(step.input_ids))
        inputs = step_inputs(step) | {name: cache[rows] for name, cache in self._cache.items()}
        check_profile(self.geometry, step.phase, {name: array.shape for name, array in inputs.items()})
        presents = [name.replace("past_key_values", "present") for name in self._cache]
        first, *caches = self._session.run([output, *presents], inputs)
        for name, present in zip(self._cache, caches, strict=True):
            self._cache[name][rows] = present
        return first

    def close(self) -> None:
        self.closed = True


def step_inputs(step: Step) -> dict[str, Array]:
    return {name: getattr(step, name) for name in ("input_ids", "position_ids", "attention_mask", "logits_at")}


class HostDevice:
    """Device memory as host memory, with guard bytes after each allocation."""

    stream = 7

    def __init__(self) -> None:
        self.memory: dict[int, tuple[Any, int]] = {}
        self.closed = False

    def allocate(self, size_bytes: int) -> int:
        buffer = np.full(size_bytes + ALIGNMENT_BYTES + _GUARD_BYTES, 0xA5, np.uint8)
        address = -(-buffer.ctypes.data // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        start = address - buffer.ctypes.data
        buffer[start : start + size_bytes] = 0
        self.memory[address] = (buffer, size_bytes)
        return address

    def free(self, address: int) -> None:
        buffer, size = self.memory.pop(address)
        end = address - buffer.ctypes.data + size
        assert (buffer[end:] == 0xA5).all(), "something was written past the end of an allocation"

    def view(self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """The memory at an address as an array; it must lie within one allocation."""
        size = int(np.prod(shape)) * dtype.itemsize
        assert any(start <= address and address + size <= start + n for start, (_, n) in self.memory.items())
        raw = (ctypes.c_ubyte * size).from_address(address)
        return np.frombuffer(raw, dtype).reshape(shape)

    def upload(self, address: int, array: Array) -> None:
        self.view(address, array.shape, array.dtype)[...] = array

    def download(self, array: Array, address: int) -> None:
        array[...] = self.view(address, array.shape, array.dtype)

    def close(self) -> None:
        assert not self.memory, "device memory was not freed"
        self.closed = True


class _Context:
    def __init__(self, engine: _Engine) -> None:
        self._engine = engine
        self._phase: int | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}

    def set_optimization_profile_async(self, phase: int, stream: int) -> bool:
        assert stream == HostDevice.stream
        self._phase = phase
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self._shapes[name] = tuple(shape)
        return name in self._engine.inputs

    def set_tensor_address(self, name: str, address: int) -> bool:
        assert address % ALIGNMENT_BYTES == 0, name
        self._addresses[name] = address
        return name in self._engine.inputs or name in self._engine.outputs

    def execute_async_v3(self, stream: int) -> bool:
        assert stream == HostDevice.stream
        engine, device = self._engine, self._engine.device
        assert self._phase is not None
        check_profile(engine.shape, self._phase, self._shapes)
        assert set(self._addresses) == {*engine.inputs, *engine.outputs}
        inputs = {
            name: np.array(device.view(self._addresses[name], self._shapes[name], dtype))
            for name, dtype in engine.inputs.items()
        }
        values = engine.session.run(list(engine.outputs), inputs)
        for (name, dtype), value in zip(engine.outputs.items(), values, strict=True):
            if name.startswith("present."):
                assert self._addresses[name] == self._addresses[name.replace("present", "past_key_values")]
            device.view(self._addresses[name], value.shape, dtype)[...] = value
        return True


class _Engine:
    def __init__(self, path: Path, shape: Geometry, device: HostDevice) -> None:
        self.shape, self.device = shape, device
        self.session = session_of(path)
        types = {"tensor(int64)": np.dtype(np.int64), "tensor(float)": np.dtype(np.float32)}
        self.inputs = {value.name: types[value.type] for value in self.session.get_inputs()}
        self.outputs = {value.name: types[value.type] for value in self.session.get_outputs()}

    def create_execution_context(self) -> _Context:
        return _Context(self)


def fake_plan(folder: Path) -> Path:
    """An engine file of the four bytes the stand-in looks at."""
    plan = folder / "model.engine"
    plan.write_bytes(b"vtrt")
    return plan


def fake_api(path: Path, shape: Geometry, device: HostDevice) -> Api:
    """A TensorRT whose runtime answers any plan with the ONNX graph at `path`."""

    class Runtime:
        def __init__(self, logger: Any) -> None:
            del logger

        def deserialize_cuda_engine(self, content: Any) -> _Engine:
            assert bytes(content[:4]) == b"vtrt"
            return _Engine(path, shape, device)

    installed = Installed(FLAVOURS[0], "tensorrt-rtx-cu13", "0")
    return Api(SimpleNamespace(Runtime=Runtime), installed, logger=None, messages=[])
