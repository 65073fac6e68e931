"""A TensorRT engine with its KV cache in device memory, run one step at a time.

Each phase has an execution context with its own optimization profile. The cache is one buffer per layer and kind,
[rows, kv_heads, slots, head_size]; a step binds it from its first row on, as input and as output at once, because the
engine updates it in place. Only ids, masks and the outputs asked for cross the bus.

What was run: against a stand-in for TensorRT and CUDA that reads and writes the bound addresses with onnxruntime on
the same graph (tests/targets/tensorrt_rtx). What was not: a GPU.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trtbuild.checkpoint.spec import Array
from trtbuild.errors import TrtbuildError
from trtbuild.targets.sizes import DTYPE_BYTES
from trtbuild.targets.tensorrt_rtx import diagnosis
from trtbuild.targets.tensorrt_rtx.api import Api, load_api
from trtbuild.targets.tensorrt_rtx.batching import Ints, Step
from trtbuild.targets.tensorrt_rtx.geometry import CONTEXT, GENERATION, Geometry
from trtbuild.targets.tensorrt_rtx.loading import RtxEngine


class Device(Protocol):
    """What an executor needs of CUDA; see `cuda.Cuda`."""

    stream: int

    def allocate(self, size_bytes: int) -> int: ...
    def free(self, address: int) -> None: ...
    def upload(self, address: int, array: Array) -> None: ...
    def download(self, array: Array, address: int) -> None: ...
    def close(self) -> None: ...


class TensorRtExecutor:
    """Implements `driver.ClosableExecutor`."""

    def __init__(self, api: Api, device: Device, plan: Path, shape: Geometry) -> None:
        self.geometry = shape
        self.weights_bytes = plan.stat().st_size
        self._api, self._device = api, device
        self._addresses: dict[str, int] = {}
        try:
            self._engine = self._deserialize(plan)
            self._contexts = [self._context(phase) for phase in (CONTEXT, GENERATION)]
            self._allocate()
        except BaseException:
            self.close()
            raise

    def tokens(self, step: Step) -> Ints:
        out = np.empty((len(step.input_ids), len(step.logits_at)), np.int64)
        self._run(step)
        self._device.download(out, self._addresses["tokens"])
        return out

    def logits(self, step: Step) -> npt.NDArray[np.float32]:
        shape = (len(step.input_ids), len(step.logits_at), self.geometry.vocab_size)
        out = np.empty(shape, _numpy_type(self.geometry.dtype))
        self._run(step)
        self._device.download(out, self._addresses["logits"])
        return out.astype(np.float32)

    def close(self) -> None:
        """Free the contexts before the engine and the engine before its memory; closing twice is allowed."""
        self._contexts, self._engine = [], None
        for address in self._addresses.values():
            self._device.free(address)
        self._addresses = {}
        self._device.close()

    def _deserialize(self, plan: Path) -> Any:
        self._api.messages.clear()
        self._runtime = self._api.trt.Runtime(self._api.logger)
        with plan.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            engine = self._runtime.deserialize_cuda_engine(content)
        if engine is None:
            cause = diagnosis.from_log(self._api.messages) or diagnosis.Cause(f"{diagnosis.NO_DRIVER}: no driver")
            raise diagnosis.failure("TensorRT cannot load this engine", cause, str(plan))
        return engine

    def _context(self, phase: int) -> Any:
        context = self._engine.create_execution_context()
        if context is None or not context.set_optimization_profile_async(phase, self._device.stream):
            raise self._failed(f"phase {phase} cannot be set up")
        return context

    def _failed(self, doing: str) -> TrtbuildError:
        return diagnosis.failure(doing, diagnosis.from_log(self._api.messages), "the engine")

    def _allocate(self) -> None:
        shape = self.geometry
        tokens, outputs = max(shape.context_tokens, shape.rows), max(shape.logits_rows, shape.rows)
        sizes = {
            **{f"past_key_values.{name}": shape.rows * shape.row_bytes for name in shape.cache_names},
            "input_ids": tokens * 8,
            "position_ids": tokens * 8,
            "attention_mask": shape.rows * shape.slots * 8,
            "logits_at": outputs * 8,
            "tokens": outputs * 8,
            "logits": outputs * shape.vocab_size * DTYPE_BYTES[shape.dtype],
        }
        for name, size in sizes.items():
            self._addresses[name] = self._device.allocate(size)

    def _run(self, step: Step) -> None:
        """Bind and enqueue; the outputs are there once something is downloaded."""
        self._api.messages.clear()
        context = self._contexts[step.phase]
        inputs: Mapping[str, Array] = {
            "input_ids": step.input_ids,
            "position_ids": step.position_ids,
            "attention_mask": step.attention_mask,
            "logits_at": step.logits_at,
        }
        for name, array in inputs.items():
            self._device.upload(self._addresses[name], np.ascontiguousarray(array))
            self._bind(context, name, self._addresses[name], array.shape)
        cache_shape = self.geometry.cache_shape(len(step.input_ids))
        for name in self.geometry.cache_names:
            row = self._addresses[f"past_key_values.{name}"] + step.first_row * self.geometry.row_bytes
            self._bind(context, f"past_key_values.{name}", row, cache_shape)
            self._bind(context, f"present.{name}", row)
        for name in ("tokens", "logits"):
            self._bind(context, name, self._addresses[name])
        if not context.execute_async_v3(self._device.stream):
            raise self._failed("an engine step failed")

    def _bind(self, context: Any, name: str, address: int, shape: tuple[int, ...] | None = None) -> None:
        if shape is not None and not context.set_input_shape(name, shape):
            raise self._failed(f"{name} cannot have the shape {list(shape)}")
        if not context.set_tensor_address(name, address):
            raise self._failed(f"{name} cannot be bound")


def _numpy_type(dtype: str) -> np.dtype[Any]:
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)


def open_executor(loaded: RtxEngine) -> TensorRtExecutor:
    """The engine on device 0; raises MachineLacks without driver or library."""
    from trtbuild.targets.tensorrt_rtx.cuda import Cuda

    api = load_api()
    return TensorRtExecutor(api, Cuda(), loaded.plan_path, loaded.geometry)
