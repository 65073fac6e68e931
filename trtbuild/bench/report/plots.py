"""The plots of the report, each from the results alone; a plot without data says why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from trtbuild.bench.report.svg import Chart, swatch
from trtbuild.bench.report.table import gigabytes, number

Document = Mapping[str, Any]
Result = Mapping[str, Any]

_PARTS = (("weights_bytes", "weights", "m0"), ("kv_pool_bytes", "KV pool", "m1"), ("rest_bytes", "rest", "m2"))


@dataclass(frozen=True)
class Plot:
    """A figure of the report: `draw` returns its SVG, or None where there is nothing to draw."""

    identifier: str
    title: str
    caption: str
    draw: Callable[[Document], str | None]
    legend: bool = True


def _bounds(values: Sequence[float], *, zero: bool = False, margin: float = 0.06) -> tuple[float, float]:
    low, high = min(values), max(values)
    spread = (high - low) or abs(high) or 1.0
    return (0.0 if zero else low - margin * spread), high + margin * spread


def _cdf(metric: str, identifier: str, title: str, axis: str) -> Callable[[Document], str | None]:
    """Share of requests within a time, at the headline load: one line per engine."""

    def draw(document: Document) -> str | None:
        head = document["settings"]["headline"]
        curves = [(i, r["name"], r["loads"][head]["cdf"][metric]) for i, r in enumerate(document["results"])]
        drawn = [(i, name, values) for i, name, values in curves if values]
        if not drawn:
            return None
        every = [value for _, _, values in drawn for value in values]
        worst = ", ".join(f"{name} up to {number(values[-1])} ms" for _, name, values in drawn)
        chart = Chart(
            title,
            f"Cumulative share of requests by {axis}: {worst}.",
            f"{axis} (ms)",
            "share of requests",
            _bounds(every, zero=min(every) < 0.4 * max(every)),
            (0.0, 1.0),
            y_label=lambda v: f"{v * 100:.0f} %",
        )
        for series, name, values in drawn:
            chart.line([(v, i / (len(values) - 1)) for i, v in enumerate(values)], series, name)
        return chart.render(identifier)

    return draw


def throughput_latency(document: Document) -> str | None:
    """Latency against throughput as concurrency rises; the knee is ringed."""
    curves = [(i, r, [p for p in r["curve"] if p["latency_ms"]]) for i, r in enumerate(document["results"])]
    drawn = [(i, r, points) for i, r, points in curves if points]
    if not drawn:
        return None
    xs = [p["throughput_tok_s"] for _, _, points in drawn for p in points]
    ys = [p["latency_ms"] / 1e3 for _, _, points in drawn for p in points]
    chart = Chart(
        "Throughput against latency",
        "One point per concurrency: " + "; ".join(_curve_text(r, points) for _, r, points in drawn),
        "output throughput (tok/s)",
        "mean latency (s)",
        _bounds(xs, zero=True),
        _bounds(ys, zero=True),
    )
    for series, result, points in drawn:
        chart.line([(p["throughput_tok_s"], p["latency_ms"] / 1e3) for p in points], series, result["name"])
        for p in points:
            text = (
                f"{result['name']}, {p['concurrency']} in flight: {number(p['throughput_tok_s'])} tok/s, "
                f"{number(p['latency_ms'])} ms"
            )
            chart.point(p["throughput_tok_s"], p["latency_ms"] / 1e3, series, text)
        _mark_knee(chart, series, result, points)
    _label_ends(chart, drawn)
    return chart.render("plot-curve")


def _curve_text(result: Result, points: Sequence[Mapping[str, Any]]) -> str:
    first, last = points[0], points[-1]
    knee = (result["knee"] or {}).get("concurrency")
    found = f", knee at {number(knee, 2)} in flight" if knee else ""
    return (
        f"{result['name']} from {number(first['throughput_tok_s'])} tok/s at {first['concurrency']} in flight "
        f"to {number(last['throughput_tok_s'])} at {last['concurrency']}{found}"
    )


def _mark_knee(chart: Chart, series: int, result: Result, points: Sequence[Mapping[str, Any]]) -> None:
    knee = (result["knee"] or {}).get("concurrency")
    if knee:
        nearest = min(points, key=lambda p: abs(p["concurrency"] - knee))
        x, y = nearest["throughput_tok_s"], nearest["latency_ms"] / 1e3
        chart.ring(x, y, series, f"{result['name']}: knee at {number(knee, 2)} in flight")
        chart.text(x, y, f"knee {number(knee, 2)}", dx=-12, dy=-10, anchor="end")


def _label_ends(chart: Chart, drawn: Sequence[tuple[int, Result, Sequence[Mapping[str, Any]]]]) -> None:
    """Say at the first curve's ends what concurrency they are; labelling every point would be unreadable."""
    points = drawn[0][2]
    for p in {id(points[0]): points[0], id(points[-1]): points[-1]}.values():
        text = f"{p['concurrency']} in flight"
        left = p["throughput_tok_s"] > sum(chart.x_range) / 2
        chart.text(
            p["throughput_tok_s"],
            p["latency_ms"] / 1e3,
            text,
            dx=-10 if left else 10,
            dy=4 if left else -6,
            anchor="end" if left else "start",
        )


