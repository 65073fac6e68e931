"""Whether GenAI's conversion to paged attention will find in the model what it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtbuild.checkpoint.spec import DecoderSpec
from trtbuild.errors import TrtbuildError

_SLIDING_WINDOW_INPUT = 10
"""Input of PagedAttentionExtension that holds the window, 0 for none."""


def check_paged_attention(model_xml: Path, spec: DecoderSpec) -> None:
    """Convert the model as GenAI does when it loads it, without compiling; its weights are not touched.

    Raises TrtbuildError when a layer did not become paged attention or has lost its sliding window: a mask whose form
    is not recognised is dropped without an error.
    """
    import openvino
    from openvino._offline_transformations import paged_attention_transformation

    model = openvino.Core().read_model(model_xml)
    paged_attention_transformation(model)
    found = [_window(node) for node in model.get_ordered_ops() if node.get_type_name() == "PagedAttentionExtension"]
    expected = [spec.window_of(layer) or 0 for layer in range(spec.num_layers)]
    if found != expected:
        raise TrtbuildError(
            f"paged attention was found with windows {found}, the model has {expected}",
            where=model_xml,
            hint="this OpenVINO version reads the graph in another way; install the version trtbuild pins",
        )


def _window(attention: Any) -> int:
    """The value of the node's window input, a small subgraph of constants where there is a window."""
    import openvino

    source = attention.input_value(_SLIDING_WINDOW_INPUT)
    if source.get_node().get_type_name() == "Constant":
        return int(source.get_node().data.item())
    compiled = openvino.Core().compile_model(openvino.Model([source], []), "CPU")
    return int(compiled({})[0].item())
