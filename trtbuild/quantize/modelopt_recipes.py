"""What nvidia-modelopt is asked for: a table of recipes, one of exporters, and the releases that have them."""

from __future__ import annotations

import copy
import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtbuild.errors import MachineLacks
from trtbuild.quantize.forms import TRTLLM
from trtbuild.quantize.precisions import Precision

PACKAGES = ("nvidia-modelopt", "torch", "transformers")
_INSTALL = 'pip install "trtbuild[modelopt]"'


@dataclass(frozen=True)
class Recipe:
    """How modelopt makes a precision: the name of its config and, where its default is poor, the algorithm.

    `max_samples` caps calibration where the search costs far more than it learns. `cpu_since` is the first modelopt
    release that exports it without a GPU.
    """

    config: str
    algorithm: Mapping[str, Any] | None = None
    max_samples: int | None = None
    cpu_since: tuple[int, int] = (0, 37)


RECIPES: Mapping[str, Recipe] = {
    "fp8": Recipe("FP8_DEFAULT_CFG"),
    "int4-awq": Recipe("INT4_AWQ_CFG", max_samples=32),
    "w4a8-awq": Recipe("W4A8_AWQ_BETA_CFG", max_samples=32),
    "nvfp4": Recipe("NVFP4_DEFAULT_CFG", cpu_since=(0, 44)),
    # alpha 1.0, the default, moves all activation ranges into the weights and leaves calibration nothing to find
    "int8-sq": Recipe("INT8_SMOOTHQUANT_CFG", {"method": "smoothquant", "alpha": 0.5}),
}
"""Precision → recipe."""

_KV_BITS: Mapping[str, Any] = {"int8": 8, "fp8": (4, 3)}


@dataclass(frozen=True)
class Exporter:
    """modelopt's TensorRT-LLM exporter for a family, and the first release seen to have it."""

    decoder_type: str
    since: tuple[int, int] = (0, 37)


EXPORTERS: Mapping[str, Exporter] = {
    "llama": Exporter("llama"),
    "mistral": Exporter("llama"),
    "qwen2": Exporter("qwen", since=(0, 47)),
    "qwen3": Exporter("qwen", since=(0, 47)),
}
"""Family → exporter; there is none for phi3."""


def check_machine(precision: Precision, family: str, form: str) -> None:
    """Raise MachineLacks when a package is missing or too old for this precision or family; imports nothing."""
    missing = []
    for package in PACKAGES:
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            missing.append(package)
    if missing:
        raise MachineLacks(
            f"-p {precision.name} is quantized by nvidia-modelopt; not installed here: {', '.join(missing)}",
            hint=_INSTALL,
        )
    if form == TRTLLM and modelopt_version() < EXPORTERS[family].since:
        raise MachineLacks(
            f"{_modelopt_name()} has no TensorRT-LLM export for {family}",
            hint=f"{_upgrade(EXPORTERS[family].since)}, or --format unified-hf",
        )


def _modelopt_name() -> str:
    return f"nvidia-modelopt {importlib.metadata.version('nvidia-modelopt')}"


def _upgrade(version: tuple[int, int]) -> str:
    return f'pip install "nvidia-modelopt>={version[0]}.{version[1]}"'


def modelopt_version() -> tuple[int, int]:
    major, minor = importlib.metadata.version("nvidia-modelopt").split(".")[:2]
    return int(major), int(minor)


def check_device(recipe: Recipe, precision: Precision, device: str) -> None:
    if device == "cpu" and modelopt_version() < recipe.cpu_since:
        raise MachineLacks(
            f"-p {precision.name} needs a GPU with {_modelopt_name()}",
            hint=f"{_upgrade(recipe.cpu_since)} does it on a CPU",
        )


def quant_config(recipe: Recipe, kv_cache: str | None, configs: Any) -> dict[str, Any]:
    """modelopt's config for a recipe, in the form its release takes; `configs` is `modelopt.torch.quantization`.

    The KV cache is asked for through the `[kv]_bmm_quantizer`s: through `output_quantizer` the exporter loses it.
    """
    config: dict[str, Any] = copy.deepcopy(getattr(configs, recipe.config))
    if recipe.algorithm is not None:
        config["algorithm"] = dict(recipe.algorithm)
    if kv_cache is not None:
        quantizer = {"num_bits": _KV_BITS[kv_cache], "axis": None}
        if isinstance(config["quant_cfg"], dict):
            config["quant_cfg"]["*[kv]_bmm_quantizer"] = {**quantizer, "enable": True}
        else:
            entry = {"quantizer_name": "*[kv]_bmm_quantizer", "cfg": quantizer, "enable": True}
            config["quant_cfg"] = [*config["quant_cfg"], entry]
    return config
