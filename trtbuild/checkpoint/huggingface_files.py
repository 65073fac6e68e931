"""The files of a Hugging Face folder: which hold the weights, whether all are there, what travels along."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from trtbuild.checkpoint.assembly import listed
from trtbuild.checkpoint.fields import MAX_JSON_BYTES, read_json
from trtbuild.checkpoint.lfs import refuse_pointer
from trtbuild.checkpoint.safetensors import StoredTensor, read_header
from trtbuild.errors import InputRefused

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

ASSET_NAMES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
)
"""Files that travel with the weights through every later step."""

_SHOWN_FILES = 200
_PICKLES = ("*.bin", "*.pth", "*.pt")


def read_assets(folder: Path) -> dict[str, bytes]:
    """The tokenizer and generation files of a folder, by name."""
    assets = {}
    for name in ASSET_NAMES:
        path = folder / name
        if path.is_file():
            if path.stat().st_size > MAX_JSON_BYTES:
                raise InputRefused(f"larger than {MAX_JSON_BYTES} bytes", where=path)
            assets[name] = path.read_bytes()
            refuse_pointer(assets[name], path)
    return assets


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Headers of all weights of a folder, by tensor name.

    Taken from `model.safetensors` if it is there (an index beside it is left over from another saving, and
    transformers ignores it too), else from the files the index names, else from all there are. Raises InputRefused
    listing every missing file, and for pickled, damaged or contradictory ones.
    """
    files = sorted(folder.glob("*.safetensors"))
    if folder / SINGLE_NAME in files:
        files = [folder / SINGLE_NAME]
    elif (folder / INDEX_NAME).is_file():
        return _indexed_tensors(folder, folder / INDEX_NAME)
    if not files:
        raise _no_weights(folder)
    _refuse_missing(folder, _numbered_siblings(files))
    stored: dict[str, StoredTensor] = {}
    for path in files:
        for name, tensor in read_header(path).tensors.items():
            if name in stored:
                raise InputRefused(f"tensor {name} is in {stored[name].path.name} as well", where=path)
            stored[name] = tensor
    return stored


def _no_weights(folder: Path) -> InputRefused:
    pickles = sorted(p.name for pattern in _PICKLES for p in folder.glob(pattern))
    if pickles:
        return InputRefused(
            f"only pickled weights ({listed(pickles)}), which can run code when opened",
            where=folder,
            hint="convert them once: load in transformers, then save_pretrained writes safetensors",
        )
    return InputRefused("no .safetensors file in this folder", where=folder)


def _numbered_siblings(files: list[Path]) -> list[str]:
    """File names that `name-00001-of-00003.safetensors` promises."""
    names: list[str] = []
    for path in files:
        match = re.fullmatch(r"(.*-)(\d{5})(-of-)(\d{5})(\.safetensors)", path.name)
        if match:
            head, _, middle, total, tail = match.groups()
            names += [f"{head}{n:05d}{middle}{total}{tail}" for n in range(1, int(total) + 1)]
    return sorted(set(names))


def _refuse_missing(folder: Path, names: Iterable[str]) -> None:
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise InputRefused(
            f"missing {listed(missing, shown=_SHOWN_FILES)}", where=folder, hint="download the missing files"
        )


def _indexed_tensors(folder: Path, index: Path) -> dict[str, StoredTensor]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputRefused("weight_map is missing or empty", where=index)
    for file in weight_map.values():
        if not isinstance(file, str) or Path(file).name != file:
            raise InputRefused(f"weight_map names {file!r}, which is not a file of this folder", where=index)
    files = sorted(set(weight_map.values()))
    _refuse_missing(folder, files)
    headers = {file: read_header(folder / file).tensors for file in files}
    absent = [name for name, file in weight_map.items() if name not in headers[file]]
    if absent:
        raise InputRefused(f"{listed(absent)} not in the file that weight_map names", where=index)
    return {name: headers[file][name] for name, file in weight_map.items()}
