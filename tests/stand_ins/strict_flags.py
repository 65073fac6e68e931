"""Parse a command line exactly as the JSON tables of the real tool allow; anything else ends like argparse or click."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

TABLES = Path(__file__).parents[1] / "data" / "trtllm"
ERA = "1.1-1.2"


def table(name: str) -> Any:
    return json.loads((TABLES / f"{name}.json").read_text(encoding="utf-8"))


def build_rows() -> dict[str, dict[str, Any]]:
    """Flag or alias → row of trtllm-build, those of the 1.1-1.2 era only."""
    rows = [row for row in table("trtllm_build_flags")["flags"] if ERA in row["seen_in"]]
    return {name: row for row in rows for name in (row["flag"], *row.get("aliases", ()))}


def bench_rows(group: str) -> dict[str, dict[str, Any]]:
    """Flag or alias → row of one group of trtllm-bench, as of 1.1."""
    found = {}
    for row in table("trtllm_bench_flags")[group]:
        if row.get("seen_in", "1.1").startswith(("newer", "1.3")):
            continue
        for name in (*row["flag"].split("/"), *(a.split()[0] for a in row.get("aliases", ()))):
            found[name] = row
    return found


def serve_rows() -> dict[str, dict[str, Any]]:
    """Flag → row of trtllm-serve, in the spelling of 1.1.0."""
    found = {}
    for row in table("trtllm_serve_flags")["flags"]:
        seen = row["seen"]
        if not seen.startswith("1.1.0"):
            continue
        only = re.search(r"1\.1\.0: (--\w+)", seen)
        for name in [only[1]] if only else row["flag"].split("|"):
            found[name] = row
    return found


def parse(words: Sequence[str], rows: Mapping[str, Mapping[str, Any]], *, style: str) -> dict[str, Any]:
    """Flag → value; `style` is "argparse" or "click", for the wording of the refusals."""
    values: dict[str, Any] = {}
    queue = list(words)
    while queue:
        word = queue.pop(0)
        name, equals, inline = word.partition("=")
        row = rows.get(name)
        if row is None:
            refuse(f"unrecognized arguments: {word}" if style == "argparse" else f"No such option: {word}", style)
        kind = row["type"]
        key = row["flag"].split("/")[0]
        if kind in ("flag", "bool"):
            values[key] = not name.startswith("--disable")
            continue
        if not equals and (not queue or queue[0].startswith("--")):
            refuse(f"argument {name}: expected one argument", style)
        value: Any = inline if equals else queue.pop(0)
        if kind.startswith("int"):
            if not re.fullmatch(r"-?\d+", value):
                refuse(f"argument {name}: invalid int value: '{value}'", style)
            value = int(value)
            if kind == "int>=1" and value < 1:
                refuse(f"argument {name}: {value} is not in the range x>=1", style)
        elif kind == "float":
            try:
                value = float(value)
            except ValueError:
                refuse(f"argument {name}: invalid float value: '{value}'", style)
        elif kind == "str+":
            value = [value]
            while queue and not queue[0].startswith("--"):
                value.append(queue.pop(0))
        choices = row.get("choices")
        if choices and str(value) not in choices:
            refuse(f"argument {name}: invalid choice: '{value}' (choose from {choices})", style)
        values[key] = value
    return values


def refuse(text: str, style: str) -> NoReturn:
    sys.stderr.write(f"error: {text}\n" if style == "argparse" else f"Error: {text}\n")
    sys.exit(2)
