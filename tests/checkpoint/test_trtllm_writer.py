"""The writer against files that nvidia-modelopt wrote (hashes in tests/data/modelopt), and its rules for every type."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import LLAMA3_ROPE, write_huggingface
from hub_builders import ALGOS, cast, in_memory, quantized
from safetensors.numpy import load_file

from trtbuild.checkpoint.architectures import ARCHITECTURES
from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.spec import Decoder, Tensor
from trtbuild.checkpoint.trtllm import read_checkpoint, validate_checkpoint, write_checkpoint
from trtbuild.checkpoint.trtllm_config import FAMILIES, FAMILY_OF
from trtbuild.errors import InputRefused, UsageError

DATA = Path(__file__).parents[1] / "data"
GOLDEN = json.loads((DATA / "modelopt" / "float16.json").read_text(encoding="utf-8"))
RANKS = {"fp16_tp2": {"tp": 2}, "fp16_tp4": {"tp": 4}, "fp16_pp2": {"pp": 2}}
SOURCES: dict[str, dict[str, Any]] = {
    "fp16_tied": {"tie_word_embeddings": True},
    "fp16_rs": {"rope_scaling": LLAMA3_ROPE},
}


def tiny_llama(folder: Path, **changes: Any) -> Decoder:
    folder.mkdir()
    for path in (DATA / "tiny-llama").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, **changes}), encoding="utf-8")
    return cast(open_model(str(folder)), np.float16)


@pytest.mark.parametrize("case", GOLDEN)
def test_every_tensor_equals_modelopts(case: str, tmp_path: Path) -> None:
    decoder = tiny_llama(tmp_path / "hf", **SOURCES.get(case, {}))
    write_checkpoint(decoder, tmp_path, **RANKS.get(case, {}))
    assert {path.name for path in tmp_path.glob("rank*")} == set(GOLDEN[case]["ranks"])
    for name, rank in GOLDEN[case]["ranks"].items():
        tensors = {
            key: [str(array.dtype), list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()]
            for key, array in load_file(tmp_path / name).items()
        }
        assert tensors == rank["tensors"]
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == rank["sha256"]


@pytest.mark.parametrize("case", GOLDEN)
def test_config_says_what_modelopts_says_and_never_leaves_out_the_rope(case: str, tmp_path: Path) -> None:
    decoder = tiny_llama(tmp_path / "hf", **SOURCES.get(case, {}))
    write_checkpoint(decoder, tmp_path, **RANKS.get(case, {}))
    ours = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    for theirs in GOLDEN[case]["configs"].values():
        only_theirs = {"producer", "bias", "rank", "decoder", "rmsnorm", "lm_head_bias", "share_embedding_table"}
        # logits_dtype is a choice; modelopt marks one rank as sharing out its embedding, which is harmless
        differ = {"logits_dtype", "mapping"} | (set() if ours["mapping"]["tp_size"] > 1 else {"use_parallel_embedding"})
        for key in theirs.keys() - only_theirs - differ:
            assert ours[key] == theirs[key], key
        assert ours["mapping"] == {**theirs["mapping"], "cp_size": 1}
    assert ours["rotary_base"] == 500000.0
    assert ours["rotary_scaling"] == SOURCES.get(case, {}).get("rope_scaling")


FAMILY_KEYS: dict[str, dict[str, Any]] = {
    "llama": {"architecture": "LlamaForCausalLM", "attn_bias": False, "mlp_bias": False},
    "mistral": {"architecture": "MistralForCausalLM", "attn_bias": False},
    "qwen2": {"architecture": "Qwen2ForCausalLM", "qwen_type": "qwen2", "attn_bias": True},
    "qwen3": {"architecture": "Qwen3ForCausalLM", "qwen_type": "qwen3", "attn_bias": False, "qk_layernorm": True},
    "phi3": {"architecture": "Phi3ForCausalLM", "hidden_act": "swiglu"},
}


def test_every_family_has_its_tensorrt_llm_side() -> None:
    assert set(FAMILIES) == set(ARCHITECTURES) == set(FAMILY_KEYS)
    assert set(FAMILY_OF.values()) == set(ARCHITECTURES)


@pytest.mark.parametrize("family", FAMILY_KEYS)
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_every_family_survives_the_round_trip(family: str, tp: int, tmp_path: Path) -> None:
    decoder = cast(open_model(str(write_huggingface(tmp_path / "hf", family, vocab_size=95))), np.float16)
    config = write_checkpoint(decoder, tmp_path, tp=tp)
    assert FAMILY_KEYS[family].items() <= config.items()
    again = read_checkpoint(tmp_path)
    assert again.spec == dataclasses.replace(decoder.spec, dtype="float16")
    assert set(again.tensors) == set(decoder.tensors)
    for name, tensor in decoder.tensors.items():
        assert again.tensors[name].shape == tensor.shape
        np.testing.assert_array_equal(again.tensors[name].read(), tensor.read())
    assert again.assets == decoder.assets
    assert again.notes == ()


def test_phi3_fuses_up_before_gate_on_each_rank(tmp_path: Path) -> None:
    decoder = cast(open_model(str(write_huggingface(tmp_path / "hf", "phi3"))), np.float16)
    write_checkpoint(decoder, tmp_path, tp=2)
    prefix = "transformer.layers.1.mlp"
    up, gate = (decoder.tensors[f"{prefix}.{hub}.weight"].read() for hub in ("gate", "fc"))
    for rank in range(2):
        written = load_file(tmp_path / f"rank{rank}.safetensors")
        half = len(up) // 2
        rows = slice(rank * half, (rank + 1) * half)
        np.testing.assert_array_equal(written[f"{prefix}.fc.weight"], np.concatenate([up[rows], gate[rows]]))
        assert f"{prefix}.gate.weight" not in written


def test_phi3_longrope_fields(tmp_path: Path) -> None:
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    folder = write_huggingface(
        tmp_path / "hf",
        "phi3",
        rope_scaling={"type": "longrope", **factors},
        original_max_position_embeddings=64,
    )
    decoder = open_model(str(folder))
    config = write_checkpoint(decoder, tmp_path)
    assert config["position_embedding_type"] == "long_rope"
    assert config["original_max_position_embeddings"] == 64
    assert config["longrope_scaling_short_factors"] == factors["short_factor"]
    assert config["longrope_scaling_long_factors"] == factors["long_factor"]
    assert read_checkpoint(tmp_path).spec.rope == decoder.spec.rope


def test_windows_and_stop_tokens_survive(tmp_path: Path) -> None:
    folder = write_huggingface(
        tmp_path / "hf",
        "qwen2",
        use_sliding_window=True,
        sliding_window=32,
        layer_types=["full_attention", "sliding_attention"],
        eos_token_id=[2, 5],
    )
    decoder = open_model(str(folder))
    write_checkpoint(decoder, tmp_path)
    spec = read_checkpoint(tmp_path).spec
    assert (spec.window_of(0), spec.window_of(1)) == (None, 32)
    assert spec.eos_token_ids == decoder.spec.eos_token_ids


@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (4, 1), (2, 2)])
def test_quantized_tensors_survive_the_round_trip(algo: str, tp: int, pp: int, tmp_path: Path) -> None:
    decoder = quantized(tmp_path / "hf", algo)
    write_checkpoint(decoder, tmp_path, tp=tp, pp=pp)
    again = read_checkpoint(tmp_path)
    assert again.quantization == decoder.quantization
    assert set(again.tensors) == set(decoder.tensors)
    for name, tensor in decoder.tensors.items():
        ours = again.tensors[name]
        assert (ours.dtype, ours.shape) == (tensor.dtype, tensor.shape), name
        assert ours.read().tobytes() == np.ascontiguousarray(tensor.read()).tobytes(), name


def test_scales_follow_their_dimension(tmp_path: Path) -> None:
    """TP 4 with 4 heads and 2 KV heads of 16: rank 3 holds q rows 48-63 and the second KV head."""
    decoder = quantized(tmp_path / "hf", "W8A8_SQ_PER_CHANNEL")
    write_checkpoint(decoder, tmp_path, tp=4)
    rank = load_file(tmp_path / "rank3.safetensors")
    path = "transformer.layers.0"

    def whole(name: str) -> np.ndarray:
        return np.asarray(decoder.tensors[f"{path}.{name}"].read())

    rows = [*range(48, 64), *range(64 + 16, 64 + 32), *range(96 + 16, 96 + 32)]
    expected = {
        "attention.qkv.weight": whole("attention.qkv.weight")[rows],
        "attention.qkv.weights_scaling_factor": whole("attention.qkv.weights_scaling_factor")[rows],
        "attention.qkv.prequant_scaling_factor": whole("attention.qkv.prequant_scaling_factor"),
        "mlp.fc.weights_scaling_factor": whole("mlp.fc.weights_scaling_factor")[96:],
        "attention.dense.weight": whole("attention.dense.weight")[:, 48:],
        "attention.dense.weights_scaling_factor": whole("attention.dense.weights_scaling_factor"),
        "attention.dense.prequant_scaling_factor": whole("attention.dense.prequant_scaling_factor")[48:],
        "mlp.proj.prequant_scaling_factor": whole("mlp.proj.prequant_scaling_factor")[96:],
        "attention.kv_cache_scaling_factor": whole("attention.kv_cache_scaling_factor"),
    }
    for name, array in expected.items():
        np.testing.assert_array_equal(rank[f"{path}.{name}"], array, err_msg=name)


def test_biases_of_column_cut_linears_stay_whole(tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path / "hf", "llama", attention_bias=True, mlp_bias=True)
    decoder = open_model(str(folder))
    write_checkpoint(decoder, tmp_path, tp=2)
    rank = load_file(tmp_path / "rank1.safetensors")
    for name in ("attention.dense.bias", "mlp.proj.bias"):
        full = f"transformer.layers.0.{name}"
        np.testing.assert_array_equal(rank[full], decoder.tensors[full].read())
    fc = "transformer.layers.0.mlp.fc.bias"
    np.testing.assert_array_equal(rank[fc], np.asarray(decoder.tensors[fc].read())[64:])


def test_phi3_refuses_partners_that_were_quantized_apart(tmp_path: Path) -> None:
    decoder = cast(open_model(str(write_huggingface(tmp_path / "hf", "phi3"))), np.float16)
    scales = {
        f"transformer.layers.0.mlp.{module}.activation_scaling_factor": np.array([value], np.float32)
        for module, value in (("fc", 0.5), ("gate", 0.25))
    }
    with pytest.raises(InputRefused, match="differs from its partner"):
        write_checkpoint(in_memory(decoder, scales, decoder.quantization), tmp_path)


@pytest.mark.parametrize(
    ("ranks", "message", "hint"),
    [
        ({"tp": 3}, "num_attention_heads 4 is not divisible by tp 3", "tp can be 1, 2, 4"),
        ({"pp": 3}, "2 layers are not divisible by pp 3", "pp can be 1, 2"),
    ],
)
def test_ranks_that_do_not_divide_are_refused_with_the_legal_values(
    ranks: dict[str, int], message: str, hint: str, tmp_path: Path
) -> None:
    decoder = open_model(str(write_huggingface(tmp_path / "hf")))
    with pytest.raises(UsageError, match=message) as caught:
        write_checkpoint(decoder, tmp_path, **ranks)
    assert caught.value.hint == hint
    assert not list(tmp_path.glob("rank*"))


def test_phi3_has_no_pipeline_stages(tmp_path: Path) -> None:
    decoder = open_model(str(write_huggingface(tmp_path / "hf", "phi3")))
    with pytest.raises(UsageError, match="phi3"):
        write_checkpoint(decoder, tmp_path, pp=2)


def test_one_tensor_in_memory_at_a_time(tmp_path: Path) -> None:
    size = 4 << 20
    decoder = open_model(str(write_huggingface(tmp_path / "hf", num_hidden_layers=8)))
    spec = dataclasses.replace(decoder.spec, num_layers=32)
    names = [f"transformer.layers.{layer}.mlp.proj.big" for layer in range(32)]
    tensors = {n: Tensor(np.dtype(np.uint8), (size,), n, lambda: np.ones(size, np.uint8)) for n in names}
    decoder = dataclasses.replace(decoder, spec=spec, tensors={**decoder.tensors, **tensors})
    tracemalloc.start()
    write_checkpoint(decoder, tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2.5 * size


def test_exclusions_under_pipeline_stages_are_numbered_within_a_stage(tmp_path: Path) -> None:
    """TensorRT-LLM matches exclude_modules inside each stage, so what one stage leaves in float all must."""
    decoder = quantized(tmp_path / "hf", "W8A8_SQ_PER_CHANNEL", num_hidden_layers=4)
    path = "transformer.layers.2.mlp.proj"
    floating = np.full(decoder.spec.linear_shape("mlp.proj"), 0.5, np.float16)
    decoder = in_memory(
        decoder,
        {f"{path}.weight": floating},
        dataclasses.replace(decoder.quantization, exclude_modules=("*lm_head", path)),
    )
    scales = ("weights_scaling_factor", "activation_scaling_factor", "prequant_scaling_factor")
    dropped = {f"{path}.{suffix}" for suffix in scales}
    tensors = {name: tensor for name, tensor in decoder.tensors.items() if name not in dropped}
    decoder = dataclasses.replace(decoder, tensors=tensors)

    config = write_checkpoint(decoder, tmp_path, pp=2)
    assert config["quantization"]["exclude_modules"] == ["*lm_head", "transformer.layers.0.mlp.proj"]
    first, second = (load_file(tmp_path / f"rank{rank}.safetensors") for rank in range(2))
    np.testing.assert_array_equal(second["transformer.layers.0.mlp.proj.weight"], floating)
    partner = "transformer.layers.0.mlp.proj"
    weight, scale, _, prequant = (decoder.tensors[f"{partner}.{s}"].read() for s in ("weight", *scales))
    expected = weight.astype(np.float32) * scale[:, None] * prequant.astype(np.float32)
    np.testing.assert_array_equal(first[f"{partner}.weight"], expected.astype(np.float16))
    assert not any(name.startswith(f"{partner}.") and name != f"{partner}.weight" for name in first)

    again = read_checkpoint(tmp_path)
    assert again.quantization.exclude_modules == ("*lm_head", partner, path)
    assert again.tensors["transformer.layers.1.mlp.proj.weight"].dtype == np.int8
    assert not any(f.fatal for f in validate_checkpoint(tmp_path))
