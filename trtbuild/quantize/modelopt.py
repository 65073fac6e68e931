"""Precisions that nvidia-modelopt quantizes: run it on our decoder, repair what its export loses, validate, write.

modelopt works on a transformers model, so the decoder (from a folder, a GGUF file, with LoRA merged in …) is written
out as one first. Its export for TensorRT-LLM is read back, repaired and cut into ranks by our own writer.
Repaired are: rotary fields and head sizes (modelopt ≥ 0.44 with transformers 5 drops them), absent prequant factors,
the vocabulary that AWQ pads. Works with both forms of quant_cfg: a dict (0.37) and a list of entries (≥ 0.44).
"""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trtbuild.checkpoint.spec import Array, Decoder, DecoderSpec
from trtbuild.checkpoint.trtllm import read_checkpoint, write_checkpoint
from trtbuild.checkpoint.trtllm_config import Ranks
from trtbuild.checkpoint.trtllm_sharding import check_ranks
from trtbuild.errors import InputRefused, UsageError
from trtbuild.progress import Progress, silent
from trtbuild.quantize import llm_api
from trtbuild.quantize.cast import refuse_quantized
from trtbuild.quantize.forms import TRTLLM, UNIFIED_HF, Serving, form_of
from trtbuild.quantize.kv_cache import kv_kind
from trtbuild.quantize.modelopt_recipes import (
    EXPORTERS,
    PACKAGES,
    RECIPES,
    Recipe,
    check_device,
    check_machine,
    quant_config,
)
from trtbuild.quantize.modelopt_repair import check_groups, repaired, require_valid
from trtbuild.quantize.precisions import Precision, precision_of
from trtbuild.quantize.unified_hf import check_kv_cache, write_unified_hf
from trtbuild.store.atomic import atomic_directory
from trtbuild.store.fingerprint import fingerprint_json
from trtbuild.store.manifest import write_manifest


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
    check_device(recipe, precision, device)
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
    if form == UNIFIED_HF and kv_cache is not None:
        check_kv_cache(kv_cache.upper(), decoder.location)
    check_machine(precision, decoder.spec.family, form)
    with tempfile.TemporaryDirectory(prefix=".modelopt-", dir=out) as temporary, _quiet():
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


def samples_fingerprint(samples: Sequence[Array]) -> str:
    """SHA-256 of the token ids that modelopt calibrates with, in their order."""
    return fingerprint_json([ids.tolist() for ids in samples])


def modelopt_settings(precision: str, form: str, kv_cache: str | None, serving: Serving) -> dict[str, Any]:
    """Everything besides model and samples that decides what modelopt writes; for the manifest."""
    return {"precision": precision, "format": form, "kv_cache": kv_cache, "tp": serving.tp, "pp": serving.pp}


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

    Raises UsageError for a precision that modelopt does not write or an unknown KV type, and what
    `quantize_with_modelopt` raises.
    """
    row = precision_of(precision)
    if row.name not in RECIPES:
        raise UsageError(f"{precision} is not quantized by modelopt", hint=f"these are: {', '.join(RECIPES)}")
    if kv_cache is not None:
        kv_kind(kv_cache)
    check_ranks(decoder.spec, Ranks(serving.tp, serving.pp))
    with atomic_directory(out) as folder:
        quantize_with_modelopt(
            decoder, row, samples, folder, form=form, kv_cache=kv_cache, serving=serving, progress=progress
        )
        inputs = {"model": decoder.fingerprint(), "samples": samples_fingerprint(samples)}
        settings = modelopt_settings(row.name, form, kv_cache, serving)
        write_manifest(folder, form_of(form).kind, inputs=inputs, settings=settings, packages=PACKAGES)
