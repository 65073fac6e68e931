"""Precisions that nvidia-modelopt quantizes: run it on our decoder, repair what its export loses, validate, write.

modelopt works on a transformers model, so the decoder (from a folder, a GGUF file, with LoRA merged in …) is written
out as one first. Its export for TensorRT-LLM is read back, repaired and cut into ranks by our own writer.
Repaired are: rotary fields and head sizes (modelopt ≥ 0.44 with transformers 5 drops them), absent prequant factors,
the vocabulary that AWQ pads. Works with both forms of quant_cfg: a dict (0.37) and a list of entries (≥ 0.44).
"""

from __future__ import annotations

import contextlib
import copy
import importlib.metadata
import io
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trtbuild.checkpoint.spec import Array, Decoder, DecoderSpec
from trtbuild.checkpoint.trtllm import read_checkpoint, write_checkpoint
from trtbuild.checkpoint.trtllm_config import Ranks
from trtbuild.checkpoint.trtllm_sharding import check_ranks
from trtbuild.errors import InputRefused, MachineLacks, UsageError
from trtbuild.progress import Progress, silent
from trtbuild.quantize import llm_api
from trtbuild.quantize.cast import refuse_quantized
from trtbuild.quantize.forms import TRTLLM, UNIFIED_HF, Serving, form_of
from trtbuild.quantize.modelopt_repair import check_groups, repaired, require_valid
from trtbuild.quantize.precisions import Precision, precision_of
from trtbuild.quantize.unified_hf import write_unified_hf
from trtbuild.store.atomic import atomic_directory
from trtbuild.store.fingerprint import fingerprint_json
from trtbuild.store.manifest import write_manifest

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
            f"-p {precision.name} is quantized by nvidia-modelopt, and {', '.join(missing)} is not installed",
            hint=_INSTALL,
        )
    if form == TRTLLM and _modelopt_version() < EXPORTERS[family].since:
        raise MachineLacks(
            f"{_modelopt_name()} has no TensorRT-LLM export for {family}",
            hint=f"{_upgrade(EXPORTERS[family].since)}, or --format unified-hf",
        )


def _modelopt_name() -> str:
    return f"nvidia-modelopt {importlib.metadata.version('nvidia-modelopt')}"


def _upgrade(version: tuple[int, int]) -> str:
    return f'pip install "nvidia-modelopt>={version[0]}.{version[1]}"'


def _modelopt_version() -> tuple[int, int]:
    major, minor = importlib.metadata.version("nvidia-modelopt").split(".")[:2]
    return int(major), int(minor)


