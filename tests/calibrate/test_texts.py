"""Text a user brings: every layout that is read, and one line with a line number for everything that is not."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtbuild.calibrate.texts import Texts, read_texts
from trtbuild.errors import InputRefused

MIXED = [
    {"text": "Plain text."},
    {"messages": [{"role": "user", "content": "你好"}, {"role": "assistant", "content": "Hi\nthere"}], "id": 7},
    {"prompt": "2+2?", "completion": "4"},
]
MIXED_DOCUMENTS = (
    "Plain text.",
    ({"role": "user", "content": "你好"}, {"role": "assistant", "content": "Hi\nthere"}),
    ({"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}),
)


def lines(records: list[Any], end: str = "\n") -> bytes:
    return (end.join(json.dumps(record, ensure_ascii=False) for record in records) + end).encode()


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Texts]:
    def read(content: bytes, name: str = "data.jsonl") -> Texts:
        path = tmp_path / name
        path.write_bytes(content)
        return read_texts(path)

    return read


@pytest.fixture
def refusal(read: Callable[..., Texts]) -> Callable[..., InputRefused]:
    def refusal(content: bytes, name: str = "data.jsonl") -> InputRefused:
        with pytest.raises(InputRefused) as caught:
            read(content, name)
        assert "\n" not in f"{caught.value}{caught.value.hint}"
        return caught.value

    return refusal


def test_layouts_may_be_mixed_and_are_reported(read: Callable[..., Texts]) -> None:
    texts = read(lines(MIXED))
    assert texts.documents == MIXED_DOCUMENTS
    assert texts.layouts == {"text": 1, "messages": 1, "prompt+completion": 1}
    assert texts.describe().endswith("1 text, 1 messages, 1 prompt+completion; the first begins “Plain text.”")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("crlf.jsonl", lines(MIXED, "\r\n")),
        ("bom.jsonl", b"\xef\xbb\xbf" + lines(MIXED)),
        ("both.jsonl", b"\xef\xbb\xbf" + lines(MIXED, "\r\n")),
        ("blank.jsonl", b"\n \n" + lines(MIXED, "\n\n")),
        ("escaped.jsonl", "\n".join(json.dumps(record) for record in MIXED).encode()),
        ("DATA.JSONL.GZ", gzip.compress(lines(MIXED))),
        ("keys.jsonl", lines([{**record, "source": "x"} for record in MIXED])),
    ],
)
def test_spelling_does_not_change_documents_or_fingerprint(
    read: Callable[..., Texts], name: str, content: bytes
) -> None:
    plain = read(lines(MIXED))
    texts = read(content, name)
    assert texts.documents == plain.documents
    assert texts.fingerprint() == plain.fingerprint()


def test_other_text_or_another_order_changes_the_fingerprint(read: Callable[..., Texts]) -> None:
    prints = {
        read(lines(records)).fingerprint()
        for records in (MIXED, MIXED[::-1], MIXED[:2], [{"text": "Plain text"}, *MIXED[1:]])
    }
    assert len(prints) == 4


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_plain_text_is_paragraphs_between_blank_lines(read: Callable[..., Texts], end: str, bom: bytes) -> None:
    text = end.join(["", "One", "goes on.", "", "  \t", "二 ", "", ""])
    texts = read(bom + text.encode(), "a.txt")
    assert texts.documents == ("One\ngoes on.", "二")
    assert texts.layouts == {"paragraph": 2}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (lines(MIXED) + b'{"text": "a"},\n', "line 4: not JSON (Extra data)"),
        (b'{"text": "a",}\n', "line 1: not JSON"),
        (lines(MIXED) + b"\n[1]\n", "line 5: is a list, not an object"),
        (b"null\n", "line 1: is null, not an object"),
        (b"3\n", "line 1: is a number, not an object"),
        (b"true\n", "line 1: is a truth value, not an object"),
        (lines([{"instruction": "x", "output": "y"}]), "line 1: no known layout in the keys: instruction, output"),
        (b"{}\n", "line 1: no known layout in the keys: none"),
        (lines([{"prompt": "x", "answer": "y"}]), "no known layout in the keys: prompt, answer"),
        (lines([{"text": 3}]), "line 1: text is a number, not text"),
        (lines([{"messages": "hi"}]), "line 1: messages is text, not a list of messages"),
        (lines([{"messages": []}]), "line 1: messages is empty, not a list of messages"),
        (lines([{"messages": [{"role": "user"}]}]), "line 1: message 1 has no role and content"),
        (
            lines([{"messages": [{"role": "user", "content": None}]}]),
            "line 1: content of message 1 is null, not text",
        ),
        (b'{"text": "\\ud800"}\n', "line 1: text holds half a surrogate pair"),
        (b'{"text": "' + b"9" * 9 + b'", "n": ' + b"9" * 9999 + b"}", "line 1: not JSON"),
        (b'{"text": ' + b"[" * 100_000, "line 1: not JSON (RecursionError)"),
        (b"ok: 1\n", "line 1: not JSON"),
        (lines(MIXED).decode().encode("utf-16"), "line 1: is UTF-16 or binary, not UTF-8 text"),
        (lines(MIXED).decode().encode("utf-16-le"), "line 1: is UTF-16 or binary, not UTF-8 text"),
        (lines(MIXED) + b'{"text": "caf\xe9"}\n', "line 4: byte 0xe9 is not UTF-8"),
        (b"", "holds no text"),
        (b"\n \r\n\t\n", "holds no text"),
        (b"\xef\xbb\xbf", "holds no text"),
        (lines([{"text": ""}, {"text": " \n"}]), "holds no text"),
    ],
)
def test_what_cannot_be_read_is_one_line(refusal: Callable[..., InputRefused], content: bytes, said: str) -> None:
    assert said in str(refusal(content))


def test_one_json_document_is_told_apart_from_lines(refusal: Callable[..., InputRefused]) -> None:
    error = refusal(json.dumps(MIXED, indent=1).encode())
    assert "line 1: not JSON" in str(error)
    assert error.hint == "this looks like one JSON document; write one object per line"


@pytest.mark.parametrize("content", [b"not gzip", gzip.compress(lines(MIXED))[:-9], b""])
def test_a_broken_gzip_file_is_named(refusal: Callable[..., InputRefused], content: bytes) -> None:
    error = refusal(content, "data.jsonl.gz")
    assert "data.jsonl.gz: " in str(error)


def test_files_that_are_not_there_or_of_another_kind(tmp_path: Path, refusal: Callable[..., InputRefused]) -> None:
    error = refusal(b"a,b", "data.csv")
    assert "unknown kind" in str(error)
    assert error.hint == "kinds read: .txt, .jsonl, .jsonl.gz"
    with pytest.raises(InputRefused, match="no such file"):
        read_texts(tmp_path / "none.txt")
    with pytest.raises(InputRefused, match="not a file"):
        read_texts(tmp_path)


def test_the_locale_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "模型 été" / "data.txt"
    path.parent.mkdir()
    path.write_bytes("Größe 数据".encode())
    code = (
        "import sys; from pathlib import Path; from trtbuild.calibrate.texts import read_texts;"
        "print(ascii(read_texts(Path(sys.argv[1])).documents))"
    )
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    run = subprocess.run(
        [sys.executable, "-c", code, str(path)], env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == ascii(("Größe 数据",))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["text", "messages", "role", "content", "prompt", "completion", "\x00\n", "\ud800"]), inner
        )
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.lists(JSON.map(json.dumps) | st.text(max_size=8), max_size=4), st.binary(max_size=12), st.booleans())
def test_any_bytes_are_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], noise: bytes, packed: bool
) -> None:
    content = "\n".join(parts).encode("utf-8", "surrogatepass") + noise
    path = tmp_path_factory.getbasetemp() / ("fuzz.jsonl.gz" if packed else "fuzz.jsonl")
    path.write_bytes(gzip.compress(content) if packed else content)
    try:
        texts = read_texts(path)
    except InputRefused as error:
        assert "\n" not in f"{error}{error.hint}"
        f"{error}".encode()
    else:
        assert texts.documents
        assert sum(texts.layouts.values()) == len(texts.documents)
        assert len(texts.fingerprint()) == 64
        assert "\n" not in texts.describe()
