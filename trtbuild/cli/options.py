"""Options that several commands share, each spelled and explained once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trtbuild.cli.console import Console, Mode

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the path of the result.")]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="Folder, .gguf file or hub id of the model.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="Where the result goes; replaced only if trtbuild's.")]
ProfileName = Annotated[str, typer.Option("--profile", help="Name of a profile, or a YAML file.")]


def console_of(json: bool, quiet: bool) -> Console:
    """The console for a command's `--json` and `-q`; JSON wins when both are given."""
    return Console(Mode.JSON if json else Mode.QUIET if quiet else Mode.HUMAN)
