"""The layout is the data flow: imports point from the command line back to the checkpoint, never forward."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import trtbuild

ROOT = Path(trtbuild.__file__).parent

FLOW = ("store", "checkpoint", "calibrate", "quantize", "graph", "targets", "bench", "cli")
"""A package may import itself and what stands before it."""

HEAVY = ("openvino", "openvino_genai", "onnx", "matplotlib", "torch", "transformers", "tensorrt", "tensorrt_rtx")
HEAVY += ("tensorrt_llm", "modelopt", "gguf", "sacrebleu", "tokenizers", "huggingface_hub", "onnxruntime")
"""Packages that only functions import."""

MODULES = sorted(ROOT.rglob("*.py"))


def imported(tree: ast.AST) -> list[str]:
    """Every module an `import` or `from … import` names, at any depth below `tree`."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.append(str(node.module))
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_imports_point_back_along_the_flow(path: Path) -> None:
    place = path.relative_to(ROOT).parts[0]
    if place not in FLOW:
        assert not any(name.startswith("trtbuild.cli") for name in imported(ast.parse(path.read_text()))) or (
            place == "__main__.py"
        )
        return
    later = FLOW[FLOW.index(place) + 1 :]
    forward = [name for name in imported(ast.parse(path.read_text())) if name.startswith("trtbuild.")]
    assert not [name for name in forward if name.split(".")[1] in later]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_heavy_packages_are_imported_inside_functions(path: Path) -> None:
    tree = ast.parse(path.read_text())
    top = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = [name.split(".")[0] for node in top for name in imported(node)]
    assert not set(names) & set(HEAVY)


def test_only_the_console_prints() -> None:
    printing = [
        path.relative_to(ROOT).as_posix()
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert printing == []


def test_help_imports_neither_numpy_nor_anything_heavier() -> None:
    code = "import sys, trtbuild.cli.app; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not set(done.stdout.split()) & {*HEAVY, "numpy", "pydantic", "yaml", "jinja2"}


def test_no_module_is_too_long_to_hold_in_the_head() -> None:
    assert [p.name for p in MODULES if len(p.read_text().splitlines()) > 500] == []
