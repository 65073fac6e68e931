"""Typed reading of untrusted settings: `config.json`, GGUF metadata. A wrong type is one line naming file and key."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild.checkpoint.lfs import refuse_pointer
from trtbuild.errors import InputRefused

MAX_JSON_BYTES = 200_000_000
"""Larger JSON files than this are refused unread; the largest tokenizer.json in use is about 35 MB."""

MAX_LAYERS = 10_000
"""More layers than this are a damaged config, not a model; what is listed per layer stays small."""

_MAX_COUNT = 2**31 - 1


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a UTF-8 file, with or without byte order mark. Raises InputRefused for anything else."""
    if path.stat().st_size > MAX_JSON_BYTES:
        raise InputRefused(f"larger than {MAX_JSON_BYTES} bytes", where=path)
    content = path.read_bytes()
    refuse_pointer(content, path)
    try:
        value = json.loads(content.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise InputRefused(f"not valid JSON: {error.msg}", where=f"{path}:{error.lineno}") from error
    except (ValueError, RecursionError) as error:
        raise InputRefused(f"not valid JSON ({type(error).__name__})", where=path) from error
    if not isinstance(value, dict):
        raise InputRefused("not a JSON object", where=path)
    return value


@dataclass(frozen=True)
class Fields:
    """Settings by name. Every reader takes `default`; without one the setting must be there.

    A null counts as absent, as Hugging Face configs mean it.
    """

    values: Mapping[str, Any]
    where: str

    def refuse(self, name: str, problem: str) -> InputRefused:
        return InputRefused(f"{name} {problem}", where=self.where)

    def get(self, name: str) -> Any:
        return self.values.get(name)

    def count(self, name: str, default: int | None = None, *, most: int = _MAX_COUNT) -> int:
        """A positive integer of at most `most`."""
        value = self._or_default(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= most:
            raise self.refuse(name, f"is {_shown(value)}, a whole number from 1 to {most} is needed")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self._or_default(name, default)
        if not is_number(value) or not value > 0:
            raise self.refuse(name, f"is {_shown(value)}, a number above zero is needed")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._or_default(name, default)
        if not isinstance(value, bool):
            raise self.refuse(name, f"is {_shown(value)}, true or false is needed")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._or_default(name, default)
        if not isinstance(value, str):
            raise self.refuse(name, f"is {_shown(value)}, a text is needed")
        return value

    def token_ids(self, name: str) -> tuple[int, ...]:
        """One token id or a list of them; empty when absent."""
        value = self.values.get(name)
        listed = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v <= _MAX_COUNT for v in listed):
            raise self.refuse(name, f"is {_shown(value)}, a token id or a list of them is needed")
        return tuple(listed)

    def _or_default(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is None:
            value = default
        if value is None:
            raise self.refuse(name, "is missing")
        return value


def is_number(value: Any) -> bool:
    """Whether a JSON value is a finite number (a bool is none, nor is an integer beyond float64)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
