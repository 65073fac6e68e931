"""Hugging Face folders: what opens, what it opens as, and the one line that everything else gets."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from builders import DTYPES, FAMILIES, family_config, random_tensors, write_huggingface
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from trtbuild.checkpoint.finite import check_finite
from trtbuild.checkpoint.huggingface import open_huggingface
from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.spec import EMBEDDING, HEAD, Decoder
from trtbuild.errors import InputRefused, TrtbuildError


def _open(folder: Path) -> Decoder:
    return open_model(str(folder))


def _refusal(folder: Path) -> str:
    before = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
    with pytest.raises(InputRefused) as refused:
        _open(folder)
    assert before == (sorted(p.name for p in folder.iterdir()) if folder.is_dir() else [])
    return f"{refused.value} | {refused.value.hint}"


def _edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, **changes}), encoding="utf-8")


def _edit_tensors(folder: Path, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_dtype_and_sharding(tmp_path: Path, family: str, shards: int, dtype: str) -> None:
    decoder = _open(write_huggingface(tmp_path, family, dtype=dtype, shards=shards))
    source = random_tensors(family_config(family), dtype=dtype)
    assert decoder.spec.dtype == dtype
    assert {name: tensor.shape for name, tensor in decoder.tensors.items()} == decoder.spec.float_shapes()
    for name, tensor in decoder.tensors.items():
        array = tensor.read()
        assert (array.dtype, array.shape) == (tensor.dtype, tensor.shape), name
    layer, hub = "model.layers.1", "transformer.layers.1"
    if family == "phi3":
        gate, up = np.split(source[f"{layer}.mlp.gate_up_proj.weight"], 2)
        qkv = source[f"{layer}.self_attn.qkv_proj.weight"]
    else:
        gate, up = source[f"{layer}.mlp.gate_proj.weight"], source[f"{layer}.mlp.up_proj.weight"]
        qkv = np.concatenate([source[f"{layer}.self_attn.{m}_proj.weight"] for m in "qkv"])
    expected = {
        "attention.qkv": qkv,
        "mlp.fc": gate,
        "mlp.gate": up,
        "mlp.proj": source[f"{layer}.mlp.down_proj.weight"],
    }
    for module, values in expected.items():
        np.testing.assert_array_equal(decoder.tensors[f"{hub}.{module}.weight"].read(), values)
    assert {"tokenizer.json", "tokenizer_config.json", "generation_config.json"} <= set(decoder.assets)
    assert decoder.spec.eos_token_ids == (2,)


def test_fused_weights_are_sliced_without_a_copy(tmp_path: Path) -> None:
    decoder = _open(write_huggingface(tmp_path, "phi3"))
    assert not decoder.tensors["transformer.layers.0.mlp.gate.weight"].read().flags.owndata


def test_biases_follow_the_config(tmp_path: Path) -> None:
    llama = _open(write_huggingface(tmp_path / "a", "llama", attention_bias=True, mlp_bias=True)).spec
    assert (llama.qkv_bias, llama.dense_bias, llama.mlp_bias) == (True, True, True)
    qwen = _open(write_huggingface(tmp_path / "b", "qwen2")).spec
    assert (qwen.qkv_bias, qwen.dense_bias, qwen.mlp_bias) == (True, False, False)


def test_a_tied_head_is_the_embedding_and_is_said(tmp_path: Path) -> None:
    decoder = _open(write_huggingface(tmp_path, "llama", tie_word_embeddings=True))
    np.testing.assert_array_equal(decoder.tensors[HEAD].read(), decoder.tensors[EMBEDDING].read())
    assert any("tied" in note for note in decoder.notes)


def test_a_stored_head_of_a_tied_model_is_ignored_and_said(tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path, "llama")
    _edit_config(folder, tie_word_embeddings=True)
    decoder = _open(folder)
    np.testing.assert_array_equal(decoder.tensors[HEAD].read(), decoder.tensors[EMBEDDING].read())
    assert any("lm_head.weight is not used" in note for note in decoder.notes)


def test_weights_without_the_model_prefix(tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path, "llama", tie_word_embeddings=True)
    expected = _open(folder).tensors["transformer.layers.0.mlp.fc.weight"].read().copy()

    def strip(tensors: dict[str, np.ndarray]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)

    _edit_tensors(folder, strip)
    np.testing.assert_array_equal(_open(folder).tensors["transformer.layers.0.mlp.fc.weight"].read(), expected)


def test_old_rotary_buffers_are_ignored(tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path, "llama")
    _edit_tensors(folder, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)}))
    assert _open(folder).spec.family == "llama"


@pytest.mark.parametrize(
    ("settings_", "windows"),
    [
        ({"use_sliding_window": False, "sliding_window": 16}, [None, None]),
        ({"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}, [None, 16]),
        ({"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0}, [16, 16]),
        ({"use_sliding_window": True, "sliding_window": 16}, [None, None]),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 16,
                "max_window_layers": 9,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            [16, None],
        ),
    ],
)
def test_qwen_windows_by_layer(tmp_path: Path, settings_: dict[str, Any], windows: list[int | None]) -> None:
    spec = _open(write_huggingface(tmp_path, "qwen2", **settings_)).spec
    assert [spec.window_of(layer) for layer in range(2)] == windows


def test_a_path_with_spaces_and_chinese_characters(tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path / "模型 一号 (最终)", "llama", shards=2)
    assert _open(folder).spec.family == "llama"
    (folder / "model-00001-of-00002.safetensors").unlink()
    assert "模型 一号" in _refusal(folder)


def test_numbered_shards_without_an_index_are_read_together(tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path, "llama", shards=3)
    (folder / "model.safetensors.index.json").unlink()
    assert len(_open(folder).tensors) == len(_open(folder).spec.float_shapes())


def test_the_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    one = _open(write_huggingface(tmp_path / "one", "llama"))
    assert one.fingerprint() == one.fingerprint()
    assert len(one.fingerprint()) == 64
    assert _open(write_huggingface(tmp_path / "sharded", "llama", shards=4)).fingerprint() == one.fingerprint()
    assert _open(write_huggingface(tmp_path / "seed", "llama", seed=1)).fingerprint() != one.fingerprint()
    assert _open(write_huggingface(tmp_path / "theta", "llama", rope_theta=5e5)).fingerprint() != one.fingerprint()


def test_stop_tokens_of_the_generation_config_win(tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path, "llama")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2]}), encoding="utf-8")
    assert _open(folder).spec.eos_token_ids == (7, 2)
    (folder / "generation_config.json").unlink()
    assert _open(folder).spec.eos_token_ids == (2,)


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path, "llama")
    (folder / "config.json").write_bytes(b"\xef\xbb\xbf" + (folder / "config.json").read_bytes())
    assert _open(folder).spec.family == "llama"


# What cannot be read


def test_every_missing_shard_is_listed(tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path, "llama", shards=4)
    for n in (2, 4):
        (folder / f"model-0000{n}-of-00004.safetensors").unlink()
    message = _refusal(folder)
    assert "missing model-00002-of-00004.safetensors, model-00004-of-00004.safetensors" in message
    (folder / "model.safetensors.index.json").unlink()
    assert "missing model-00002-of-00004.safetensors, model-00004-of-00004.safetensors" in _refusal(folder)


def test_an_index_that_disagrees_with_its_shards(tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path, "llama", shards=2)
    index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
    for bad, words in (
        ({"weight_map": {}}, "weight_map is missing or empty"),
        ({"weight_map": {**index["weight_map"], "extra.weight": "model-00001-of-00002.safetensors"}}, "extra.weight"),
        ({"weight_map": {"a": "../../secret.safetensors"}}, "not a file of this folder"),
        ({"weight_map": {"a": 3, "b": ["x"]}}, "not a file of this folder"),
    ):
        (folder / "model.safetensors.index.json").write_text(json.dumps(bad), encoding="utf-8")
        assert words in _refusal(folder)


def test_a_lfs_pointer(tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path, "llama", shards=2)
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4f\nsize 4976698672\n"
    (folder / "model-00002-of-00002.safetensors").write_text(pointer)
    message = _refusal(folder)
    assert "model-00002-of-00002.safetensors: this is a Git-LFS pointer" in message
    assert "git lfs pull" in message


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer.json"])
def test_a_lfs_pointer_in_place_of_another_file(tmp_path: Path, name: str) -> None:
    folder = write_huggingface(tmp_path, "llama")
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4f\nsize 7\n")
    with pytest.raises(InputRefused, match=f"{name}: this is a Git-LFS pointer"):
        open_huggingface(folder)


def test_an_index_left_over_beside_a_single_file(tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path, "llama")
    stale = {"weight_map": {"model.norm.weight": "model-00001-of-00009.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(stale), encoding="utf-8")
    assert _open(folder).spec.family == "llama"


def test_a_truncated_file(tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path, "llama")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "model.safetensors: truncated: tensor" in _refusal(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth"])
def test_pickles_only(tmp_path: Path, name: str) -> None:
    folder = write_huggingface(tmp_path, "llama")
    (folder / "model.safetensors").rename(folder / name)
    message = _refusal(folder)
    assert name in message
    assert "safetensors" in message


def test_no_weights_at_all(tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path, "llama")
    (folder / "model.safetensors").unlink()
    assert "no .safetensors file" in _refusal(folder)


def test_config_and_shapes_that_disagree(tmp_path: Path) -> None:
    for i, (changes, words) in enumerate(
        (
            ({"vocab_size": 100}, ["embed_tokens.weight", "[96, 64]", "[100, 64]"]),
            ({"hidden_size": 80}, ["embed_tokens.weight", "[96, 64]", "[96, 80]"]),
            ({"intermediate_size": 96}, ["gate_proj.weight", "[128, 64]", "[96, 64]"]),
            ({"num_key_value_heads": 4}, ["k_proj.weight", "[128, 64]", "[192, 64]"]),
            ({"num_hidden_layers": 3}, ["missing tensor model.layers.2."]),
            ({"num_hidden_layers": 1}, ["model.layers.1.", "has no place"]),
            ({"num_hidden_layers": 9999}, ["missing tensor", "more"]),
            ({"num_hidden_layers": 2**31 - 1}, ["num_hidden_layers is 2147483647"]),
            ({"attention_bias": True}, ["missing tensor model.layers.0.self_attn.q_proj.bias"]),
            ({"num_attention_heads": 6}, ["hidden_size (64) is not a multiple"]),
            ({"num_key_value_heads": 3}, ["num_attention_heads (4) is not a multiple"]),
        )
    ):
        folder = write_huggingface(tmp_path / str(i), "llama")
        _edit_config(folder, **changes)
        message = _refusal(folder)
        for word in words:
            assert word in message, changes


def test_an_unexpected_bias_is_not_dropped_silently(tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path, "llama", attention_bias=True)
    _edit_config(folder, attention_bias=False)
    assert "self_attn.q_proj.bias" in _refusal(folder)


def test_shards_of_different_dtypes_within_one_linear(tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path, "llama")
    name = "model.layers.0.self_attn.k_proj.weight"
    _edit_tensors(folder, lambda t: t.update({name: t[name].astype(np.float16)}))
    message = _refusal(folder)
    assert name in message
    assert "float16" in message


def test_an_untied_config_without_a_head(tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path, "llama")
    _edit_tensors(folder, lambda t: t.pop("lm_head.weight"))
    assert "lm_head.weight is missing and config.json does not tie it" in _refusal(folder)


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, "(fp8)"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "(bitsandbytes)"),
        ({"quantization_config": {"bits": 4}}, "(method unnamed)"),
        ({"compression_config": {"quant_method": "compressed-tensors"}}, "(compressed-tensors)"),
    ],
)
def test_a_quantized_config(tmp_path: Path, block: dict[str, Any], words: str) -> None:
    message = _refusal(write_huggingface(tmp_path, "llama", **block))
    assert f"an already quantized checkpoint {words}" in message
    assert "base model" in message


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, np.uint8, np.int8, np.int32, np.float64])
def test_weights_of_a_type_that_is_not_read(tmp_path: Path, dtype: Any) -> None:
    folder = write_huggingface(tmp_path, "llama")
    name = "model.layers.1.mlp.up_proj.weight"
    _edit_tensors(folder, lambda t: t.update({name: t[name].astype(dtype)}))
    message = _refusal(folder)
    assert name in message
    assert "already quantized" in message


@pytest.mark.parametrize("suffix", ["qweight", "weight_scale_inv", "weight.absmax", "SCB"])
def test_tensor_names_of_quantizers(tmp_path: Path, suffix: str) -> None:
    folder = write_huggingface(tmp_path, "llama")
    name = f"model.layers.0.mlp.up_proj.{suffix}"
    _edit_tensors(folder, lambda t: t.update({name: np.ones(4, np.float32)}))
    assert f"{name}: an already quantized checkpoint" in _refusal(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "qwen2_moe"}, ["'qwen2_moe' is not supported", "the closest is qwen2", "phi3"]),
        ({"model_type": "lama"}, ["'lama'", "the closest is llama"]),
        ({"model_type": "zzz"}, ["'zzz'", "supported: llama, mistral, qwen2, qwen3, phi3"]),
        ({"model_type": None, "architectures": ["GemmaForCausalLM"]}, ["'GemmaForCausalLM'"]),
        ({"architectures": ["LlamaForSequenceClassification"]}, ["LlamaForSequenceClassification", "LlamaForCausalLM"]),
        ({"architectures": "LlamaForCausalLM"}, ["architectures must be a list"]),
        ({"hidden_act": "gelu"}, ["hidden_act is 'gelu'"]),
        ({"hidden_size": "64"}, ["hidden_size is '64'"]),
        ({"hidden_size": None}, ["hidden_size is missing"]),
        ({"hidden_size": -64}, ["hidden_size is -64"]),
        ({"num_hidden_layers": True}, ["num_hidden_layers is True"]),
        ({"vocab_size": 1 << 40}, ["vocab_size"]),
        ({"rms_norm_eps": 0}, ["rms_norm_eps is 0"]),
        ({"rms_norm_eps": math.nan}, ["rms_norm_eps is nan"]),
        ({"tie_word_embeddings": "yes"}, ["tie_word_embeddings is 'yes'"]),
        ({"eos_token_id": [1.5]}, ["eos_token_id"]),
    ],
)
def test_configs_that_cannot_be_meant(tmp_path: Path, changes: dict[str, Any], words: list[str]) -> None:
    folder = write_huggingface(tmp_path, "llama")
    (folder / "generation_config.json").unlink()
    _edit_config(folder, **changes)
    message = _refusal(folder)
    for word in words:
        assert word in message
    assert "config.json" in message


def test_the_family_is_known_by_its_class_alone(tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path, "qwen3")
    _edit_config(folder, model_type=None)
    assert _open(folder).spec.family == "qwen3"


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": 1,}', "\x00"])
def test_a_config_that_is_no_json_object(tmp_path: Path, text: str) -> None:
    folder = write_huggingface(tmp_path, "llama")
    (folder / "config.json").write_text(text, encoding="utf-8")
    assert "config.json" in _refusal(folder)


def test_not_a_number_in_the_weights_is_named() -> None:
    weights = np.ones((3, 4), ml_dtypes.bfloat16)
    check_finite(weights, "m:w")
    weights[1, 2] = np.nan
    with pytest.raises(InputRefused, match=r"m:w: holds nan at \[1, 2\]"):
        check_finite(weights, "m:w")
    with pytest.raises(InputRefused, match=r"m:w: holds -inf at \[0\]"):
        check_finite(np.array([-np.inf], np.float16), "m:w")
    check_finite(np.array([1], np.int8), "m:w")


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
_KEYS = st.sampled_from(
    [
        *family_config("qwen3"),
        "rope_scaling",
        "rope_parameters",
        "partial_rotary_factor",
        "quantization_config",
        "layer_types",
        "max_window_layers",
        "use_sliding_window",
        "sliding_window",
        "original_max_position_embeddings",
        "attention_bias",
    ]
)


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_huggingface(tmp_path_factory.mktemp("fuzz") / "m", "llama")


@settings(deadline=None, max_examples=200)
@given(changes=st.dictionaries(_KEYS, _VALUES, max_size=3), family=st.sampled_from([*FAMILIES, "x"]))
def test_any_config_is_read_or_refused(fuzzed: Path, changes: dict[str, Any], family: str) -> None:
    config = {**family_config("llama"), "model_type": family, "architectures": None, **changes}
    (fuzzed / "config.json").write_text(json.dumps(config), encoding="utf-8")
    try:
        _open(fuzzed)
    except TrtbuildError as refused:
        assert "\n" not in str(refused)
