"""`trtbuild doctor`: what this machine can build and run, and why not the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtbuild.cli.options import Json, Quiet, console_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trtbuild.doctor import Report
    from trtbuild.targets.base import Availability

EXAMPLE = "trtbuild doctor"

_MARKS = {True: "[green]yes[/green]", False: "[red]no[/red]", None: "[dim]–[/dim]"}


def _answer(found: Availability) -> str:
    if found.ok:
        return _MARKS[True]
    return f"{_MARKS[False]}: {found.reason}" + (f" ({found.hint})" if found.hint else "")


def _render(report: Report) -> RenderableType:
    from rich.console import Group
    from rich.table import Table

    machine = report.machine
    gpus = ", ".join(f"{g.name} ({g.memory_bytes / 1e9:.0f} GB, SM {g.sm})" for g in machine.gpus) or "none"
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row("trtbuild", f"{report.trtbuild}, Python {machine.python}, {machine.system}")
    facts.add_row("CPU", f"{machine.cpu}, {machine.cores} cores, {', '.join(machine.features)}")
    facts.add_row("memory", f"{machine.available_bytes / 1e9:.1f} of {machine.memory_bytes / 1e9:.1f} GB available")
    facts.add_row("disk", f"{report.free_disk_bytes / 1e9:.1f} GB free")
    facts.add_row("GPU", gpus)
    facts.add_row("packages", ", ".join(f"{name} {version}" for name, version in report.packages.items()))
    facts.add_row("not installed", ", ".join(report.missing) or "–")

    targets = Table(title="targets", title_justify="left", title_style="bold", box=None, pad_edge=False)
    targets.add_column("target", no_wrap=True)
    targets.add_column("builds here", overflow="fold", ratio=1)
    targets.add_column("runs here", overflow="fold", ratio=1)
    for target in report.targets:
        default = " (default)" if target.name == report.default_target else ""
        targets.add_row(target.name + default, _answer(target.build), _answer(target.run))

    releases = Table(title="TensorRT-LLM releases", title_justify="left", title_style="bold", box=None, pad_edge=False)
    releases.add_column("release", no_wrap=True)
    releases.add_column("engines", no_wrap=True)
    releases.add_column("asks for", overflow="fold", ratio=1)
    releases.add_column("misfits here", overflow="fold", ratio=1)
    for release in report.releases:
        name = f"[bold]{release.version}[/bold] (installed)" if release.installed else release.version
        needs = ", ".join(f"{r.package} {r.wanted}" for r in release.requirements)
        misfits = ", ".join(f"{r.package} {r.installed}" for r in release.misfits) or "–"
        releases.add_row(name, _MARKS[release.engines], needs + (f"; {release.note}" if release.note else ""), misfits)

    checks = Table(title="checks", title_justify="left", title_style="bold", box=None, pad_edge=False)
    checks.add_column("check", no_wrap=True)
    checks.add_column("ok", no_wrap=True)
    checks.add_column("finding", overflow="fold", ratio=1)
    for check in report.checks:
        checks.add_row(check.name, _MARKS[check.ok], check.text + (f" ({check.hint})" if check.hint else ""))
    return Group(facts, "", targets, "", checks, "", releases)


def doctor(json: Json = False, quiet: Quiet = False) -> None:
    """Examine this machine: targets, CPU, memory, packages, and the TensorRT-LLM releases against them."""
    import dataclasses

    from trtbuild.doctor import examine

    report = examine()
    console_of(json, quiet).result(dataclasses.asdict(report), lambda: _render(report))
