"""What travels in an engine directory besides the engine: tokenizer files, `config.json`, `generation_config.json`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from trtbuild.checkpoint.huggingface_config import config_of
from trtbuild.checkpoint.spec import Decoder
from trtbuild.checkpoint.tokenizer import TOKENIZER_FILES, read_tokenizer_files
from trtbuild.errors import InputRefused


def with_tokenizer(decoder: Decoder, folder: Path | None) -> Decoder:
    """The decoder with the tokenizer files of `folder`, where one is given, instead of its own."""
    if folder is None:
        return decoder
    found = read_tokenizer_files(folder)
    if "tokenizer.json" not in found:
        raise InputRefused("no tokenizer.json in this folder", where=folder, hint="--tokenizer takes the HF folder")
    kept = {name: content for name, content in decoder.assets.items() if name not in TOKENIZER_FILES}
    return dataclasses.replace(decoder, assets={**kept, **found})


def write_assets(folder: Path, decoder: Decoder, stop_token_ids: tuple[int, ...]) -> None:
    """Tokenizer files as they came; `config.json` and `generation_config.json` as runtimes read them."""
    for name, content in decoder.assets.items():
        (folder / name).write_bytes(content)
    generation = json.loads(decoder.assets.get("generation_config.json", b"{}"))
    generation["eos_token_id"] = list(stop_token_ids)
    _write_json(folder / "generation_config.json", generation)
    _write_json(folder / "config.json", {**config_of(decoder.spec), "eos_token_id": list(stop_token_ids)})


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
