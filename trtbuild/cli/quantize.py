"""`trtbuild quantize`: a checkpoint in one precision, with evidence for every tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trtbuild.cli.options import Json, Model, Output, Quiet, console_of
from trtbuild.errors import UsageError

EXAMPLE = "trtbuild quantize ./my-model -o ckpt -p int8"


def adapters(values: list[str]) -> list[tuple[Path, float]]:
    """`DIR` or `DIR=WEIGHT`, as (folder, weight). Raises UsageError for a weight that is no number."""
    found = []
    for value in values:
        folder, separator, weight = value.rpartition("=")
        try:
            found.append((Path(folder), float(weight)) if separator else (Path(value), 1.0))
        except ValueError as error:
            raise UsageError(f"--lora {value!r}: the weight is not a number", hint="--lora DIR=0.5") from error
    return found


def quantize(
    model: Model,
    output: Output,
    precision: Annotated[str, typer.Option("--precision", "-p", help="fp32, fp16, bf16, int8, int8-wo, fp8 …")],
    calibration: Annotated[str, typer.Option(help="auto, entropy, max, percentile or mse.")] = "auto",
    record: Annotated[Path | None, typer.Option(help="Calibration record to use instead of calibrating.")] = None,
    data: Annotated[Path | None, typer.Option(help="Your text: .txt, .jsonl or .jsonl.gz; else built-in text.")] = None,
    samples: Annotated[int, typer.Option(min=2, help="Samples, of which some validate and the rest calibrate.")] = 128,
    seq_len: Annotated[int, typer.Option(min=2, help="Tokens in each sample.")] = 512,
    seed: Annotated[int, typer.Option(help="Which documents come first.")] = 0,
    profile: Annotated[str | None, typer.Option(help="Quality budget and limits of this profile.")] = None,
    kv_cache: Annotated[str | None, typer.Option(help="Scales for a quantized KV cache: int8 or fp8.")] = None,
    lora: Annotated[list[str] | None, typer.Option(help="Merge a PEFT adapter: DIR or DIR=WEIGHT.")] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="Folder with tokenizer.json, if MODEL has none.")] = None,
    tp: Annotated[int, typer.Option(min=1, help="Tensor parallel ranks.")] = 1,
    pp: Annotated[int, typer.Option(min=1, help="Pipeline parallel ranks.")] = 1,
    form: Annotated[
        str, typer.Option("--format", help="trtllm, or unified-hf for tensorrt_llm 1.3 and later.")
    ] = "trtllm",
    threads: Annotated[int | None, typer.Option(min=1, help="Samples at a time; by default one per core.")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Quantize MODEL into a TensorRT-LLM checkpoint.

    What INT8 cannot hold within the quality budget stays in float and is named; quantization.json, .md and .html beside
    the checkpoint show the evidence. A killed run continues after its last finished layer.
    """
    from trtbuild.calibrate.record import open_record
    from trtbuild.calibrate.samples import samples_for
    from trtbuild.checkpoint.lora import merge_lora
    from trtbuild.checkpoint.opening import open_model
    from trtbuild.profile import EngineLimits, load_profile
    from trtbuild.quantize.forms import Serving, form_of
    from trtbuild.quantize.modelopt import modelopt_to
    from trtbuild.quantize.policy import budget_of
    from trtbuild.quantize.precisions import precision_of
    from trtbuild.quantize.run import DEFAULT_BUDGET, hold_out, quantize_to
    from trtbuild.store.atomic import check_replaceable

    console = console_of(json, quiet)
    row = precision_of(precision)
    form_of(form)
    check_replaceable(output)
    chosen = load_profile(profile) if profile else None
    decoder = open_model(model)
    if lora:
        decoder = merge_lora(decoder, adapters(lora))
    for note in decoder.notes:
        console.note(note)
    serving = Serving(tp, pp, chosen.limits if chosen else EngineLimits())
    needs_samples = (row.needs_calibration or kv_cache is not None) and record is None
    taken = None
    if needs_samples:
        taken = samples_for(decoder, data, samples, seq_len, seed=seed, tokenizer_folder=tokenizer, progress=console)
    output.absolute().parent.mkdir(parents=True, exist_ok=True)
    if row.through_modelopt:
        if record is not None:
            raise UsageError(
                f"{precision} is calibrated by nvidia-modelopt, which takes no record", hint="leave --record out"
            )
        assert taken is not None
        modelopt_to(
            decoder, output, precision, taken.ids, form=form, kv_cache=kv_cache, serving=serving, progress=console
        )
        document = {"checkpoint": str(output), "precision": precision, "summary": f"{row.summary}, by nvidia-modelopt"}
    else:
        kept, held = hold_out(taken.ids) if taken else ([], [])
        evidence = quantize_to(
            decoder,
            output,
            precision,
            record=None if record is None else open_record(record),
            samples=kept,
            validation=held,
            tokenizer_fingerprint=taken.tokenizer_fingerprint if taken else "",
            calibration=calibration,
            budget=budget_of(chosen.quality) if chosen else DEFAULT_BUDGET,
            kv_cache=kv_cache,
            serving=serving,
            form=form,
            threads=threads,
            progress=console,
        )
        document = {"checkpoint": str(output), **evidence}
    console.result(document, lambda: f"{document['summary']}\ncheckpoint: {output}", path=output)
