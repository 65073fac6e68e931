"""In-flight batching: finish reasons, limits, sampling, cancellation."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from cpu_engines import CPU, LIMITS, built, generate, tokens

from trtbuild.calibrate.forward import logits
from trtbuild.checkpoint.spec import Decoder
from trtbuild.targets.base import Limits
from trtbuild.targets.cpu.driver import pool_blocks
from trtbuild.targets.serving import Request


def test_finish_reasons(llama: Decoder, engine: Path) -> None:
    stop = llama.spec.eos_token_ids[0]
    prompts = [tokens(llama, 10, seed) for seed in range(40)]
    free = generate(engine, [Request(i, ids, 30, ignore_eos=True) for i, ids in enumerate(prompts)])
    stopping = next(i for i, (answer, _) in free.items() if stop in answer[1:-1])
    answers = generate(
        engine,
        [
            Request(0, prompts[stopping], 30),
            Request(1, prompts[stopping], 3, ignore_eos=True),
            Request(2, tokens(llama, 100), 500, ignore_eos=True),
            Request(3, tokens(llama, 128), 1),
            Request(4, tokens(llama, 101), 1),
            Request(5, [], 1),
            Request(6, [96], 1),
        ],
    )
    cut = free[stopping][0].index(stop) + 1
    assert answers[0] == (free[stopping][0][:cut], "stop")
    assert answers[1] == (free[stopping][0][:3], "length")
    assert (len(answers[2][0]), answers[2][1]) == (28, "length")  # max_seq_len 128
    assert "max_seq_len 128" in answers[3][1]
    assert "max_input_len is 100" in answers[4][1]
    assert "empty" in answers[5][1]
    assert "vocabulary" in answers[6][1]
    assert all(answers[i][0] == [] for i in range(3, 7))


def test_answers_do_not_depend_on_what_else_is_in_flight(llama: Decoder, engine: Path) -> None:
    """More requests than fit in flight, chunked context, sampling with a seed: each answer is its own."""
    requests = [
        Request(
            i, tokens(llama, 5 + 17 * (i % 5), i), 10, ignore_eos=True, temperature=0.8 * (i % 2), top_p=0.9, seed=i
        )
        for i in range(12)
    ]
    together = generate(engine, requests)
    alone = {request.id: generate(engine, [request])[request.id] for request in requests[:6]}
    assert {number: together[number] for number in alone} == alone


def test_sampling_follows_its_seed_and_its_distribution(llama: Decoder, engine: Path) -> None:
    ids = tokens(llama, 12)
    requests = [Request(i, ids, 1, ignore_eos=True, temperature=1.0, seed=i) for i in range(600)]
    drawn = [answer[0] for answer, _ in generate(engine, requests).values()]
    again = [answer[0] for answer, _ in generate(engine, requests[:20]).values()]
    assert drawn[:20] == again
    row = logits(llama, ids)[-1].astype(np.float64)
    probabilities = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
    counts = np.bincount(drawn, minlength=len(row))
    expected = 600 * probabilities
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 150  # 95 degrees of freedom: far beyond the 99.9th percentile


def test_a_pool_too_small_for_all_still_answers_all(llama: Decoder, engine: Path, tmp_path: Path) -> None:
    small = built(llama, tmp_path, dataclasses.replace(LIMITS, kv_pool_tokens=160))
    requests = [Request(i, tokens(llama, 60, i), 40, ignore_eos=True) for i in range(4)]
    assert generate(small, requests) == generate(engine, requests)


def test_cancelling(llama: Decoder, engine: Path) -> None:
    driver = CPU.open_driver(engine)
    for number in range(3):
        driver.submit(Request(number, tokens(llama, 10, number), 60, ignore_eos=True))
    for _ in range(4):
        driver.step(None)
    driver.cancel(1)
    driver.cancel(7)  # unknown: ignored
    finished: dict[int, str] = {}
    while len(finished) < 3:
        finished |= {event.request_id: event.finish for event in driver.step(None) if event.finish}
    assert finished == {0: "length", 1: "cancelled", 2: "length"}
    driver.submit(Request(1, tokens(llama, 10), 2))  # the id is free again
    events = [event for _ in range(4) for event in driver.step(None)]
    assert [event.finish for event in events if event.finish] == ["length"]
    assert driver.step(driver.now() + 0.01) == []
    driver.close()


def test_a_pool_for_whole_sequences_has_whole_blocks_for_each() -> None:
    assert pool_blocks(Limits(max_batch_size=4, max_seq_len=100)) == 16
    assert pool_blocks(Limits(max_batch_size=4, max_seq_len=100, kv_pool_tokens=400)) == 16
    assert pool_blocks(Limits(max_batch_size=4, max_seq_len=100, kv_pool_tokens=161)) == 6
    assert pool_blocks(Limits(max_batch_size=4, max_seq_len=100, kv_pool_tokens=1000)) == 32
