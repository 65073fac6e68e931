"""Rebuilt tokenizers against the token vectors that llama.cpp ships for real vocabularies.

The vocabulary-only GGUF files and their `.inp`/`.out` vectors are in the source distribution of llama-cpp-python on
PyPI (76 MB), which is downloaded once into pytest's cache. The vectors were made with the original tokenizers.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import tokenizers

from trtbuild.checkpoint.gguf_header import read_gguf
from trtbuild.checkpoint.gguf_tokenizer import rebuild_tokenizer

SOURCE = "llama-cpp-python==0.3.36"
NAMES = (
    "command-r",
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gpt-2",
    "llama-bpe",
    "llama-spm",
    "mpt",
    "phi-3",
    "qwen2",
    "qwen35",
    "refact",
    "starcoder",
)


@pytest.fixture(scope="session")
def vocabularies(request: pytest.FixtureRequest) -> Path:
    folder = Path(request.config.cache.mkdir("llama-cpp-python"))
    if not list(folder.glob("*.out")):
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", SOURCE]
        try:
            subprocess.run([*command, "-d", str(folder)], check=True, capture_output=True, timeout=600)
        except (subprocess.SubprocessError, OSError) as error:
            pytest.skip(f"{SOURCE} cannot be downloaded: {error}")
        with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
            for member in archive:
                name = Path(member.name).name
                if name.startswith("ggml-vocab-") and member.isfile():
                    stream = archive.extractfile(member)
                    assert stream is not None
                    (folder / name).write_bytes(stream.read())
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_ids_equal_the_vectors(vocabularies: Path, name: str) -> None:
    path = vocabularies / f"ggml-vocab-{name}.gguf"
    rebuilt = rebuild_tokenizer(read_gguf(path).metadata, str(path))
    model = tokenizers.Tokenizer.from_str(rebuilt.assets["tokenizer.json"].decode("utf-8"))
    texts = Path(f"{path}.inp").read_bytes().decode("utf-8").split("\n__ggml_vocab_test__\n")
    vectors = [[int(i) for i in line.split()] for line in Path(f"{path}.out").read_text("utf-8").split("\n")]
    assert len(texts) > 40
    for text, ids in zip(texts, vectors, strict=False):
        assert model.encode(text, add_special_tokens=False).ids == ids, text
