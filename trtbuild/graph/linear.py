"""A linear module as ONNX nodes, with the meaning that `checkpoint/linear.py` gives it.

Weights keep the hub's layout [out, in] and are transposed by a node, so that nothing is copied on the way, a tied
head shares its initializer with the embedding, and a runtime may take the transposition into its matmul.
"""

from __future__ import annotations

import numpy as np

from trtbuild.checkpoint.linear import Linear
from trtbuild.graph.builder import GraphBuilder


def _transposed_weight(graph: GraphBuilder, path: str, linear: Linear) -> str:
    """The float weight as [in, out]."""
    name = f"{path}.weight"
    if linear.weight_scale is None:
        return graph.op("Transpose", [graph.weight(name, linear.weight)], f"{name}/Transpose", perm=[1, 0])
    scale = graph.constant(f"{path}.weights_scaling_factor", linear.weight_scale.astype(graph.compute))
    if graph.weight_only_input_major and linear.activation_scale is None:
        weight = graph.constant(name, np.ascontiguousarray(linear.weight.T))
        return graph.op("DequantizeLinear", [weight, scale], f"{name}/DequantizeLinear", axis=1)
    weight = graph.constant(name, linear.weight)
    dequantized = graph.op("DequantizeLinear", [weight, scale], f"{name}/DequantizeLinear", axis=0)
    return graph.op("Transpose", [dequantized], f"{name}/Transpose", perm=[1, 0])


def _static_activation(graph: GraphBuilder, path: str, value: str, scale: float) -> str:
    """Q/DQ of the activation. The scale of an input that is next to nothing must not become 0 in the compute type."""
    least = float(np.nextafter(np.zeros((), graph.compute), np.ones((), graph.compute)))
    inputs = [
        graph.constant(f"{path}.activation_scaling_factor", np.asarray(max(scale, least), graph.compute)),
        graph.constant("zero_point", np.asarray(0, np.int8)),
    ]
    quantized = graph.op("QuantizeLinear", [value, *inputs], f"{path}/QuantizeLinear")
    return graph.op("DequantizeLinear", [quantized, *inputs], f"{path}/DequantizeLinear")


def _per_token_activation(graph: GraphBuilder, path: str, value: str) -> str:
    """Symmetric dynamic quantization of each row, in elementary operators (DynamicQuantizeLinear is per tensor)."""
    zero, one, levels, low, high = (
        graph.constant(f"per_token/{name}", np.asarray(number, graph.compute))
        for name, number in (("zero", 0), ("one", 1), ("levels", 127), ("low", -128), ("high", 127))
    )
    magnitude = graph.op("Abs", [value], f"{path}/Abs")
    last = graph.constant("axis/last", np.asarray([-1], np.int64))
    amax = graph.op("ReduceMax", [magnitude, last], f"{path}/ReduceMax", keepdims=1)
    is_zero = graph.op("Equal", [amax, zero], f"{path}/Equal")
    scale = graph.op(
        "Where", [is_zero, one, graph.op("Div", [amax, levels], f"{path}/amax/Div")], f"{path}/activation_scale"
    )
    rounded = graph.op("Round", [graph.op("Div", [value, scale], f"{path}/Div")], f"{path}/Round")
    clipped = graph.op("Clip", [rounded, low, high], f"{path}/Clip")
    return graph.op("Mul", [clipped, scale], f"{path}/dequantized")


def _activation(graph: GraphBuilder, path: str, value: str, linear: Linear) -> str:
    if linear.prequant_scale is not None:
        scale = graph.constant(f"{path}.prequant_scaling_factor", linear.prequant_scale.astype(graph.compute))
        value = graph.op("Mul", [value, scale], f"{path}/prequant")
    if linear.activation_scale is not None:
        return _static_activation(graph, path, value, linear.activation_scale)
    return _per_token_activation(graph, path, value) if linear.per_token else value


def add_linear(graph: GraphBuilder, path: str, value: str, linear: Linear, *, output: str | None = None) -> str:
    """Add y = linear(value) for `value` [..., in]; returns the name of y [..., out].

    Linears that quantize one value alike (fc and gate, whose smoothing is shared) share the quantized value.
    """
    prequant = None if linear.prequant_scale is None else linear.prequant_scale.tobytes()
    treatment = (value, prequant, linear.activation_scale, linear.per_token)
    value = graph.once(treatment, lambda: _activation(graph, path, value, linear))
    transposed = _transposed_weight(graph, path, linear)
    product_name = output if output is not None and linear.bias is None else f"{path}/MatMul"
    product = graph.op("MatMul", [value, transposed], product_name)
    if linear.bias is None:
        return product
    bias = graph.weight(f"{path}.bias", linear.bias)
    return graph.op("Add", [product, bias], output or f"{path}/Add")
