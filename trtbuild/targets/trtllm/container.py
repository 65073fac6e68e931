"""Run a tool in NVIDIA's container image instead of this environment, with the folders it needs mounted.

Only the command line was checked, against a stand-in for docker; no image was run here.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trtbuild.errors import MachineLacks
from trtbuild.targets.trtllm.version import CONTAINER

PROGRAM = "docker"

_SCRATCH = "/scratch"
"""Home and working directory of the tool: in memory, writable by any user, gone with the container."""


@dataclass(frozen=True)
class Mount:
    """A folder of this machine and where the container sees it."""

    source: Path
    target: str
    writable: bool = False


def image_of(container: str) -> str:
    """The image that `--container` names; an empty value or "auto" is the last release with the engine path."""
    return CONTAINER if container in ("", "auto") else container


def image_version(image: str) -> str | None:
    """The release a tag of NVIDIA's image names; None for an image whose tag is not a version."""
    tag = image.rsplit("/", 1)[-1].partition(":")[2]
    return tag if tag[:1].isdigit() else None


def containerized(command: Sequence[str], image: str, mounts: Sequence[Mount]) -> list[str]:
    """The docker command that runs `command` with every path below a mount rewritten to the container's side.

    It runs as the calling user, so that the files it writes belong to them.
    """
    words = [
        *(PROGRAM, "run", "--rm", "--gpus", "all", "--ipc", "host"),
        *("--ulimit", "memlock=-1", "--ulimit", "stack=67108864"),
        *("--user", f"{os.getuid()}:{os.getgid()}", "--tmpfs", _SCRATCH),
        *("--env", f"HOME={_SCRATCH}", "--workdir", _SCRATCH),
    ]
    for mount in mounts:
        words += ["--mount", _mount_option(mount)]
    return [*words, image, *(_inside(word, mounts) for word in command)]


def _mount_option(mount: Mount) -> str:
    fields = ["type=bind", f"source={mount.source.absolute()}", f"target={mount.target}"]
    if not mount.writable:
        fields.append("readonly")
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(fields)  # docker reads the option as CSV, so commas in paths survive
    return text.getvalue()


def _inside(word: str, mounts: Sequence[Mount]) -> str:
    for mount in sorted(mounts, key=lambda m: -len(str(m.source))):
        source = str(mount.source)
        if word == source or word.startswith(f"{source}{os.sep}"):
            return mount.target + word[len(source) :]
    return word


def require_docker() -> None:
    """Raise MachineLacks when docker is not installed."""
    if shutil.which(PROGRAM) is None:
        raise MachineLacks(
            "docker is not installed", hint="install docker and the NVIDIA container toolkit, or use --dry-run"
        )
