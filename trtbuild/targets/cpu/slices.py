"""The engine's model run a few layers at a time, so that checking it needs memory for a slice and not for the model."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trtbuild.checkpoint.spec import Array, layer_prefix
from trtbuild.targets.cpu.scorer import StatefulModel, compile_model

SLICE_BYTES = 60_000_000
"""Weights of one slice; a slice has at least one layer, and two are held at a time."""

_STATE = re.compile(r"past_key_values\.(\d+)\.")


@dataclass(frozen=True)
class Slice:
    """Layers [first, last) of a model, compiled; with the embedding when first is 0, the head when it is the end."""

    first: int
    last: int
    model: StatefulModel

    def run(self, ids: Sequence[int] | Array, hidden: Array | None, cuts: Iterable[int]) -> list[Array]:
        """Hidden states [T, hidden] after each of its layers (before the first one too, for the first slice), then,
        of the last slice, the logits. `hidden` are the states that enter, None for the first slice."""
        return self.model.run(ids, cuts, {} if hidden is None else {"hidden": hidden})


def slice_bounds(num_layers: int, layer_bytes: int) -> list[tuple[int, int]]:
    """[first, last) of each slice, of about equal size."""
    count = -(-num_layers // max(1, SLICE_BYTES // max(1, layer_bytes)))
    edges = [num_layers * number // count for number in range(count + 1)]
    return list(itertools.pairwise(edges))


def each_slice(
    model_xml: Path, properties: Mapping[str, Any], num_layers: int, bounds: Sequence[tuple[int, int]]
) -> Iterator[Slice]:
    """One slice after the other, the next compiled while one is used; each is gone, with its mapped weights, then."""

    def compiled(first: int, last: int) -> Slice:
        model = compile_model(_cut(model_xml, num_layers, first, last), properties)
        return Slice(first, last, StatefulModel(model))

    with ThreadPoolExecutor(1) as background:
        following = background.submit(compiled, *bounds[0])
        for bound in (*bounds[1:], None):
            part = following.result()
            if bound is not None:
                following = background.submit(compiled, *bound)
            yield part
            part.model.close()
            del part


def _cut(model_xml: Path, num_layers: int, first: int, last: int) -> Any:
    """An openvino.Model of the layers [first, last) of the whole one, with their states."""
    import openvino
    from openvino import opset13 as ops

    whole = openvino.Core().read_model(model_xml)
    nodes = {node.get_friendly_name(): node for node in whole.get_ops()}
    embedded = nodes.get("embedding/Gather/Cast", nodes["embedding/Gather"]).output(0)
    states = [embedded, *(nodes[f"{layer_prefix(i)}.mlp/residual"].output(0) for i in range(num_layers))]
    parameters = whole.get_parameters()
    outputs = [state.get_node() for state in states[first + 1 : last + 1]]
    if first == 0:
        outputs.insert(0, embedded.get_node())
    else:
        entering = ops.parameter([-1, -1, states[first].get_partial_shape()[2].get_length()], np.float32)
        entering.output(0).set_names({"hidden"})
        for user in states[first].get_target_inputs():
            user.replace_source_output(entering.output(0))
        parameters = [*parameters, entering]
    if last == num_layers:
        outputs.append(whole.output("logits").get_node().input_value(0).get_node())
    sinks = [sink for sink in whole.get_sinks() if first <= _layer_of(sink) < last]
    return openvino.Model([ops.result(node) for node in outputs], sinks, parameters, "slice")


def _layer_of(assign: Any) -> int:
    match = _STATE.match(assign.get_attributes()["variable_id"])
    assert match is not None
    return int(match.group(1))
