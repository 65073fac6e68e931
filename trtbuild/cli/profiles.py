"""`trtbuild profiles`: list, show and validate the profiles that say what a deployment must achieve."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtbuild.cli.options import Json, Quiet, console_of
from trtbuild.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from rich.table import Table

app = typer.Typer(name="profiles", help="List, show and validate profiles.", no_args_is_help=True)


def list_(json: Json = False, quiet: Quiet = False) -> None:
    """List the built-in profiles."""
    from trtbuild.profile import list_profiles, load_profile

    found = [load_profile(name) for name in list_profiles()]

    def human() -> Table:
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        table.add_column("profile", style="bold")
        table.add_column("what for", overflow="fold")
        for profile in found:
            table.add_row(profile.name, profile.description)
        return table

    document = {"profiles": [{"name": p.name, "description": p.description} for p in found]}
    console_of(json, quiet).result(document, human)


def show(
    name: Annotated[str, typer.Argument(help="Name of a profile, or a YAML file.")],
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show a profile with every default filled in."""
    from trtbuild.profile import load_profile, to_dict

    document = to_dict(load_profile(name))

    def human() -> str:
        import yaml

        return yaml.safe_dump(document, sort_keys=False, allow_unicode=True).rstrip()

    console_of(json, quiet).result(document, human)


def validate(
    files: Annotated[list[Path], typer.Argument(help="YAML files to check.")],
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check profiles; the first fault is told with its file, line and key."""
    from trtbuild.profile import load_profile
    from trtbuild.quantize.precisions import PRECISIONS

    names = []
    for file in files:
        profile = load_profile(str(file))
        for precision in profile.precisions:
            if precision not in PRECISIONS:
                hint = did_you_mean(precision, PRECISIONS) or f"precisions: {', '.join(PRECISIONS)}"
                raise UsageError(f"precisions: no precision is called {precision!r}", where=file, hint=hint)
        names.append(profile.name)
    document = {"valid": [str(file) for file in files]}
    console_of(json, quiet).result(document, lambda: "\n".join(f"{name}: valid" for name in names))


COMMANDS = (
    ("list", list_, "trtbuild profiles list"),
    ("show", show, "trtbuild profiles show chat"),
    ("validate", validate, "trtbuild profiles validate my-profile.yaml"),
)
"""Name, function and example of every command of the group."""
