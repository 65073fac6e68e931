"""`trtbuild plan`: disk, memory and KV pool per precision, before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtbuild.cli.options import Json, Model, ProfileName, Quiet, console_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trtbuild.plan import Plan, Row

EXAMPLE = 'trtbuild plan ./my-model --profile chat --gpu "A10 24GB"'


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.2f}"


def _verdict(row: Row) -> str:
    if row.refused:
        return row.refused[0].rule
    return {True: "yes", False: "no", None: "unknown"}[row.fits]


def _table(plan: Plan) -> RenderableType:
    from rich.console import Group
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title=f"{plan.model}: {plan.parameters / 1e9:.2f} B parameters (GB)")
    for heading in ("precision", "target"):
        table.add_column(heading, no_wrap=True)
    for heading in ("disk", "quantize", "build", "weights", "activ.", "KV pool", "KV B/token", "in flight", "peak"):
        table.add_column(heading, justify="right")
    table.add_column("fits")
    for row in plan.rows:
        figures = (row.disk_bytes, row.quantize_peak_bytes, row.build_peak_bytes, row.weights_bytes)
        table.add_row(
            row.precision,
            row.target,
            *map(_gb, figures),
            _gb(row.activation_bytes + row.runtime_bytes),
            _gb(row.pool_bytes),
            str(row.kv_bytes_per_token),
            str(row.concurrent),
            _gb(row.peak_bytes),
            _verdict(row),
        )
    lines = [
        f"Limits: max_batch_size {plan.limits.max_batch_size}, max_seq_len {plan.limits.max_seq_len}, "
        f"max_num_tokens {plan.limits.max_num_tokens}.",
        f"Disk: {_gb(plan.disk_bytes)} GB to write, {_gb(plan.free_disk_bytes)} GB free. "
        f"Host memory: {_gb(plan.host_memory_bytes)} GB available.",
    ]
    for row in plan.rows:
        findings = [*row.refused, *row.notes]
        told = [f"{f.rule}: {f.text}" + (f" ({f.hint})" if f.hint else "") for f in findings]
        told += [row.largest] if row.largest else []
        lines += [f"{row.precision} on {row.target}: {text}" for text in told]
    return Group(table, *dict.fromkeys(lines))


def plan(
    model: Model,
    profile: ProfileName = "chat",
    gpu: Annotated[
        str | None, typer.Option(help='Plan for this card instead of this machine, e.g. "A10 24GB".')
    ] = None,
    target: Annotated[list[str] | None, typer.Option(help="Targets to plan for; may be repeated.")] = None,
    precision: Annotated[
        list[str] | None, typer.Option("-p", "--precision", help="Precisions; may be repeated.")
    ] = None,
    tp: Annotated[int, typer.Option(help="Tensor parallel ranks.")] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline parallel ranks.")] = 1,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where it would be written.")] = Path(),
    max_batch_size: Annotated[int | None, typer.Option(help="Sequences in flight.")] = None,
    max_seq_len: Annotated[int | None, typer.Option(help="Longest prompt plus answer, in tokens.")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Plan MODEL under a profile: what every precision will need, here or on a card you name.

    A folder with only a config.json is enough. Exit code 5 when nothing fits, naming the largest setting that does.
    """
    import dataclasses

    from trtbuild.cards import find_card
    from trtbuild.checkpoint.opening import open_spec
    from trtbuild.checkpoint.trtllm_config import Ranks
    from trtbuild.machine import free_disk_bytes, this_machine
    from trtbuild.plan import make_plan, plan_document, require_fit
    from trtbuild.profile import load_profile
    from trtbuild.targets.base import Limits, fit_limits

    wanted = load_profile(profile)
    spec = open_spec(model)
    given: dict[str, Any] = {"max_batch_size": max_batch_size, "max_seq_len": max_seq_len}
    explicit = {name: value for name, value in given.items() if value is not None}
    made = make_plan(
        model,
        spec,
        precision or wanted.precisions,
        target or (["trtllm"] if gpu else ["cpu", "trtllm"]),
        fit_limits(Limits(**dataclasses.asdict(wanted.limits)), spec, explicit),
        this_machine(),
        free_disk_bytes=free_disk_bytes(output),
        card=find_card(gpu) if gpu else None,
        ranks=Ranks(tp, pp),
        calibration_tokens=wanted.calibration.samples * wanted.calibration.seq_len,
    )
    console = console_of(json, quiet)
    console.result(plan_document(made), lambda: _table(made))
    require_fit(made)
