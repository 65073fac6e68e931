"""Whether something on disk is what would be made now, so that it need not be made again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtbuild import __version__
from trtbuild.errors import InputRefused
from trtbuild.store.manifest import damaged_files, package_versions, read_manifest


def _difference(what: str, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> str | None:
    for name, value in wanted.items():
        if found.get(name) != value:
            return f"{what} {name} changed" if name in found else f"{what} {name} is not recorded"
    return None


def reason_to_remake(path: Path, kind: str, *, inputs: Mapping[str, str], settings: Mapping[str, Any]) -> str | None:
    """None when `path` can be used as it is, else the reason it cannot, in words for a person.

    It can when its manifest is of `kind` and this trtbuild's, every given input fingerprint and setting is the
    recorded one, the packages it names have the same versions here, and no file is missing or of another size.
    """
    if not path.exists():
        return "not there yet"
    try:
        manifest = read_manifest(path)
    except InputRefused as error:
        return error.what
    if manifest is None or manifest.kind != kind:
        return f"another kind than {kind}"
    if manifest.trtbuild != __version__:
        return f"made by trtbuild {manifest.trtbuild}"
    installed = package_versions(manifest.packages)
    damaged = damaged_files(path, manifest)
    return (
        _difference("input", inputs, manifest.inputs)
        or _difference("setting", settings, manifest.settings)
        or _difference("package", manifest.packages, installed)
        or (f"{damaged[0]} is missing or cut short" if damaged else None)
    )
