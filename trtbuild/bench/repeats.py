"""The values of a measurement's repeats, from which intervals are made."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trtbuild.bench.measurement import Measured
from trtbuild.bench.metrics import REQUEST_METRICS, RUN_METRICS
from trtbuild.bench.records import LoadRun


def repeat_value(run: LoadRun, metric: str) -> float | None:
    """The one number of a repeat that intervals are made from."""
    if metric in RUN_METRICS:
        return RUN_METRICS[metric].of(run)
    values = REQUEST_METRICS[metric].values(run.measured)
    return float(np.mean(values)) if values else None


def repeat_groups(engines: Sequence[Measured], load: int, metric: str) -> dict[str, list[float]]:
    """Engine → the value of each of its repeats under one load."""
    groups = {}
    for measured in engines:
        values = (repeat_value(run, metric) for run in measured.runs.get(load, ()))
        groups[measured.source.name] = [value for value in values if value is not None]
    return groups
