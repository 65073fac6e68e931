"""Whatever the user names is opened, or called what it is, with the command that takes it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from builders import write_huggingface
from gguf_files import write_gguf

from trtbuild.checkpoint.kinds import KINDS, expect, recognise
from trtbuild.checkpoint.opening import open_decoder, open_model
from trtbuild.checkpoint.trtllm import write_checkpoint
from trtbuild.errors import InputRefused


def _checkpoint(folder: Path) -> None:
    model = write_huggingface(folder.parent / "model", "llama", dtype="float16")
    write_checkpoint(open_model(str(model)), folder)


def _manifest(kind: str) -> dict[str, Any]:
    return {"kind": kind, "files": {}, "inputs": {}, "settings": {}, "packages": {}, "trtbuild": "0"}


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


FOLDERS: dict[str, Any] = {
    "huggingface": lambda folder: write_huggingface(folder, "llama"),
    "checkpoint": _checkpoint,
    "engine": lambda folder: _write(folder, {"config.json": '{"pretrained_config": {}}', "rank0.engine": ""}),
    "openvino": lambda folder: _write(
        folder, {"config.json": '{"model_type": "llama"}', "openvino_model.xml": "", "openvino_model.bin": ""}
    ),
    "record": lambda folder: _write(folder, {"manifest.json": json.dumps(_manifest("record"))}),
    "bench": lambda folder: _write(folder, {"bench.json": "{}"}),
    "lora": lambda folder: _write(folder, {"adapter_config.json": "{}", "adapter_model.safetensors": ""}),
    "onnx": lambda folder: _write(folder, {"model.onnx": ""}),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_each_kind_of_folder_is_recognised(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    FOLDERS[kind](folder)
    assert recognise(folder) == kind
    expect(folder, kind, "any")


@pytest.mark.parametrize("kind", [kind for kind in FOLDERS if kind != "huggingface"])
def test_a_folder_of_another_kind_is_no_model(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    FOLDERS[kind](folder)
    with pytest.raises(InputRefused) as refused:
        open_model(str(folder))
    assert str(refused.value) == f"{folder}: this is {KINDS[kind].label}, not a model"
    assert refused.value.hint == KINDS[kind].hint


@pytest.mark.parametrize("kind", [kind for kind in FOLDERS if kind != "checkpoint"])
def test_build_takes_nothing_but_a_checkpoint(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    FOLDERS[kind](folder)
    with pytest.raises(InputRefused, match=f"this is {KINDS[kind].label}, not a TensorRT-LLM checkpoint"):
        expect(folder, "checkpoint", "build")


def test_the_manifest_says_what_trtbuild_wrote(tmp_path: Path) -> None:
    """An engine of the CPU target holds an OpenVINO model; its manifest tells it from an export of someone else."""
    _write(tmp_path, {"manifest.json": json.dumps(_manifest("engine")), "openvino_model.xml": "", "config.json": "{}"})
    assert recognise(tmp_path) == "engine"
    _write(tmp_path, {"manifest.json": json.dumps(_manifest("unheard-of"))})
    assert recognise(tmp_path) == "openvino"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"kind": []}'])
def test_a_damaged_manifest_or_config_hides_nothing(tmp_path: Path, text: str) -> None:
    _write(tmp_path, {"manifest.json": text, "config.json": text, "openvino_model.xml": ""})
    assert recognise(tmp_path) == "openvino"


def test_gguf_files_are_known_by_content_or_name(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    assert recognise(tmp_path / "m.gguf") == "gguf"
    (tmp_path / "m.gguf").rename(tmp_path / "model.bin")
    assert recognise(tmp_path / "model.bin") == "gguf"
    assert open_model(str(tmp_path / "model.bin")).spec.family == "llama"
    (tmp_path / "cut.gguf").write_bytes(b"GG")
    assert recognise(tmp_path / "cut.gguf") == "gguf"


def test_open_decoder_takes_checkpoints_as_well(tmp_path: Path) -> None:
    (tmp_path / "ckpt").mkdir()
    _checkpoint(tmp_path / "ckpt")
    model, checkpoint = open_model(str(tmp_path / "model")), open_decoder(str(tmp_path / "ckpt"))
    assert open_decoder(str(tmp_path / "model")).fingerprint() == model.fingerprint()
    assert dataclasses.replace(checkpoint.spec, eos_token_ids=(2,), bos_token_id=1) == model.spec


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: p, ["no config.json in this folder", "a hub id"]),
        (lambda p: (p / "config.json").write_text('{"a": 1}'), ["names no model_type"]),
        (lambda p: (p / "x.gguf").write_bytes(b"GGUF"), ["no config.json", "name the GGUF file itself"]),
    ],
)
def test_a_folder_that_is_nothing(tmp_path: Path, make: Any, words: list[str]) -> None:
    make(tmp_path)
    with pytest.raises(InputRefused) as refused:
        open_model(str(tmp_path))
    for word in words:
        assert word in f"{refused.value} | {refused.value.hint}"
    with pytest.raises(InputRefused, match="not a TensorRT-LLM checkpoint"):
        expect(tmp_path, "checkpoint", "build")


def test_a_file_inside_a_model_names_its_folder(tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path / "m", "llama")
    with pytest.raises(InputRefused) as refused:
        open_model(str(folder / "model.safetensors"))
    assert str(folder) in str(refused.value.hint)


@pytest.mark.parametrize(
    "location", ["no-such-folder", "/no/such/folder", "./no/such", "a/b/c", "no/such/", "", "~x/y"]
)
def test_no_such_folder(location: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputRefused) as refused:
        open_model(location)
    assert "no such file or folder" in str(refused.value) or location == ""


def test_a_mistyped_folder_next_to_others_is_not_looked_for_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_huggingface(tmp_path / "models" / "llama", "llama")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputRefused, match="models/lama: no such file or folder"):
        open_model("models/lama")


# Hub ids, against a hub on this machine

_OPEN = """
import sys
from trtbuild.checkpoint.opening import open_model
from trtbuild.errors import explain
try:
    decoder = open_model(sys.argv[1])
    print(decoder.spec.family, decoder.location, decoder.fingerprint())
