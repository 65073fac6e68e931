"""The columns every tabular report shares, each with the one way its value is written; no value is an en dash."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NOTHING = "–"

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A column: its heading and how a result fills it."""

    title: str
    cell: Callable[[Result], str]
    left: bool = False


def number(value: float | None, digits: int = 3) -> str:
    """At least `digits` significant digits, never an exponent, never a made-up zero."""
    if value is None:
        return NOTHING
    if value == 0:
        return "0"
    magnitude = abs(value)
    decimals = max(0, digits - 1 - _exponent(magnitude))
    return f"{value:.{decimals}f}"


def _exponent(magnitude: float) -> int:
    import math

    return math.floor(math.log10(magnitude))


def gigabytes(value: float | None) -> str:
    """Bytes as GB (10^9) with two decimals."""
    return NOTHING if value is None else f"{value / 1e9:.2f}"


def signed_pct(value: float | None) -> str:
    """A change in percent with its sign."""
    return NOTHING if value is None else f"{value:+.2f}"


def with_interval(value: float | None, interval: Sequence[float] | None) -> str:
    """A value and the ends of its 95 % interval."""
    if value is None or interval is None:
        return number(value)
    return f"{number(value)} ({number(interval[0])}–{number(interval[1])})"


def percentile_of(name: str, which: str) -> Callable[[Result], str]:
    """A percentile of a distribution where the sample allows it, else a dash."""
    return lambda result: number((result.get(name) or {}).get(which))


def latency_cell(result: Result) -> str:
    """Median latency; below 20 requests there is none, and the largest is given as what it is."""
    summary = result["latency_ms"]
    if summary is None:
        return NOTHING
    return number(summary["p50"]) if summary["p50"] is not None else f"max {number(summary['max'])}"


def tail_cell(result: Result) -> str:
    """The 99th percentile from 1000 requests on, else the maximum, marked."""
    summary = result["latency_ms"]
    if summary is None:
        return NOTHING
    return number(summary["p99"]) if summary["p99"] is not None else f"max {number(summary['max'])}"


def _quality(name: str, form: Callable[[float | None], str]) -> Callable[[Result], str]:
    return lambda result: form((result["quality"] or {}).get(name))


def pool_gigabytes(result: Result) -> str:
    """Size of the KV pool."""
    return gigabytes((result["memory"] or {}).get("kv_pool_bytes"))


PLAIN: tuple[Column, ...] = (
    Column("precision", lambda r: r["name"], left=True),
    Column("latency (ms)", latency_cell),
    Column("memory (GB)", lambda r: gigabytes(r["peak_memory_bytes"])),
    Column("throughput (req/s)", lambda r: number(r["throughput_req_s"])),
)
"""What `--table plain` prints and nothing else."""

SPEED: tuple[Column, ...] = (
    Column("precision", lambda r: r["name"], left=True),
    Column("tok/s (95 % interval)", lambda r: with_interval(r["throughput_tok_s"], r["intervals"]["throughput_tok_s"])),
    Column("req/s", lambda r: number(r["throughput_req_s"])),
    Column("TTFT p50", percentile_of("ttft_ms", "p50")),
    Column("TPOT p50", percentile_of("tpot_ms", "p50")),
    Column("latency p50", latency_cell),
    Column("p99", tail_cell),
    Column("peak GB", lambda r: gigabytes(r["peak_memory_bytes"])),
)
"""Speed and memory at the headline load; times in ms."""

QUALITY: tuple[Column, ...] = (
    Column("precision", lambda r: r["name"], left=True),
    Column("perplexity", _quality("perplexity", lambda v: number(v, 4))),
    Column("change %", _quality("perplexity_change_pct", signed_pct)),
    Column("KL nats", _quality("kl", lambda v: number(v, 2))),
    Column("top-1 %", _quality("top1_pct", lambda v: number(v, 4))),
    Column("BLEU", _quality("bleu", number)),
    Column("chrF", _quality("chrf", number)),
    Column("first 32 %", _quality("exact_32_pct", number)),
    Column("verdict", lambda r: r["verdict"], left=True),
)
"""Quality against the baseline, and the verdict."""


def rows(columns: Sequence[Column], results: Sequence[Result]) -> list[list[str]]:
    """The cells of a table."""
    return [[column.cell(result) for column in columns] for result in results]


def text_table(columns: Sequence[Column], results: Sequence[Result]) -> str:
    """A table in plain text: two spaces between columns, numbers right-aligned."""
    cells = rows(columns, results)
    widths = [max(len(c.title), *(len(row[i]) for row in cells)) for i, c in enumerate(columns)]
    lines = [[c.title for c in columns], *cells]
    aligned = (
        "  ".join(text.ljust(w) if c.left else text.rjust(w) for text, w, c in zip(line, widths, columns, strict=True))
        for line in lines
    )
    return "\n".join(line.rstrip() for line in aligned)


def markdown_table(columns: Sequence[Column], results: Sequence[Result]) -> str:
    """A GitHub table."""
    head = "| " + " | ".join(c.title for c in columns) + " |"
    rule = "|" + "|".join(":---" if c.left else "---:" for c in columns) + "|"
    body = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows(columns, results))
    return "\n".join([head, rule, *body])
