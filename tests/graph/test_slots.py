"""The graph with a cache of fixed slots, by onnxruntime with optimizations off, against the numpy forward."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import write_huggingface
from int8_builders import int8_decoder
from slot_engines import OnnxExecutor, write_graph

from trtbuild.calibrate.forward import logits
from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.spec import Decoder, Quantization
from trtbuild.graph.decoder import write_onnx
from trtbuild.targets.base import Limits
from trtbuild.targets.tensorrt_rtx.batching import context_step, make_step
from trtbuild.targets.tensorrt_rtx.geometry import GENERATION

LIMITS = Limits(max_batch_size=3, max_input_len=40, max_seq_len=64, max_num_tokens=40)
PROMPTS = (29, 7, 18)
NEW = 4

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "one head each": ("llama", {"num_key_value_heads": 4}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral window": ("mistral", {"sliding_window": 8}),
    "qwen2": ("qwen2", {}),
    "qwen2 some windows": ("qwen2", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}),
    "qwen3": ("qwen3", {}),
    "phi3": ("phi3", {}),
    "phi3 partial": ("phi3", {"partial_rotary_factor": 0.5}),
}


def difference_by_rows(decoder: Decoder, folder: Path, chunk: int) -> np.ndarray:
    """‖engine − numpy‖∞ of every position: prompts in chunks, then all rows together, each at its own position."""
    path, shape = write_graph(decoder, folder, LIMITS)
    executor = OnnxExecutor(path, shape)
    rng = np.random.default_rng(2)
    texts = [rng.integers(0, decoder.spec.vocab_size, prompt + NEW) for prompt in PROMPTS]
    parts: list[list[np.ndarray]] = [[] for _ in texts]
    for row, (text, prompt) in enumerate(zip(texts, PROMPTS, strict=True)):
        for start in range(0, prompt, chunk):
            ids = text[start : min(start + chunk, prompt)]
            parts[row].append(executor.logits(context_step(shape, row, ids, start, range(len(ids))))[0])
    for offset in range(NEW):
        positions = np.array([[prompt + offset] for prompt in PROMPTS])
        ids = np.array([[text[position]] for text, (position,) in zip(texts, positions, strict=True)])
        rows = executor.logits(make_step(shape, GENERATION, 0, ids, positions, [0]))
        for row, part in enumerate(parts):
            part.append(rows[row])
    actual = [np.concatenate(part) for part in parts]
    expected = [logits(decoder, text) for text in texts]
    return np.concatenate([np.abs(a - e).max(axis=1) for a, e in zip(actual, expected, strict=True)])


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_of_any_length_in_one_batch(variant: str, tmp_path: Path) -> None:
    family, changes = VARIANTS[variant]
    decoder = open_model(str(write_huggingface(tmp_path / "hf", family, **changes)))
    assert difference_by_rows(decoder, tmp_path / "onnx", chunk=40).max() <= 1e-4
    assert difference_by_rows(decoder, tmp_path / "chunks", chunk=5).max() <= 1e-4


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "phi3"])
@pytest.mark.parametrize("algo", ["W8A8_SQ_PER_CHANNEL", "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN", "W8A16"])
def test_quantized_graphs_are_the_fake_quantized_forward(algo: str, family: str, tmp_path: Path) -> None:
    decoder = open_model(str(write_huggingface(tmp_path / "hf", family)))
    if algo == "W8A16":
        decoder = dataclasses.replace(decoder, quantization=Quantization(algo))
    else:
        decoder = int8_decoder(decoder, algo)
    differences = difference_by_rows(decoder, tmp_path / "onnx", chunk=40)
    # A value between two levels may round the other way in a sum of another order: rare, and one level.
    assert np.median(differences) <= 1e-4
    assert differences.max() <= 5e-2


def test_the_tokens_are_the_largest_logits_of_the_places_asked_for(tmp_path: Path) -> None:
    decoder = open_model(str(write_huggingface(tmp_path / "hf", "llama")))
    path, shape = write_graph(decoder, tmp_path / "onnx", LIMITS)
    ids = np.random.default_rng(3).integers(0, decoder.spec.vocab_size, 20)
    expected = logits(decoder, ids)
    step = context_step(shape, 1, ids, 0, [19, 4])
    assert OnnxExecutor(path, shape).tokens(step).tolist() == [expected[[19, 4]].argmax(axis=1).tolist()]


@pytest.mark.skipif(onnx.defs.onnx_opset_version() < 24, reason="this onnx cannot check TensorScatter")
@pytest.mark.parametrize("compute", ["float16", "bfloat16"])
def test_everything_but_indices_has_the_compute_type(compute: str, tmp_path: Path) -> None:
    decoder = open_model(str(write_huggingface(tmp_path / "hf", "qwen2", dtype=compute)))
    path = write_onnx(decoder, tmp_path, max_seq_len=64, compute=compute, slots=64)
    model = onnx.load(path, load_external_data=False)
    onnx.checker.check_model(path)
    wanted = onnx.TensorProto.DataType.Value(compute.upper())
    types = {value.name: value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    indices = {"input_ids", "position_ids", "attention_mask", "logits_at", "tokens"}
    assert {types[name] for name in types if name not in indices} == {wanted}
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    floats = {v.type.tensor_type.elem_type for v in inferred.graph.value_info} - {onnx.TensorProto.INT64}
    assert floats <= {wanted, onnx.TensorProto.BOOL}


def test_the_scale_of_a_dead_input_stays_above_nothing_in_half_precision(tmp_path: Path) -> None:
    decoder = int8_decoder(open_model(str(write_huggingface(tmp_path / "hf", "llama"))), "W8A8_SQ_PER_CHANNEL")
    name = "transformer.layers.0.mlp.proj.activation_scaling_factor"
    dead = dataclasses.replace(decoder.tensors[name], read=lambda: np.asarray([1e-9], np.float32))
    decoder = dataclasses.replace(decoder, tensors={**decoder.tensors, name: dead})
    model = onnx.load(write_onnx(decoder, tmp_path, max_seq_len=64, compute="float16", slots=64))
    (scale,) = (onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer if tensor.name == name)
    assert scale > 0