def _extent_bytes(memory: Mapping[str, Any]) -> int:
    """The length of a memory bar; parts or a peak that were not measured count nothing."""
    parts = sum(memory[key] or 0 for key in ("weights_bytes", "kv_pool_bytes"))
    return max(memory["peak_bytes"] or 0, parts)


def memory_bars(document: Document) -> str | None:
    """Peak memory of each engine's process and its parts, as horizontal bars."""
    found = [(r["name"], r["memory"]) for r in document["results"] if r["memory"] and _extent_bytes(r["memory"])]
    if not found:
        return None
    longest = max(_extent_bytes(memory) for _, memory in found)
    row, left, width = 42, 6, 468
    height = row * len(found) + 8
    said = "; ".join(f"{name} {gigabytes(m['peak_bytes'])} GB" for name, m in found)
    parts = [
        f'<svg id="plot-memory" viewBox="0 0 480 {height}" role="img" aria-labelledby="plot-memory-t plot-memory-d">'
        f'<title id="plot-memory-t">Peak memory and its parts</title>'
        f'<desc id="plot-memory-d">{escape(said)}</desc>'
    ]
    for index, (name, memory) in enumerate(found):
        top, at = index * row, float(left)
        words = ", ".join(f"{title} {gigabytes(memory[key])}" for key, title, _ in _PARTS)
        parts.append(
            f'<text x="{left}" y="{top + 14}"><tspan class="strong">{escape(name)}</tspan> '
            f"{gigabytes(memory['peak_bytes'])} GB: {escape(words)}</text>"
        )
        for key, title, colour in _PARTS:
            size = (memory[key] or 0) / longest * width
            parts.append(
                f'<rect class="{colour}" x="{at:.1f}" y="{top + 20}" width="{size:.1f}" height="14">'
                f"<title>{escape(name)}: {title} {gigabytes(memory[key])} GB</title></rect>"
            )
            at += size
    return "".join([*parts, "</svg>"])


def memory_legend() -> str:
    """The legend of the memory bars."""
    sample = (
        '<svg class="swatch" viewBox="0 0 28 10" aria-hidden="true"><rect class="{}" width="28" height="10"/></svg>'
    )
    return "".join(f"<li>{sample.format(colour)}{title}</li>" for _, title, colour in _PARTS)


