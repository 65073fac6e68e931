"""The reader on what others wrote, on what is broken, and on noise."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import write_huggingface
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.trtllm import read_checkpoint, write_checkpoint
from trtbuild.errors import InputRefused

MODELOPT = Path(__file__).parents[1] / "data" / "modelopt"
TINY = MODELOPT.parent / "tiny-llama"
LAYER = "transformer.layers.0"


def change_config(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    change(config)
    path.write_text(json.dumps(config), encoding="utf-8")


def change_rank(folder: Path, change: Callable[[dict[str, np.ndarray]], None], rank: int = 0) -> None:
    path = folder / f"rank{rank}.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    write_checkpoint(open_model(str(write_huggingface(tmp_path / "hf"))), folder, tp=2)
    return folder


def test_smoothquant_export_of_modelopt() -> None:
    decoder = read_checkpoint(MODELOPT / "sq_kvbmm-0.37")
    assert decoder.quantization.quant_algo == "W8A8_SQ_PER_CHANNEL"
    assert decoder.quantization.kv_cache_quant_algo == "INT8"
    assert decoder.quantization.exclude_modules == ("lm_head",)
    assert decoder.spec.rope.base == 500000.0
    assert decoder.notes == ()
    source = open_model(str(TINY))
    for name in ("attention.qkv", "mlp.proj"):
        path = f"{LAYER}.{name}"
        weight, scale, prequant = (
            decoder.tensors[f"{path}.{suffix}"].read().astype(np.float32)
            for suffix in ("weight", "weights_scaling_factor", "prequant_scaling_factor")
        )
        original = source.tensors[f"{path}.weight"].read().astype(np.float32)
        half_step = scale[:, None] * prequant / 2
        rounded = np.abs(original) * 2**-7  # modelopt smoothed and quantized in bfloat16
        assert (np.abs(weight * scale[:, None] * prequant - original) <= half_step * 1.001 + rounded).all()


def test_int8_default_export_without_prequant_says_so() -> None:
    notes = read_checkpoint(MODELOPT / "int8def-0.37").notes
    assert [note for note in notes if "no prequant_scaling_factor" in note]


def test_weight_only_export_with_scales_is_readable() -> None:
    decoder = read_checkpoint(MODELOPT / "wo8-0.47")
    assert decoder.tensors[f"{LAYER}.mlp.fc.weight"].dtype == np.int8
    assert decoder.tensors[f"{LAYER}.mlp.fc.weights_scaling_factor"].shape == (256,)
    assert [note for note in decoder.notes if "wants floating weights" in note]


def test_kv_cache_asked_through_output_quantizers_is_lost_and_noticed() -> None:
    decoder = read_checkpoint(MODELOPT / "sq_kvout-0.37")
    assert decoder.quantization.kv_cache_quant_algo is None
    assert not any("kv_cache" in name for name in decoder.tensors)


def test_missing_rotary_base_is_said_loudly_and_filled_from_the_model() -> None:
    folder = MODELOPT / "wo8-0.47"
    lost = read_checkpoint(folder)
    assert lost.spec.rope.base == 10000.0
    assert lost.notes[0].startswith("WARNING: config.json has no rotary_base")
    source = open_model(str(TINY)).spec
    found = read_checkpoint(folder, model_folder=TINY)
    assert found.spec.rope == source.rope
    assert found.spec.eos_token_ids == source.eos_token_ids
    assert not any("rotary_base" in note for note in found.notes)


def test_a_tokenizer_folder_without_the_model_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((TINY / "tokenizer.json").read_bytes())
    folder = MODELOPT / "wo8-0.47"
    assert read_checkpoint(folder, model_folder=tmp_path).notes == read_checkpoint(folder).notes


def test_our_own_checkpoint_knows_better_than_a_folder(checkpoint: Path, tmp_path: Path) -> None:
    other = write_huggingface(tmp_path / "other", rope_theta=77.0)
    assert read_checkpoint(checkpoint, model_folder=other).spec.rope.base == 10000.0


def test_another_models_config_is_refused(tmp_path: Path) -> None:
    other = write_huggingface(tmp_path / "hf")
    with pytest.raises(InputRefused, match="hidden_size is 64, the checkpoint's is 128"):
        read_checkpoint(MODELOPT / "wo8-0.47", model_folder=other)


def test_shared_embedding_table_without_a_head(checkpoint: Path) -> None:
    for rank in range(2):
        change_rank(checkpoint, lambda tensors: tensors.pop("lm_head.weight"), rank)
    with pytest.raises(InputRefused, match=r"lm_head\.weight"):
        read_checkpoint(checkpoint)
    change_config(checkpoint, lambda config: config.update(share_embedding_table=True))
    decoder = read_checkpoint(checkpoint)
    embedding = decoder.tensors["transformer.vocab_embedding.weight"].read()
    np.testing.assert_array_equal(decoder.tensors["lm_head.weight"].read(), embedding)


def test_embedding_sharded_along_hidden(checkpoint: Path) -> None:
    whole = read_checkpoint(checkpoint).tensors["transformer.vocab_embedding.weight"].read().copy()
    halves = np.split(whole, 2, axis=1)
    for rank in range(2):
        change_rank(
            checkpoint, lambda t, r=rank: t.update({"transformer.vocab_embedding.weight": halves[r].copy()}), rank
        )
    change_config(checkpoint, lambda config: config.update(embedding_sharding_dim=1))
    np.testing.assert_array_equal(
        read_checkpoint(checkpoint).tensors["transformer.vocab_embedding.weight"].read(), whole
    )


def test_embedding_that_is_not_shared_out(checkpoint: Path) -> None:
    whole = read_checkpoint(checkpoint).tensors["transformer.vocab_embedding.weight"].read().copy()
    for rank in range(2):
        change_rank(checkpoint, lambda t: t.update({"transformer.vocab_embedding.weight": whole}), rank)
    change_config(checkpoint, lambda config: config.update(use_parallel_embedding=False))
    np.testing.assert_array_equal(
        read_checkpoint(checkpoint).tensors["transformer.vocab_embedding.weight"].read(), whole
    )


def test_fingerprint_follows_weights_and_quantization(checkpoint: Path) -> None:
    before = read_checkpoint(checkpoint).fingerprint()
    assert read_checkpoint(checkpoint).fingerprint() == before
    change_config(checkpoint, lambda config: config["quantization"].update(quant_algo="W8A16"))
    requantized = read_checkpoint(checkpoint).fingerprint()
    change_rank(checkpoint, lambda tensors: tensors["lm_head.weight"].__setitem__((0, 0), 7), rank=1)
    reweighted = read_checkpoint(checkpoint).fingerprint()
    assert len({before, requantized, reweighted}) == 3


def _cut_off(folder: Path) -> None:
    path = folder / "rank1.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _pop(name: str) -> Callable[[Path], None]:
    return lambda folder: change_rank(folder, lambda tensors: tensors.pop(name), rank=1)


def _set(**values: Any) -> Callable[[Path], None]:
    return lambda folder: change_config(folder, lambda config: config.update(values))


def _replace(name: str, array: np.ndarray) -> Callable[[Path], None]:
    return lambda folder: change_rank(folder, lambda tensors: tensors.update({name: array}), rank=1)


def _kernel_layout(folder: Path) -> None:
    _set(quantization={"quant_algo": "W8A16"})(folder)
    change_rank(folder, lambda t: t.update({f"{LAYER}.mlp.fc.per_channel_scale": np.ones(64, np.float16)}))


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no such folder": (shutil.rmtree, "no such folder"),
    "no config": (lambda f: (f / "config.json").unlink(), "not a TensorRT-LLM checkpoint"),
    "config of a model": (_set(architecture=None), "no `architecture`"),
    "config is no JSON": (lambda f: (f / "config.json").write_text("{"), "not valid JSON"),
    "config is a list": (lambda f: (f / "config.json").write_text("[]"), "not a JSON object"),
    "unknown architecture": (_set(architecture="OPTForCausalLM"), "OPTForCausalLM is not supported"),
    "missing rank": (lambda f: (f / "rank1.safetensors").unlink(), "missing rank1.safetensors"),
    "truncated rank": (_cut_off, "truncated|belong to none"),
    "git-lfs pointer": (
        lambda f: (f / "rank1.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n" + "x" * 99),
        "Git-LFS pointer",
    ),
    "world size": (_set(mapping={"world_size": 4, "tp_size": 2}), "world_size is 4"),
    "context parallel": (_set(mapping={"tp_size": 1, "cp_size": 2}), "cp_size above 1"),
    "wrong tp": (_set(mapping={"tp_size": 1}), "does not fit|config.json implies"),
    "tensor missing in a rank": (_pop("transformer.ln_f.weight"), "transformer.ln_f.weight is missing"),
    "ranks disagree": (_replace("transformer.ln_f.weight", np.ones(63, np.float32)), "in the first rank"),
    "too many layers": (_set(num_hidden_layers=2**31 - 1), "holds 2 decoder layers"),
    "layers do not divide": (_set(mapping={"tp_size": 1, "pp_size": 2}, num_hidden_layers=3), "do not divide"),
    "other sizes": (_set(intermediate_size=96), "config.json implies"),
    "KV heads": (_set(num_key_value_heads=3), "not a multiple of num_key_value_heads"),
    "not gated": (_set(hidden_act="gelu"), "only silu is supported"),
    "dtype": (_set(dtype="int8"), "dtype is 'int8'"),
    "rope type": (_set(rotary_scaling={"type": "spiral"}), "spiral"),
    "exclude list": (_set(quantization={"exclude_modules": "lm_head"}), "exclude_modules"),
    "GPU kernel order": (_kernel_layout, "GPU kernel order"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_broken_checkpoints_are_refused_in_one_line(case: str, checkpoint: Path) -> None:
    damage, message = REFUSED[case]
    damage(checkpoint)
    with pytest.raises(InputRefused, match=message) as caught:
        read_checkpoint(checkpoint)
    assert "\n" not in str(caught.value)
    assert str(checkpoint) in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
KEYS = (
    *("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size", "head_size", "mapping"),
    *("intermediate_size", "vocab_size", "rotary_base", "rotary_scaling", "rotary_pct", "quantization", "dtype"),
    *("architecture", "hidden_act", "norm_epsilon", "max_position_embeddings", "use_parallel_embedding", "trtbuild"),
)


@given(key=st.sampled_from(KEYS), value=JSON, inner=st.sampled_from(["tp_size", "pp_size", "quant_algo", "rope_type"]))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_value_of_any_key_is_read_or_refused(checkpoint: Path, key: str, value: Any, inner: str) -> None:
    path = checkpoint / "config.json"
    original = path.read_text(encoding="utf-8")
    for replacement in (value, {inner: value}):
        path.write_text(json.dumps({**json.loads(original), key: replacement}), encoding="utf-8")
        try:
            decoder = read_checkpoint(checkpoint)
            assert decoder.tensors["lm_head.weight"].read().shape == (decoder.spec.vocab_size, 64)
        except InputRefused as refusal:
            assert "\n" not in str(refusal)
        finally:
            path.write_text(original, encoding="utf-8")
