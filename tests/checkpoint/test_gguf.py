"""GGUF files: every architecture, type and split that opens, and the one line that everything else gets."""

from __future__ import annotations

import math
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf_files import write_gguf
from hypothesis import given, settings
from hypothesis import strategies as st

from trtbuild.checkpoint.gguf_header import read_gguf
from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.rope import inverse_frequencies
from trtbuild.checkpoint.spec import EMBEDDING, HEAD, Decoder
from trtbuild.errors import InputRefused

Kind = gguf.GGMLQuantizationType
QKV = "transformer.layers.1.attention.qkv.weight"


def _open(path: Path) -> Decoder:
    return open_model(str(path))


def _refusal(path: Path) -> str:
    with pytest.raises(InputRefused) as refused:
        _open(path)
    return f"{refused.value} | {refused.value.hint}"


def _qkv(tensors: dict[str, np.ndarray], kind: str = "weight") -> np.ndarray:
    return np.concatenate([tensors[f"model.layers.1.self_attn.{m}_proj.{kind}"] for m in "qkv"])


@pytest.mark.parametrize(
    ("family", "changes"),
    [("llama", {}), ("llama", {"attention_bias": True, "mlp_bias": True}), ("qwen2", {}), ("qwen3", {})],
)
def test_every_architecture_gives_back_the_original_weights(
    tmp_path: Path, family: str, changes: dict[str, Any]
) -> None:
    tensors = write_gguf(tmp_path / "m.gguf", family, **changes)
    decoder = _open(tmp_path / "m.gguf")
    assert decoder.spec.family == family
    assert {name: t.shape for name, t in decoder.tensors.items()} == decoder.spec.float_shapes()
    np.testing.assert_array_equal(decoder.tensors[QKV].read(), _qkv(tensors))
    if decoder.spec.qkv_bias:
        np.testing.assert_array_equal(decoder.tensors[QKV.replace("weight", "bias")].read(), _qkv(tensors, "bias"))
    for hub, name in {
        "mlp.fc": "mlp.gate_proj",
        "mlp.gate": "mlp.up_proj",
        "mlp.proj": "mlp.down_proj",
        "attention.dense": "self_attn.o_proj",
        "post_layernorm": "post_attention_layernorm",
    }.items():
        read = decoder.tensors[f"transformer.layers.0.{hub}.weight"].read()
        np.testing.assert_array_equal(read, tensors[f"model.layers.0.{name}.weight"])
    np.testing.assert_array_equal(decoder.tensors[HEAD].read(), tensors["lm_head.weight"])
    assert not any("dequantized" in note for note in decoder.notes)


@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0])
def test_quantized_weights_are_what_the_gguf_package_dequantizes(tmp_path: Path, kind: Kind) -> None:
    tensors = write_gguf(tmp_path / "m.gguf", "llama", kind=kind)
    decoder = _open(tmp_path / "m.gguf")
    expected = np.concatenate(
        [
            gguf.dequantize(gguf.quantize(tensors[f"model.layers.1.self_attn.{m}_proj.weight"], kind), kind)
            for m in "qkv"
        ]
    )
    read = decoder.tensors[QKV].read()
    plain = {Kind.F16: np.float16, Kind.BF16: ml_dtypes.bfloat16}.get(kind)
    assert read.dtype == np.dtype(plain or np.float32)
    np.testing.assert_array_equal(read.astype(np.float32), expected)
    assert decoder.spec.dtype == read.dtype.name
    assert any(f"dequantized from {kind.name}" in note for note in decoder.notes) == (plain is None)


_BLOCK_TYPES = [
    kind
    for kind in Kind
    if kind.name.startswith(("IQ", "TQ", "MXFP", "NVFP")) or (kind.name.endswith("_K") and kind.name != "Q8_K")
]