def quality_speed(document: Document) -> str | None:
    """Perplexity change against throughput, with both intervals and the budget."""
    drawn = []
    for series, r in enumerate(document["results"]):
        quality = r["quality"] or {}
        change = 0.0 if quality.get("is_baseline") else quality.get("perplexity_change_pct")
        if change is not None and r["throughput_tok_s"] is not None:
            ends = quality.get("perplexity_change_pct_interval") or [change, change]
            speed = r["intervals"]["throughput_tok_s"] or [r["throughput_tok_s"]] * 2
            drawn.append((series, r["name"], r["throughput_tok_s"], speed, change, ends))
    if not drawn:
        return None
    budget = document["settings"]["budget"]["max_perplexity_change_pct"]
    ceiling = _ceiling([change for _, _, _, _, change, _ in drawn], budget)
    xs = [x for _, _, _, speed, _, _ in drawn for x in speed]
    ys = [min(y, ceiling) for _, _, _, _, _, ends in drawn for y in ends] + ([budget] if budget is not None else [])
    said = "; ".join(f"{name} {change:+.2f} % at {number(x)} tok/s" for _, name, x, _, change, _ in drawn)
    chart = Chart(
        "Quality against speed",
        f"Perplexity change against the baseline by throughput: {said}.",
        "output throughput (tok/s)",
        "perplexity change (%)",
        _bounds(xs, margin=0.2),
        _bounds(ys, margin=0.15),
    )
    if budget is not None:
        chart.rule(budget, f"allowed: {budget:g} %")
    labels = []
    for series, name, x, speed, change, ends in drawn:
        at, low, high = (min(y, ceiling) for y in (change, *ends))
        chart.whisker((speed[0], at), (speed[1], at), series)
        chart.whisker((x, low), (x, high), series)
        chart.point(x, at, series, f"{name}: {change:+.2f} % at {number(x)} tok/s")
        labels.append((x, at, name if change <= ceiling else f"{name} {change:+.0f} % ↑"))
    _place_labels(chart, labels)
    return chart.render("plot-quality")


def _ceiling(changes: Sequence[float], budget: float | None) -> float:
    """Where the axis ends: one engine that is far beyond the budget must not press all others onto one line."""
    allowed = 4 * budget if budget else float("inf")
    return allowed if max(changes) > allowed else float("inf")


def _place_labels(chart: Chart, labels: Sequence[tuple[float, float, str]]) -> None:
    """Write names beside their points; a name that would cover another one moves up or down until it does not."""
    middle, taken = sum(chart.x_range) / 2, list[tuple[float, float, float]]()
    for x, y, text in sorted(labels, key=lambda item: -item[1]):
        left, width = x > middle, 7.5 * len(text) + 8
        start = chart.x(x) - width - 8 if left else chart.x(x) + 8
        offsets = (-8, 18, -24, 34, -40, 50, -56)
        dy = next((d for d in offsets if not _covers(start, chart.y(y) + d, width, taken)), -8)
        taken.append((start, chart.y(y) + dy, width))
        chart.text(x, y, text, dx=-8 if left else 8, dy=dy, anchor="end" if left else "start")


def _covers(start: float, baseline: float, width: float, taken: Sequence[tuple[float, float, float]]) -> bool:
    return any(abs(baseline - y) < 15 and start < x + w and x < start + width for x, y, w in taken)


PLOTS: tuple[Plot, ...] = (
    Plot(
        "cdf",
        "Latency",
        "Share of requests answered within a time, at the headline load.",
        _cdf("latency_ms", "plot-cdf", "Latency distribution", "end-to-end latency"),
    ),
    Plot(
        "ttft",
        "Time to first token",
        "Share of requests whose first token came within a time, at the headline load.",
        _cdf("ttft_ms", "plot-ttft", "Distribution of the time to first token", "time to first token"),
    ),
    Plot(
        "curve",
        "Throughput against latency",
        "One point per number of requests in flight. Right and low is better; a ring marks the knee.",
        throughput_latency,
    ),
    Plot("memory", "Memory", "Peak resident memory of the engine's own process.", memory_bars, legend=False),
    Plot(
        "quality",
        "Quality against speed",
        "Perplexity change against the baseline; bars are 95 % intervals. Right and low is better.",
        quality_speed,
        legend=False,
    ),
)


def legend(document: Document) -> str:
    """Names and line samples of all engines."""
    names = (f"<li>{swatch(i)}{escape(r['name'])}</li>" for i, r in enumerate(document["results"]))
    return "".join(names)
