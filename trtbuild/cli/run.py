"""`trtbuild run`: all of it, from a model to a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trtbuild.cli.options import Json, Model, Output, ProfileName, Quiet, console_of

EXAMPLE = "trtbuild run ./my-model --profile chat -o out"


def run(
    model: Model,
    output: Output,
    profile: ProfileName = "chat",
    target: Annotated[str | None, typer.Option(help="cpu, tensorrt-rtx or trtllm; by default what is here.")] = None,
    data: Annotated[Path | None, typer.Option(help="Your text to calibrate with; else built-in text.")] = None,
    tp: Annotated[int, typer.Option(min=1, help="Tensor parallel ranks (trtllm).")] = 1,
    pp: Annotated[int, typer.Option(min=1, help="Pipeline parallel ranks (trtllm).")] = 1,
    sm: Annotated[str | None, typer.Option("--sm", help="SM versions to build for, for example 86,89.")] = None,
    container: Annotated[str | None, typer.Option(help="Build inside this container image (trtllm).")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Quantize, build and measure every precision of a profile, and say which one to ship.

    What is already there and unchanged is reused; an interrupted run continues. Exit code 6 when no precision passes.
    """
    from trtbuild.bench.benchmark import failure_of
    from trtbuild.bench.report.text import terminal_report
    from trtbuild.checkpoint.opening import open_model
    from trtbuild.cli.bench import LiveView
    from trtbuild.cli.build import sm_list
    from trtbuild.pipeline import Run, run_pipeline
    from trtbuild.profile import load_profile
    from trtbuild.targets.base import BuildOptions
    from trtbuild.targets.registry import default_target, load_target

    console = console_of(json, quiet)
    chosen = load_profile(profile)
    name = load_target(target or default_target()).name
    decoder = open_model(model)
    for note in decoder.notes:
        console.note(note)
    options = BuildOptions(tp=tp, pp=pp, sms=sm_list(sm), container=container)
    asked = Run(decoder, chosen, output, name, data, options)
    document = run_pipeline(asked, console, LiveView(console))
    report = asked.bench / "report.html"
    console.result(document, lambda: f"{terminal_report(document)}\n\nreport: {report}", path=asked.bench)
    failure = failure_of(document)
    if failure is not None:
        raise failure