@pytest.mark.parametrize("kind", _BLOCK_TYPES)
def test_types_that_the_package_only_dequantizes(tmp_path: Path, kind: Kind) -> None:
    """Random blocks of the types that numpy cannot quantize, read in slices, are the package's own values."""
    path = tmp_path / "m.gguf"
    write_gguf(path, "llama", tie_word_embeddings=True)
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 60, (96, 256 // block * block_bytes), dtype=np.uint8)
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(tmp_path / "q.gguf", "llama")
    for field in reader.fields.values():
        if field.name.startswith("llama."):
            value = field.contents()
            (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(field.name, value)
    for tensor in reader.tensors:
        if tensor.name == "token_embd.weight":
            writer.add_tensor(tensor.name, raw, raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    decoder = _open(tmp_path / "q.gguf")
    np.testing.assert_array_equal(decoder.tensors[EMBEDDING].read(), gguf.dequantize(raw, kind))
    assert decoder.spec.dtype == "float32"


def test_large_tensors_are_dequantized_in_slices_to_the_same_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(tmp_path / "m.gguf", "llama", kind=Kind.Q8_0)
    whole = _open(tmp_path / "m.gguf").tensors[QKV].read()
    monkeypatch.setattr("trtbuild.checkpoint.gguf._SLICE_BYTES", 1000)
    np.testing.assert_array_equal(_open(tmp_path / "m.gguf").tensors[QKV].read(), whole)


def test_a_tied_head(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "qwen2", tie_word_embeddings=True)
    decoder = _open(tmp_path / "m.gguf")
    assert decoder.spec.tie_word_embeddings
    np.testing.assert_array_equal(decoder.tensors[HEAD].read(), decoder.tensors[EMBEDDING].read())


def test_numbers_are_read_as_they_were_meant(tmp_path: Path) -> None:
    """The file holds 32-bit floats; 1e-6 must not come back as 9.99999997e-07."""
    write_gguf(tmp_path / "m.gguf", "llama", rms_norm_eps=1e-6, rope_theta=5e5)
    spec = _open(tmp_path / "m.gguf").spec
    assert (spec.norm_epsilon, spec.rope.base) == (1e-6, 5e5)


def test_per_layer_counts_that_agree(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "llama", metadata={"llama.attention.head_count_kv": [2, 2]})
    assert _open(tmp_path / "m.gguf").spec.num_kv_heads == 2
    write_gguf(tmp_path / "n.gguf", "llama", metadata={"llama.attention.head_count_kv": [2, 4]})
    assert "head_count_kv differs by layer" in _refusal(tmp_path / "n.gguf")


def test_a_split_model_is_read_whole(tmp_path: Path) -> None:
    tensors = write_gguf(tmp_path / "分 片.gguf", "llama", split_max_tensors=6)
    parts = sorted(tmp_path.glob("*.gguf"))
    assert len(parts) > 2
    for part in (parts[0], parts[1]):
        decoder = _open(part)
        np.testing.assert_array_equal(decoder.tensors[QKV].read(), _qkv(tensors))
    parts[1].unlink()
    parts[2].unlink()
    assert f"missing {parts[1].name}, {parts[2].name}" in _refusal(parts[0])


def test_the_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", "llama")
    write_gguf(tmp_path / "b.gguf", "llama", split_max_tensors=6)
    write_gguf(tmp_path / "c.gguf", "llama", kind=Kind.Q8_0)
    first = next(tmp_path.glob("b-00001*"))
    a, b, c = (_open(tmp_path / name).fingerprint() for name in ("a.gguf", first.name, "c.gguf"))
    assert a == b != c


# rope


def test_linear_and_yarn_scaling(tmp_path: Path) -> None:
    scaling = {"qwen2.rope.scaling.type": "yarn", "qwen2.rope.scaling.factor": 4.0}
    write_gguf(tmp_path / "y.gguf", "qwen2", metadata=scaling)
    assert _open(tmp_path / "y.gguf").spec.rope.scaling == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 256,
    }
    scaling |= {"qwen2.rope.scaling.original_context_length": 64, "qwen2.rope.scaling.attn_factor": 0.5}
    write_gguf(tmp_path / "o.gguf", "qwen2", metadata=scaling)
    spec = _open(tmp_path / "o.gguf").spec
    assert spec.rope.scaling is not None
    assert spec.rope.scaling["original_max_position_embeddings"] == 64
    assert inverse_frequencies(spec)[1] == pytest.approx(0.5 * (1 + 0.1 * math.log(4)))
    scaling = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    write_gguf(tmp_path / "l.gguf", "llama", metadata=scaling)
    assert _open(tmp_path / "l.gguf").spec.rope.scaling == {"rope_type": "linear", "factor": 2.0}
    write_gguf(tmp_path / "f.gguf", "llama", metadata={"llama.rope.scaling.factor": 2.0})
    assert _open(tmp_path / "f.gguf").spec.rope.scaling == {"rope_type": "linear", "factor": 2.0}


def _llama3_divisors(factor: float, low: float, high: float, original: int, base: float) -> np.ndarray:
    """As llama.cpp's converter computes `rope_freqs.weight`."""
    values = []
    for frequency in 1.0 / base ** (np.arange(0, 64, 2) / 64):
        wavelength = 2 * np.pi / frequency
        if wavelength < original / high:
            values.append(1.0)
        elif wavelength > original / low:
            values.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            values.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(values, np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_scaling_is_found_again(tmp_path: Path, factor: float) -> None:
    divisors = _llama3_divisors(factor, 1.0, 4.0, 8192, 5e5)
    write_gguf(tmp_path / "m.gguf", "llama", rope_theta=5e5, extra={"rope_freqs.weight": divisors})
    spec = _open(tmp_path / "m.gguf").spec
    assert spec.rope.scaling == {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    plain = 1.0 / 5e5 ** (np.arange(0, 64, 2) / 64)
    np.testing.assert_allclose(inverse_frequencies(spec)[0], plain / divisors, rtol=1e-6)


def test_other_frequency_divisors_keep_their_meaning(tmp_path: Path) -> None:
    divisors = np.linspace(1, 7, 32, dtype=np.float32)
    write_gguf(tmp_path / "m.gguf", "llama", extra={"rope_freqs.weight": divisors})
    spec = _open(tmp_path / "m.gguf").spec
    for length in (None, 10**6):
        inv_freq, attention_factor = inverse_frequencies(spec, length)
        np.testing.assert_allclose(inv_freq, 1.0 / 1e4 ** (np.arange(0, 64, 2) / 64) / divisors, rtol=1e-6)
        assert attention_factor == 1.0
    write_gguf(tmp_path / "n.gguf", "llama", extra={"rope_freqs.weight": np.ones(32, np.float32)})
    assert _open(tmp_path / "n.gguf").spec.rope.scaling is None


# What cannot be read


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"general.architecture": "lama"}, "'lama' is not supported"),
        ({"general.architecture": "gemma3"}, "supported: llama, qwen2, qwen3"),
        ({"llama.expert_count": 8}, "mixtures of experts"),
        ({"llama.block_count": 3}, "missing tensor blk.2."),
        ({"llama.block_count": 1}, "blk.1."),
        ({"llama.block_count": 4294967295}, "llama.block_count is 4294967295"),
        ({"llama.embedding_length": 512}, "has shape [96, 256]"),
        ({"llama.feed_forward_length": None}, "llama.feed_forward_length is missing"),
        ({"llama.attention.head_count": 0}, "llama.attention.head_count is 0"),
        ({"llama.attention.head_count_kv": 3}, "llama.attention.head_count"),
        ({"llama.attention.value_length": 32}, "value_length differs"),
        ({"llama.attention.layer_norm_rms_epsilon": "x"}, "layer_norm_rms_epsilon is 'x'"),
        ({"llama.rope.dimension_count": 128}, "rope.dimension_count is 128"),
        ({"llama.rope.scaling.type": "xyz"}, "rope type 'xyz' is not supported"),
        ({"llama.rope.scaling.type": "linear"}, "factor is missing"),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": [1, 2]}, "tokens must be a list of strings"),
    ],
)
def test_metadata_that_cannot_be_meant(tmp_path: Path, metadata: dict[str, Any], words: str) -> None:
    write_gguf(tmp_path / "m.gguf", "llama", metadata=metadata)
    message = _refusal(tmp_path / "m.gguf")
    assert words in message
    assert "m.gguf" in message


