"""One engine under two names, trial after trial: how often its throughput is wrongly told apart, and a slowdown missed.

    python benchmarks/same_engine_twice.py ENGINE [--trials 20] [--seconds 3] [--in-flight 8] [--max-repeats 9]
                                           [--json OUT]

ENGINE is any engine with a driver here. Each trial is what `trtbuild bench` does for one load: both copies open in
processes of their own, three repeats in turn and more while 10 % could not be told, intervals from the repeats. Bound:
not distinguishable in 19 of 20. The same repeats with one copy's throughput cut by 10 % must be told apart, and are
reported beside it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from trtbuild.bench.engines import read_sources
from trtbuild.bench.loadgen import Prompt, Window
from trtbuild.bench.loads import ClosedLoop
from trtbuild.bench.metrics import RUN_METRICS
from trtbuild.bench.remote import EngineProcess
from trtbuild.bench.settings import window_for
from trtbuild.bench.statistics import repeat_intervals, resolution_pct
from trtbuild.bench.warmup import WarmupRule
from trtbuild.bench.workload import synthetic_prompts

REPEATS = 3
RESOLUTION_PCT = 10.0


def trial(
    processes: dict[str, EngineProcess],
    prompts: tuple[Prompt, ...],
    load: ClosedLoop,
    window: Window,
    max_repeats: int,
) -> dict[str, list[float]]:
    """Tokens per second of every repeat, engines in turn."""
    found: dict[str, list[float]] = {name: [] for name in processes}
    for repeat in range(max_repeats):
        if repeat >= REPEATS and (resolution_pct(found) or 0.0) <= RESOLUTION_PCT:
            break
        for name, process in processes.items():
            value = RUN_METRICS["throughput_tok_s"].of(process.load(prompts, load, window))
            assert value is not None
            found[name].append(value)
    return found


def overlap(groups: dict[str, list[float]]) -> bool:
    """Whether the intervals of the two groups share a point."""
    first, second = repeat_intervals(groups).values()
    assert first is not None and second is not None
    return first.overlaps(second)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--in-flight", type=int, default=8)
    parser.add_argument("--max-repeats", type=int, default=9)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    sources = read_sources([arguments.engine, arguments.engine])
    load = ClosedLoop(arguments.in_flight)
    rule = WarmupRule(max_requests=arguments.in_flight)
    window = window_for(load, Window(arguments.in_flight, arguments.seconds, 60.0, warmup=rule))
    prompts = synthetic_prompts(sources[0].vocab_size, (16, 32), 24, True, 64, 0).prompts
    processes = {source.name: EngineProcess(dataclasses.replace(source)) for source in sources}
    same = caught = 0
    trials = []
    try:
        for process in processes.values():
            process.open_driver(None)
        for number in range(arguments.trials):
            groups = trial(processes, prompts, load, window, arguments.max_repeats)
            second = list(groups)[1]
            slower = {**groups, second: [value * 0.9 for value in groups[second]]}
            same += overlap(groups)
            caught += not overlap(slower)
            trials.append(groups)
            values = "  ".join(f"{name} {[round(v, 1) for v in repeats]}" for name, repeats in groups.items())
            print(f"trial {number + 1}: {values}  not distinguishable {same}/{number + 1}, slowdown told {caught}")
    finally:
        for process in processes.values():
            process.close()
    enough = same >= 0.95 * arguments.trials
    print(f"not distinguishable in {same} of {arguments.trials} (bound 19 of 20); 10 % slower told apart in {caught}")
    if arguments.json:
        document = {"trials": trials, "not_distinguishable": same, "slowdown_told_apart": caught}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if enough else 1)


if __name__ == "__main__":
    main()
