"""How the keys and values of new tokens meet those of earlier ones: a cache that grows, or one with fixed slots.

growing   past_key_values.{i}.key, .value [batch, kv_heads, past, head_size] → present.* [.., total, head_size];
          the portable one, which OpenVINO turns into a state and then into paged attention
slots     past_key_values.* and present.* [batch, kv_heads, slots, head_size] share their memory, and the token at
          position p is written to slot p of its row (TensorScatter): sequences of any lengths run in one batch,
          and nothing is copied from step to step. TensorRT's KVCacheUpdate layer, which asks for a fixed number
"""

from __future__ import annotations

from collections.abc import Callable

from trtbuild.checkpoint.spec import DecoderSpec, layer_prefix
from trtbuild.graph.builder import GraphBuilder

SLOTS_OPSET = 24
"""The first opset with TensorScatter."""
WRITE_INDICES = "cache/write_indices"
"""Int64 [batch]: the slot that each row's first new token goes to."""
TOTAL = "mask/Shape"
"""Int64 [1]: the length of the attention mask."""

Cache = Callable[[GraphBuilder, DecoderSpec, int, str, str], str]
"""(graph, spec, layer, "key" or "value", new [batch, kv_heads, sequence, head_size]) → what attention takes."""


def growing(graph: GraphBuilder, spec: DecoderSpec, layer: int, kind: str, value: str) -> str:
    """Append to the past, expose the present, and repeat the heads for grouped-query attention.

    [batch, heads, total, head_size]: left to itself, OpenVINO's Attention would repeat the heads by a Tile, in which
    its paged attention is not recognised.
    """
    path = f"{layer_prefix(layer)}.attention/{kind}"
    past = graph.input(
        f"past_key_values.{layer}.{kind}", graph.compute, ["batch", spec.num_kv_heads, "past", spec.head_size]
    )
    value = graph.op("Concat", [past, value], f"present.{layer}.{kind}", axis=2)
    graph.output(value, graph.compute, ["batch", spec.num_kv_heads, "total", spec.head_size])
    groups = spec.num_heads // spec.num_kv_heads
    if groups == 1:
        return value
    value = graph.op("Unsqueeze", [value, graph.integers(2)], f"{path}/Unsqueeze")
    value = graph.op("Expand", [value, graph.integers(1, 1, groups, 1, 1)], f"{path}/Expand")
    return graph.op("Reshape", [value, graph.integers(0, spec.num_heads, -1, spec.head_size)], f"{path}/Reshape")


def in_slots(slots: int) -> Cache:
    """A cache of `slots` per row, written from each row's first position on and read up to the mask's length.

    [batch, kv_heads, total, head_size]: TensorRT's attention takes grouped-query heads as they are.
    """

    def cached(graph: GraphBuilder, spec: DecoderSpec, layer: int, kind: str, value: str) -> str:
        name = f"{layer}.{kind}"
        shape: list[int | str] = ["batch", spec.num_kv_heads, slots, spec.head_size]
        past = graph.input(f"past_key_values.{name}", graph.compute, shape)
        present = graph.op("TensorScatter", [past, value, WRITE_INDICES], f"present.{name}", axis=2, mode="linear")
        graph.output(present, graph.compute, shape)
        filled = [present, graph.integers(0), TOTAL, graph.integers(2)]
        return graph.op("Slice", filled, f"{layer_prefix(layer)}.attention/{kind}/Slice")

    return cached
