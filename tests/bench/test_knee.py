"""The knee of servers whose capacity is known, and none where there is none."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from simulated import BatchServer, capacity_step, smooth_step

from trtbuild.bench.knee import Knee, Probe, find_knee
from trtbuild.bench.loadgen import Prompt, Window, run_load
from trtbuild.bench.loads import ClosedLoop
from trtbuild.bench.metrics import run_values
from trtbuild.bench.warmup import WarmupRule

PROMPTS = [Prompt((1,) * 8, 6 + 3 * (i % 5)) for i in range(25)]


def search(step, noise: float, seed: int, limit: int = 256, prefill: float = 0.0, slots: int = 10**9) -> Knee:
    def probe(concurrency: int) -> Probe:
        server = BatchServer(step, noise=noise, seed=seed * 1000 + concurrency, prefill_s=prefill, slots=slots)
        window = Window(max(40, 3 * concurrency), 0.0, math.inf, math.inf, WarmupRule(max_requests=2 * concurrency))
        run = run_load(server, PROMPTS, ClosedLoop(concurrency), window)
        return Probe(concurrency, run_values(run)["throughput_tok_s"])

    return find_knee(probe, limit)


@pytest.mark.parametrize("seed", range(20))
def test_the_knee_of_a_known_capacity_is_found_within_ten_percent(seed: int) -> None:
    capacity = [6, 9, 12, 17, 24, 31, 40, 50][seed % 8]
    knee = search(capacity_step(capacity, 0.02), noise=0.05, seed=seed)
    assert knee.concurrency == pytest.approx(capacity, rel=0.10), knee
    assert not knee.lower_bound
    assert 0.85 * capacity <= knee.best <= 1.1 * capacity


@pytest.mark.parametrize("seed", range(10))
def test_a_server_that_saturates_like_a_cpu_has_no_false_knee(seed: int) -> None:
    knee = search(
        smooth_step(0.010, [0.001, 0.002, 0.004, 0.010, 0.020][seed % 5]), noise=0.05, seed=seed, prefill=1e-5
    )
    assert knee.concurrency is None, knee
    assert knee.best is not None and knee.reason


@pytest.mark.parametrize("seed", range(5))
def test_a_server_that_is_saturated_from_the_first_request_has_no_knee(seed: int) -> None:
    knee = search(lambda active: 0.01 * active, noise=0.05, seed=seed)
    assert knee.concurrency is None and knee.best in (1, 2), knee


def test_a_ladder_cut_at_its_limit_gives_a_lower_bound_only() -> None:
    knee = search(capacity_step(64, 0.02), noise=0.02, seed=1, limit=16)
    assert knee.concurrency is None and knee.lower_bound and knee.best == 16
    assert "limit of 16" in knee.stop_reason


def test_an_engine_with_few_slots_has_its_knee_there() -> None:
    knee = search(lambda _: 0.02, noise=0.02, seed=3, slots=16)
    assert knee.concurrency == pytest.approx(16, rel=0.10), knee


def test_errors_end_the_ladder_and_are_named() -> None:
    def probe(concurrency: int) -> Probe:
        return Probe(concurrency, 10.0 * concurrency, "errors" if concurrency >= 8 else None)

    knee = find_knee(probe, 64)
    assert knee.stop_reason == "errors at 8 in flight"
    assert knee.concurrency is None and knee.best == 4
    assert max(p.concurrency for p in knee.probes) == 8
