"""A thin layer over onnx.helper: nodes are added by operator name and answer with the name of their output."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from trtbuild.checkpoint.spec import Array
from trtbuild.graph.external_data import ExternalData, onnx_type

OPSET = 23
"""The first opset with RMSNormalization, RotaryEmbedding and Attention."""


class GraphBuilder:
    """Collects nodes, initializers, inputs and outputs of one graph.

    `compute` is the element type that activations, KV cache and logits have. `weight_only_input_major` stores int8
    weights whose activations stay in float as [in, out]: given them as [out, in] with a transposition, TensorRT-RTX
    1.7 keeps a second copy of part of them for each further optimization profile.
    """

    def __init__(self, data: ExternalData, compute: np.dtype[Any], *, weight_only_input_major: bool = False) -> None:
        self.compute = compute
        self.weight_only_input_major = weight_only_input_major
        self._data = data
        self._nodes: list[Any] = []
        self._initializers: dict[str, Any] = {}
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._made: dict[Hashable, str] = {}

    def input(self, name: str, dtype: np.dtype[Any], shape: Sequence[int | str]) -> str:
        self._inputs.append(self._value(name, dtype, shape))
        return name

    def output(self, name: str, dtype: np.dtype[Any], shape: Sequence[int | str]) -> None:
        self._outputs.append(self._value(name, dtype, shape))

    def constant(self, name: str, array: npt.ArrayLike) -> str:
        """An initializer of that name; a second call with a name already there returns the first one."""
        if name not in self._initializers:
            self._initializers[name] = self._data.add(name, np.asarray(array))
        return name

    def integers(self, *numbers: int) -> str:
        """An int64 [n] constant named after its content, so that equal ones are one."""
        return self.constant("shape/" + "_".join(map(str, numbers)), np.asarray(numbers, np.int64))

    def weight(self, name: str, array: Array) -> str:
        """An initializer kept in its own float type, as a value of the compute type."""
        return self.cast(self.constant(name, array), array.dtype, self.compute)

    def cast(self, value: str, source: np.dtype[Any], target: np.dtype[Any]) -> str:
        return value if source == target else self.op("Cast", [value], f"{value}/Cast", to=onnx_type(target))

    def once(self, key: Hashable, make: Callable[[], str]) -> str:
        """What `make` returned the first time this key was asked for."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def op(self, kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Add a node whose only output, and own name, is `output`; returns `output`."""
        return self.op_many(kind, inputs, [output], **attributes)[0]

    def op_many(self, kind: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> list[str]:
        import onnx

        self._nodes.append(onnx.helper.make_node(kind, list(inputs), list(outputs), name=outputs[0], **attributes))
        return list(outputs)

    def model(self, graph_name: str, producer: str, opset: int = OPSET) -> Any:
        """The finished onnx.ModelProto (its large initializers point into the external data file)."""
        import onnx

        graph = onnx.helper.make_graph(
            self._nodes, graph_name, self._inputs, self._outputs, list(self._initializers.values())
        )
        imports = [onnx.helper.make_opsetid("", opset)]
        return onnx.helper.make_model(graph, opset_imports=imports, producer_name=producer, ir_version=11)

    @staticmethod
    def _value(name: str, dtype: np.dtype[Any], shape: Sequence[int | str]) -> Any:
        import onnx

        return onnx.helper.make_tensor_value_info(name, onnx_type(dtype), list(shape))
