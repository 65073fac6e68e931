"""The command line: registers one module per command, and turns every failure into one line and an exit code."""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from trtbuild import __version__
from trtbuild.cli import bench, build, calibrate, doctor, inspect, plan, profiles, quantize, run
from trtbuild.cli.options import console_of
from trtbuild.errors import Failure, explain

app = typer.Typer(
    name="trtbuild",
    help="From a Hugging Face checkpoint to TensorRT-LLM engines, and which precision to ship.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

COMMANDS: tuple[tuple[str, Callable[..., None], str], ...] = (
    ("inspect", inspect.inspect, inspect.EXAMPLE),
    ("plan", plan.plan, plan.EXAMPLE),
    ("calibrate", calibrate.calibrate, calibrate.EXAMPLE),
    ("quantize", quantize.quantize, quantize.EXAMPLE),
    ("build", build.build, build.EXAMPLE),
    ("bench", bench.bench, bench.EXAMPLE),
    ("run", run.run, run.EXAMPLE),
    ("doctor", doctor.doctor, doctor.EXAMPLE),
)
"""Name, function and example of every command, in the order of the flow; `profiles` is a group of its own."""


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Run a command; whatever it raises becomes one line on stderr and the exit code of the table in errors.py."""

    @functools.wraps(command)
    def run_guarded(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except (typer.Exit, typer.Abort, SystemExit, BrokenPipeError):
            raise
        except BaseException as error:
            if os.environ.get("TRTBUILD_DEBUG") == "1":
                import traceback

                traceback.print_exc()
            failure = explain(error)
            console_of(bool(kwargs.get("json")), bool(kwargs.get("quiet"))).failure(failure)
            raise typer.Exit(failure.exit_code) from None

    return run_guarded


for _name, _function, _example in COMMANDS:
    app.command(_name, epilog=f"Example:  {_example}")(guarded(_function))
for _name, _function, _example in profiles.COMMANDS:
    profiles.app.command(_name, epilog=f"Example:  {_example}")(guarded(_function))
app.add_typer(profiles.app)


@app.callback()
def _top(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        sys.stdout.write(f"trtbuild {__version__}\n")
        raise typer.Exit


_GARBAGE_OBJECTS = 50_000
"""Imports and graphs make many objects and hardly any cycle; looking for some every 700 objects takes a twentieth of
a build."""


def main() -> None:
    """Entry point. Usage errors exit 2 with one line; every other failure is told by the command itself."""
    gc.set_threshold(_GARBAGE_OBJECTS)
    try:
        code = app(standalone_mode=False)
    except typer.Abort:
        sys.exit(130)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - the interpreter flushes it at exit
        sys.exit(1)
    except Exception as error:
        # Typer vendors click's exceptions in newer releases, so the class cannot be named for all versions.
        if not hasattr(error, "format_message"):
            raise
        context = getattr(error, "ctx", None)
        if type(error).__name__ == "NoArgsIsHelpError":
            sys.stdout.write(error.format_message() + "\n")
            sys.exit(2)
        command = context.command_path if context is not None else "trtbuild"
        console_of("--json" in sys.argv, False).failure(Failure(error.format_message(), f"see {command} --help", 2))
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)
