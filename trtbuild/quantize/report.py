"""The evidence beside a checkpoint: `quantization.json` for programs, `.md` and `.html` for people."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from trtbuild.calibrate.histogram import BINS, Histogram
from trtbuild.calibrate.threshold import METHODS, clipped_share, sqnr_db
from trtbuild.checkpoint.spec import module_path
from trtbuild.quantize.budget import Budget, Decision
from trtbuild.quantize.choose import GroupChoice
from trtbuild.quantize.score import Score, score_entry, score_line

SCHEMA = 1
JSON_NAME = "quantization.json"
_PLOTTED = 20
_MUCH_WIDER = 4.0


def group_entry(choice: GroupChoice, in_float: bool, rank: int, budget: Budget | None) -> dict[str, Any]:
    """One smoothing group: what was seen, what was tried, what was chosen and why."""
    chosen, histogram = choice.chosen, choice.histogram
    thresholds = {t.method: t.threshold for t in choice.trials if t.alpha == chosen.alpha and t.method in METHODS}
    notes = []
    if histogram.amax == 0:
        notes.append("every activation was zero: scale 1")
    if choice.dead_channels:
        notes.append(f"{choice.dead_channels} channels were never active: they are not smoothed")
    if in_float:
        why = f"left in float for the quality budget: number {rank + 1} in harm per byte"
    elif budget is None:
        why = "INT8: nothing is left in float by this method"
    else:
        why = "INT8: the quality budget holds with it"
    return {
        "layer": choice.layer,
        "group": choice.group,
        "modules": [module_path(choice.layer, module) for module in choice.modules],
        "weights": choice.weights,
        "float": in_float,
        "why": why,
        "alpha": chosen.alpha,
        "method": chosen.method,
        "threshold": chosen.threshold,
        "activation_scale": choice.activation_scale,
        "amax": histogram.amax,
        "amax_unsmoothed": choice.unsmoothed.amax,
        "elements": choice.unsmoothed.elements,
        "zeros": choice.unsmoothed.zeros,
        "clipped_share": clipped_share(histogram, chosen.threshold) if chosen.method in METHODS else 0.0,
        "thresholds": thresholds,
        "sqnr_db": {method: sqnr_db(histogram, threshold) for method, threshold in thresholds.items()},
        "output_error": chosen.error,
        "output_errors": [
            {"alpha": t.alpha, "method": t.method, "threshold": t.threshold, "error": t.error} for t in choice.trials
        ],
        "harm": choice.harm,
        "dead_channels": choice.dead_channels,
        "notes": notes,
    }


def kv_entry(kind: str, ranges: Sequence[tuple[float, float]], scales: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """The KV cache: ranges of K and V by layer, the scale of both together, and the layers where they differ much."""
    layers = [
        {"layer": i, "k_amax": k, "v_amax": v, "k_scale": ks, "v_scale": vs, "scale": max(ks, vs)}
        for i, ((k, v), (ks, vs)) in enumerate(zip(ranges, scales, strict=True))
    ]
    uneven = [i for i, (k, v) in enumerate(ranges) if max(k, v) > _MUCH_WIDER * min(k, v)]
    return {"kind": kind, "layers": layers, "uneven_layers": uneven}


def summary_of(document: Mapping[str, Any]) -> str:
    """The total, in one paragraph."""
    if document["groups"]:
        text = (
            f"{document['int8_share']:.1%} of the weights of the linear layers are INT8 ({document['precision']}, "
            f"{document['quant_algo']}); the rest, the embedding and the head stay in {document['dtype']}."
        )
    else:
        text = f"All tensors are written in {document['dtype']}" + (
            "." if document["quant_algo"] is None else f"; the engine quantizes them itself ({document['quant_algo']})."
        )
    cache = document["kv_cache"]
    if cache is not None:
        cost = cache["cost"]
        text += (
            f" The KV cache is kept in {cache['kind']}: by itself it takes the KL divergence from "
            f"{cost['kl_before']:.4f} to {cost['kl_after']:.4f}."
        )
    score = document["validation"]
    if score is not None:
        text += (
            f" On {document['validation_tokens']} tokens {document['validation_source']}, perplexity changes by "
            f"{score['perplexity_change_pct']:+.2f} ± {score['perplexity_error_pct']:.2f} % (from "
            f"{score['baseline_perplexity']:.2f}), the KL divergence from the float model is {score['kl']:.4f} nats "
            f"per token, and the most likely next token is the same {score['top1_pct']:.1f} % of the time."
        )
    if document["budget"] is not None:
        held = "holds" if document["budget"]["holds"] else "does NOT hold, even with everything in float"
        text += f" The quality budget {held}."
    floats = [group for group in document["groups"] if group["float"]]
    if floats:
        text += f" {len(floats)} of {len(document['groups'])} groups of linears were left in float to reach it."
    if document["auto"] is not None:
        text += (
            f" The method {document['method']} was asked for; choosing by measured error would have given "
            f"{document['auto']['perplexity_change_pct']:+.2f} % perplexity and a KL of {document['auto']['kl']:.4f}."
        )
    return text


def evidence(
    *,
    precision: str,
    quant_algo: str | None,
    dtype: str,
    method: str,
    record: Mapping[str, Any] | None,
    choices: Sequence[GroupChoice],
    order: Sequence[GroupChoice],
    decision: Decision | None,
    budget: Budget | None,
    validation: Score | None,
    auto: Score | None,
    validation_tokens: int,
    validation_source: str,
    kv_cache: Mapping[str, Any] | None,
    notes: Sequence[str],
) -> dict[str, Any]:
    """The content of `quantization.json`."""
    floats = () if decision is None else decision.floats
    in_float = {choice.key for choice in floats}
    rank = {choice.key: place for place, choice in enumerate(order)}
    weights = sum(choice.weights for choice in choices)
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "precision": precision,
        "quant_algo": quant_algo,
        "dtype": dtype,
        "method": method,
        "record": record,
        "int8_share": 1 - sum(choice.weights for choice in floats) / weights if weights else 0.0,
        "budget": None if decision is None or budget is None else {**asdict(budget), "holds": decision.holds},
        "validation": None if validation is None else score_entry(validation),
        "validation_tokens": validation_tokens,
        "validation_source": validation_source,
        "auto": None if auto is None else score_entry(auto),
        "attempts": []
        if decision is None
        else [{"groups_in_float": a.floats, **score_entry(a.score)} for a in decision.attempts],
        "groups": [group_entry(choice, choice.key in in_float, rank[choice.key], budget) for choice in choices],
        "kv_cache": kv_cache,
        "notes": list(notes),
    }
    document["summary"] = summary_of(document)
    return document


_COLUMNS = ("layer", "group", "in", "α", "method", "amax", "threshold", "clipped", "SQNR dB", "output error", "harm")


def _row(group: Mapping[str, Any]) -> tuple[str, ...]:
    sqnr = group["sqnr_db"].get(group["method"])
    return (
        str(group["layer"]),
        " + ".join(path.split(".", 3)[3] for path in group["modules"]),
        "float" if group["float"] else "INT8",
        "none" if group["alpha"] is None else f"{group['alpha']:g}",
        group["method"],
        f"{group['amax']:.4g}",
        f"{group['threshold']:.4g}",
        f"{100 * group['clipped_share']:.4f} %",
        "–" if sqnr is None else f"{sqnr:.1f}",
        f"{group['output_error']:.2e}",
        f"{group['harm']:.2e}",
    )


def _attempt_lines(document: Mapping[str, Any]) -> list[str]:
    return [f"{a['groups_in_float']} groups in float: {score_line(a)}" for a in document["attempts"]]


def _kv_lines(document: Mapping[str, Any]) -> list[str]:
    kv = document["kv_cache"]
    if kv is None:
        return []
    return [
        f"layer {e['layer']}: K to {e['k_amax']:.4g}, V to {e['v_amax']:.4g}, common scale {e['scale']:.4g}"
        + (" – they differ much, and the narrower one loses bits" if e["layer"] in kv["uneven_layers"] else "")
        for e in kv["layers"]
    ]


def markdown(document: Mapping[str, Any]) -> str:
    """The evidence as Markdown."""
    lines = [f"# Quantization: {document['precision']}", "", document["summary"], ""]
    lines += [f"- {note}" for note in document["notes"]]
    if document["attempts"]:
        lines += ["", "## The search for what stays in float", "", *(f"- {t}" for t in _attempt_lines(document))]
    if document["kv_cache"]:
        lines += ["", f"## KV cache ({document['kv_cache']['kind']})", "", *(f"- {t}" for t in _kv_lines(document))]
    if document["groups"]:
        lines += ["", "## Every group of linears", "", f"| {' | '.join(_COLUMNS)} |", "|" + "---|" * len(_COLUMNS)]
        lines += [f"| {' | '.join(_row(group))} |" for group in document["groups"]]
    lines += ["", *(f"{term}: {meaning}" for term, meaning in _TERMS.items()), ""]
    return "\n".join(lines)


_TERMS = {
    "amax, threshold": "largest smoothed activation, and where INT8 clips it; scale = threshold / 127",
    "output error": "squared error of the linear's output on the calibration samples, relative, by token weight",
    "harm": "squared error of the layer's output when only this group is INT8, relative to the residual stream",
}

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#1d2733}"
    "table{border-collapse:collapse;font-size:13px}td,th{padding:3px 9px;text-align:right;"
    "border-bottom:1px solid #dde3ea}"
    "tr.float td{background:#fff4dd}figure{display:inline-block;margin:8px;vertical-align:top}"
    "figcaption{font-size:12px;max-width:320px}svg{background:#f7f9fb}"
)
_COLOURS = {"max": "#555", "entropy": "#c0392b", "percentile": "#8e44ad", "mse": "#1e8449"}


def _plot(histogram: Histogram, thresholds: Mapping[str, float], width: int = 320, height: int = 150) -> str:
    """Counts on a logarithmic axis over |x|, with the thresholds, as SVG."""
    used = min(BINS, int(histogram.amax / histogram.width) + 1)
    groups = np.array_split(histogram.counts[:used], min(width // 2, used))
    heights = np.log10(1 + np.array([part.sum() for part in groups], np.float64))
    top = max(float(heights.max(initial=0)), 1e-9)
    step = width / len(heights)
    bars = "".join(
        f'<rect x="{i * step:.1f}" y="{height - h / top * height:.1f}" width="{step:.1f}" '
        f'height="{h / top * height:.1f}" fill="#7fa7c9"/>'
        for i, h in enumerate(heights)
        if h > 0
    )
    span = used * histogram.width
    marks = "".join(
        f'<line x1="{t / span * width:.1f}" x2="{t / span * width:.1f}" y1="0" y2="{height}" stroke="{_COLOURS[m]}"/>'
        for m, t in thresholds.items()
    )
    return f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}">{bars}{marks}</svg>'


def page(document: Mapping[str, Any], choices: Sequence[GroupChoice]) -> str:
    """The evidence as one HTML file without outside resources; the worst groups with their histograms."""
    worst = sorted(zip(document["groups"], choices, strict=True), key=lambda pair: -pair[0]["harm"])[:_PLOTTED]
    figures = "".join(
        f"<figure>{_plot(choice.histogram, group['thresholds'])}<figcaption>layer {group['layer']} "
        f"{html.escape(group['group'])}, harm {group['harm']:.2e}: {html.escape(group['why'])}</figcaption></figure>"
        for group, choice in worst
        if group["amax"] > 0
    )
    head = "".join(f"<th>{column}</th>" for column in _COLUMNS)
    rows = "".join(
        f'<tr class="{"float" if group["float"] else "int8"}">'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in _row(group))
        + "</tr>"
        for group in document["groups"]
    )
    legend = " ".join(f'<b style="color:{colour}">{method}</b>' for method, colour in _COLOURS.items())
    listed = "".join(f"<li>{html.escape(t)}</li>" for t in [*document["notes"], *_attempt_lines(document)])
    kv = "".join(f"<li>{html.escape(t)}</li>" for t in _kv_lines(document))
    terms = "".join(f"<dt>{html.escape(t)}</dt><dd>{html.escape(m)}</dd>" for t, m in _TERMS.items())
    title = html.escape(f"Quantization: {document['precision']}")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        f"<h1>{title}</h1><p>{html.escape(document['summary'])}</p><ul>{listed}</ul>"
        + (f"<h2>KV cache</h2><ul>{kv}</ul>" if kv else "")
        + (f"<h2>The worst groups</h2><p>Thresholds: {legend}</p>{figures}" if figures else "")
        + (f"<h2>Every group</h2><table><tr>{head}</tr>{rows}</table><dl>{terms}</dl>" if rows else "")
        + "</html>\n"
    )


def write_evidence(directory: Path, document: Mapping[str, Any], choices: Sequence[GroupChoice]) -> None:
    """Write quantization.json, quantization.md and quantization.html into `directory`."""
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    (directory / JSON_NAME).write_text(text + "\n", encoding="utf-8")
    (directory / "quantization.md").write_text(markdown(document), encoding="utf-8")
    (directory / "quantization.html").write_text(page(document, choices), encoding="utf-8")
