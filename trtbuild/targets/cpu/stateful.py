"""From the portable ONNX graph to the stateful OpenVINO model that GenAI turns into paged attention.

GenAI finds its patterns by shape of the graph, and a mask it does not recognise it drops without a word, so every
rewrite here exists because a pattern needs it:

- a `beam_idx` input and `Gather(past, beam_idx)` in front of each cache, the past as a state with an empty start value;
- matmuls that take the hub's [out, in] weights as they are (transpose_b), so that they stay mapped from the file;
- the conversion of FP16 and BF16 weights marked as decompression, without which the plugin unfolds them to FP32;
- no NaN guard behind attention (a row that may attend to nothing does not occur);
- a sliding window spelled as an addition of −window to the query's position, from where the paged operator reads it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trtbuild.checkpoint.spec import DecoderSpec


def make_stateful(model: Any, spec: DecoderSpec) -> None:
    """Rewrite an openvino.Model read from `write_onnx`'s graph in place."""
    from openvino._offline_transformations import apply_make_stateful_transformation

    _take_transposes_into_matmuls(model)
    _keep_weights_in_their_type(model)
    _remove_nan_guards(model)
    _spell_sliding_windows(model, spec)
    states = _gather_past_by_beam(model, spec)
    apply_make_stateful_transformation(model, states)
    _start_states_empty(model, spec)
    model.validate_nodes_and_infer_types()


def _integers(*numbers: int) -> Any:
    from openvino import opset13 as ops

    return ops.constant(np.asarray(numbers, np.int64))


def _replace(old: Any, new: Any) -> None:
    """Give every user of output `old` the output `new`."""
    for user in list(old.get_target_inputs()):
        user.replace_source_output(new)


def _take_transposes_into_matmuls(model: Any) -> None:
    from openvino import opset13 as ops

    for node in model.get_ops():
        if node.get_type_name() != "MatMul" or node.input_value(1).get_node().get_type_name() != "Transpose":
            continue
        weight = node.input_value(1).get_node().input_value(0)
        product = ops.matmul(node.input_value(0), weight, False, True)
        product.set_friendly_name(node.get_friendly_name())
        names = node.output(0).get_names()
        _replace(node.output(0), product.output(0))
        product.output(0).set_names(names)


def _keep_weights_in_their_type(model: Any) -> None:
    """Mark Constant → Convert → MatMul as decompression.

    The mark is an attribute that Python cannot set, but OpenVINO's own weight compression sets it: so the converted
    nodes of a model made for the purpose take the place of ours.
    """
    weights = [node.input_value(1).get_node() for node in model.get_ops() if node.get_type_name() == "MatMul"]
    weights = [w for w in weights if w.get_type_name() == "Convert" and _is_constant(w.input_value(0))]
    for ours, marked in zip(weights, _marked_converts(len(weights)), strict=True):
        marked.set_arguments([ours.input_value(0)])
        marked.set_friendly_name(ours.get_friendly_name())
        _replace(ours.output(0), marked.output(0))


def _is_constant(output: Any) -> bool:
    return bool(output.get_node().get_type_name() == "Constant")


def _marked_converts(count: int) -> list[Any]:
    import openvino as ov
    from openvino import opset13 as ops
    from openvino._offline_transformations import compress_model_transformation

    value = ops.parameter([-1, 2], np.float32)
    products = [ops.matmul(value, ops.constant(np.full((2, 2), n, np.float32)), False, True) for n in range(count)]
    donor = ov.Model(products, [value], "donor")
    compress_model_transformation(donor)
    return [product.input_value(1).get_node() for product in products]


def _remove_nan_guards(model: Any) -> None:
    for node in model.get_ops():
        if node.get_type_name() == "Select" and node.input_value(0).get_node().get_type_name() == "IsNaN":
            _replace(node.output(0), node.input_value(2))


def _spell_sliding_windows(model: Any, spec: DecoderSpec) -> None:
    """Replace the mask of each layer with a window by the form that the paged-attention pattern reads it from."""
    windows = [spec.window_of(layer) for layer in range(spec.num_layers)]
    if not any(windows):
        return
    from openvino import opset13 as ops

    attentions = [n for n in model.get_ordered_ops() if n.get_type_name() == "ScaledDotProductAttention"]
    nodes = {node.get_friendly_name(): node for node in model.get_ops()}
    causal, query, slots = (nodes[f"mask/{name}"] for name in ("causal", "query", "slots"))
    masks: dict[int, Any] = {}
    for attention, window in zip(attentions, windows, strict=True):
        if window is None:
            continue
        if window not in masks:
            oldest = ops.add(query, ops.constant(np.asarray(-window, np.int64)))
            mask = ops.bitwise_and(causal, ops.greater(slots, oldest))
            yes, no = (ops.constant(np.asarray(value, np.bool_)) for value in (True, False))
            mask = ops.bitwise_and(yes, ops.bitwise_and(mask, yes))
            mask = ops.bitwise_and(mask, yes)
            mask = ops.broadcast(mask, ops.shape_of(causal), "NUMPY")
            masks[window] = ops.slice(
                ops.select(mask, yes, no), _integers(0), _integers(np.iinfo(np.int64).max), _integers(1), _integers(3)
            )
        attention.input(3).replace_source_output(masks[window].output(0))


def _gather_past_by_beam(model: Any, spec: DecoderSpec) -> dict[str, str]:
    """Add `beam_idx`, reorder each past by it, and return the pairs past → present."""
    import openvino as ov
    from openvino import opset13 as ops

    beam = ops.parameter([-1], np.int32, name="beam_idx")
    beam.output(0).set_names({"beam_idx"})
    model.add_parameters([beam])
    states = {}
    for layer in range(spec.num_layers):
        for kind in ("key", "value"):
            past = model.input(f"past_key_values.{layer}.{kind}")
            users = list(past.get_target_inputs())
            gathered = ops.gather(past.get_node(), beam, ops.constant(np.asarray(0, np.int64)))
            for user in users:
                user.replace_source_output(gathered.output(0))
            states[f"past_key_values.{layer}.{kind}"] = f"present.{layer}.{kind}"
    assert isinstance(model, ov.Model)
    return states


def _start_states_empty(model: Any, spec: DecoderSpec) -> None:
    from openvino import opset13 as ops

    shape = ops.shape_of(model.input("input_ids").get_node(), output_type="i64")
    batch = ops.gather(shape, _integers(0), ops.constant(np.asarray(0, np.int64)))
    tail = _integers(spec.num_kv_heads, 0, spec.head_size)
    dims = ops.concat([batch, tail], 0)
    for node in model.get_ops():
        if node.get_type_name() == "ReadValue":
            dtype = node.get_output_element_type(0).to_dtype()
            node.set_arguments([ops.broadcast(ops.constant(np.asarray(0, dtype)), dims)])
