"""A wheel holds the built-in text and the profiles, and finds them where there is no repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_a_wheel_finds_its_data(tmp_path: Path) -> None:
    source, out, installed = tmp_path / "source", tmp_path / "out", tmp_path / "installed"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("trtbuild", "calibration", "profiles"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--wheel-dir", str(out), str(source)], check=True, capture_output=True)
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(installed)
    for folder, pattern in (("calibration", "*.jsonl"), ("calibration", "*.txt"), ("profiles", "*.yaml")):
        files = list((ROOT / folder).rglob(pattern))
        assert files
        for file in files:
            inside = installed / "trtbuild" / "data" / file.relative_to(ROOT)
            assert inside.read_bytes() == file.read_bytes()
    assert not any(name.endswith("calibration/build.py") or name.startswith("tests/") for name in names)
    code = (
        "import trtbuild; from trtbuild.calibrate.corpus import builtin_calibration, chat_prompts;"
        "from trtbuild.profile import list_profiles, load_profile;"
        "print(trtbuild.__file__, len(builtin_calibration().documents) > 99, len(chat_prompts()) > 39,"
        " [load_profile(name).name for name in list_profiles()])"
    )
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    )
    assert run.stdout.strip() == (
        f"{installed / 'trtbuild' / '__init__.py'} True True"
        " ['chat', 'ci', 'finance', 'long-document', 'realtime-voice']"
    )