def test_a_tensor_without_a_place(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "llama", extra={"blk.0.ffn_gate_inp.weight": np.ones(4, np.float32)})
    assert "blk.0.ffn_gate_inp.weight has no place" in _refusal(tmp_path / "m.gguf")


def test_a_vocabulary_only_file(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "v.gguf", "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "vocabulary-only" in _refusal(tmp_path / "v.gguf")


def test_a_file_of_a_type_without_dequantizer(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "llama", extra={"token_embd.weight": np.ones((96, 256), np.int8)})
    assert "type I8 cannot be dequantized" in _refusal(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a GGUF file"),
        (b"GGUF", "not a GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git-LFS pointer"),
        (b"PK\3\4" + bytes(40), "not a GGUF file"),
        (struct.pack("<4sIQQ", b"GGUF", 1, 0, 0), "GGUF version 1"),
        (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "big-endian"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 1 << 60, 0), "do not fit"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1 << 60), "do not fit"),
        (struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, 1 << 62) + bytes(8), "truncated"),
        (struct.pack("<4sIQQQ1sIIQ", b"GGUF", 3, 0, 1, 1, b"k", 9, 8, 1 << 60) + bytes(8), "array of"),
        (struct.pack("<4sIQQQ1sIIQ", b"GGUF", 3, 0, 1, 1, b"k", 9, 4, 1 << 60) + bytes(8), "truncated"),
        (struct.pack("<4sIQQQ1sIIQ", b"GGUF", 3, 0, 1, 1, b"k", 9, 8, 1) + struct.pack("<Q", 1 << 50), "cut off"),
        (struct.pack("<4sIQQQ1sI", b"GGUF", 3, 0, 1, 1, b"k", 77) + bytes(8), "unknown type 77"),
        (struct.pack("<4sIQQQ1sII", b"GGUF", 3, 1, 0, 1, b"t", 9, 0) + bytes(80), "9 dimensions"),
        (struct.pack("<4sIQQQ1sIQIQ", b"GGUF", 3, 1, 0, 1, b"t", 1, 1 << 60, 0, 0) + bytes(80), "ends at byte"),
        (struct.pack("<4sIQQQ1sIQIQ", b"GGUF", 3, 1, 0, 1, b"t", 1, 4, 99, 0) + bytes(80), "unknown type 99"),
        (struct.pack("<4sIQQQ1sIQIQ", b"GGUF", 3, 1, 0, 1, b"t", 1, 4, 0, 5) + bytes(80), "misaligned"),
    ],
)
def test_files_that_lie_about_themselves(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        assert words in _refusal(path)
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def test_a_truncated_download(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, "llama")
    path.write_bytes(path.read_bytes()[:-1000])
    assert "truncated: tensor" in _refusal(path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fuzz") / "m.gguf"
    tokens = ["a", "b", "ab", "<s>", *(f"t{i}" for i in range(92))]
    tokenizer = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 96,
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 3,
    }
    write_gguf(path, "llama", metadata=tokenizer)
    return path


@settings(deadline=None, max_examples=120)
@given(data=st.data())
def test_any_damage_to_a_header_is_read_or_refused(whole: Path, data: st.DataObject) -> None:
    content = bytearray(whole.read_bytes())
    header_bytes = min(t.offset_bytes for t in read_gguf(whole).tensors.values())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(4, header_bytes - 1))] = data.draw(st.integers(0, 255))
    path = whole.with_name("damaged.gguf")
    path.write_bytes(bytes(content[: data.draw(st.integers(0, header_bytes + 100) | st.just(len(content)))]))
    try:
        decoder = _open(path)
        decoder.tensors[QKV].read()
    except InputRefused as refused:
        assert "\n" not in str(refused)
