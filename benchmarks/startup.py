"""What `trtbuild --help` costs against `python -c "import typer, rich"`: whole processes, side by side, medians.

    python benchmarks/startup.py

The bound is a ratio of 1.5; both commands run in turn so that a slow moment of the machine favours neither.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

RUNS = 21
BOUND = 1.5
COMMANDS = {
    "trtbuild --help": [sys.executable, "-m", "trtbuild", "--help"],
    "import typer, rich": [sys.executable, "-c", "import typer, rich"],
}


def main() -> None:
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(RUNS):
        for name, command in COMMANDS.items():
            started = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            times[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratios = [ours / base for ours, base in zip(*times.values(), strict=True)]
    for name, value in medians.items():
        print(f"{name:<20} {value * 1e3:7.1f} ms (median of {RUNS})")
    ratio = statistics.median(ratios)
    print(f"ratio                {ratio:7.2f} (bound {BOUND})")
    sys.exit(ratio > BOUND)


if __name__ == "__main__":
    main()
