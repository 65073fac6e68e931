"""The timing cache of full TensorRT, over a stand-in for its builder config (the real one needs a GPU)."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtbuild.targets.tensorrt_rtx.machine import FLAVOURS, Installed
from trtbuild.targets.tensorrt_rtx.timing_cache import attach, cache_path, keep

RTX, FULL = (Installed(flavour, flavour.distributions[0], "10.16.1") for flavour in FLAVOURS)


class Cache:
    def __init__(self, content: bytes) -> None:
        self.content = content

    def serialize(self) -> bytes:
        return self.content


class Config:
    """Refuses a cache of another device, as TensorRT does without ignore_mismatch."""

    attached: Cache | None = None

    def create_timing_cache(self, content: bytes) -> Cache:
        return Cache(content)

    def set_timing_cache(self, cache: Cache, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        if cache.content.startswith(b"another device"):
            return False
        self.attached = cache
        return True

    def get_timing_cache(self) -> Cache | None:
        return self.attached


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_one_build_leaves_to_the_next_what_it_timed() -> None:
    path = cache_path(FULL, (86,))
    assert path is not None
    first = Config()
    attach(first, path)
    assert first.attached is not None
    assert first.attached.content == b""
    first.attached.content = b"timings"
    keep(first, path)
    second = Config()
    attach(second, path)
    assert second.attached is not None
    assert second.attached.content == b"timings"


def test_a_cache_of_another_device_is_begun_anew() -> None:
    path = cache_path(FULL, (86,))
    assert path is not None
    path.parent.mkdir(parents=True)
    path.write_bytes(b"another device")
    config = Config()
    attach(config, path)
    assert config.attached is not None
    assert config.attached.content == b""


def test_no_two_versions_or_gpus_share_one_and_rtx_has_none() -> None:
    newer = Installed(FULL.flavour, FULL.distribution, "11.4")
    assert len({cache_path(FULL, (86,)), cache_path(FULL, (89,)), cache_path(newer, (86,))}) == 3
    assert cache_path(RTX, (86,)) is None
    config = Config()
    attach(config, None)
    keep(config, None)
    assert config.attached is None


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    config = Config()
    config.attached = Cache(b"timings")
    keep(config, tmp_path / "file" / "cache")
