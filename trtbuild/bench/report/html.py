"""report.html: one file that needs nothing else, for a person who was not there."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from trtbuild.bench.report.checks import measurement_checks, not_distinguishable
from trtbuild.bench.report.plots import PLOTS, legend, memory_legend
from trtbuild.bench.report.style import CSS
from trtbuild.bench.report.table import (
    NOTHING,
    QUALITY,
    SPEED,
    Column,
    Result,
    number,
    rows,
    with_interval,
)
from trtbuild.bench.report.text import comparison_lines, headline, quality_line, searches, task_lines

Document = Mapping[str, Any]


def html_report(document: Document) -> str:
    """The whole page."""
    title = f"{document['profile']['name']}: which precision to ship"
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(document["profile"]["description"])}</p>',
        _first_line(document),
        _verdict(document),
        f"<h2>Speed and memory</h2><p>At {escape(headline(document))}; times in ms, p50 from 20 requests on, p99 from "
        "1000 on, the largest value below that.</p>",
        _table(SPEED, document),
        *_quality(document),
        '<h2>Plots</h2><div class="plots">',
        *_plots(document),
        "</div>",
        "<h2>Every load</h2>",
        _loads(document),
        _list("Against the earlier run", comparison_lines(document)),
        _list("lm-eval tasks", task_lines(document)),
        _list("Searches", searches(document)),
        _list("What cannot be told apart", not_distinguishable(document)),
        _list("Checks of the measurement", measurement_checks(document)),
        *_machine(document),
        *_reproduce(document),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in body if part)
        + "\n</body>\n</html>\n"
    )


def _first_line(document: Document) -> str:
    alarming = document["partial"] or document["error_pct"] > 0 or any(r["error"] for r in document["results"])
    return f'<p class="{"alarm" if alarming else "soft"}">{escape(document["first_line"])}</p>'


def _verdict(document: Document) -> str:
    verdict = document["verdict"]
    others = "".join(
        f"<li><strong>{escape(name)}</strong> {escape(text)}</li>" for name, text in verdict["others"].items() if text
    )
    kind = "verdict" if verdict["ship"] else "verdict none"
    listed = f"<ul>{others}</ul>" if others else ""
    return f'<section class="{kind}"><p>{escape(verdict["sentence"])}</p>{listed}</section>'


def _cell(text: str, column: Column) -> str:
    safe = escape(text)
    inside = f'<span class="tag {safe}">{safe}</span>' if column.title == "verdict" else safe
    return f"<td{' class=left' if column.left else ''}>{inside}</td>"


def _table(columns: Sequence[Column], document: Document) -> str:
    ship = document["verdict"]["ship"]
    head = "".join(f"<th scope=col{' class=left' if c.left else ''}>{escape(c.title)}</th>" for c in columns)
    body = "".join(
        f"<tr{' class=ship' if r['name'] == ship else ''}>"
        + "".join(_cell(text, column) for text, column in zip(cells, columns, strict=True))
        + "</tr>"
        for r, cells in zip(document["results"], rows(columns, document["results"]), strict=True)
    )
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _quality(document: Document) -> list[str]:
    if document["quality"] is None:
        return []
    line = quality_line(document["quality"])
    text = f"{line[0].upper()}{line[1:]}; {document['quality']['text']}."
    return [f"<h2>Quality</h2><p>{escape(text)}</p>", _table(QUALITY, document)]


def _plots(document: Document) -> list[str]:
    figures = []
    for plot in PLOTS:
        drawing = plot.draw(document)
        if drawing is None:
            inside = '<p class="soft">Not measured in this run.</p>'
        else:
            names = legend(document) if plot.legend else memory_legend() if plot.identifier == "memory" else ""
            inside = drawing + (f'<ul class="legend">{names}</ul>' if names else "")
        figures.append(
            f'<figure id="figure-{plot.identifier}"><h3>{escape(plot.title)}</h3>{inside}'
            f"<figcaption>{escape(plot.caption)}</figcaption></figure>"
        )
    return figures


_LOAD_HEADS = (
    "precision",
    "load",
    "requests",
    "failed",
    "tok/s (95 % interval)",
    "req/s",
    "good/s",
    "TTFT mean",
    "TPOT mean",
    "latency mean",
    "p95",
    "p99",
    "max",
    "objective met",
)


def _loads(document: Document) -> str:
    body = []
    for result in document["results"]:
        for load in result["loads"]:
            cells = "".join(f"<td>{escape(text)}</td>" for text in _load_cells(load))
            names = "".join(f'<td class="left">{escape(text)}</td>' for text in (result["name"], load["load"]))
            body.append(f"<tr>{names}{cells}</tr>")
    head = "".join(f"<th scope=col{' class=left' if i < 2 else ''}>{escape(h)}</th>" for i, h in enumerate(_LOAD_HEADS))
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _load_cells(load: Result) -> list[str]:
    def of(metric: str, key: str) -> str:
        return number((load[metric] or {}).get(key))

    slo = load["slo"]
    met = NOTHING
    if slo is not None and slo["interval"] is not None:
        low, high = (end * 100 for end in slo["interval"])
        met = f"{slo['good'] / slo['requests'] * 100:.1f} % ({low:.1f}–{high:.1f})"
    return [
        str(load["requests"]),
        str(load["errors"]),
        with_interval(load["throughput_tok_s"], load["intervals"]["throughput_tok_s"]),
        number(load["throughput_req_s"]),
        number(load["goodput_req_s"]),
        of("ttft_ms", "mean"),
        of("tpot_ms", "mean"),
        of("latency_ms", "mean"),
        of("latency_ms", "p95"),
        of("latency_ms", "p99"),
        of("latency_ms", "max"),
        met,
    ]


def _list(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    return (
        f'<h2>{escape(title)}</h2><ul class="notes">' + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"
    )


def _definitions(pairs: Sequence[tuple[str, Any]]) -> str:
    return "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in pairs) + "</dl>"


def _machine(document: Document) -> list[str]:
    machine = document["machine"]
    gpus = ", ".join(f"{gpu['name']} (sm_{gpu['sm']})" for gpu in machine["gpus"]) or "none"
    pairs = [
        ("CPU", f"{machine['cpu']}, {machine['cores']} cores for this process"),
        ("CPU features", ", ".join(machine["features"])),
        ("memory", f"{machine['memory_bytes'] / 1e9:.1f} GB"),
        ("GPUs", gpus),
        ("system", f"{machine['system']}, Python {machine['python']}"),
        ("packages", ", ".join(f"{name} {version}" for name, version in document["packages"].items())),
    ]
    return ["<h2>Machine</h2>", _definitions(pairs)]


def _reproduce(document: Document) -> list[str]:
    command = " ".join(["trtbuild", *(shlex.quote(part) for part in document["command"])])
    engines = [(r["name"], f"{r['engine']} ({r['fingerprint'][:12]})") for r in document["results"]]
    settings = json.dumps(document["settings"], indent=1, ensure_ascii=False, default=str)
    name, profile = document["profile"]["name"], json.dumps(document["profile"], indent=1, ensure_ascii=False)
    return [
        "<h2>How to reproduce</h2>",
        f"<p>{escape(document['created'])}, trtbuild {escape(document['trtbuild'])}; {escape(document['workload'])}; "
        f"seed {document['settings']['seed']}.</p>",
        f"<pre>{escape(command)}</pre>",
        _definitions(engines),
        f"<details><summary>Every setting</summary><pre>{escape(settings)}</pre></details>",
        f"<details><summary>The profile {escape(name)}</summary><pre>{escape(profile)}</pre></details>",
    ]
