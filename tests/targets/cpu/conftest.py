"""One tiny engine shared by the tests of a module."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import write_huggingface
from cpu_engines import built

from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.spec import Decoder


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return open_model(str(write_huggingface(tmp_path_factory.mktemp("llama") / "hf", "llama")))


@pytest.fixture(scope="module")
def engine(llama: Decoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(llama, tmp_path_factory.mktemp("engine"))
