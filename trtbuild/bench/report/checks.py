"""Whether the measurement itself can be trusted, and which differences are none: sentences for every report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trtbuild.bench.statistics import Interval
from trtbuild.bench.verdict import distinguishable

LITTLE_TOLERANCE_PCT = 10.0
CLIENT_TOLERANCE_PCT = 5.0


def measurement_checks(document: Mapping[str, Any]) -> list[str]:
    """Little's law, client overhead, warm-up and windows cut short, over every run of every load."""
    repeats = [(r["name"], load, run) for r in document["results"] for load in r["loads"] for run in load["repeats"]]
    if not repeats:
        return ["nothing was measured"]
    return [*_resolution(document), _little(repeats), _client(repeats), _warmup(repeats), *_cut(repeats)]


def _resolution(document: Mapping[str, Any]) -> Iterator[str]:
    """How small a difference the repeats can show."""
    differences = [
        difference
        for result in document["results"]
        if (ends := result["intervals"].get("throughput_tok_s"))
        and (difference := Interval(result["throughput_tok_s"], *ends).resolution_pct) is not None
    ]
    if differences:
        yield (
            f"throughputs at the headline load can be told apart from about {max(differences):.0f} % on; "
            "more --repeats or --seconds tell smaller differences"
        )


def _largest(repeats: list[tuple[str, Any, Any]], key: str) -> tuple[float, str] | None:
    found = [(abs(run[key]), f"{name}, {load['load']}") for name, load, run in repeats if run[key] is not None]
    return max(found, default=None)


def _little(repeats: list[tuple[str, Any, Any]]) -> str:
    known = [(name, load, run) for name, load, run in repeats if run["little_discrepancy_pct"] is not None]
    if not known:
        return "Little's law could not be checked"
    broken = [f"{name}, {load['load']}" for name, load, run in known if not _obeys_little(run)]
    largest = max(abs(run["little_discrepancy_pct"]) for _, _, run in known)
    if not broken:
        return f"Little's law N = X·R holds in all {len(known)} windows; largest discrepancy {largest:.1f} %"
    return (
        f"Little's law N = X·R DOES NOT HOLD in {len(broken)} of {len(known)} windows, which were too short or not "
        f"steady; largest discrepancy {largest:.1f} % (first: {broken[0]})"
    )


def _obeys_little(run: Mapping[str, Any]) -> bool:
    """A window cuts through the requests in flight at its ends: their share of all requests is no discrepancy."""
    edges = 100 * (run["mean_in_flight"] or 0.0) / max(1, run["requests"])
    return bool(abs(run["little_discrepancy_pct"]) <= max(LITTLE_TOLERANCE_PCT, edges))


def _client(repeats: list[tuple[str, Any, Any]]) -> str:
    worst = _largest(repeats, "client_overhead_pct")
    if worst is None:
        return "client overhead could not be measured"
    verdict = "is no bottleneck" if worst[0] <= CLIENT_TOLERANCE_PCT else "WAS A BOTTLENECK"
    return f"the client {verdict}; the engine waited for it {worst[0]:.2f} % of the time at most ({worst[1]})"


def _warmup(repeats: list[tuple[str, Any, Any]]) -> str:
    asked = [run["warmup"] for _, _, run in repeats if run["warmup"]["stable"] is not None]
    if not asked:
        return "no warm-up was asked for"
    stable = sum(w["stable"] for w in asked)
    discarded = sum(w["requests"] for w in asked)
    return f"warm-up: {discarded} requests discarded, {stable} of {len(asked)} runs warm within 5 % before measuring"


def _cut(repeats: list[tuple[str, Any, Any]]) -> Iterator[str]:
    reasons: dict[str, dict[str, int]] = {}
    for name, _, run in repeats:
        if run["stop_reason"] not in ("enough requests and time", "all requests answered"):
            per = reasons.setdefault(run["stop_reason"], {})
            per[name] = per.get(name, 0) + 1
    for reason, per in reasons.items():
        counts = ", ".join(f"{name} {count}" for name, count in per.items())
        yield f"{sum(per.values())} of {len(repeats)} windows were ended by: {reason} ({counts})"


def not_distinguishable(document: Mapping[str, Any]) -> list[str]:
    """Pairs of engines whose throughput intervals overlap."""
    results = document["results"]
    pairs = [(a, b) for i, a in enumerate(results) for b in results[i + 1 :]]
    return [
        f"{a['name']} and {b['name']}: throughput not distinguishable"
        for a, b in pairs
        if a["throughput_tok_s"] is not None
        and b["throughput_tok_s"] is not None
        and not distinguishable(a, b, "throughput_tok_s")
    ]
