"""Which precision to ship: every requirement judged for every engine, one sentence, and what the others lack."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trtbuild.bench.loadgen import GROWING
from trtbuild.bench.quality import Budget, Judgement, judge_quality
from trtbuild.bench.session import MAX_ERROR_PCT
from trtbuild.bench.slo import Slo
from trtbuild.bench.statistics import Interval

_SEVERITY = {"pass": 0, "inconclusive": 1, "fail": 2}


@dataclass(frozen=True)
class Objective:
    """What decides between engines that pass: a value of a result, its unit, and which way is better."""

    title: str
    value: Callable[[Mapping[str, Any]], float | None]
    metric: str | None
    """Key of the interval that says whether two values can be told apart; None when they are exact."""
    higher_is_better: bool
    form: str


def _mean(name: str) -> Callable[[Mapping[str, Any]], float | None]:
    return lambda result: None if result[name] is None else result[name]["mean"]


OBJECTIVES: Mapping[str, Objective] = {
    "throughput": Objective("throughput", lambda r: r["throughput_tok_s"], "throughput_tok_s", True, "{:.0f} tok/s"),
    "ttft": Objective("time to first token", _mean("ttft_ms"), "ttft_ms", False, "{:.0f} ms"),
    "tpot": Objective("time per output token", _mean("tpot_ms"), "tpot_ms", False, "{:.1f} ms"),
    "latency": Objective("latency", _mean("latency_ms"), "latency_ms", False, "{:.0f} ms"),
    "memory": Objective("peak memory", lambda r: r["peak_memory_bytes"], None, False, "{:.3g} bytes"),
}


def judge(result: Mapping[str, Any], slo: Slo, budget: Budget | None, slo_load: int) -> list[Judgement]:
    """Every requirement the profile has of one engine, with its answer; quality is left out where `budget` is None."""
    judgements = [_judge_errors(result)]
    if slo.limits:
        judgements.append(_judge_slo(result, slo, slo_load))
    quality = result["quality"] or {}
    if budget is None or quality.get("is_baseline"):
        return judgements
    return judgements + judge_quality(quality, budget)


def _judge_errors(result: Mapping[str, Any]) -> Judgement:
    if result["error"] is not None:
        return Judgement("answers", "fail", result["error"])
    requests, errors = result["requests"], result["errors"]
    if requests == 0:
        return Judgement("answers", "inconclusive", "nothing was measured")
    share = errors / requests * 100
    verdict = "pass" if share <= MAX_ERROR_PCT else "fail"
    return Judgement("answers", verdict, f"{errors} of {requests} requests failed")


def _judge_slo(result: Mapping[str, Any], slo: Slo, slo_load: int) -> Judgement:
    load = result["loads"][slo_load]
    met = load["slo"]
    asked = f"{slo.describe()} under {load['load']}"
    if met is None or not met["requests"]:
        return Judgement("objective", "inconclusive", f"{asked}: not measured")
    if any(repeat["stop_reason"] == GROWING for repeat in load["repeats"]):
        peak = max((x["throughput_req_s"] or 0.0 for x in result["loads"]), default=0.0)
        return Judgement(
            "objective", "fail", f"{asked}: the queue only grows, the engine answers {peak:.3g} requests/s at most"
        )
    share = met["good"] / met["requests"] * 100
    low, high = (x * 100 for x in met["interval"])
    spread = f"{share:.1f} % of {met['requests']} requests do ({low:.1f} to {high:.1f} %)"
    return Judgement("objective", met["verdict"], f"{asked}: {spread}")


def overall(judgements: Sequence[Judgement]) -> str:
    """Fail beats inconclusive beats pass."""
    return max((j.verdict for j in judgements), key=lambda v: _SEVERITY[v], default="pass")


@dataclass(frozen=True)
class Verdict:
    """The decision: `ship` is the name of an engine or None, `others` maps each other name to what it lacks."""

    ship: str | None
    sentence: str
    others: Mapping[str, str]
    judgements: Mapping[str, Sequence[Judgement]]

    def verdict_of(self, name: str) -> str:
        return overall(self.judgements[name])

    def to_json(self) -> dict[str, Any]:
        judged = {name: [asdict(j) for j in items] for name, items in self.judgements.items()}
        return {"ship": self.ship, "sentence": self.sentence, "others": dict(self.others), "judgements": judged}


def decide(
    results: Sequence[Mapping[str, Any]], profile: str, objective: str, slo: Slo, budget: Budget | None, slo_load: int
) -> Verdict:
    """Choose among the engines that pass everything.

    The best by the objective wins; one that cannot be told apart from it wins instead if it needs less memory.
    """
    judged = {r["name"]: judge(r, slo, budget, slo_load) for r in results}
    passing = [r for r in results if overall(judged[r["name"]]) == "pass"]
    goal = OBJECTIVES[objective]
    chosen = _best(passing, goal)
    if chosen is None:
        return Verdict(None, _none_passes(results, judged, profile), _lacks(results, judged, None, goal), judged)
    others = _lacks(results, judged, chosen, goal)
    why = _why(chosen, results, passing, judged, profile, goal)
    if budget is None:
        why = f"{why[:-1]}; quality was not looked at."
    return Verdict(chosen["name"], why, others, judged)


def _best(passing: Sequence[Mapping[str, Any]], goal: Objective) -> Mapping[str, Any] | None:
    valued = [(goal.value(r), r) for r in passing]
    known = [(value, r) for value, r in valued if value is not None]
    if not known:
        return passing[0] if passing else None
    best = max(known, key=lambda pair: pair[0] if goal.higher_is_better else -pair[0])[1]
    equals = [r for _, r in known if r is best or not distinguishable(r, best, goal.metric)]
    return min(equals, key=lambda r: (r["peak_memory_bytes"] or float("inf"), r is not best))


def distinguishable(a: Mapping[str, Any], b: Mapping[str, Any], metric: str | None) -> bool:
    """Whether two results' intervals of a metric have no point in common; without intervals nothing is known."""
    if metric is None:
        return True
    ends = (a["intervals"].get(metric), b["intervals"].get(metric))
    if ends[0] is None or ends[1] is None:
        return False
    return not Interval(0.0, *ends[0]).overlaps(Interval(0.0, *ends[1]))


