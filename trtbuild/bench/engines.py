"""What the benchmark needs to know of an engine before it opens it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild.bench.driver import Driver, Scorer
from trtbuild.quantize.precisions import PRECISIONS
from trtbuild.targets.base import Limits, read_engine
from trtbuild.targets.registry import load_target


@dataclass(frozen=True)
class EngineSource:
    """One engine under test. `driver` and `scorer` are "module:function" that open `path` in a worker process.

    `name` is unique in a run; `limits` None means the engine takes anything. `fingerprint` names its content.
    """

    name: str
    precision: str
    target: str
    path: Path
    driver: str
    scorer: str | None
    limits: Limits | None
    size_bytes: int
    vocab_size: int
    fingerprint: str


def open_driver(path: Path) -> Driver:
    """Open an engine directory with its target's driver."""
    return load_target(read_engine(path).target).open_driver(path)


def open_scorer(path: Path) -> Scorer:
    """Open an engine directory with its target's scorer."""
    return load_target(read_engine(path).target).open_scorer(path)


def precision_name(settings: dict[str, Any]) -> str:
    """The row of the precision table that an engine's dtype and quant_algo belong to, else the algorithm's own name."""
    algo, dtype = settings.get("quant_algo"), settings.get("dtype")
    rows = [row for row in PRECISIONS.values() if row.quant_algo == algo and (algo is not None or row.dtype == dtype)]
    return rows[0].name if rows else str(algo or dtype)


def read_sources(paths: Sequence[Path]) -> list[EngineSource]:
    """Read the manifests of engine folders; two engines of one precision are told apart by their folder names.

    Raises InputRefused for a folder that is no whole engine.
    """
    engines = [read_engine(path) for path in paths]
    precisions = [precision_name(dict(engine.settings)) for engine in engines]
    sources: list[EngineSource] = []
    for engine, precision in zip(engines, precisions, strict=True):
        name = precision if precisions.count(precision) == 1 else f"{precision} ({engine.path.name})"
        taken = [source.name for source in sources]
        sources.append(
            EngineSource(
                name=name if name not in taken else f"{name} #{len(sources) + 1}",
                precision=precision,
                target=engine.target,
                path=engine.path,
                driver=f"{__name__}:open_driver",
                scorer=f"{__name__}:open_scorer",
                limits=engine.limits,
                size_bytes=sum(entry.size_bytes for entry in engine.manifest.files.values()),
                vocab_size=int(engine.settings.get("vocab_size", 0)),
                fingerprint=engine.fingerprint(),
            )
        )
    return sources
