"""The entropy search on real histograms: trtbuild's against the plain loop and, where installed, modelopt's own.

    python benchmarks/calibration_entropy.py RECORD [--histograms 6] [--json OUT]

RECORD is a folder written by `trtbuild calibrate`. The histograms are those of linear inputs, spread over the layers.
Bounds: the same number of bins every time, and at least 100 times faster than each loop.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from entropy_loop import entropy_bins_by_loop

from trtbuild.calibrate.histogram import Histogram
from trtbuild.calibrate.record import SMOOTHING_GROUPS, Record, open_record
from trtbuild.calibrate.threshold import entropy_bins

REPEATS = 5
BOUND = 100.0


def spread(record: Record, count: int) -> list[tuple[str, Histogram]]:
    """Histograms of `count` inputs, groups in turn, from the first layer to the last."""
    layers = np.linspace(0, record.info.num_layers - 1, count).astype(int)
    groups = list(SMOOTHING_GROUPS)
    chosen = [(int(layer), groups[i % len(groups)]) for i, layer in enumerate(layers)]
    return [(f"layer {layer} {group}", record.layer(layer).groups[group].tensor) for layer, group in chosen]


def by_modelopt(histogram: Histogram) -> int:
    import torch
    from modelopt.torch.quantization.calib import HistogramCalibrator

    calibrator = HistogramCalibrator(8, None, False)
    calibrator._calib_hist = torch.from_numpy(histogram.counts.astype(np.float64))
    calibrator._calib_bin_edges = torch.arange(2049, dtype=torch.float64)
    return round(float(calibrator.compute_amax("entropy")))


def timed(search: Callable[[], int], repeats: int) -> tuple[int, float]:
    """Result and the shortest of `repeats` times, in seconds."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        found = search()
        times.append(time.perf_counter() - started)
    return found, min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path)
    parser.add_argument("--histograms", type=int, default=6)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    loops: dict[str, Callable[[Histogram], int]] = {"plain loop": lambda h: entropy_bins_by_loop(h.counts)}
    if importlib.util.find_spec("modelopt"):
        loops["modelopt"] = by_modelopt
    rows: list[dict[str, Any]] = []
    for name, histogram in spread(open_record(arguments.record), arguments.histograms):
        bins, seconds = timed(functools.partial(entropy_bins, histogram.counts), REPEATS)
        row: dict[str, Any] = {"tensor": name, "bins": bins, "trtbuild_s": seconds}
        for loop, search in loops.items():
            found, loop_seconds = timed(functools.partial(search, histogram), 1)
            row |= {f"{loop} bins": found, f"{loop} s": loop_seconds, f"{loop} ratio": loop_seconds / seconds}
        rows.append(row)
        print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
    agree = all(row[f"{loop} bins"] == row["bins"] for row in rows for loop in loops)
    slowest = {loop: min(row[f"{loop} ratio"] for row in rows) for loop in loops}
    print(f"same bins: {agree}; at least {', '.join(f'{ratio:.0f}× {loop}' for loop, ratio in slowest.items())}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows, "agree": agree, "ratios": slowest}, indent=1))
    sys.exit(not agree or min(slowest.values()) < BOUND)


if __name__ == "__main__":
    main()
