"""Writing a result: bench.json, bench.md, bench.csv and report.html in one directory, whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtbuild.bench.report.text import markdown_report
from trtbuild.errors import InputRefused
from trtbuild.store.atomic import atomic_directory
from trtbuild.store.fingerprint import fingerprint_json
from trtbuild.store.manifest import write_manifest

Document = Mapping[str, Any]

JSON_NAME = "bench.json"

_SUMMARY_KEYS = ("n", "mean", "std", "min", "p50", "p90", "p95", "p99", "p99.9", "max")


def write_reports(document: Document, out: Path) -> Path:
    """Write every report of a benchmark into `out` and return it. Raises InputRefused or OSError."""
    from trtbuild.bench.report.html import html_report

    with atomic_directory(out) as folder:
        text = json.dumps(finite(document), indent=1, ensure_ascii=False, allow_nan=False)
        (folder / JSON_NAME).write_text(text + "\n", encoding="utf-8")
        (folder / "bench.md").write_text(markdown_report(document), encoding="utf-8")
        (folder / "bench.csv").write_text(csv_report(document), encoding="utf-8")
        (folder / "report.html").write_text(html_report(document), encoding="utf-8")
        inputs = {result["name"]: result["fingerprint"] for result in document["results"]}
        write_manifest(
            folder, "bench", inputs=inputs, settings=bench_settings(document["profile"], document["partial"])
        )
    return out


def bench_settings(profile: Mapping[str, Any], partial: bool = False) -> dict[str, Any]:
    """What of a benchmark's settings decides whether it can stand for another one of the same engines."""
    return {"profile": profile["name"], "profile_fingerprint": fingerprint_json(profile), "partial": partial}


def finite(value: Any) -> Any:
    """JSON has no infinity and no NaN: a limit that is infinite, like a value that does not exist, is null."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def csv_report(document: Document) -> str:
    """One row per engine and load: every number of it; an empty cell is no value."""
    rows = []
    for result in document["results"]:
        for load in result["loads"]:
            row = {key: result[key] for key in ("name", "precision", "target", "verdict", "peak_memory_bytes")}
            row |= {key: result[key] for key in ("weights_bytes", "kv_bytes_per_token", "kv_pool_tokens")}
            row |= {"load": load["load"], "requests": load["requests"], "errors": load["errors"]}
            row |= {key: load[key] for key in ("throughput_tok_s", "throughput_req_s", "goodput_req_s")}
            for metric in ("ttft_ms", "tpot_ms", "latency_ms", "gap_ms"):
                row |= {f"{metric}_{key}": (load[metric] or {}).get(key) for key in _SUMMARY_KEYS}
            quality = result["quality"] or {}
            row |= {
                k: quality.get(k) for k in ("perplexity", "perplexity_change_pct", "kl", "top1_pct", "bleu", "chrf")
            }
            rows.append(row)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]) if rows else ["name"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def read_bench(path: Path) -> dict[str, Any]:
    """The content of a bench.json (or of the folder that holds one); raises InputRefused for anything else."""
    file = path / JSON_NAME if path.is_dir() else path
    if not file.is_file():
        raise InputRefused("no such bench.json", where=file, hint="give the folder that `trtbuild bench -o` wrote")
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        if document["schema"] != 1:
            raise InputRefused(f"schema {document['schema']} is not 1", where=file)
        assert isinstance(document["results"], list)
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise InputRefused(f"not a bench.json ({error})", where=file) from error
    found: dict[str, Any] = document
    return found