def _why(
    chosen: Mapping[str, Any],
    results: Sequence[Mapping[str, Any]],
    passing: Sequence[Mapping[str, Any]],
    judged: Mapping[str, Sequence[Judgement]],
    profile: str,
    goal: Objective,
) -> str:
    value = goal.value(chosen)
    measured = "" if value is None else f" ({goal.form.format(value)})"
    known = [r for r in passing if r is not chosen and goal.value(r) is not None]
    rivals = [r["name"] for r in known if not distinguishable(r, chosen, goal.metric)]
    if rivals:
        rank = f"{goal.title}{measured} not distinguishable from {' and '.join(rivals)}, in the least memory"
    elif len(passing) == 1 and len(results) > 1:
        rank = f"the only one that passes, {goal.title}{measured}"
    else:
        rank = f"best {goal.title}{measured}"
    reasons = [rank, *(j.reason for j in judged[chosen["name"]] if j.question != "answers")]
    return f"Ship {chosen['name']} under the profile {profile}: {'; '.join(reasons)}."


def _none_passes(results: Sequence[Mapping[str, Any]], judged: Mapping[str, Sequence[Judgement]], profile: str) -> str:
    open_ones = [r["name"] for r in results if overall(judged[r["name"]]) == "inconclusive"]
    if open_ones:
        names = ", ".join(open_ones)
        return f"No precision can be shown to meet the profile {profile}: {names} inconclusive, measure longer."
    return f"No precision meets the profile {profile}."


def _lacks(
    results: Sequence[Mapping[str, Any]],
    judged: Mapping[str, Sequence[Judgement]],
    chosen: Mapping[str, Any] | None,
    goal: Objective,
) -> dict[str, str]:
    """For every engine but the chosen one, what would have to change for it to be shipped."""
    found = {}
    for result in results:
        if result is chosen:
            continue
        parts = [_change(j, result) for j in judged[result["name"]] if j.verdict != "pass"]
        if not parts and chosen is not None:
            parts = [_would_need(result, chosen, goal)]
        found[result["name"]] = "; ".join(parts)
    return found


def _change(judgement: Judgement, result: Mapping[str, Any]) -> str:
    if judgement.verdict == "inconclusive":
        return f"undecided, {judgement.reason}: measure longer"
    if judgement.question == "objective":
        return f"misses {judgement.reason}{_way(result)}"
    return f"misses {judgement.reason}"


def _way(result: Mapping[str, Any]) -> str:
    """Which smaller load would meet the objective, where that was searched."""
    searches = (("rate_capacity", "rate_qps", "requests/s"), ("capacity", "concurrency", "in flight"))
    found = [(result[name][level], unit) for name, level, unit in searches if result.get(name) is not None]
    if not found:
        return ""
    met = [f"{value:g} {unit}" for value, unit in found if value]
    return f"; up to {' or '.join(met)} meet it" if met else "; not even one request at a time meets it"


def _would_need(result: Mapping[str, Any], chosen: Mapping[str, Any], goal: Objective) -> str:
    ours, best = goal.value(result), goal.value(chosen)
    if ours is None or best is None:
        return f"its {goal.title} was not measured"
    if not distinguishable(result, chosen, goal.metric):
        return f"passes with a {goal.title} not distinguishable from {chosen['name']}'s, in more memory"
    factor = best / ours if goal.higher_is_better else ours / best
    return f"passes; its {goal.title} would have to be {factor:.2f} times better ({goal.form.format(ours)})"
