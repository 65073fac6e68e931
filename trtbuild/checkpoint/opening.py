"""Open whatever the user named as a Decoder."""

from __future__ import annotations

from pathlib import Path

from trtbuild.checkpoint.huggingface import open_huggingface
from trtbuild.checkpoint.spec import Decoder


def open_model(location: str) -> Decoder:
    """Open a Hugging Face folder, a `.gguf` file or a hub id."""
    path = Path(location)
    if path.suffix.lower() == ".gguf":
        from trtbuild.checkpoint.gguf import open_gguf

        return open_gguf(path)
    return open_huggingface(path)
