"""Reading text a user brings: `.txt`, `.jsonl` and `.jsonl.gz`, always UTF-8 whatever the locale, to documents."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild.checkpoint.chat_template import Message
from trtbuild.errors import InputRefused
from trtbuild.store.fingerprint import fingerprint_json

Document = str | tuple[Message, ...]
"""Plain text, or a conversation for the model's chat template."""


@dataclass(frozen=True)
class Texts:
    """Documents in the order they were read, and what was found on the way."""

    documents: tuple[Document, ...]
    location: str
    layouts: Mapping[str, int]
    """How many documents came in each layout: "text", "messages", "prompt+completion" or "paragraph"."""

    def fingerprint(self) -> str:
        """SHA-256 of the documents; a byte order mark, line ends and JSON spelling do not change it."""
        return fingerprint_json([_plain(document) for document in self.documents])

    def describe(self) -> str:
        """One line for people: how many of what, and how the first begins."""
        counts = ", ".join(f"{count} {layout}" for layout, count in self.layouts.items())
        first = self.documents[0]
        opening = " ".join((first if isinstance(first, str) else str(first[0]["content"])).split())
        return f"{self.location}: {counts}; the first begins “{opening[:60]}{'…' if len(opening) > 60 else ''}”"


def _plain(document: Document) -> Any:
    return document if isinstance(document, str) else [dict(message) for message in document]


class _NotThisLayout(ValueError):
    """The keys are there, and what they hold is not what the layout says; the text says why."""


def _string(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise _NotThisLayout(f"{key} is {_kind(value)}, not text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _NotThisLayout(f"{key} holds half a surrogate pair") from error
    return value


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


def _text_layout(record: Mapping[str, Any]) -> Document:
    return _string(record["text"], "text")


def _pair_layout(record: Mapping[str, Any]) -> Document:
    return (
        {"role": "user", "content": _string(record["prompt"], "prompt")},
        {"role": "assistant", "content": _string(record["completion"], "completion")},
    )


def _messages_layout(record: Mapping[str, Any]) -> Document:
    messages = record["messages"]
    if not isinstance(messages, list) or not messages:
        raise _NotThisLayout(f"messages is {_kind(messages) if messages != [] else 'empty'}, not a list of messages")
    turns = []
    for number, message in enumerate(messages, 1):
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise _NotThisLayout(f"message {number} has no role and content")
        turns.append({key: _string(message[key], f"{key} of message {number}") for key in ("role", "content")})
    return tuple(turns)


@dataclass(frozen=True)
class _Layout:
    keys: tuple[str, ...]
    read: Callable[[Mapping[str, Any]], Document]


_LAYOUTS = (
    _Layout(("messages",), _messages_layout),
    _Layout(("prompt", "completion"), _pair_layout),
    _Layout(("text",), _text_layout),
)
"""Layouts of a JSON line; the first whose keys are all there is used, other keys are ignored."""

_LAYOUT_NAMES = ", ".join("+".join(layout.keys) for layout in _LAYOUTS)


def _decode(content: bytes, where: str) -> str:
    """Text of UTF-8 bytes without byte order mark, with `\\n` as the only line end."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in content:
        line = content[: max(content.find(b"\0"), 0)].count(b"\n") + 1
        raise InputRefused(
            "is UTF-16 or binary, not UTF-8 text",
            where=f"{where} line {line}",
            hint="convert it: iconv -f UTF-16 -t UTF-8 OLD > NEW",
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise InputRefused(
            f"byte 0x{error.object[error.start]:02x} is not UTF-8",
            where=f"{where} line {line}",
            hint="convert it, for example: iconv -f CP1252 -t UTF-8 OLD > NEW",
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _paragraphs(text: str, where: str) -> Iterator[tuple[str, Document]]:
    del where
    for block in re.split(r"\n[^\S\n]*\n", text):
        if block.strip():
            yield "paragraph", block.strip()


def _json_lines(text: str, where: str) -> Iterator[tuple[str, Document]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        place = f"{where} line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            hint = "this looks like one JSON document; write one object per line" if line.strip() in "[{" else None
            reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
            raise InputRefused(f"not JSON ({reason})", where=place, hint=hint) from error
        if not isinstance(record, dict):
            raise InputRefused(
                f"is {_kind(record)}, not an object", where=place, hint=f"layouts that are read: {_LAYOUT_NAMES}"
            )
        layout = next((layout for layout in _LAYOUTS if record.keys() >= set(layout.keys)), None)
        if layout is None:
            seen = ", ".join(map(_one_line, record)) or "none"
            raise InputRefused(
                f"no known layout in the keys: {seen}", where=place, hint=f"layouts that are read: {_LAYOUT_NAMES}"
            )
        try:
            document = layout.read(record)
        except _NotThisLayout as error:
            raise InputRefused(str(error), where=place) from error
        if any(part.strip() for part in texts_of(document)):
            yield "+".join(layout.keys), document


def _one_line(key: str) -> str:
    """A key as it can be printed anywhere on one line, however strange, and never long."""
    shown = key.encode("utf-8", "backslashreplace").decode()
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in shown)
    return shown if len(shown) <= 40 else f"{shown[:40]}…"


def texts_of(document: Document) -> Iterable[str]:
    """The texts a document is made of, without roles."""
    return (document,) if isinstance(document, str) else (str(message["content"]) for message in document)


def _gunzip(content: bytes, where: str) -> bytes:
    try:
        return gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as error:
        raise InputRefused(f"not a whole gzip file ({error})", where=where) from error


def _as_it_is(content: bytes, where: str) -> bytes:
    del where
    return content


_FORMATS: Mapping[str, tuple[Callable[[bytes, str], bytes], Callable[[str, str], Iterator[tuple[str, Document]]]]] = {
    ".txt": (_as_it_is, _paragraphs),
    ".jsonl": (_as_it_is, _json_lines),
    ".jsonl.gz": (_gunzip, _json_lines),
}
"""Ending of the file's name → how to get its bytes, and how to get documents from its text."""


def read_texts(path: Path) -> Texts:
    """Read calibration text. `.txt` holds paragraphs between blank lines; JSON lines hold one document each.

    Raises InputRefused, naming the line, for anything that cannot be read, and for a file without any text.
    """
    ending = next(
        (ending for ending in sorted(_FORMATS, key=len, reverse=True) if path.name.lower().endswith(ending)), None
    )
    if not path.is_file():
        raise InputRefused("no such file" if not path.exists() else "not a file", where=path)
    if ending is None:
        raise InputRefused("calibration data of an unknown kind", where=path, hint=f"kinds read: {', '.join(_FORMATS)}")
    unpack, parse = _FORMATS[ending]
    found = list(parse(_decode(unpack(path.read_bytes(), str(path)), str(path)), str(path)))
    if not found:
        raise InputRefused("holds no text", where=path, hint="give text to calibrate with, or leave out --data")
    return Texts(tuple(document for _, document in found), str(path), dict(Counter(layout for layout, _ in found)))
