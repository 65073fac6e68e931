"""The demo model's slot graph by onnxruntime: logits of the numpy forward, greedy answers of transformers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from int8_builders import int8_decoder
from slot_engines import OnnxExecutor, write_graph

from trtbuild.calibrate.forward import decoder_layer, embed, logits, read_layer, rotary_table
from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.spec import LINEAR_MODULES, Array, Decoder, Quantization, module_path
from trtbuild.checkpoint.tokenizer import load_tokenizer
from trtbuild.demo import fetch_demo_model
from trtbuild.targets.base import Limits
from trtbuild.targets.serving import Request
from trtbuild.targets.tensorrt_rtx.batching import context_step, make_step
from trtbuild.targets.tensorrt_rtx.driver import SlotDriver
from trtbuild.targets.tensorrt_rtx.geometry import GENERATION

LIMITS = Limits(max_batch_size=2, max_input_len=48, max_seq_len=64, max_num_tokens=24)
NEW = 8


@pytest.fixture(scope="module")
def demo_model() -> Path:
    return fetch_demo_model(Path(__file__).parents[2] / "demo" / "SmolLM2-135M-Instruct.Q4_1.gguf")


def weight_only(decoder: Decoder) -> Decoder:
    return dataclasses.replace(decoder, quantization=Quantization("W8A16"))


def w8a8(decoder: Decoder, ids: Array) -> Decoder:
    """Every linear in INT8, the activation scales from the largest input each has on `ids`."""
    quantized = int8_decoder(decoder, "W8A8_SQ_PER_CHANNEL")
    tensors, rotary = dict(quantized.tensors), rotary_table(decoder.spec, len(ids))
    (state,) = embed(decoder, [ids])
    for layer in range(decoder.spec.num_layers):
        amax: dict[str, float] = {}

        def observe(name: str, x: Array, amax: dict[str, float] = amax) -> None:
            amax[name] = float(np.abs(x).max())

        state = decoder_layer(state, read_layer(decoder, layer), rotary, observe)
        for module in LINEAR_MODULES:
            path = f"{module_path(layer, module)}.activation_scaling_factor"
            largest = amax["mlp.fc" if module == "mlp.gate" else module]
            scale = np.asarray([2 * largest / 127], np.float32)  # inputs are multiplied by up to 2
            tensors[path] = dataclasses.replace(tensors[path], read=lambda scale=scale: scale)
    return dataclasses.replace(quantized, tensors=tensors)


def slot_logits(decoder: Decoder, ids: Array, folder: Path) -> Array:
    """Logits of 30 tokens in row 1: two chunks of context, then token by token beside another row."""
    path, shape = write_graph(decoder, folder, LIMITS)
    executor = OnnxExecutor(path, shape)
    parts = [
        executor.logits(context_step(shape, 1, ids[:20], 0, range(20)))[0],
        executor.logits(context_step(shape, 1, ids[20:27], 20, range(7)))[0],
    ]
    for position in range(27, 30):
        pair, positions = np.array([[7], [ids[position]]]), np.array([[0], [position]])
        parts.append(executor.logits(make_step(shape, GENERATION, 0, pair, positions, [0]))[1])
    return np.concatenate(parts)


@pytest.fixture(scope="module")
def ids(demo_model: Path) -> Array:
    decoder = open_model(str(demo_model))
    text = "Gravity explains why an apple falls to the ground, why the Moon goes around the Earth and the planets "
    encoded = load_tokenizer(decoder.assets, spec=decoder.spec).encode(text * 2)
    return np.asarray(encoded[:30], np.int64)


@pytest.mark.parametrize("quantized", [False, True], ids=["fp32", "int8-wo"])
def test_context_and_generation_give_the_logits_of_the_forward(
    quantized: bool, demo_model: Path, ids: Array, tmp_path: Path
) -> None:
    decoder = open_model(str(demo_model))
    decoder = weight_only(decoder) if quantized else decoder
    assert np.abs(slot_logits(decoder, ids, tmp_path) - logits(decoder, ids)).max() <= 1e-3


def test_int8_gives_the_logits_of_the_fake_quantized_forward(demo_model: Path, ids: Array, tmp_path: Path) -> None:
    """Of the first 12 layers, to rounding. A value between two levels may fall either way by the last bit of a sum:
    over all 30 layers one always does, and the forward itself then moves as far when its input moves by that bit."""
    whole = open_model(str(demo_model))
    decoder = w8a8(dataclasses.replace(whole, spec=dataclasses.replace(whole.spec, num_layers=12)), ids)
    actual, expected = slot_logits(decoder, ids, tmp_path), logits(decoder, ids)
    rows = np.linalg.norm(actual - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert np.median(rows) <= 1e-5
    assert rows.max() <= 0.1
    plain = logits(dataclasses.replace(whole, spec=decoder.spec), ids)
    assert np.linalg.norm(expected - plain) > 1e-2 * np.linalg.norm(plain)  # and not the float model


def test_greedy_answers_of_a_batch_are_those_of_transformers(demo_model: Path, tmp_path: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        demo_model.parent, gguf_file=demo_model.name, dtype=torch.float32
    ).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(demo_model.parent, gguf_file=demo_model.name)
    texts = [
        "The capital of France is",
        "Photosynthesis is the process by which green plants turn light into",
    ]
    prompts = [tokenizer(text)["input_ids"] for text in texts]
    path, shape = write_graph(open_model(str(demo_model)), tmp_path, LIMITS)
    driver = SlotDriver(OnnxExecutor(path, shape), LIMITS, ())
    for number, prompt in enumerate(prompts):
        driver.submit(Request(number, prompt, NEW, ignore_eos=True))
    answers: list[list[int]] = [[] for _ in prompts]
    finished = 0
    while finished < len(prompts):
        for event in driver.step(None):
            answers[event.request_id] += event.token_ids
            finished += event.finish is not None
    for prompt, answer in zip(prompts, answers, strict=True):
        with torch.no_grad():
            whole = model.generate(torch.tensor([prompt]), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False)
        assert answer == whole[0, len(prompt) :].tolist()
