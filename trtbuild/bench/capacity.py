"""The largest load that still meets the objective: doubling brackets it, bisection narrows the bracket.

A load is a whole number: requests in flight, or steps of a rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trtbuild.bench.slo import Attainment


@dataclass(frozen=True)
class Capacity:
    """The result of a search.

    `concurrency` met the objective by its observed share, `failed_at` is the smallest that did not; 0 and None where
    there is none. `resolved` is True when the Wilson intervals of both lie on their own side of the asked share, so
    that more requests would not move them. `lower_bound` is True when nothing tried has failed.
    """

    concurrency: int
    attainment: Attainment | None
    failed_at: int | None
    resolved: bool
    lower_bound: bool


def find_capacity(
    probe: Callable[[int], Attainment],
    tried: Mapping[int, Attainment],
    share: float,
    limit: int,
    tolerance: float = 0.1,
) -> Capacity:
    """Search up to `limit`, starting from what was `tried` already; ends when the bracket is within `tolerance`."""
    known = dict(tried)

    def meets(concurrency: int) -> bool:
        if concurrency not in known:
            known[concurrency] = probe(concurrency)
        found = known[concurrency]
        return found.requests > 0 and found.good >= share * found.requests

    good, bad, step = 0, None, 1
    while step <= limit:
        if not meets(step):
            bad = step
            break
        good = step
        step = min(2 * step, limit) if step < limit else limit + 1
    while bad is not None and bad - good > max(1, tolerance * good):
        middle = (good + bad) // 2
        if meets(middle):
            good = middle
        else:
            bad = middle
    below, above = known.get(good), None if bad is None else known[bad]
    resolved = (below is None or below.verdict == "pass") and (above is None or above.verdict == "fail")
    return Capacity(good, below, bad, resolved, bad is None)
