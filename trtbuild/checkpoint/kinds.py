"""What a path on disk is, recognised by content, and which command takes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild.errors import InputRefused
from trtbuild.store.manifest import MANIFEST_NAME


@dataclass(frozen=True)
class Kind:
    """One kind of file or folder: how to name it to a person, how to know it, what to do with it."""

    label: str
    hint: str
    matches: Callable[[Path, Mapping[str, Any]], bool]
    """(path, its config.json or an empty mapping) → whether the path is of this kind. Manifests are asked first."""


def _globs(*patterns: str) -> Callable[[Path, Mapping[str, Any]], bool]:
    def matches(path: Path, config: Mapping[str, Any]) -> bool:
        del config
        return path.is_dir() and any(True for pattern in patterns for _ in path.glob(pattern))

    return matches


def _is_gguf(path: Path, config: Mapping[str, Any]) -> bool:
    del config
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"GGUF" or path.suffix.lower() == ".gguf"


def _is_checkpoint(path: Path, config: Mapping[str, Any]) -> bool:
    return "architecture" in config or _globs("rank*.safetensors")(path, config)


def _is_huggingface(path: Path, config: Mapping[str, Any]) -> bool:
    del path
    return "model_type" in config or "architectures" in config


_MODEL_COMMANDS = "plan, calibrate, quantize and run take it"

KINDS: Mapping[str, Kind] = {
    "gguf": Kind("a GGUF file", _MODEL_COMMANDS, _is_gguf),
    "engine": Kind("an engine", "bench takes it", _globs("*.engine", "rank*.engine")),
    "openvino": Kind(
        "an OpenVINO folder",
        "no command takes it: start from the Hugging Face folder it was exported from",
        _globs("openvino_model.xml", "openvino*_model.xml"),
    ),
    "checkpoint": Kind("a TensorRT-LLM checkpoint", "build takes it", _is_checkpoint),
    "record": Kind("a calibration record", "quantize takes it as --record", _globs("record.json")),
    "bench": Kind("a benchmark result", "no command takes it: read its report.html", _globs("bench.json")),
    "lora": Kind("a LoRA adapter", "quantize takes it as --lora, beside its base model", _globs("adapter_config.json")),
    "huggingface": Kind("a Hugging Face folder", _MODEL_COMMANDS, _is_huggingface),
    "onnx": Kind("an ONNX folder", "no command takes it: start from the Hugging Face folder", _globs("*.onnx")),
}
"""Kind → row, most telling first. A folder trtbuild wrote says in its manifest which it is."""


def recognise(path: Path) -> str | None:
    """The key of KINDS that a path is, None for anything else (also for a path that does not exist)."""
    if path.is_dir():
        kind = _json_object(path / MANIFEST_NAME).get("kind")
        if isinstance(kind, str) and kind in KINDS:
            return kind
    config = _json_object(path / "config.json")
    return next((name for name, kind in KINDS.items() if kind.matches(path, config)), None)


def _json_object(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def expect(path: Path, kind: str, command: str) -> None:
    """Raise InputRefused unless `path` is of `kind`, naming what it is instead and the command that takes that."""
    found = recognise(path)
    if found == kind:
        return
    wanted = KINDS[kind].label
    if not path.exists():
        raise InputRefused("no such file or folder", where=path, hint=f"trtbuild {command} takes {wanted}")
    if found is None:
        raise InputRefused(f"not {wanted}", where=path, hint=f"trtbuild {command} takes {wanted}")
    row = KINDS[found]
    raise InputRefused(f"this is {row.label}, not {wanted}", where=path, hint=row.hint)
