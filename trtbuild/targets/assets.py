"""What travels in an engine directory besides the engine: tokenizer files, `config.json`, `generation_config.json`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from trtbuild.checkpoint.spec import Decoder, DecoderSpec
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
    _write_json(folder / "config.json", _config(decoder.spec, stop_token_ids))


def _config(spec: DecoderSpec, stop_token_ids: tuple[int, ...]) -> dict[str, Any]:
    return {
        "model_type": spec.family,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_size,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_position_embeddings,
        "bos_token_id": spec.bos_token_id,
        "eos_token_id": list(stop_token_ids),
        "tie_word_embeddings": spec.tie_word_embeddings,
    }


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
