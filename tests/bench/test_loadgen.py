"""Simulated servers with known service times: every metric against its analytic value."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from simulated import BatchServer, QueueServer, constant, exponential, smooth_step

from trtbuild.bench.loadgen import GROWING, Prompt, Window, run_load
from trtbuild.bench.loads import ClosedLoop, Load, OpenLoop, Replay, load_from_json, load_to_json
from trtbuild.bench.metrics import REQUEST_METRICS, distributions, run_values, token_gaps_ms
from trtbuild.bench.records import LoadRun, WarmupReport
from trtbuild.bench.warmup import WarmupRule

NO_WARMUP = WarmupRule(max_requests=0)
ONE_TOKEN = [Prompt((1, 2, 3), 1)]


def long_window(requests: int) -> Window:
    return Window(requests, 0.0, math.inf, math.inf, WarmupRule(max_requests=1000, max_seconds=math.inf))


def mean_latency_s(run: LoadRun) -> float:
    return float(np.mean(REQUEST_METRICS["latency_ms"].values(run.measured))) / 1e3


@pytest.mark.parametrize("concurrency", [1, 4, 16])
def test_closed_loop_on_a_batching_server_has_the_analytic_values(concurrency: int) -> None:
    step, prefill, prompt, answer = 0.010 + 0.001 * concurrency, 0.0002, 50, 32
    server = BatchServer(smooth_step(0.010, 0.001), prefill_s=prefill)
    run = run_load(server, [Prompt((1,) * prompt, answer)], ClosedLoop(concurrency), long_window(320))
    cycle = prefill * prompt * concurrency + answer * step
    first = prefill * prompt + step  # the users are spread out: no two prompts share a step
    per_token = (cycle - first) / (answer - 1)
    found, values = distributions(run.measured), run_values(run)
    assert found["ttft_ms"]["mean"] == pytest.approx(first * 1e3, rel=0.01)
    assert found["tpot_ms"]["mean"] == pytest.approx(per_token * 1e3, rel=0.01)
    assert found["latency_ms"]["p50"] == pytest.approx(cycle * 1e3, rel=0.01)
    assert found["latency_ms"]["max"] == pytest.approx(cycle * 1e3, rel=0.01)
    assert np.mean(token_gaps_ms(run.measured)) == pytest.approx(per_token * 1e3, rel=0.01)
    assert values["throughput_tok_s"] == pytest.approx(concurrency * answer / cycle, rel=0.01)
    assert values["throughput_req_s"] == pytest.approx(concurrency / cycle, rel=0.01)
    assert values["throughput_prompt_tok_s"] == pytest.approx(concurrency * prompt / cycle, rel=0.01)
    assert values["mean_in_flight"] == pytest.approx(concurrency, rel=0.01)
    assert values["error_pct"] == 0
    assert abs(values["little_discrepancy_pct"]) < 1
    assert run.warmup.stable and run.warmup.requests >= 16


def test_without_warmup_the_first_wave_is_measured_as_it_is() -> None:
    server = BatchServer(smooth_step(0.010, 0.001), prefill_s=0.0002)
    window = Window(8, 0.0, math.inf, math.inf, NO_WARMUP)
    run = run_load(server, [Prompt((1,) * 50, 10)], ClosedLoop(8), window)
    assert run.warmup == WarmupReport()
    assert {r.max_new_tokens for r in run.records} == {10}
    first = 8 * 50 * 0.0002 + 0.018
    assert distributions(run.measured[:8])["ttft_ms"]["max"] == pytest.approx(first * 1e3)


def lindley(arrivals: np.ndarray, services: np.ndarray, servers: int) -> np.ndarray:
    """Sojourn times of a first-come-first-served queue, computed without any event loop."""
    free = np.zeros(servers)
    sojourn = np.empty(len(arrivals))
    for i, (arrival, service) in enumerate(zip(arrivals, services, strict=True)):
        first = free.argmin()
        free[first] = max(free[first], arrival) + service
        sojourn[i] = free[first] - arrival
    return sojourn


def erlang_c(servers: int, offered: float) -> float:
    blocked = offered**servers / math.factorial(servers) / (1 - offered / servers)
    return blocked / (sum(offered**k / math.factorial(k) for k in range(servers)) + blocked)


def test_open_loop_on_mm1_has_the_analytic_values() -> None:
    rate, mu = 0.4, 1.0
    load = OpenLoop(rate, seed=5)
    run = run_load(QueueServer(exponential(mu, seed=6)), ONE_TOKEN, load, long_window(100_000))
    sojourn = 1 / (mu - rate)
    latency = np.array(REQUEST_METRICS["latency_ms"].values(run.measured)) / 1e3
    assert latency.mean() == pytest.approx(sojourn, rel=0.01)
    for q in (0.5, 0.9, 0.95, 0.99):  # the sojourn time of M/M/1 is exponential
        assert np.quantile(latency, q) == pytest.approx(-math.log(1 - q) * sojourn, rel=0.01)
    values = run_values(run)
    assert values["throughput_req_s"] == pytest.approx(rate, rel=0.01)
    assert values["mean_in_flight"] == pytest.approx(rate * sojourn, rel=0.01)
    assert abs(values["little_discrepancy_pct"]) < 1
    every = np.array([r.scheduled_s for r in run.records if r.succeeded])
    service = np.fromiter(exponential(mu, seed=6), float, len(every))
    exact = lindley(every, service, 1)
    ours = np.array([r.finished_s - r.scheduled_s for r in run.records if r.succeeded])
    np.testing.assert_allclose(ours, exact, rtol=1e-6, atol=1e-6)


def test_open_loop_on_mdc_has_the_analytic_values() -> None:
    servers, rate, service = 1, 0.5, 1.0
    run = run_load(QueueServer(constant(service), servers), ONE_TOKEN, OpenLoop(rate, seed=1), long_window(40_000))
    wait = rate * service / (2 * (1 - rate * service)) * service  # Pollaczek-Khinchine
    assert mean_latency_s(run) == pytest.approx(service + wait, rel=0.01)
    servers, rate = 4, 3.0
    run = run_load(QueueServer(constant(service), servers), ONE_TOKEN, OpenLoop(rate, seed=2), long_window(40_000))
    # Cosmetatos' correction of half the M/M/c wait is within 1 % of the exact M/D/c wait here.
    markov = erlang_c(servers, rate * service) * service / (servers - rate * service)
    load = rate * service / servers
    correction = 1 + (1 - load) * (servers - 1) * (math.sqrt(4 + 5 * servers) - 2) / (16 * servers * load)
    assert mean_latency_s(run) == pytest.approx(service + markov / 2 * correction, rel=0.01)
    scheduled = np.array([r.scheduled_s for r in run.records if r.succeeded])
    exact = lindley(scheduled, np.full(len(scheduled), service), servers)
    ours = np.array([r.finished_s - r.scheduled_s for r in run.records if r.succeeded])
    np.testing.assert_allclose(ours, exact, rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_arrivals_have_the_rate_and_the_variation_asked_for(burstiness: float) -> None:
    arrivals = OpenLoop(10.0, burstiness, seed=3).start(0.0)
    times = []
    for _ in range(40_000):
        times.append(arrivals.due())
        arrivals.taken()
    gaps = np.diff(times)
    assert gaps.mean() == pytest.approx(0.1, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(1 / math.sqrt(burstiness), rel=0.02)


def test_latency_counts_from_the_scheduled_time_of_an_overloaded_open_loop() -> None:
    window = Window(50, 0.0, math.inf, math.inf, NO_WARMUP)
    run = run_load(QueueServer(constant(1.0)), ONE_TOKEN, OpenLoop(2.0, burstiness=1e6), window)
    latency = REQUEST_METRICS["latency_ms"].values(run.measured[:50])
    assert latency[49] == pytest.approx(1000 * (1 + 49 * 0.5), rel=0.01)  # request k waits k * (1 - 1/2) s


def test_a_queue_that_only_grows_ends_the_run_and_a_steady_one_does_not() -> None:
    def run(rate: float, seed: int) -> LoadRun:
        window = Window(3000, 0.0, math.inf, math.inf, NO_WARMUP, stop_when_growing=True)
        return run_load(QueueServer(exponential(1.0, seed)), ONE_TOKEN, OpenLoop(rate, seed=seed + 100), window)

    for seed in range(5):
        lost = run(1.5, seed)
        assert lost.stop_reason == GROWING and len(lost.records) < 1500
        assert not lost.errors
        assert run(0.6, seed).stop_reason != GROWING


def test_replay_sends_at_the_recorded_times_and_measures_every_request() -> None:
    times = (0.0, 0.5, 0.6, 4.0)
    run = run_load(QueueServer(constant(1.0)), ONE_TOKEN, Replay(times), Window(1, 0.0, math.inf, math.inf, NO_WARMUP))
    assert [r.scheduled_s for r in run.measured] == list(times)
    assert [r.finished_s for r in run.measured] == [1.0, 2.0, 3.0, 5.0]
    assert run.stop_reason == "all requests answered"


@pytest.mark.parametrize("load", [ClosedLoop(3), OpenLoop(2.0, 0.5, 7), Replay((0.0, 1.5), "x")])
def test_loads_survive_json(load: Load) -> None:
    assert load_from_json(load_to_json(load)) == load


@pytest.mark.parametrize("tokens", [0, 1, 2])
def test_answers_of_zero_one_and_two_tokens(tokens: int) -> None:
    server = BatchServer(smooth_step(0.01, 0.0), answer_tokens=tokens)
    run = run_load(server, [Prompt((1, 2), 9)], ClosedLoop(2), Window(40, 0.0, math.inf, math.inf, NO_WARMUP))
    found, values = distributions(run.measured), run_values(run)
    assert found["latency_ms"]["mean"] == pytest.approx(10 * max(tokens, 1))
    assert (found["ttft_ms"] is None) == (tokens == 0)
    assert (found["tpot_ms"] is None) == (tokens < 2)
    assert (values["throughput_tok_s"] is None) == (tokens == 0)
    assert values["throughput_req_s"] == pytest.approx(2 / (0.01 * max(tokens, 1)), rel=0.01)
    assert values["error_pct"] == 0


def test_failed_requests_are_errors_and_not_latencies() -> None:
    server = BatchServer(smooth_step(0.01, 0.0), fail_every=4)
    run = run_load(server, [Prompt((1, 2), 5)], ClosedLoop(2), Window(100, 0.0, math.inf, math.inf, NO_WARMUP))
    assert run_values(run)["error_pct"] == pytest.approx(25, abs=1)
    assert {r.error for r in run.errors} == {"simulated failure"}
    assert distributions(run.measured)["latency_ms"]["n"] == len(run.measured) - len(run.errors)


def test_an_engine_that_refuses_everything_at_once_is_not_asked_for_ever() -> None:
    server = BatchServer(smooth_step(0.01, 0.0), fail_every=1)
    run = run_load(server, [Prompt((1, 2), 5)], ClosedLoop(4), Window(10, 10.0, math.inf, math.inf))
    assert run.stop_reason.endswith("requests failed")
    assert len(run.records) < 300
    refused = run_load(server, [Prompt((1, 2), 5)], ClosedLoop(4), Window(10, 10.0, math.inf, math.inf, NO_WARMUP))
    assert run_values(refused)["error_pct"] == 100


def test_a_single_request_has_a_value_but_no_percentile() -> None:
    server = BatchServer(smooth_step(0.01, 0.0))
    run = run_load(server, [Prompt((1, 2), 5)], ClosedLoop(1), Window(1, 0.0, math.inf, math.inf, NO_WARMUP))
    assert len(run.records) == 1
    latency = distributions(run.measured)["latency_ms"]
    assert latency["n"] == 1 and latency["mean"] == pytest.approx(50)
    assert latency["p50"] is None and latency["p99"] is None and latency["std"] is None
    assert run_values(run)["throughput_tok_s"] == pytest.approx(100)


def test_the_load_never_drains_between_warmup_and_window_nor_at_its_end() -> None:
    server = BatchServer(smooth_step(0.01, 0.001), noise=0.01)
    prompts = [Prompt((1,), 5 + 3 * i) for i in range(7)]
    run = run_load(server, prompts, ClosedLoop(8), Window(200, 0.0, math.inf, math.inf))
    for time_s in np.linspace(run.start_s, max(r.finished_s for r in run.measured) - 1e-6, 50):
        held = sum(r.scheduled_s <= time_s and (r.finished_s is None or r.finished_s > time_s) for r in run.records)
        assert held == 8
    assert all(r.finish is None for r in run.records if r.phase == "after" and r.finished_s is None)


class _Stop:
    def __init__(self, after: int) -> None:
        self.after, self.finished = after, 0

    def tick(self, status, finished) -> bool:  # noqa: ARG002
        self.finished += len(finished)
        return self.finished >= self.after


def test_an_interrupted_run_keeps_what_it_has_and_says_so() -> None:
    server = BatchServer(smooth_step(0.01, 0.0))
    window = Window(10_000, 0.0, math.inf, math.inf, NO_WARMUP)
    run = run_load(server, [Prompt((1, 2), 5)], ClosedLoop(4), window, _Stop(100))
    assert run.partial and run.stop_reason == "interrupted"
    assert 100 <= len(run.succeeded) < 1000
    assert not run.errors
    assert not server.active and not server.queue
    assert LoadRun.from_json(run.to_json()) == run
