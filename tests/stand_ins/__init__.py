"""Strict stand-ins for NVIDIA's command line tools, and `nvidia_machine`, which pretends that they are installed."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TOOLS = ("trtllm-build", "trtllm-bench", "trtllm-serve", "docker", "mpirun")


@dataclass(frozen=True)
class NvidiaMachine:
    """The pretended machine; `calls` are the tools that were called, in order, with their arguments."""

    root: Path
    monkeypatch: pytest.MonkeyPatch

    @property
    def calls_file(self) -> Path:
        return self.root / "calls.jsonl"

    def calls(self, tool: str) -> list[list[str]]:
        if not self.calls_file.exists():
            return []
        lines = [json.loads(line) for line in self.calls_file.read_text(encoding="utf-8").splitlines()]
        return [line[1:] for line in lines if line[0] == tool]

    def fails_with(self, tool: str, message: str) -> None:
        """Let `tool` ("BUILD" or "BENCH") say `message` and end with exit code 1."""
        self.monkeypatch.setenv(f"STAND_IN_FAIL_{tool}", message)

    def install(self, version: str | None) -> None:
        """Pretend that this release of tensorrt_llm is installed, in metadata as on the PATH."""
        site = self.root / "site"
        for old in site.glob("tensorrt_llm-*"):
            (old / "METADATA").unlink()
            old.rmdir()
        if version is not None:
            info = site / f"tensorrt_llm-{version}.dist-info"
            info.mkdir(parents=True)
            text = f"Metadata-Version: 2.1\nName: tensorrt_llm\nVersion: {version}\n"
            (info / "METADATA").write_text(text, encoding="utf-8")
            self.monkeypatch.setenv("STAND_IN_VERSION", version)


def nvidia_machine(
    root: Path, monkeypatch: pytest.MonkeyPatch, *, version: str | None = "1.2.1", gpus: int = 1, sm: int = 89
) -> NvidiaMachine:
    """Put the stand-ins first on the PATH and tensorrt_llm into the package metadata."""
    bin_folder, site = root / "bin", root / "site"
    bin_folder.mkdir(parents=True)
    site.mkdir()
    for tool in TOOLS:
        script = bin_folder / tool
        module = HERE / f"{tool.replace('-', '_')}.py"
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S -E {shlex.quote(str(module))} "$@"\n')
        script.chmod(0o755)
    nvidia_smi = bin_folder / "nvidia-smi"
    nvidia_smi.write_bytes((HERE / "nvidia_smi.sh").read_bytes())
    nvidia_smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_folder}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / "cache"))
    monkeypatch.setenv("STAND_IN_CALLS", str(root / "calls.jsonl"))
    monkeypatch.setenv("STAND_IN_GPUS", str(gpus))
    monkeypatch.setenv("STAND_IN_SM", str(sm))
    monkeypatch.syspath_prepend(str(site))
    machine = NvidiaMachine(root, monkeypatch)
    machine.install(version)
    return machine
