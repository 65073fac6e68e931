"""Admission, traces, settings, capacity and memory: each through its public functions."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from builders import write_tokenizer
from simulated import BatchServer, QueueServer, constant, smooth_step

from trtbuild.bench.admission import QUEUE_FULL, Admission, AdmittingDriver
from trtbuild.bench.capacity import find_capacity
from trtbuild.bench.driver import EngineMemory, Request
from trtbuild.bench.loads import ClosedLoop, OpenLoop, Replay
from trtbuild.bench.memory import memory_parts
from trtbuild.bench.metrics import REQUEST_METRICS, RUN_METRICS
from trtbuild.bench.records import RequestRecord
from trtbuild.bench.settings import Overrides, resolve, window_for
from trtbuild.bench.slo import Slo, attainment, is_good
from trtbuild.bench.trace import read_trace, scale_trace
from trtbuild.bench.workload import chat_prompts, engine_tokenizer, file_prompts, synthetic_prompts, trace_prompts
from trtbuild.errors import InputRefused, UsageError
from trtbuild.machine import process_memory
from trtbuild.profile import Profile
from trtbuild.profile import Slo as ProfileSlo
from trtbuild.targets.base import Limits


def finish_order(admission: Admission, requests: list[Request]) -> list[tuple[int, str | None]]:
    driver = AdmittingDriver(QueueServer(constant(1.0), servers=admission.slots), admission)
    for request in requests:
        driver.submit(request)
    ended: list[tuple[int, str | None]] = []
    for _ in range(100):
        ended += [(e.request_id, e.error) for e in driver.step(None) if e.finish]
    return ended


def test_short_requests_go_first_when_asked_and_ties_keep_their_order() -> None:
    requests = [Request(i, [1] * n, 1) for i, n in enumerate([9, 5, 1, 5, 3])]
    assert [i for i, _ in finish_order(Admission(1), requests)] == [0, 1, 2, 3, 4]
    assert [i for i, _ in finish_order(Admission(1, "short-first"), requests)] == [0, 2, 4, 1, 3]


def test_a_full_queue_refuses_and_says_so() -> None:
    requests = [Request(i, [1], 1) for i in range(5)]
    ended = dict(finish_order(Admission(1, queue_limit=2), requests))
    assert [i for i, error in ended.items() if error == QUEUE_FULL] == [3, 4]
    assert len(ended) == 5


def test_waiting_and_running_requests_can_be_cancelled() -> None:
    engine = BatchServer(smooth_step(1.0, 0.0))
    driver = AdmittingDriver(engine, Admission(1))
    for i in range(3):
        driver.submit(Request(i, [1], 3))
    driver.cancel(1)
    driver.cancel(0)
    assert not engine.active and not engine.queue


def trace_file(path: Path, *rows: str, head: str = "TIMESTAMP,ContextTokens,GeneratedTokens") -> Path:
    path.write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")
    return path


def test_a_trace_is_read_with_dates_of_any_precision_and_with_seconds(tmp_path: Path) -> None:
    dated = read_trace(
        trace_file(tmp_path / "a.csv", "2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:50.9951690,396,109")
    )
    assert dated.times_s == (0.0, pytest.approx(4.314579, abs=1e-6))
    assert dated.prompt_tokens == (374, 396) and dated.output_tokens == (44, 109)
    plain = read_trace(trace_file(tmp_path / "b.csv", "7.5,1,2", "5,3,4"))
    assert plain.times_s == (0.0, 2.5) and plain.prompt_tokens == (3, 1)


@pytest.mark.parametrize(
    ("rows", "head", "where"),
    [
        (["1,2"], "TIMESTAMP,ContextTokens,GeneratedTokens", "line 2"),
        (["1,2,3", "yesterday,2,3"], "TIMESTAMP,ContextTokens,GeneratedTokens", "line 3"),
        (["1,-2,3"], "TIMESTAMP,ContextTokens,GeneratedTokens", "line 2"),
        (["nan,2,3"], "TIMESTAMP,ContextTokens,GeneratedTokens", "line 2"),
        (["1,2,3"], "TIMESTAMP,ContextTokens", "GeneratedTokens"),
        ([], "TIMESTAMP,ContextTokens,GeneratedTokens", "no requests"),
    ],
)
def test_a_bad_trace_is_refused_with_its_line(tmp_path: Path, rows: list[str], head: str, where: str) -> None:
    with pytest.raises(InputRefused, match=where):
        read_trace(trace_file(tmp_path / "bad.csv", *rows, head=head))


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1e4), st.integers(1, 5000), st.integers(0, 5000)), min_size=1, max_size=30),
    st.floats(0.1, 50),
    st.integers(1, 40),
    st.integers(1, 2000),
    st.integers(1, 2000),
)
def test_a_scaled_trace_fits_the_engine(
    rows: list[tuple[float, int, int]], speed: float, count: int, max_input: int, room: int
) -> None:
    rows = sorted(rows)
    trace = read_like(rows)
    scaled = scale_trace(trace, speed=speed, max_requests=count, max_input_len=max_input, max_seq_len=max_input + room)
    assert len(scaled.times_s) == min(count, len(rows))
    for time_s, prompt, output, original in zip(
        scaled.times_s, scaled.prompt_tokens, scaled.output_tokens, rows, strict=False
    ):
        assert time_s * speed == pytest.approx(original[0] - rows[0][0], abs=1e-6)
        assert prompt == min(original[1], max_input)
        assert output == max(1, min(original[2], max_input + room - prompt))
        assert prompt + output <= max_input + room


def read_like(rows: list[tuple[float, int, int]]):
    from trtbuild.bench.trace import Trace

    start = rows[0][0]
    return Trace(tuple(r[0] - start for r in rows), tuple(r[1] for r in rows), tuple(r[2] for r in rows), "a trace")


def test_a_clipped_trace_says_so() -> None:
    trace = read_like([(0.0, 100, 10), (1.0, 10, 900), (2.0, 10, 10)])
    scaled = scale_trace(trace, speed=2.0, max_input_len=64, max_seq_len=128)
    assert scaled.story == (
        "a trace: 3 of 3 requests, 2 times as fast, 1 prompts and 1 answers clipped to the engine's limits"
    )


PROFILE = Profile(name="p", description="d.")


def test_the_objectives_rate_is_measured_and_judged_at() -> None:
    profile = dataclasses.replace(PROFILE, slo=ProfileSlo(ttft_ms=100.0, rate_qps=3.0))
    settings = resolve(profile, Overrides(), None)
    assert settings.loads == (ClosedLoop(1), ClosedLoop(16), OpenLoop(3.0))
    assert settings.headline == 1 and settings.slo_load == 2
    given_rate = resolve(profile, Overrides(rates_qps=(5.0,)), None)
    assert given_rate.loads == (OpenLoop(5.0),) and given_rate.headline == given_rate.slo_load == 0
    given_users = resolve(profile, Overrides(concurrency=(4, 2)), None)
    assert given_users.loads == (ClosedLoop(2), ClosedLoop(4)) and given_users.headline == 1
    with pytest.raises(UsageError):
        resolve(profile, Overrides(rates_qps=()), None)


def test_windows_suit_their_load() -> None:
    window = resolve(PROFILE, Overrides(), None).window
    closed = window_for(ClosedLoop(100), window)
    assert closed.min_requests == 100 and closed.warmup.max_requests == 100
    assert window_for(OpenLoop(1.0), window).stop_when_growing
    assert window_for(Replay(tuple(map(float, range(50)))), window).warmup.max_requests == 5
    none = dataclasses.replace(window, warmup=dataclasses.replace(window.warmup, max_requests=0))
    assert window_for(ClosedLoop(8), none).warmup.max_requests == 0


def record(ttft: float, tpot: float, tokens: int, finish: str = "stop") -> RequestRecord:
    times = [ttft + i * tpot for i in range(tokens)]
    return RequestRecord(0, 0, "measured", 0.0, 0.0, 5, 9, times, [1] * tokens, times[-1] if times else 0.1, finish)


def test_a_request_is_good_only_if_it_meets_every_limit() -> None:
    slo = Slo(ttft_ms=100, tpot_ms=50)
    assert is_good(record(0.09, 0.04, 5), slo)
    assert not is_good(record(0.11, 0.04, 5), slo)
    assert not is_good(record(0.09, 0.06, 5), slo)
    assert not is_good(record(0.09, 0.04, 1), slo)  # no TPOT is not a good TPOT
    assert not is_good(record(0.09, 0.04, 5, "error"), slo)
    assert is_good(record(0.09, 0.04, 1), Slo(ttft_ms=100))


@pytest.mark.parametrize(("good", "bad", "verdict"), [(500, 0, "pass"), (30, 0, "inconclusive"), (90, 10, "fail")])
def test_attainment_is_judged_by_its_wilson_interval(good: int, bad: int, verdict: str) -> None:
    records = [record(0.05, 0.01, 3)] * good + [record(5.0, 0.01, 3)] * bad
    assert attainment(records, Slo(ttft_ms=100)).verdict == verdict


@settings(deadline=None)
@given(st.integers(0, 200), st.integers(1, 128))
def test_the_capacity_found_is_the_true_one(truth: int, limit: int) -> None:
    slo = Slo(ttft_ms=100)

    met, missed = (attainment([record(ttft, 0.01, 3)] * 500, slo) for ttft in (0.05, 5.0))

    def probe(concurrency: int):
        return met if concurrency <= truth else missed

    found = find_capacity(probe, {}, slo.share, limit)
    expected = min(truth, limit)
    assert found.concurrency <= expected
    assert expected - found.concurrency <= max(1, 0.1 * expected)
    assert found.lower_bound == (truth >= limit) and found.resolved


def test_memory_has_a_peak_and_parts_that_add_up() -> None:
    held = bytearray(50 << 20)
    memory = process_memory()
    assert memory.peak_bytes >= memory.now_bytes > len(held)
    engine = EngineMemory(weights_bytes=300, kv_pool_bytes=200, kv_bytes_per_token=2, kv_pool_tokens=100)
    assert memory_parts(1000, engine).rest_bytes == 500
    assert memory_parts(400, engine).rest_bytes is None


def test_the_documentation_defines_every_metric() -> None:
    page = (Path(__file__).parents[2] / "docs" / "benchmark.md").read_text(encoding="utf-8")
    for name in (*REQUEST_METRICS, *RUN_METRICS, "goodput_req_s", "gap_ms"):
        assert f"`{name}`" in page, name


def tokenizer_of(folder: Path):
    write_tokenizer(folder, 96)
    found = engine_tokenizer(folder)
    assert found is not None
    return found


def test_a_users_prompts_end_where_the_answer_begins_and_what_is_too_long_is_counted(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path)
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    lines = [{"messages": turns}, {"text": "hello"}, {"text": "x" * 200}]
    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    found = file_prompts(file, tokenizer, 7, False, Limits(max_input_len=100, max_seq_len=120))
    assert [tokenizer.decode(p.token_ids) for p in found.prompts] == ["user:hiassistant:", "user:helloassistant:"]
    assert {p.max_new_tokens for p in found.prompts} == {7}
    assert found.story.startswith("2 prompts of mine.jsonl") and found.story.endswith(
        "1 longer than the limits left out"
    )
    with pytest.raises(InputRefused, match="no prompt fits"):
        file_prompts(file, tokenizer, 7, False, Limits(max_input_len=3, max_seq_len=120))


def test_built_in_and_synthetic_prompts_have_the_lengths_asked_for(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path)
    chat = chat_prompts(tokenizer, (40, 60), 5, True, 6, seed=1)
    assert [len(p.token_ids) for p in chat.prompts] == [40, 60] * 3
    assert len({p.token_ids for p in chat.prompts}) == 6
    assert chat == chat_prompts(tokenizer, (40, 60), 5, True, 6, seed=1)
    random_ids = synthetic_prompts(50, (9,), 5, True, 4, seed=2)
    assert {len(p.token_ids) for p in random_ids.prompts} == {9}
    assert all(0 <= i < 50 for p in random_ids.prompts for i in p.token_ids)
    trace = trace_prompts(read_like([(0.0, 45, 3), (1.0, 50, 9)]), 96, tokenizer, 0)
    assert [(len(p.token_ids), p.max_new_tokens) for p in trace.prompts] == [(45, 3), (50, 9)]
