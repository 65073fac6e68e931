"""The command line, run in this process: arguments in, exit code and both streams out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from builders import write_huggingface

from trtbuild.cli.app import main


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Done]


@pytest.fixture
def trtbuild(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """`trtbuild("build", folder, "-o", out)` as a shell would run it."""

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["trtbuild", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capfd.readouterr()
        code = stopped.value.code
        return Done(code if isinstance(code, int) else 0, captured.out, captured.err)

    return run


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A whole tiny model whose path has a space and letters beyond ASCII."""
    return write_huggingface(tmp_path / "模型 été" / "a b", num_hidden_layers=1)
