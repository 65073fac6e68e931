"""The ONNX graph, run by onnxruntime with its optimizations off, against the numpy forward."""

from __future__ import annotations

import dataclasses
import itertools
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import LLAMA3_ROPE, write_huggingface
from int8_builders import int8_decoder

from trtbuild.calibrate.forward import logits
from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.spec import EMBEDDING, HEAD, Decoder, Quantization
from trtbuild.errors import InputRefused
from trtbuild.graph.decoder import write_onnx

MAX_SEQ_LEN = 64
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + 0.2 * i for i in range(8)],
}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama3 rope": ("llama", {"rope_scaling": LLAMA3_ROPE}),
    "yarn": ("llama", {"rope_scaling": YARN}),
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "tied": ("llama", {"tie_word_embeddings": True}),
    "one head each": ("llama", {"num_key_value_heads": 4}),
    "mistral window": ("mistral", {"sliding_window": 8}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "phi3": ("phi3", {}),
    "phi3 longrope": ("phi3", {"rope_scaling": LONGROPE, "original_max_position_embeddings": 128}),
    "phi3 partial": ("phi3", {"partial_rotary_factor": 0.5}),
}


def run(path: Path, decoder: Decoder, ids: np.ndarray, cuts: list[int]) -> np.ndarray:
    """Logits of `ids` by onnxruntime, fed in pieces with the past handed from one to the next."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    spec = decoder.spec
    names = [f"{layer}.{kind}" for layer in range(spec.num_layers) for kind in ("key", "value")]
    past = {f"past_key_values.{n}": np.zeros((1, spec.num_kv_heads, 0, spec.head_size), np.float32) for n in names}
    parts = []
    bounds = [0, *cuts, len(ids)]
    for start, stop in itertools.pairwise(bounds):
        inputs = {
            "input_ids": ids[None, start:stop],
            "position_ids": np.arange(start, stop, dtype=np.int64)[None],
            "attention_mask": np.ones((1, stop), np.int64),
            **past,
        }
        values = session.run(["logits", *(f"present.{n}" for n in names)], inputs)
        parts.append(values[0][0])
        past = dict(zip(past, values[1:], strict=True))
    return np.concatenate(parts)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_family_in_context_and_generation(variant: str, tmp_path: Path) -> None:
    family, changes = VARIANTS[variant]
    decoder = open_model(str(write_huggingface(tmp_path / "hf", family, **changes)))
    path = write_onnx(decoder, tmp_path, max_seq_len=MAX_SEQ_LEN)
    onnx.checker.check_model(path)
    ids = np.random.default_rng(1).integers(0, decoder.spec.vocab_size, 24)
    expected = logits(decoder, ids)
    assert np.abs(run(path, decoder, ids, []) - expected).max() <= 1e-4
    assert np.abs(run(path, decoder, ids, [13, 20, 21, 22, 23]) - expected).max() <= 1e-4


@pytest.mark.parametrize("algo", ["W8A8_SQ_PER_CHANNEL", "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN"])
def test_quantized_linears_mean_what_the_forward_means(algo: str, tmp_path: Path) -> None:
    decoder = int8_decoder(open_model(str(write_huggingface(tmp_path / "hf", "qwen2"))), algo)
    path = write_onnx(decoder, tmp_path, max_seq_len=MAX_SEQ_LEN)
    ids = np.random.default_rng(1).integers(0, decoder.spec.vocab_size, 24)
    expected = logits(decoder, ids)
    rows = np.linalg.norm(run(path, decoder, ids, [17]) - expected, axis=1) / np.linalg.norm(expected, axis=1)
    # A value that lies between two levels may round the other way in a sum of another order: rare, and one level.
    assert np.median(rows) <= 1e-5
    assert rows.max() <= 1e-2


def test_fc_and_gate_share_their_quantized_input_when_they_quantize_it_alike(tmp_path: Path) -> None:
    decoder = int8_decoder(open_model(str(write_huggingface(tmp_path / "hf", "llama"))), "W8A8_SQ_PER_CHANNEL")
    tensors = dict(decoder.tensors)
    for kind in ("prequant_scaling_factor", "activation_scaling_factor"):
        tensors[f"transformer.layers.0.mlp.gate.{kind}"] = tensors[f"transformer.layers.0.mlp.fc.{kind}"]
    decoder = dataclasses.replace(decoder, tensors=tensors)
    path = write_onnx(decoder, tmp_path, max_seq_len=MAX_SEQ_LEN)
    quantizers = [n.name for n in onnx.load(path, load_external_data=False).graph.node if n.op_type == "QuantizeLinear"]
    assert [name for name in quantizers if "mlp.gate" in name] == ["transformer.layers.1.mlp.gate/QuantizeLinear"]
    assert len(quantizers) == 9
    ids = np.random.default_rng(1).integers(0, decoder.spec.vocab_size, 24)
    rows = np.linalg.norm(run(path, decoder, ids, []) - logits(decoder, ids), axis=1)
    assert np.median(rows) <= 1e-4


def test_weight_only_quantizes_as_the_loader_does(tmp_path: Path) -> None:
    decoder = open_model(str(write_huggingface(tmp_path / "hf", "llama", dtype="float16")))
    quantized = dataclasses.replace(decoder, quantization=Quantization("W8A16"))
    path = write_onnx(quantized, tmp_path, max_seq_len=MAX_SEQ_LEN)
    ids = np.random.default_rng(1).integers(0, decoder.spec.vocab_size, 24)
    expected = logits(quantized, ids)
    assert np.abs(run(path, quantized, ids, []) - expected).max() <= 1e-3
    assert np.abs(logits(decoder, ids) - expected).max() > 1e-3  # and not the float weights


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_keep_their_type_and_a_tied_head_is_stored_once(dtype: str, tmp_path: Path) -> None:
    decoder = open_model(str(write_huggingface(tmp_path / "hf", "llama", dtype=dtype, tie_word_embeddings=True)))
    model = onnx.load(write_onnx(decoder, tmp_path, max_seq_len=MAX_SEQ_LEN), load_external_data=False)
    stored = {i.name: onnx.TensorProto.DataType.Name(i.data_type) for i in model.graph.initializer}
    assert HEAD not in stored
    assert {stored[EMBEDDING], stored["transformer.layers.1.mlp.proj.weight"]} == {dtype.upper()}
    weights = sum(t.dtype.itemsize * int(np.prod(t.shape)) for n, t in decoder.tensors.items() if n != HEAD)
    assert (tmp_path / "model.onnx.data").stat().st_size < weights * 1.5


def test_an_untied_head_equal_to_the_embedding_is_stored_once(tmp_path: Path) -> None:
    decoder = open_model(str(write_huggingface(tmp_path / "hf", "llama", tie_word_embeddings=True)))
    decoder = dataclasses.replace(decoder, spec=dataclasses.replace(decoder.spec, tie_word_embeddings=False))
    model = onnx.load(write_onnx(decoder, tmp_path, max_seq_len=MAX_SEQ_LEN), load_external_data=False)
    assert HEAD not in {initializer.name for initializer in model.graph.initializer}


def test_one_tensor_in_memory_at_a_time(tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path / "hf", "llama", num_hidden_layers=16, hidden_size=128, intermediate_size=512)
    mapped = open_model(str(folder))
    tensors = {n: dataclasses.replace(t, read=lambda t=t: np.array(t.read())) for n, t in mapped.tensors.items()}
    decoder = dataclasses.replace(mapped, tensors=tensors)
    write_onnx(decoder, _folder(tmp_path / "warm"), max_seq_len=MAX_SEQ_LEN)
    tracemalloc.start()
    path = write_onnx(decoder, _folder(tmp_path / "measured"), max_seq_len=MAX_SEQ_LEN)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    largest = 512 * 128 * 4
    assert path.with_name("model.onnx.data").stat().st_size > 40 * largest
    assert peak < 12 * largest


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_external_data_lies_on_pages_without_overlap(tmp_path: Path) -> None:
    decoder = open_model(str(write_huggingface(tmp_path / "hf", "llama")))
    model = onnx.load(write_onnx(decoder, tmp_path, max_seq_len=MAX_SEQ_LEN), load_external_data=False)
    spans = []
    for initializer in model.graph.initializer:
        entries = {entry.key: entry.value for entry in initializer.external_data}
        if entries:
            spans.append((int(entries["offset"]), int(entries["length"])))
    assert len(spans) > 10
    assert all(offset % 4096 == 0 for offset, _ in spans)
    spans.sort()
    assert all(a + length <= b for (a, length), (b, _) in itertools.pairwise(spans))


def test_float16_computation_is_typed_throughout(tmp_path: Path) -> None:
    decoder = open_model(str(write_huggingface(tmp_path / "hf", "llama", dtype="float16")))
    path = write_onnx(decoder, tmp_path, max_seq_len=MAX_SEQ_LEN, compute="float16")
    model = onnx.load(path, load_external_data=False)
    onnx.checker.check_model(path)
    types = {value.name: value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    assert {types["logits"], types["past_key_values.0.key"]} == {onnx.TensorProto.FLOAT16}
    assert not [n for n in model.graph.node if n.op_type == "Cast" and n.attribute[0].i == onnx.TensorProto.FLOAT]


def test_an_unknown_activation_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    decoder = open_model(str(write_huggingface(tmp_path / "hf", "llama")))
    decoder = dataclasses.replace(decoder, spec=dataclasses.replace(decoder.spec, hidden_act="relu6"))
    with pytest.raises(InputRefused, match="relu6"):
        write_onnx(decoder, _folder(tmp_path / "out"), max_seq_len=MAX_SEQ_LEN)
    assert not list((tmp_path / "out").iterdir())
