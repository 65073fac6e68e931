"""Directories appear whole or not at all, whatever kills the writer."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trtbuild.errors import InputRefused
from trtbuild.store.atomic import atomic_directory, atomic_file
from trtbuild.store.manifest import damaged_files, read_manifest, write_manifest
from trtbuild.store.reuse import reason_to_remake


def make(path: Path, text: str = "one") -> None:
    with atomic_directory(path) as folder:
        (folder / "data.txt").write_text(text)
        write_manifest(folder, "record", inputs={"model": "abc"}, settings={"samples": 3}, packages=["numpy"])


def test_a_directory_is_described_and_replaced_by_a_newer_one(tmp_path: Path) -> None:
    target = tmp_path / "模型 été" / "a b"
    make(target)
    make(target, "another")
    manifest = read_manifest(target)
    assert manifest is not None
    assert manifest.files["data.txt"].size_bytes == len("another")
    assert damaged_files(target, manifest, check_hashes=True) == []
    assert [p.name for p in target.parent.iterdir()] == ["a b"]


def test_a_failure_leaves_the_old_directory_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "out"
    make(target)
    with pytest.raises(RuntimeError), atomic_directory(target) as folder:
        (folder / "half").write_text("x")
        raise RuntimeError
    assert (target / "data.txt").read_text() == "one"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_somebody_elses_folder_is_never_replaced(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.mkdir()
    (target / "thesis.txt").write_text("years of work")
    with pytest.raises(InputRefused, match="did not write"):
        make(target)
    assert (target / "thesis.txt").read_text() == "years of work"


KILLED = """
import os, signal, sys
from pathlib import Path
from trtbuild.store.atomic import atomic_directory
from trtbuild.store.manifest import write_manifest
with atomic_directory(Path(sys.argv[1])) as folder:
    (folder / "data.txt").write_text("half")
    write_manifest(folder, "record")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_kill_9_leaves_no_directory_under_the_final_name(tmp_path: Path) -> None:
    target = tmp_path / "out"
    done = subprocess.run([sys.executable, "-c", KILLED, str(target)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not target.exists()
    assert len(list(tmp_path.iterdir())) == 1, "the killed writer left its temporary folder"
    make(target)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert (target / "data.txt").read_text() == "one"


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "run.json"
    target.write_text("old")
    with pytest.raises(RuntimeError), atomic_file(target) as temporary:
        temporary.write_text("new, but")
        raise RuntimeError
    assert target.read_text() == "old"
    with atomic_file(target) as temporary:
        temporary.write_text("new")
    assert target.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    ("inputs", "settings", "reason"),
    [
        ({"model": "abc"}, {"samples": 3}, None),
        ({"model": "other"}, {}, "input model changed"),
        ({}, {"samples": 4}, "setting samples changed"),
        ({}, {"seq_len": 4}, "setting seq_len is not recorded"),
    ],
)
def test_what_is_reused_and_why_not(
    tmp_path: Path, inputs: dict[str, str], settings: dict[str, int], reason: str | None
) -> None:
    make(tmp_path / "out")
    assert reason_to_remake(tmp_path / "out", "record", inputs=inputs, settings=settings) == reason


def test_a_cut_file_is_not_reused(tmp_path: Path) -> None:
    make(tmp_path / "out")
    (tmp_path / "out" / "data.txt").write_text("on")
    assert reason_to_remake(tmp_path / "out", "record", inputs={}, settings={}) == "data.txt is missing or cut short"
    assert reason_to_remake(tmp_path / "gone", "record", inputs={}, settings={}) == "not there yet"
    assert reason_to_remake(tmp_path / "out", "engine", inputs={}, settings={}) == "another kind than engine"
