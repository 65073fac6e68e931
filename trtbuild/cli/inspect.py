"""`trtbuild inspect`: what a folder or file is, its spec, and what is wrong with it."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtbuild.cli.options import Json, Model, Quiet, console_of

if TYPE_CHECKING:
    from rich.console import RenderableType

EXAMPLE = "trtbuild inspect ./my-model"


def _facts(pairs: Mapping[str, Any], title: str) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, title=title, title_justify="left", title_style="bold")
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs.items():
        if value is not None and value != () and value != {}:
            table.add_row(name, str(value))
    return table


def _inspect_engine(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    from trtbuild.store.manifest import damaged_files
    from trtbuild.targets.base import read_engine
    from trtbuild.targets.registry import load_target

    engine = read_engine(path)
    damaged = damaged_files(path, engine.manifest)
    target = load_target(engine.target)
    launch, found = target.launch(path), dict(target.examine(path))
    pairs = {
        "target": engine.target,
        **{name: value for name, value in engine.settings.items() if name not in ("target", "limits", "options")},
        **dataclasses.asdict(engine.limits),
        "size": f"{sum(f.size_bytes for f in engine.manifest.files.values()) / 1e6:.1f} MB",
        "packages": ", ".join(f"{k} {v}" for k, v in engine.manifest.packages.items()),
        **found,
        "damaged": ", ".join(damaged) or None,
        "launch": "\n\n".join(f"{purpose}:\n{shlex.join(words)}" for purpose, words in launch) or None,
    }
    document = {"kind": "engine", **dataclasses.asdict(engine.manifest), "damaged": damaged, **found}
    return {**document, "launch": [{"purpose": purpose, "command": words} for purpose, words in launch]}, pairs


def _inspect_decoder(location: str, kind: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    import json as jsonlib

    from trtbuild.checkpoint.opening import open_decoder
    from trtbuild.checkpoint.trtllm import validate_checkpoint

    decoder = open_decoder(location)
    spec = decoder.spec
    findings = validate_checkpoint(Path(location)) if kind == "checkpoint" else []
    size_bytes = sum(t.dtype.itemsize * math.prod(t.shape) for t in decoder.tensors.values())
    report = Path(location) / "quantization.json"
    evidence = jsonlib.loads(report.read_text(encoding="utf-8")) if report.is_file() else None
    document = {
        "kind": kind,
        "spec": dataclasses.asdict(spec),
        "quantization": dataclasses.asdict(decoder.quantization),
        "tensors": len(decoder.tensors),
        "tensor_bytes": size_bytes,
        "assets": sorted(decoder.assets),
        "notes": list(decoder.notes),
        "findings": [dataclasses.asdict(finding) for finding in findings],
        "evidence": evidence,
    }
    scaling = dict(spec.rope.scaling) if spec.rope.scaling else "none"
    pairs = {
        "kind": kind,
        "family": spec.family,
        "layers": spec.num_layers,
        "hidden": spec.hidden_size,
        "heads": f"{spec.num_heads} ({spec.num_kv_heads} KV) of {spec.head_size}",
        "intermediate": spec.intermediate_size,
        "vocabulary": spec.vocab_size,
        "positions": spec.max_position_embeddings,
        "rope": f"theta {spec.rope.base:g}, scaling {scaling}",
        "sliding window": spec.sliding_window,
        "head": "tied to the embedding" if spec.tie_word_embeddings else "separate",
        "dtype": spec.dtype,
        "quant_algo": decoder.quantization.quant_algo,
        "kv_cache_quant_algo": decoder.quantization.kv_cache_quant_algo,
        "left in float": ", ".join(decoder.quantization.exclude_modules or ()) or None,
        "tensors": f"{len(decoder.tensors)}, {size_bytes / 1e6:.1f} MB",
        "KV per token": f"{2 * spec.num_layers * spec.kv_rows * 2} bytes in float16",
        "travels along": ", ".join(sorted(decoder.assets)) or "no tokenizer: give build --tokenizer DIR",
        **{f"note {i + 1}": note for i, note in enumerate(decoder.notes)},
        **{f"finding {i + 1}": f"{f.rule}: {f.text}" for i, f in enumerate(findings)},
    }
    if evidence is not None and "summary" in evidence:
        pairs["calibration"] = evidence["summary"]
    return document, pairs


def inspect(model: Model, json: Json = False, quiet: Quiet = False) -> None:
    """Say what MODEL is: a model, a checkpoint or an engine; its spec, its notes and its faults."""
    from trtbuild.checkpoint.kinds import recognise

    console = console_of(json, quiet)
    kind = recognise(Path(model))
    if kind == "engine":
        document, pairs = _inspect_engine(Path(model))
    else:
        document, pairs = _inspect_decoder(model, kind)
    console.result(document, lambda: _facts(pairs, model), path=Path(model))
