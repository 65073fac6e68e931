"""The precisions trtbuild can write, as one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trtbuild.checkpoint.linear import READERS
from trtbuild.errors import UsageError, did_you_mean


@dataclass(frozen=True)
class Precision:
    """One row: what `-p NAME` means.

    `dtype` is the type of every tensor that is not quantized; `quant_algo` TensorRT-LLM's name of the algorithm.
    `weight_bits` counts what an engine keeps per weight of a quantized linear. `through_modelopt` precisions are
    written by nvidia-modelopt.
    """

    name: str
    dtype: str
    quant_algo: str | None
    weight_bits: int
    summary: str
    needs_calibration: bool = False
    through_modelopt: bool = False
    group_size: int | None = None

    @property
    def has_graph(self) -> bool:
        """Whether the meaning of its linears is known here, so that a graph can be written of them."""
        return self.quant_algo is None or self.quant_algo in READERS


_ROWS = (
    Precision("fp32", "float32", None, 32, "weights and computation in FP32: the baseline"),
    Precision("fp16", "float16", None, 16, "weights in FP16"),
    Precision("bf16", "bfloat16", None, 16, "weights in BF16"),
    Precision(
        "int8",
        "float16",
        "W8A8_SQ_PER_CHANNEL",
        8,
        "SmoothQuant: INT8 weights per channel, INT8 activations per tensor from calibration",
        needs_calibration=True,
    ),
    Precision("int8-wo", "float16", "W8A16", 8, "INT8 weights, activations in FP16"),
    Precision(
        "int8-pt",
        "float16",
        "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN",
        8,
        "SmoothQuant plugin: INT8 weights per channel, INT8 activations scaled per token while running",
        needs_calibration=True,
    ),
    Precision("int8-sq", "float16", "W8A8_SQ_PER_CHANNEL", 8, "SmoothQuant by nvidia-modelopt, alpha 0.5", True, True),
    Precision("fp8", "float16", "FP8", 8, "FP8 weights and activations", True, True),
    Precision("int4-awq", "float16", "W4A16_AWQ", 4, "INT4 weights in groups of 128", True, True, 128),
    Precision("w4a8-awq", "float16", "W4A8_AWQ", 4, "INT4 weights in groups of 128, FP8 activations", True, True, 128),
    Precision("nvfp4", "float16", "NVFP4", 4, "NVFP4 weights and activations in blocks of 16", True, True, 16),
)

PRECISIONS: Mapping[str, Precision] = {row.name: row for row in _ROWS}
"""Name on the command line → precision."""


def precision_of(name: str) -> Precision:
    """The precision of that name; raises UsageError with the list and the closest name."""
    if name in PRECISIONS:
        return PRECISIONS[name]
    guess, names = did_you_mean(name, PRECISIONS), f"precisions: {', '.join(PRECISIONS)}"
    raise UsageError(f"no precision is called {name!r}", hint=f"{guess} {names}" if guess else names)
