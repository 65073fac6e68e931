"""The report as text: for a terminal, and as Markdown that pastes into a pull request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtbuild.bench.report.checks import measurement_checks, not_distinguishable
from trtbuild.bench.report.table import PLAIN, QUALITY, SPEED, markdown_table, number, text_table

Document = Mapping[str, Any]


def plain_table(document: Document) -> str:
    """Precision, latency, memory, throughput; nothing else."""
    return text_table(PLAIN, document["results"])


def terminal_report(document: Document) -> str:
    """Errors first, then the verdict, the tables, and what was checked; at most 100 columns in the tables."""
    results, verdict = document["results"], document["verdict"]
    lines = [document["first_line"], "", verdict["sentence"]]
    lines += [f"  {name}: {text}" for name, text in verdict["others"].items() if text]
    lines += ["", f"at {headline(document)} (times in ms)", text_table(SPEED, results)]
    if document["quality"] is not None:
        lines += ["", quality_line(document["quality"]), text_table(QUALITY, results)]
    lines += ["", *task_lines(document), *searches(document)]
    lines += [*not_distinguishable(document), *measurement_checks(document)]
    return "\n".join(lines)


def headline(document: Document) -> str:
    """The load the tables are about."""
    return str(document["settings"]["loads"][document["settings"]["headline"]])


def quality_line(quality: Mapping[str, Any]) -> str:
    """Everything perplexity depends on, in one line."""
    bos = "with BOS" if quality["bos"] else "without BOS"
    return (
        f"quality against {quality['baseline'] or 'nothing'}: {quality['tokens_scored']} tokens, "
        f"{quality['windows']} windows of {quality['window_tokens']}, stride {quality['stride']}, {bos}; "
        f"{quality['questions']} questions"
    )


def searches(document: Document) -> list[str]:
    """The knee, the best max_batch_size and the largest concurrency under the objective, one line per engine each."""
    lines = []
    for result in document["results"]:
        knee, capacity = result["knee"], result["capacity"]
        if knee is not None:
            where = f"knee at {number(knee['concurrency'], 2)} in flight" if knee["concurrency"] else "no knee"
            bound = " (lower bound only)" if knee["lower_bound"] else ""
            lines.append(
                f"{result['name']}: {where}, {knee['reason']}; best max_batch_size {knee['best'] or '–'}{bound}; "
                f"stopped: {knee['stop_reason']}"
            )
        if capacity is not None:
            lines.append(f"{result['name']}: {_capacity(capacity, capacity['concurrency'], '{:g} in flight')}")
        rate = result.get("rate_capacity")
        if rate is not None:
            lines.append(f"{result['name']}: {_capacity(rate, rate['rate_qps'], '{:g} requests/s')}")
    return lines


def task_lines(document: Document) -> list[str]:
    """What lm-eval tasks gave, one line per engine and task."""
    return [
        f"{result['name']}, {task}: "
        + ", ".join(f"{name.removesuffix(',none')} {value:.4g}" for name, value in found.items())
        for result in document["results"]
        for task, found in (result["tasks"] or {}).items()
    ]


def comparison_lines(document: Document) -> list[str]:
    """What `--against` found, if an earlier run was given."""
    return list((document.get("comparison") or {}).get("lines", ()))


def _capacity(capacity: Mapping[str, Any], level: float, form: str) -> str:
    slo, failed_at = capacity["slo"], capacity["failed_at"]
    stopped = "stopped at the limit of the search" if failed_at is None else f"{form.format(failed_at)} do not"
    if not level or slo is None:
        return f"no load that was tried meets the objective; {stopped}"
    ends = [f"{end * 100:.1f}" for end in slo["interval"] or ()]
    spread = f", 95 % interval {ends[0]} to {ends[1]} %" if ends else ""
    unresolved = "" if capacity["resolved"] else ", unresolved: more requests could move it"
    bound = "at least " if capacity["lower_bound"] else ""
    return (
        f"{bound}{form.format(level)} meet the objective ({slo['good']} of {slo['requests']} requests{spread}"
        f"{unresolved}); {stopped}"
    )


def markdown_report(document: Document) -> str:
    """The same as Markdown."""
    results, verdict, machine = document["results"], document["verdict"], document["machine"]
    others = [f"- **{name}**: {text}" for name, text in verdict["others"].items() if text]
    parts = [f"**{verdict['sentence']}**", document["first_line"]]
    parts += ["\n".join(others)] if others else []
    parts += [f"At {headline(document)}, times in ms:", markdown_table(SPEED, results)]
    if document["quality"] is not None:
        parts += [quality_line(document["quality"]) + ":", markdown_table(QUALITY, results)]
    if comparison_lines(document):
        parts.append("Against the earlier run:\n\n" + "\n".join(f"- {line}" for line in comparison_lines(document)))
    notes = [*task_lines(document), *searches(document), *not_distinguishable(document), *measurement_checks(document)]
    parts.append(
        "<details><summary>Searches and checks</summary>\n\n" + "\n".join(f"- {n}" for n in notes) + "\n\n</details>"
    )
    parts.append(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / 1e9:.0f} GB; "
        f"{document['workload']}; profile {document['profile']['name']}; trtbuild {document['trtbuild']}, "
        f"{document['created']}"
    )
    return "\n\n".join(parts) + "\n"
