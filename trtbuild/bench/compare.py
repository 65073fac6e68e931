"""Two runs of bench.json against each other: what became slower, larger or worse beyond noise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from trtbuild.bench.results import COMPARED
from trtbuild.bench.statistics import Interval, paired_bootstrap
from trtbuild.errors import VerdictFailed

Document = Mapping[str, Any]
Result = Mapping[str, Any]

SPEED_FLOOR_PCT = 3.0
"""A speed difference below this is no regression even where intervals do not overlap: two runs of one engine, hours
apart, differ by more than the repeats of one run show."""

MEMORY_FLOOR_PCT = 5.0

_WORSE, _BETTER, _SAME = "regression", "improvement", "not distinguishable"


@dataclass(frozen=True)
class Change:
    """One value of one engine in both runs; `verdict` is regression, improvement or not distinguishable."""

    engine: str
    what: str
    old: float
    new: float
    change_pct: float
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """All changes, and what kept two runs from being compared."""

    changes: tuple[Change, ...]
    remarks: tuple[str, ...]

    @property
    def regressions(self) -> list[Change]:
        return [change for change in self.changes if change.verdict == _WORSE]

    def failure(self) -> VerdictFailed | None:
        """The error a run with regressions ends with, None without any."""
        worst = self.regressions
        if not worst:
            return None
        said = ", ".join(f"{c.engine} {c.what} {c.change_pct:+.1f} %" for c in worst[:3])
        more = f" and {len(worst) - 3} more" if len(worst) > 3 else ""
        return VerdictFailed(f"regression against the earlier run: {said}{more}")

    def text(self) -> str:
        """One line per change that is one, a count of those that are not, and the remarks."""
        real = [c for c in self.changes if c.verdict != _SAME]
        lines = [f"{c.verdict}: {c.engine} {c.what} {c.old:.4g} → {c.new:.4g} ({c.change_pct:+.1f} %)" for c in real]
        same = len(self.changes) - len(real)
        lines.append(f"{same} of {len(self.changes)} values not distinguishable from the earlier run")
        return "\n".join([*lines, *self.remarks])

    def to_json(self) -> dict[str, Any]:
        """What bench.json keeps of it."""
        changes = [asdict(change) for change in self.changes]
        return {"changes": changes, "remarks": list(self.remarks), "lines": self.text().splitlines()}


def compare_runs(old: Document, new: Document) -> Comparison:
    """Compare the engines and loads two runs have in common; an engine that is new or gone is only remarked."""
    before = {result["name"]: result for result in old["results"]}
    after = {result["name"]: result for result in new["results"]}
    changes = [c for name in after if name in before for c in _engine(before[name], after[name], old, new)]
    remarks = [f"{name} is only in the new run" for name in after if name not in before]
    remarks += [f"{name} is only in the earlier run" for name in before if name not in after]
    if old["machine"]["cpu"] != new["machine"]["cpu"] or old["machine"]["cores"] != new["machine"]["cores"]:
        remarks.append("the runs are from different machines: speed is compared all the same")
    if old["workload"] != new["workload"]:
        remarks.append(f"the prompts differ: {old['workload']} before")
    if not _same_text(old, new):
        remarks.append("quality is not compared: the runs scored different text")
    return Comparison(tuple(changes), tuple(remarks))


def _engine(old: Result, new: Result, old_run: Document, new_run: Document) -> Iterator[Change]:
    loads = {load["load"]: load for load in old["loads"]}
    for load in new["loads"]:
        if load["load"] in loads:
            yield from _speed(new["name"], loads[load["load"]], load)
    if old["peak_memory_bytes"] and new["peak_memory_bytes"]:
        yield _exact(new["name"], "peak memory", old["peak_memory_bytes"], new["peak_memory_bytes"])
    if _same_text(old_run, new_run):
        yield from _quality(new["name"], old["quality"] or {}, new["quality"] or {})


def _speed(name: str, old: Result, new: Result) -> Iterator[Change]:
    for metric, better in COMPARED.items():
        before, after = _interval(old, metric), _interval(new, metric)
        if before is None or after is None or before.value <= 0:
            continue
        change = (after.value / before.value - 1) * 100
        verdict = _SAME
        if not before.overlaps(after) and abs(change) > SPEED_FLOOR_PCT:
            verdict = _BETTER if (change > 0) == (better == "higher") else _WORSE
        yield Change(name, f"{metric} ({new['load']})", before.value, after.value, change, verdict)


def _interval(load: Result, metric: str) -> Interval | None:
    value = (load.get("medians") or {}).get(metric)
    ends: Sequence[float] | None = load["intervals"].get(metric)
    if value is None:
        return None
    return Interval(value, *(ends if ends is not None else (None, None)))


def _exact(name: str, what: str, old: float, new: float) -> Change:
    change = (new / old - 1) * 100
    verdict = _SAME if abs(change) <= MEMORY_FLOOR_PCT else _WORSE if change > 0 else _BETTER
    return Change(name, what, old, new, change, verdict)


def _same_text(old: Document, new: Document) -> bool:
    keys = ("text", "windows", "window_tokens", "stride", "bos", "tokens_scored")
    before, after = old["quality"], new["quality"]
    return before is not None and after is not None and all(before[key] == after[key] for key in keys)


def _quality(name: str, old: Result, new: Result) -> Iterator[Change]:
    """Perplexity window by window: both runs scored the same text, so their difference is paired."""
    before, after = old.get("window_nll"), new.get("window_nll")
    if not before or not after or len(before) != len(after):
        return
    counts = np.asarray(new["window_tokens"], np.float64)
    rise = np.asarray(after) - np.asarray(before)
    change = paired_bootstrap(len(rise), lambda rows: math.expm1(rise[rows].sum() / counts[rows].sum()) * 100)
    verdict = _SAME
    if change.low is not None and change.high is not None and abs(change.value) > 0.05:
        verdict = _WORSE if change.low > 0 else _BETTER if change.high < 0 else _SAME
    yield Change(name, "perplexity", old["perplexity"], new["perplexity"], change.value, verdict)
