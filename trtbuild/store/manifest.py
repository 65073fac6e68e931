"""`manifest.json`: what a directory is, its files with their hashes, and what it was made from."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trtbuild import __version__
from trtbuild.errors import InputRefused
from trtbuild.store.fingerprint import fingerprint_file

MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True)
class FileEntry:
    """One file of a directory: size and SHA-256."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The content of `manifest.json`.

    `kind` is one of "checkpoint", "engine", "record", "bench", "model". `inputs` maps a name ("model", "record",
    "checkpoint" …) to the fingerprint of what went in; `settings` are the options that shaped the result.
    `packages` holds the versions of the packages that mattered.
    """

    kind: str
    files: Mapping[str, FileEntry]
    inputs: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    trtbuild: str = __version__

    def content_hashes(self) -> dict[str, str]:
        """Name → SHA-256 of every file."""
        return {name: entry.sha256 for name, entry in self.files.items()}


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """Installed versions of the named distributions, read from metadata without importing them."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def describe_files(directory: Path) -> dict[str, FileEntry]:
    """Hash every file below `directory` except the manifest itself; keys are relative POSIX paths."""
    paths = sorted(p for p in directory.rglob("*") if p.is_file() and p.name != MANIFEST_NAME)
    return {p.relative_to(directory).as_posix(): FileEntry(p.stat().st_size, fingerprint_file(p)) for p in paths}


def write_manifest(
    directory: Path,
    kind: str,
    files: Mapping[str, FileEntry] | None = None,
    *,
    inputs: Mapping[str, str] | None = None,
    settings: Mapping[str, Any] | None = None,
    packages: Iterable[str] = (),
) -> Manifest:
    """Write the manifest of `directory`; call it last, inside `atomic_directory`. `files`, unless given, are hashed
    here."""
    described = describe_files(directory) if files is None else files
    manifest = Manifest(kind, described, dict(inputs or {}), dict(settings or {}), package_versions(packages))
    text = json.dumps(asdict(manifest), indent=1, sort_keys=True, ensure_ascii=False)
    (directory / MANIFEST_NAME).write_text(text + "\n", encoding="utf-8")
    return manifest


def read_manifest(directory: Path) -> Manifest | None:
    """The manifest of a directory trtbuild wrote, or None where there is none.

    Raises InputRefused when the file is there but is not a manifest.
    """
    path = directory / MANIFEST_NAME
    if not path.is_file():
        return None
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        files = {name: FileEntry(**entry) for name, entry in raw["files"].items()}
        return Manifest(
            kind=str(raw["kind"]),
            files=files,
            inputs=dict(raw["inputs"]),
            settings=dict(raw["settings"]),
            packages=dict(raw["packages"]),
            trtbuild=str(raw["trtbuild"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputRefused(
            f"not a trtbuild manifest ({error})", where=path, hint="delete the folder and make it again"
        ) from error


def damaged_files(directory: Path, manifest: Manifest, *, check_hashes: bool = False) -> list[str]:
    """Files that are missing or whose size (with `check_hashes`, whose SHA-256) is not the recorded one."""
    damaged = []
    for name, entry in manifest.files.items():
        path = directory / name
        if (
            not path.is_file()
            or path.stat().st_size != entry.size_bytes
            or (check_hashes and fingerprint_file(path) != entry.sha256)
        ):
            damaged.append(name)
    return damaged