def _check_device(recipe: Recipe, precision: Precision, device: str) -> None:
    if device == "cpu" and _modelopt_version() < recipe.cpu_since:
        raise MachineLacks(
            f"-p {precision.name} needs a GPU with {_modelopt_name()}",
            hint=f"{_upgrade(recipe.cpu_since)} does it on a CPU",
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what modelopt and transformers print, log and warn about out of our output."""
    import transformers

    logging = transformers.utils.logging
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        logging.enable_progress_bar()


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


def _calibration(samples: Sequence[Array], device: str, progress: Progress) -> Callable[[Any], None]:
    import torch

    def loop(model: Any) -> None:
        with progress.task("calibrating with modelopt", total=len(samples)) as advance, torch.no_grad():
            for ids in samples:
                model(torch.from_numpy(np.asarray(ids, np.int64))[None].to(device))
                advance(1)

    return loop


def _quantized_model(
    folder: Path,
    recipe: Recipe,
    precision: Precision,
    samples: Sequence[Array],
    kv_cache: str | None,
    progress: Progress,
) -> Any:
    import modelopt.torch.quantization as mtq
    import torch
    import transformers

    device = "cuda" if torch.cuda.is_available() else "cpu"
    _check_device(recipe, precision, device)
    # half precision has no fast matmul on most CPUs, and calibration in it would round what it measures
    dtype = torch.float32 if device == "cpu" else getattr(torch, precision.dtype)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
    config = quant_config(recipe, kv_cache, mtq)
    return mtq.quantize(model, config, _calibration(samples[: recipe.max_samples], device, progress))


def _export_hub(model: Any, spec: DecoderSpec, precision: Precision, folder: Path) -> None:
    import torch
    from modelopt.torch.export import export_tensorrt_llm_checkpoint

    with torch.inference_mode():
        export_tensorrt_llm_checkpoint(
            model,
            EXPORTERS[spec.family].decoder_type,
            dtype=getattr(torch, precision.dtype),
            export_dir=folder,
            inference_tensor_parallel=1,
            inference_pipeline_parallel=1,
        )


def quantize_with_modelopt(
    decoder: Decoder,
    precision: Precision,
    samples: Sequence[Array],
    out: Path,
    *,
    form: str = TRTLLM,
    kv_cache: str | None = None,
    serving: Serving = Serving(),
    progress: Progress = silent,
) -> None:
    """Quantize a decoder by modelopt into the existing folder `out`: a TensorRT-LLM checkpoint, or a unified one.

    `samples` are token ids (int32, one row each), `kv_cache` is None, "int8" or "fp8". Raises InputRefused for a
    decoder this precision cannot hold and for an export that breaks a rule, MachineLacks (before anything is loaded)
    when modelopt, torch or transformers is missing.
    """
    recipe = RECIPES[precision.name]
    refuse_quantized(decoder)
    check_groups(decoder.spec, precision, tp=serving.tp)
    if form == TRTLLM and decoder.spec.family not in EXPORTERS:
        raise InputRefused(
            f"modelopt has no TensorRT-LLM export for {decoder.spec.family}",
            where=decoder.location,
            hint="take -p int8 or int8-wo, which need no modelopt, or --format unified-hf",
        )
    check_machine(precision, decoder.spec.family, form)
    with tempfile.TemporaryDirectory(prefix=".trtbuild-modelopt-", dir=out.parent) as temporary, _quiet():
        plain, exported = Path(temporary, "model"), Path(temporary, "exported")
        plain.mkdir()
        write_unified_hf(decoder, plain, progress=progress)
        model = _quantized_model(plain, recipe, precision, samples, kv_cache, progress)
        if form == UNIFIED_HF:
            _export_unified(model, decoder, precision, kv_cache, serving, out)
            return
        _export_hub(model, decoder.spec, precision, exported)
        del model
        result = repaired(read_checkpoint(exported, model_folder=plain), decoder, precision.dtype)
        write_checkpoint(result, out, tp=serving.tp, pp=serving.pp, progress=progress)
        require_valid(out, precision.quant_algo, kv_cache)


def _export_unified(
    model: Any, decoder: Decoder, precision: Precision, kv_cache: str | None, serving: Serving, out: Path
) -> None:
    import torch
    from modelopt.torch.export import export_hf_checkpoint

    with torch.inference_mode():
        export_hf_checkpoint(model, dtype=getattr(torch, precision.dtype), export_dir=out)
    for name, content in decoder.assets.items():
        (out / name).write_bytes(content)
    options = llm_api.llm_api_options(serving.limits, kv_cache, tp=serving.tp, pp=serving.pp)
    (out / llm_api.FILE_NAME).write_text(llm_api.llm_api_yaml(options), encoding="utf-8")


def modelopt_to(
    decoder: Decoder,
    out: Path,
    precision: str,
    samples: Sequence[Array],
    *,
    form: str = TRTLLM,
    kv_cache: str | None = None,
    serving: Serving = Serving(),
    progress: Progress = silent,
) -> None:
    """`quantize_with_modelopt` into the folder `out`, whole or not at all, with its manifest.

    Raises UsageError for a precision that modelopt does not write, and what `quantize_with_modelopt` raises.
    """
    row = precision_of(precision)
    if row.name not in RECIPES:
        raise UsageError(f"{precision} is not quantized by modelopt", hint=f"these are: {', '.join(RECIPES)}")
    settings = {
        "precision": row.name,
        "format": form,
        "kv_cache": kv_cache,
        "tp": serving.tp,
        "pp": serving.pp,
        "samples": len(samples),
    }
    check_ranks(decoder.spec, Ranks(serving.tp, serving.pp))
    with atomic_directory(out) as folder:
        quantize_with_modelopt(
            decoder, row, samples, folder, form=form, kv_cache=kv_cache, serving=serving, progress=progress
        )
        inputs = {"model": decoder.fingerprint(), "samples": fingerprint_json([ids.tolist() for ids in samples])}
        write_manifest(folder, form_of(form).kind, inputs=inputs, settings=settings, packages=PACKAGES)