except Exception as error:
    failure = explain(error)
    print(failure.exit_code, failure.line, "|", failure.hint)
"""
_COMMIT = "0123456789abcdef0123456789abcdef01234567"


def _open_in_process(location: str, home: Path, endpoint: str) -> str:
    environment = {**os.environ, "HF_HOME": str(home), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1"}
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN", "HF_HUB_CACHE"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-c", _OPEN, location], cwd=home, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout, done.stderr
    return done.stdout.strip()


@contextlib.contextmanager
def _hub(folder: Path) -> Iterator[str]:
    """A hub that knows one model, `tiny/llama`, and one that only its friends may have, `gated/llama`."""
    siblings = [{"rfilename": path.name} for path in sorted(folder.iterdir())]
    siblings.append({"rfilename": "original/consolidated.safetensors"})

    class Handler(BaseHTTPRequestHandler):
        def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path.startswith("/api/models/tiny/llama/tree/"):
                entries = [
                    {"type": "file", "path": p.name, "size": p.stat().st_size, "oid": p.name} for p in folder.iterdir()
                ]
                self.answer(200, json.dumps(entries).encode(), Content_Type="application/json")
            elif path in ("/api/models/tiny/llama", "/api/models/tiny/llama/revision/main"):
                info = {"id": "tiny/llama", "sha": _COMMIT, "siblings": siblings, "private": False, "tags": []}
                self.answer(200, json.dumps(info).encode(), Content_Type="application/json")
            elif path.startswith("/tiny/llama/resolve/"):
                file = folder / path.rsplit("/", 1)[1]
                if not file.is_file():
                    self.answer(404, X_Error_Code="EntryNotFound")
                else:
                    self.answer(200, file.read_bytes(), ETag=f'"{file.name}"', X_Repo_Commit=_COMMIT)
            elif "/gated/" in path:
                self.answer(403, X_Error_Code="GatedRepo", X_Error_Message="ask its owner")
            elif "revision" in path and "/tiny/llama/" in path:
                self.answer(404, X_Error_Code="RevisionNotFound")
            else:
                self.answer(404, X_Error_Code="RepoNotFound")

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_hub_id_is_fetched_once_and_then_read_from_the_cache(tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path / "remote", "llama", shards=2)
    expected = f"llama tiny/llama {open_model(str(folder)).fingerprint()}"
    home = tmp_path / "home"
    home.mkdir()
    with _hub(folder) as endpoint:
        assert _open_in_process("tiny/llama", home, endpoint) == expected
    assert _open_in_process("tiny/llama", home, endpoint) == expected
    assert not list(home.rglob("consolidated*"))


def test_what_the_hub_does_not_have_or_not_give(tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path / "remote", "llama")
    with _hub(folder) as endpoint:
        missing = _open_in_process("tiny/lama", tmp_path, endpoint)
        revision = _open_in_process("tiny/llama@v9", tmp_path, endpoint)
        gated = _open_in_process("gated/llama", tmp_path, endpoint)
    assert missing.startswith("3 tiny/lama: no such folder here, and no such model on the hub")
    assert revision.startswith("3 tiny/llama@v9: no such revision on the hub")
    assert gated.startswith("3 gated/llama: the hub gives this model only to those who asked for it")


def test_no_hub_can_be_reached(tmp_path: Path) -> None:
    line = _open_in_process("tiny/llama", tmp_path, "http://127.0.0.1:9")
    assert line.startswith("4 tiny/llama: no such folder here, and no hub can be reached to look for it")
    assert "HF_ENDPOINT" in line
