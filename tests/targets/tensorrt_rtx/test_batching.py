"""In-flight batching against the definition of the model, and against a model that reads its whole cache."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from builders import write_huggingface
from hypothesis import given, settings
from hypothesis import strategies as st
from slot_engines import HostDevice, OnnxExecutor, fake_api, fake_plan, write_graph

from trtbuild.calibrate.forward import logits
from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.spec import Decoder
from trtbuild.errors import InputRefused
from trtbuild.targets.base import Limits
from trtbuild.targets.serving import Request, TokenEvent
from trtbuild.targets.tensorrt_rtx.batching import Batching, Step
from trtbuild.targets.tensorrt_rtx.driver import ClosableExecutor, SlotDriver
from trtbuild.targets.tensorrt_rtx.executor import TensorRtExecutor
from trtbuild.targets.tensorrt_rtx.geometry import CONTEXT, GENERATION, Geometry
from trtbuild.targets.tensorrt_rtx.scorer import SlotScorer

LIMITS = Limits(max_batch_size=3, max_input_len=40, max_seq_len=64, max_num_tokens=16)
PROMPTS = (37, 3, 16, 1, 24, 9, 17)
NEW = (6, 9, 1, 12, 5, 8, 3)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return open_model(str(write_huggingface(tmp_path_factory.mktemp("hf") / "hf", "qwen2", sliding_window=None)))


@pytest.fixture(scope="module")
def graph(decoder: Decoder, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Geometry]:
    return write_graph(decoder, tmp_path_factory.mktemp("graph"), LIMITS)


def executor(kind: str, graph: tuple[Path, Geometry]) -> ClosableExecutor:
    """Either the plain one on a numpy cache, or the real executor above stand-ins for TensorRT and CUDA."""
    path, shape = graph
    if kind == "onnx":
        return OnnxExecutor(path, shape)
    device = HostDevice()
    return TensorRtExecutor(fake_api(path, shape, device), device, fake_plan(path.parent), shape)


def prompt(decoder: Decoder, seed: int, length: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(3, decoder.spec.vocab_size, length)]


def greedy(decoder: Decoder, ids: list[int], new: int) -> list[int]:
    """What the numpy forward answers, one whole forward a token."""
    ids = list(ids)
    for _ in range(new):
        ids.append(int(logits(decoder, ids)[-1].argmax()))
    return ids[-new:]


def drain(driver: SlotDriver, count: int) -> dict[int, list[TokenEvent]]:
    events: dict[int, list[TokenEvent]] = {}
    finished = 0
    for _ in range(1000):
        for event in driver.step(None):
            events.setdefault(event.request_id, []).append(event)
            finished += event.finish is not None
        if finished == count:
            return events
    raise AssertionError("the driver does not finish")


@pytest.mark.parametrize("kind", ["onnx", "tensorrt"])
def test_greedy_answers_are_those_of_the_numpy_forward(
    kind: str, decoder: Decoder, graph: tuple[Path, Geometry]
) -> None:
    driver = SlotDriver(executor(kind, graph), LIMITS, ())
    prompts = [prompt(decoder, seed, length) for seed, length in enumerate(PROMPTS)]
    for number, (ids, new) in enumerate(zip(prompts, NEW, strict=True)):
        driver.submit(Request(number, ids, new))
    events = drain(driver, len(prompts))
    for number, (ids, new) in enumerate(zip(prompts, NEW, strict=True)):
        answer = [token for event in events[number] for token in event.token_ids]
        assert answer == greedy(decoder, ids, new), number
        assert [event.finish for event in events[number]] == [None] * (new - 1) + ["length"]
        times = [event.time_s for event in events[number]]
        assert times == sorted(times)
    driver.close()
    driver.close()


@pytest.mark.parametrize("kind", ["onnx", "tensorrt"])
def test_the_scorer_gives_the_logits_of_every_position(
    kind: str, decoder: Decoder, graph: tuple[Path, Geometry]
) -> None:
    scorer = SlotScorer(executor(kind, graph), LIMITS.max_seq_len)
    for length in (64, 16, 17, 1):  # a later, shorter text finds the rest of an earlier one in its slots
        ids = prompt(decoder, length, length)
        np.testing.assert_allclose(scorer.logits(ids), logits(decoder, ids), atol=1e-3)
    for length in (0, 65):
        with pytest.raises(InputRefused, match=f"{length} tokens"):
            scorer.logits([5] * length)
    scorer.close()


class ReadingExecutor:
    """A model whose next token is a checksum of everything its row holds up to its position: one stale slot shows."""

    def __init__(self, rows: int, slots: int, context_tokens: int) -> None:
        self.geometry = Geometry(rows, slots, context_tokens, 1, 1, 1, 8, 1000, "float32")
        self.weights_bytes = 0
        self.cache = np.full((rows, slots), -1, np.int64)
        self.steps: list[Step] = []

    def tokens(self, step: Step) -> np.ndarray:
        self.steps.append(step)
        batch, sequence = step.input_ids.shape
        assert (batch, step.first_row + batch) <= (
            1 if step.phase == CONTEXT else self.geometry.rows,
            self.geometry.rows,
        )
        assert sequence <= (self.geometry.context_tokens if step.phase == CONTEXT else 1)
        out = np.zeros((batch, len(step.logits_at)), np.int64)
        for index in range(batch):
            row = self.cache[step.first_row + index]
            start = step.position_ids[index, 0]
            assert (step.position_ids[index] == np.arange(start, start + sequence)).all()
            row[start : start + sequence] = step.input_ids[index]
            for place, at in enumerate(step.logits_at):
                position = step.position_ids[index, at]
                assert position < step.attention_mask.shape[1] <= self.geometry.slots
                out[index, place] = checksum(row[: position + 1])
        return out

    def logits(self, step: Step) -> np.ndarray:
        raise NotImplementedError

    def close(self) -> None: ...


def checksum(ids: np.ndarray) -> int:
    value = 17
    for token in ids:
        value = (value * 31 + int(token) + 1) % 997
    return value


def checksums(ids: list[int], new: int, stops: frozenset[int]) -> list[int]:
    ids = list(ids)
    for count in range(new):
        ids.append(checksum(np.asarray(ids)))
        if ids[-1] in stops:
            return ids[-count - 1 :]
    return ids[-new:]


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_order_of_requests_and_cancellations(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 4), label="rows")
    context = data.draw(st.integers(1, 12), label="context_tokens")
    limits = Limits(rows, 20, 32, data.draw(st.integers(rows, 14), label="max_num_tokens"))
    stops = frozenset(data.draw(st.sets(st.integers(0, 996), max_size=200), label="stops"))
    model = ReadingExecutor(rows, 32, context)
    driver = SlotDriver(model, limits, tuple(stops))
    asked: dict[int, Request] = {}
    answers: dict[int, list[int]] = {}
    finish: dict[int, str] = {}
    actions = data.draw(st.lists(st.sampled_from(["submit", "step", "step", "cancel"]), max_size=40), label="actions")
    for action in itertools.chain(actions, ["step"] * 400):
        if action == "submit":
            ids = data.draw(st.lists(st.integers(0, 999), min_size=1, max_size=20))
            asked[len(asked)] = request = Request(
                len(asked), ids, data.draw(st.integers(1, 40)), ignore_eos=data.draw(st.booleans())
            )
            driver.submit(request)
        elif action == "cancel" and asked:
            driver.cancel(data.draw(st.sampled_from(sorted(asked))))
        elif action == "step":
            before = len(model.steps)
            for event in driver.step(None):
                assert event.request_id not in finish, "an event after the last one"
                answers.setdefault(event.request_id, []).extend(event.token_ids)
                if event.finish is not None:
                    finish[event.request_id] = event.finish
            spent = sum(s.input_ids.size for s in model.steps[before:] if s.phase == CONTEXT)
            assert spent <= limits.max_num_tokens
    assert set(finish) == set(asked)
    for number, request in asked.items():
        room = min(request.max_new_tokens, limits.max_seq_len - len(request.token_ids))
        wanted = checksums(list(request.token_ids), room, frozenset() if request.ignore_eos else stops)
        answer = answers.get(number, [])
        if finish[number] == "cancelled":
            assert answer == wanted[: len(answer)]
        else:
            assert answer == wanted
            stopped = not request.ignore_eos and answer[-1] in stops
            assert finish[number] == ("stop" if stopped else "length")


def test_every_answering_sequence_advances_in_every_step_and_prompts_share_the_rest() -> None:
    model = ReadingExecutor(rows=3, slots=32, context_tokens=8)
    batching = Batching(model, Limits(3, 20, 32, 8), ())
    batching.submit(Request(0, [1, 2], 20))
    list(batching.advance())
    batching.submit(Request(1, list(range(20)), 20))
    batching.submit(Request(2, list(range(5)), 20))
    executions = []
    for _ in range(4):
        before = len(model.steps)
        list(batching.advance())
        executions.append([(s.phase, s.first_row, s.input_ids.shape) for s in model.steps[before:]])
    assert executions == [
        [(GENERATION, 0, (1, 1)), (CONTEXT, 1, (1, 7))],
        [(GENERATION, 0, (1, 1)), (CONTEXT, 1, (1, 7))],
        [(GENERATION, 0, (1, 1)), (CONTEXT, 1, (1, 6)), (CONTEXT, 2, (1, 1))],
        [(GENERATION, 0, (2, 1)), (CONTEXT, 2, (1, 4))],
    ]


@pytest.mark.parametrize(
    ("request_", "word"),
    [
        (Request(1, [], 4), "empty"),
        (Request(1, [5] * 41, 4), "max_input_len"),
        (Request(1, [5], 0), "max_new_tokens"),
        (Request(1, [5, 1000], 4), "vocabulary"),
        (Request(1, [5], 4, temperature=0.7), "greedily"),
    ],
)
def test_a_request_that_cannot_be_taken_gets_an_error_event(request_: Request, word: str) -> None:
    driver = SlotDriver(ReadingExecutor(2, 64, 16), LIMITS, ())
    driver.submit(request_)
    (event,) = driver.step(None)
    assert (event.request_id, event.token_ids, event.finish) == (1, (), "error")
    assert event.error is not None
    assert word in event.error
    assert driver.step(None) == []


def test_an_idle_driver_waits_until_it_is_told_to() -> None:
    driver = SlotDriver(ReadingExecutor(1, 64, 16), LIMITS, ())
    until = driver.now() + 0.05
    assert driver.step(until) == []
    assert driver.now() >= until


def test_memory_is_the_whole_cache() -> None:
    shape = Geometry(3, 64, 16, 16, 2, 2, 16, 100, "float16")
    memory = SlotDriver(ReadingExecutorWith(shape), LIMITS, ()).memory()
    assert memory.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2
    assert memory.kv_pool_tokens == 3 * 64
    assert memory.kv_pool_bytes == 3 * 64 * memory.kv_bytes_per_token


class ReadingExecutorWith(ReadingExecutor):
    def __init__(self, shape: Geometry) -> None:
        super().__init__(shape.rows, shape.slots, shape.context_tokens)
        self.geometry = shape
