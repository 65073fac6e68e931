"""YAML as people expect it to be read: `no` is text, a key may not come twice, and every value knows its line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtbuild.errors import UsageError

KeyPath = tuple[str | int, ...]
"""Keys and indices from the root to a value."""

_TAG = "tag:yaml.org,2002:"
_READ: Mapping[str, Callable[[str], Any]] = {
    "null": lambda _: None,
    "bool": lambda text: text.lower() == "true",
    "int": int,
    "float": float,
    "str": str,
}
_PATTERNS = (
    ("null", r"~|null|Null|NULL|", ("~", "n", "N", "")),
    ("bool", r"true|True|TRUE|false|False|FALSE", tuple("tTfF")),
    ("int", r"[-+]?[0-9]{1,18}", tuple("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,3})?", tuple("-+.0123456789")),
)
"""YAML 1.2's core schema without octal, hexadecimal, infinity and not-a-number: type, pattern, first characters."""


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """The table above in the shape PyYAML looks it up: by the first character of a plain scalar."""
    found: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for kind, pattern, firsts in _PATTERNS:
        for first in firsts:
            found.setdefault(first, []).append((_TAG + kind, re.compile(rf"(?:{pattern})\Z")))
    return found


_RESOLVERS = _resolvers()


@dataclass(frozen=True)
class Document:
    """A YAML document: plain Python values, and the line (from 1) of each of them and of each key."""

    value: Any
    lines: Mapping[KeyPath, int]

    def line(self, path: KeyPath) -> int:
        """Line of the deepest part of `path` that is in the document."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def read_yaml(path: Path) -> Document:
    """Read one YAML document in UTF-8. Raises UsageError naming file and line; OSError propagates."""
    content = path.read_bytes()
    try:
        return parse_yaml(content.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UsageError("not UTF-8 text", where=f"{path} line {line}") from error


def parse_yaml(text: str, where: str) -> Document:
    """Parse one YAML document. Raises UsageError naming `where` and the line."""
    import yaml

    try:
        loader = yaml.SafeLoader(text)
        loader.yaml_implicit_resolvers = _RESOLVERS
        node = loader.get_single_node()
        reader = _Reader(where)
        return Document(None if node is None else reader.value(node, ()), reader.lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = where if mark is None else f"{where} line {mark.line + 1}"
        raise UsageError(f"not YAML ({error.problem})", where=place) from error
    except (yaml.YAMLError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error).splitlines()[0]
        raise UsageError(f"not YAML ({reason})", where=where) from error


@dataclass
class _Reader:
    """Turns the node tree into values and remembers lines."""

    where: str
    lines: dict[KeyPath, int] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)

    def value(self, node: Any, path: KeyPath) -> Any:
        self.lines.setdefault(path, node.start_mark.line + 1)
        if id(node) in self._seen:
            # An alias would let a short file stand for an endless one, and a profile is read by people.
            raise self._refused("an alias (*name) is not read", node)
        self._seen.add(id(node))
        if node.tag.removeprefix(_TAG) not in (*_READ, "seq", "map"):
            raise self._refused(f"the tag {node.tag!r} is not read", node)
        if node.id == "sequence":
            return [self.value(child, (*path, i)) for i, child in enumerate(node.value)]
        return self._mapping(node, path) if node.id == "mapping" else self._scalar(node)

    def _mapping(self, node: Any, path: KeyPath) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, child in node.value:
            if key_node.id != "scalar":
                raise self._refused("a key is not a word", key_node)
            key = str(key_node.value)
            if key in found:
                raise self._refused(f"key {key!r} comes twice", key_node)
            self.lines[(*path, key)] = key_node.start_mark.line + 1
            found[key] = self.value(child, (*path, key))
        return found

    def _scalar(self, node: Any) -> Any:
        kind = node.tag.removeprefix(_TAG)
        try:
            return _READ[kind](node.value)
        except (ValueError, KeyError) as error:
            raise self._refused(f"{node.value!r} is not of the type {kind}", node) from error

    def _refused(self, what: str, node: Any) -> UsageError:
        return UsageError(what, where=f"{self.where} line {node.start_mark.line + 1}")
