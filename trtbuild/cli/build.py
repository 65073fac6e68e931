"""`trtbuild build`: one checkpoint in, one engine of one target out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from trtbuild.cli.options import Json, Quiet, console_of
from trtbuild.errors import InputRefused, UsageError

EXAMPLE = "trtbuild build ckpt-int8 -o engines/int8 --target cpu --max-batch-size 16"


def sm_list(text: str | None) -> tuple[int, ...]:
    """SM versions from `86,89` or `sm86,sm89`; none for None. Raises UsageError."""
    try:
        return tuple(int(part.strip().lower().removeprefix("sm")) for part in text.split(",")) if text else ()
    except ValueError as error:
        raise UsageError(f"--sm {text!r} is not a list of SM versions", hint="for example --sm 86,89") from error


def build(
    checkpoint: Annotated[Path, typer.Argument(metavar="CKPT", help="TensorRT-LLM checkpoint folder.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Engine folder to write.")] = None,
    target: Annotated[str | None, typer.Option(help="cpu, tensorrt-rtx or trtllm; by default what is here.")] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Folder with tokenizer.json, for checkpoints that carry none.")
    ] = None,
    profile: Annotated[str | None, typer.Option(help="Take the limits from this profile.")] = None,
    sm: Annotated[str | None, typer.Option("--sm", help="SM versions to build for, for example 86,89.")] = None,
    max_batch_size: Annotated[int | None, typer.Option(help="Sequences in flight.")] = None,
    max_input_len: Annotated[int | None, typer.Option(help="Longest prompt, in tokens.")] = None,
    max_seq_len: Annotated[int | None, typer.Option(help="Longest prompt plus answer, in tokens.")] = None,
    max_num_tokens: Annotated[int | None, typer.Option(help="Tokens of one engine step, over all sequences.")] = None,
    kv_pool_tokens: Annotated[int | None, typer.Option(help="Size of the paged KV pool, in tokens.")] = None,
    kv_cache: Annotated[str | None, typer.Option(help="KV cache precision; each target has a default.")] = None,
    container: Annotated[str | None, typer.Option(help="Build inside this container image (trtllm).")] = None,
    tool_arg: Annotated[
        list[str] | None,
        typer.Option("--tool-arg", help="Word for trtllm-build, as in --tool-arg=--gemm_plugin=fp8; may be repeated."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and show everything, write nothing.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Build an engine from a TensorRT-LLM checkpoint.

    Everything is checked before anything is written: the checkpoint, the limits, and what this machine has.
    """
    import dataclasses
    import shlex

    from trtbuild.checkpoint.kinds import expect
    from trtbuild.checkpoint.trtllm import read_checkpoint
    from trtbuild.checkpoint.trtllm_config import load_config, parse_ranks
    from trtbuild.profile import load_profile
    from trtbuild.targets.base import BuildOptions, Limits, fit_limits, refuse_fatal
    from trtbuild.targets.registry import default_target, load_target

    console = console_of(json, quiet)
    if output is None and not dry_run:
        raise UsageError("no output folder", hint="give one with -o ENGINE, or use --dry-run")
    expect(checkpoint, "checkpoint", "build")
    chosen = load_target(target or default_target())
    if tokenizer is not None and not tokenizer.is_dir():
        raise InputRefused("no such folder", where=tokenizer, hint="--tokenizer takes the Hugging Face folder")
    decoder = read_checkpoint(checkpoint, model_folder=tokenizer)
    given: dict[str, Any] = {
        "max_batch_size": max_batch_size,
        "max_input_len": max_input_len,
        "max_seq_len": max_seq_len,
        "max_num_tokens": max_num_tokens,
        "kv_pool_tokens": kv_pool_tokens,
    }
    explicit = {name: value for name, value in given.items() if value is not None}
    base = Limits(**dataclasses.asdict(load_profile(profile).limits)) if profile else Limits()
    limits = fit_limits(base, decoder.spec, explicit)
    ranks = parse_ranks(load_config(checkpoint))
    options = BuildOptions(
        tokenizer=tokenizer,
        kv_cache=kv_cache,
        sms=sm_list(sm),
        container=container,
        extra=tuple(tool_arg or ()),
        tp=ranks.tp,
        pp=ranks.pp,
    )
    findings = chosen.preflight(decoder, limits, options)
    for finding in findings:
        if not finding.fatal:
            console.note(f"{finding.rule}: {finding.text}" + (f" ({finding.hint})" if finding.hint else ""))
    refuse_fatal(findings, checkpoint)
    footprint = chosen.footprint(decoder.spec, decoder.quantization, limits, options)
    commands = chosen.commands(checkpoint, output or Path("ENGINE"), limits, options)
    document: dict[str, Any] = {
        "target": chosen.name,
        "checkpoint": str(checkpoint),
        "limits": dataclasses.asdict(limits),
        "footprint": dataclasses.asdict(footprint),
        "commands": commands,
        "dry_run": dry_run,
    }
    if not dry_run:
        assert output is not None
        document["engine"] = str(chosen.build(checkpoint, output, limits, options, console))

    def human() -> str:
        lines = [f"[bold]{chosen.title}[/bold]"]
        lines += [f"  {name:<16} {value}" for name, value in dataclasses.asdict(limits).items() if value is not None]
        lines += [f"  weights          {footprint.weights_bytes / 1e9:.2f} GB"]
        pool_bytes = footprint.kv_bytes_per_token * limits.pool_tokens
        lines += [f"  KV pool          {pool_bytes / 1e9:.2f} GB ({limits.pool_tokens} tokens)"]
        lines += [f"  [dim]$[/dim] {shlex.join(command)}" for command in commands]
        lines += ["nothing was written (--dry-run)" if dry_run else f"engine: {output}"]
        return "\n".join(lines)

    console.result(document, human, path=output)
