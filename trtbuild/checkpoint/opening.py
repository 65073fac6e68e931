"""Open whatever the user named as a Decoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

from trtbuild.checkpoint.gguf import open_gguf
from trtbuild.checkpoint.hub import fetch, looks_like_hub_id
from trtbuild.checkpoint.huggingface import open_huggingface, read_config_spec
from trtbuild.checkpoint.kinds import KINDS, recognise
from trtbuild.checkpoint.spec import Decoder, DecoderSpec
from trtbuild.checkpoint.trtllm import read_checkpoint
from trtbuild.errors import InputRefused

_MODELS: Mapping[str, Callable[[Path], Decoder]] = {"huggingface": open_huggingface, "gguf": open_gguf}
_DECODERS: Mapping[str, Callable[[Path], Decoder]] = {**_MODELS, "checkpoint": read_checkpoint}


def open_model(location: str) -> Decoder:
    """Open a model as it comes: a Hugging Face folder, a `.gguf` file or a hub id.

    Raises InputRefused for anything else, naming what it is and the command that takes it, and MachineLacks for what
    could be a hub id when no hub can be reached.
    """
    return _open(location, _MODELS)


def open_decoder(location: str) -> Decoder:
    """As `open_model`, and TensorRT-LLM checkpoints as well."""
    return _open(location, _DECODERS)


def open_spec(location: str) -> DecoderSpec:
    """The spec alone: also of a Hugging Face folder that holds only a config.json, or of that file itself."""
    path = Path(location)
    config_path = path if path.name == "config.json" else path / "config.json"
    if config_path.is_file() and recognise(config_path.parent) == "huggingface":
        return read_config_spec(config_path)
    return open_decoder(location).spec


def _open(location: str, openers: Mapping[str, Callable[[Path], Decoder]]) -> Decoder:
    path = Path(location)
    if not path.exists():
        if path.parent.is_dir() or not looks_like_hub_id(location):
            raise InputRefused("no such file or folder", where=location)
        return dataclasses.replace(open_huggingface(fetch(location)), location=location)
    kind = recognise(path)
    opener = openers.get(kind or "")
    if opener is not None:
        return opener(path)
    if kind is not None:
        raise InputRefused(f"this is {KINDS[kind].label}, not a model", where=path, hint=KINDS[kind].hint)
    raise InputRefused(_what_instead(path), where=path, hint=_hint(path))


def _what_instead(path: Path) -> str:
    if path.is_file():
        return "neither a folder nor a GGUF file"
    if (path / "config.json").is_file():
        return "its config.json names no model_type, so this is no Hugging Face model"
    return "no config.json in this folder, so this is no model"


def _hint(path: Path) -> str:
    if path.is_file():
        return f"name its folder instead: {path.parent}"
    ggufs = sorted(path.glob("*.gguf"))
    if ggufs:
        return f"name the GGUF file itself: {ggufs[0]}"
    return "a model is a Hugging Face folder, a .gguf file or a hub id"
