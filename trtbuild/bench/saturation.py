"""Whether a queue only grows: the number in flight and the wait for the first token both rise without end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trtbuild.bench.records import RequestRecord
from trtbuild.bench.statistics import slope_is_positive

_BATCHES = 10
_MIN_REQUESTS = 50
_CONFIDENCE = 0.999
_MIN_RISE = 0.5


def _rises(values: np.ndarray) -> bool:
    """Whether batch means rise significantly and by more than half their mean from end to end.

    Batch means, because neighbouring values of a queue are correlated and a plain slope test would see trends in noise.
    """
    means = np.array([part.mean() for part in np.array_split(values, _BATCHES)])
    first, last = means[: _BATCHES // 2].mean(), means[_BATCHES // 2 :].mean()
    return bool(slope_is_positive(means, _CONFIDENCE) and 2 * (last - first) > _MIN_RISE * means.mean())


def queue_only_grows(records: Sequence[RequestRecord], start_s: float) -> bool:
    """Whether, since `start_s`, requests in flight *and* time to first token have kept rising.

    The wait of a request that has no token yet is unknown (and would grow smaller with its arrival), so the times to
    first token are of those served so far.
    """
    recent = [record for record in records if record.scheduled_s >= start_s]
    waits = np.array([r.first_token_s - r.scheduled_s for r in recent if r.first_token_s is not None])
    if len(recent) < _MIN_REQUESTS or len(waits) < 2 * _BATCHES:
        return False
    scheduled = np.array([r.scheduled_s for r in recent])
    ended = np.sort([r.finished_s for r in records if r.finished_s is not None])
    arrived = np.arange(len(records) - len(recent) + 1, len(records) + 1)
    in_flight = arrived - np.searchsorted(ended, scheduled, side="right")
    return _rises(in_flight.astype(np.float64)) and _rises(waits)
