"""What stops a build: an engine that differs, masks that paged attention would drop, a full disk. Nothing remains."""

from __future__ import annotations

import dataclasses
import errno
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import openvino
import pytest
from builders import write_huggingface
from cpu_engines import CPU, LIMITS, as_checkpoint, built

from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.spec import Decoder
from trtbuild.errors import TrtbuildError
from trtbuild.progress import silent
from trtbuild.targets.base import BuildOptions
from trtbuild.targets.cpu.paged import check_paged_attention
from trtbuild.targets.cpu.slices import slice_bounds


def test_a_window_that_paged_attention_would_lose_is_found(tmp_path: Path) -> None:
    decoder = open_model(str(write_huggingface(tmp_path / "hf", "mistral", sliding_window=16)))
    model = built(decoder, tmp_path) / "openvino_model.xml"
    check_paged_attention(model, decoder.spec)
    for changed in ({"sliding_window": 17}, {"sliding_window": None}, {"num_layers": 3}):
        with pytest.raises(TrtbuildError, match=r"windows \[16, 16\]"):
            check_paged_attention(model, dataclasses.replace(decoder.spec, **changed))


def test_a_full_disk_says_so_and_leaves_nothing(
    llama: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = as_checkpoint(llama, tmp_path / "checkpoint")

    def fail(_model: openvino.Model, path: Path, **_options: bool) -> None:
        Path(path).write_bytes(b"<net")
        raise RuntimeError("basic_ios::clear: iostream error")

    monkeypatch.setattr(openvino, "save_model", fail)
    with pytest.raises(OSError) as caught:
        CPU.build(checkpoint, tmp_path / "engine", LIMITS, BuildOptions(), silent)
    assert caught.value.errno == errno.EIO
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=0))
    with pytest.raises(OSError) as caught:
        CPU.build(checkpoint, tmp_path / "engine", LIMITS, BuildOptions(), silent)
    assert caught.value.errno == errno.ENOSPC
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize("layers", [1, 2, 30, 80])
@pytest.mark.parametrize("layer_bytes", [1, 7_000_000, 99_000_000, 436_000_000])
def test_slices_cover_every_layer_once(layers: int, layer_bytes: int) -> None:
    bounds = slice_bounds(layers, layer_bytes)
    assert [layer for first, last in bounds for layer in range(first, last)] == list(range(layers))
    sizes = np.diff(bounds, axis=1)
    assert sizes.min() >= 1
    assert sizes.max() * layer_bytes <= 100_000_000 or sizes.max() == 1
