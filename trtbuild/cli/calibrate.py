"""`trtbuild calibrate`: what every linear input of a model looks like on text, kept as a record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trtbuild.cli.options import Json, Output, Quiet, console_of
from trtbuild.errors import UsageError

EXAMPLE = "trtbuild calibrate ./my-model -o record --data chats.jsonl"


def calibrate(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="Folder, .gguf file or hub id.")] = None,
    output: Output = Path("record"),
    data: Annotated[Path | None, typer.Option(help="Your text: .txt, .jsonl or .jsonl.gz; else built-in text.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="How many samples.")] = 128,
    seq_len: Annotated[int, typer.Option(min=2, help="Tokens in each sample.")] = 512,
    seed: Annotated[int, typer.Option(help="Which documents come first.")] = 0,
    tokenizer: Annotated[Path | None, typer.Option(help="Folder with tokenizer.json, if MODEL has none.")] = None,
    merge: Annotated[list[Path] | None, typer.Option(help="Merge records instead; give it once per record.")] = None,
    trt_cache: Annotated[
        Path | None, typer.Option(help="Also write an EntropyCalibration2 cache for TensorRT 10 and older.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Samples at a time; by default one per core.")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run text through MODEL once and keep histograms and channel maxima of every linear input.

    A killed run continues after its last finished layer. Records of disjoint data merge to what one run would give.
    """
    import dataclasses

    from trtbuild.calibrate.cache import export_cache
    from trtbuild.calibrate.collect import calibrate_to
    from trtbuild.calibrate.record import merge_records
    from trtbuild.calibrate.samples import samples_for
    from trtbuild.checkpoint.opening import open_model

    console = console_of(json, quiet)
    if merge:
        if model is not None or data is not None:
            raise UsageError("--merge takes records only", hint="trtbuild calibrate --merge A --merge B -o AB")
        record = merge_records(merge, output, progress=console)
    else:
        if model is None:
            raise UsageError("no model", hint=EXAMPLE)
        decoder = open_model(model)
        taken = samples_for(decoder, data, samples, seq_len, seed=seed, tokenizer_folder=tokenizer, progress=console)
        record = calibrate_to(
            decoder,
            taken.ids,
            output,
            tokenizer_fingerprint=taken.tokenizer_fingerprint,
            threads=threads,
            progress=console,
        )
    if trt_cache is not None:
        export_cache(record, trt_cache)
    info = record.info
    document = {"record": str(output), "fingerprint": record.fingerprint(), **dataclasses.asdict(info)}
    summary = f"{len(info.samples)} samples, {info.num_tokens} tokens, {info.num_layers} layers: {output}"
    console.result(document, lambda: summary, path=output)
