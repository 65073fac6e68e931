"""In-flight batching: output tokens per second of one request at a time and of 16 in flight, engines in turn.

    python benchmarks/cpu_inflight.py ENGINE… [--openvino DIR…] [--rounds 3] [--json OUT]

ENGINE are trtbuild's CPU engines; DIR are OpenVINO folders of the same model that another tool exported, run by the
same pipeline with the same limits, precision and KV cache as the first engine. Every round runs every engine, so a
slow moment of the machine favours none. Bounds: 16 in flight at least 4 times one at a time, and at least 95 % of each
DIR.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from trtbuild.targets.cpu.driver import CpuDriver, open_driver
from trtbuild.targets.cpu.loading import load_engine
from trtbuild.targets.serving import Request

PROMPT_TOKENS, NEW_TOKENS, IN_FLIGHT = 21, 64, 16
SINGLE_REQUESTS = 2


@dataclass
class Rates:
    """Output tokens per second of each round."""

    single: list[float]
    in_flight: list[float]


def requests(count: int, first_id: int, vocab_size: int) -> list[Request]:
    rng = np.random.default_rng(7)
    return [
        Request(first_id + i, rng.integers(5, vocab_size, PROMPT_TOKENS).tolist(), NEW_TOKENS, ignore_eos=True)
        for i in range(count)
    ]


def rate(driver: CpuDriver, batch: list[Request]) -> float:
    """Run requests together; output tokens per second from submission to the last token."""
    started = driver.now()
    for request in batch:
        driver.submit(request)
    tokens, running, now = 0, len(batch), started
    while running:
        for event in driver.step(None):
            tokens += len(event.token_ids)
            running -= event.finish is not None
            now = event.time_s
    return tokens / (now - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", type=Path, nargs="+", metavar="ENGINE")
    parser.add_argument("--openvino", type=Path, nargs="*", default=[], metavar="DIR")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    first = load_engine(arguments.engines[0])
    vocab_size = int(first.engine.settings["vocab_size"])
    drivers = {str(path): open_driver(path) for path in arguments.engines}
    for path in arguments.openvino:
        drivers[str(path)] = CpuDriver(path, first.engine.limits, first.properties, vocab_size=vocab_size)
    results = {name: Rates([], []) for name in drivers}
    for number in range(arguments.rounds + 1):  # the first round warms up
        for name, driver in drivers.items():
            alone = requests(SINGLE_REQUESTS, 0, vocab_size)
            single = statistics.median(rate(driver, [request]) for request in alone)
            together = rate(driver, requests(IN_FLIGHT, 100, vocab_size))
            if number:
                results[name].single.append(single)
                results[name].in_flight.append(together)
    failed = False
    print(f"{'tok/s, median of ' + str(arguments.rounds):<44} {'1':>8} {IN_FLIGHT:>8} {'gain':>6}")
    for name, rates in results.items():
        gain = statistics.median(b / a for a, b in zip(rates.single, rates.in_flight, strict=True))
        single, together = statistics.median(rates.single), statistics.median(rates.in_flight)
        print(f"{name[-44:]:<44} {single:8.1f} {together:8.1f} {gain:6.2f}")
        failed |= name not in map(str, arguments.openvino) and gain < 4
    ours = results[str(arguments.engines[0])]
    for path in arguments.openvino:
        theirs = results[str(path)]
        for title in ("single", "in_flight"):
            pairs = zip(getattr(ours, title), getattr(theirs, title), strict=True)
            share = statistics.median(a / b for a, b in pairs)
            print(f"{arguments.engines[0]} has {100 * share:.0f} % of {path} ({title})")
            failed |= title == "in_flight" and share < 0.95
    if arguments.json:
        document = {name: asdict(rates) for name, rates in results.items()}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for driver in drivers.values():
        driver.close()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
