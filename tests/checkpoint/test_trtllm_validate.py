"""Every rule about a checkpoint: silent on good ones, and each broken in the smallest way that breaks it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import write_huggingface
from hub_builders import ALGOS, cast, quantized

from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.safetensors import read_header
from trtbuild.checkpoint.safetensors_writer import Layout, streamed_file
from trtbuild.checkpoint.trtllm import Finding, validate_checkpoint, write_checkpoint
from trtbuild.checkpoint.trtllm_validate import RULES

MODELOPT = Path(__file__).parents[1] / "data" / "modelopt"
QKV = "transformer.layers.0.attention.qkv"
SQ = "W8A8_SQ_PER_CHANNEL"
Damage = Callable[[Path], Any]


def write(
    folder: Path, algo: str | None = None, family: str = "llama", *, tp: int = 1, pp: int = 1, **changes: Any
) -> Path:
    folder.mkdir(exist_ok=True)
    if algo is None or algo == "W8A16":
        decoder = cast(open_model(str(write_huggingface(folder / "hf", family, **changes))), np.float16)
    else:
        decoder = quantized(folder / "hf", algo, **changes)
    write_checkpoint(decoder, folder, tp=tp, pp=pp)
    if algo == "W8A16":
        quantization(quant_algo="W8A16")(folder)
    return folder


def config(**values: Any) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / "config.json"
        document = {**json.loads(path.read_text(encoding="utf-8")), **values}
        path.write_text(json.dumps({k: v for k, v in document.items() if v is not ...}), encoding="utf-8")

    return damage


def quantization(**values: Any) -> Damage:
    def damage(folder: Path) -> None:
        block = json.loads((folder / "config.json").read_text(encoding="utf-8"))["quantization"]
        config(quantization={**block, **values})(folder)

    return damage


def load(path: Path) -> dict[str, np.ndarray]:
    """As safetensors.numpy.load_file, which reads no float8 in every release."""
    return {name: stored.read().copy() for name, stored in read_header(path).tensors.items()}


def save(tensors: dict[str, np.ndarray], path: Path) -> None:
    layouts = {name: Layout(array.dtype, array.shape) for name, array in tensors.items()}
    with streamed_file(path, layouts) as file:
        for name, array in tensors.items():
            file.write(name, array)


def tensor(name: str, change: Callable[[np.ndarray], np.ndarray | None], rank: int = 0) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / f"rank{rank}.safetensors"
        tensors = load(path)
        changed = change(tensors.pop(name, np.ones(3, np.float32)).copy())
        save(tensors if changed is None else {**tensors, name: changed}, path)

    return damage


def drop(array: np.ndarray) -> None:
    del array


def at(position: Any, value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array[position] = value
        return array

    return change


def all_activation_scales(folder: Path) -> None:
    path = folder / "rank0.safetensors"
    tensors = load(path)
    same = {n: np.full(1, 1 / 127, np.float32) if "activation" in n else t for n, t in tensors.items()}
    save(same, path)


LONGROPE = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}

BREACHES: dict[str, tuple[str, dict[str, Any], Damage, str]] = {
    # case: rule, what to write, how to break it, what the finding must say
    "hidden_act": ("readable", {}, config(hidden_act=...), "hidden_act"),
    "positions": ("wrong-defaults", {}, config(num_key_value_heads=...), "num_key_value_heads"),
    "position type": ("wrong-defaults", {}, config(position_embedding_type="alibi"), "alibi"),
    "rotary base": ("rotary-base", {}, config(rotary_base=...), "10000"),
    "rotary scaling": ("rotary-scaling", {}, config(rotary_base=..., rotary_scaling=...), "scaling"),
    "long rope": (
        "long-rope",
        {"family": "phi3", "rope_scaling": LONGROPE, "original_max_position_embeddings": 64},
        config(longrope_scaling_long_factors=...),
        "longrope_scaling_long_factors",
    ),
    "qwen type": ("qwen-type", {"family": "qwen2"}, config(qwen_type=...), "qwen_type"),
    "bias flag": ("bias-flag", {"family": "qwen2"}, config(attn_bias=False), "attn_bias is False"),
    "lost bias": ("bias-flag", {"attention_bias": True}, config(attn_bias=...), "attn_bias is False"),
    "unknown algorithm": ("quant-algo", {}, quantization(quant_algo="W8A8_NEW"), "W8A8_NEW"),
    "unknown KV algorithm": ("quant-algo", {"algo": SQ}, quantization(kv_cache_quant_algo="INT4"), "INT4"),
    "exclude list without the head": ("exclude-head", {"algo": SQ}, quantization(exclude_modules=[]), "lm_head"),
    "exclude list without the embedding": (
        "exclude-embedding",
        {"algo": "W8A16"},
        quantization(exclude_modules=["lm_head"]),
        "embedding",
    ),
    "plugin ignores exclusions": (
        "exclude-ignored",
        {"algo": "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN"},
        quantization(exclude_modules=["*lm_head", f"{QKV}"]),
        QKV,
    ),
    "exclusion of nothing": (
        "exclude-unknown",
        {"algo": SQ},
        quantization(exclude_modules=["*lm_head", "transformer.layers.7.mlp.proj"]),
        "layers.7",
    ),
    "AWQ group": ("group-size", {"algo": "W4A8_AWQ"}, quantization(group_size=128), "group of 128"),
    "missing": ("missing-tensors", {"algo": SQ}, tensor(f"{QKV}.weights_scaling_factor", drop), QKV),
    "missing KV scale": (
        "missing-tensors",
        {"algo": SQ},
        tensor("transformer.layers.1.attention.kv_cache_scaling_factor", drop),
        "kv_cache_scaling_factor",
    ),
    "missing smoother": (
        "missing-tensors",
        {"algo": "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN"},
        tensor("transformer.layers.0.mlp.proj.smoother", drop),
        "smoother",
    ),
    "missing prequant": (
        "prequant-missing",
        {"algo": SQ},
        tensor(f"{QKV}.prequant_scaling_factor", drop),
        "prequant_scaling_factor",
    ),
    "extra": ("extra-tensors", {}, tensor("transformer.layers.0.mlp.router.weight", lambda a: a), "router"),
    "scales of an excluded module": (
        "extra-tensors",
        {"algo": SQ},
        quantization(exclude_modules=["*lm_head", QKV]),
        QKV,
    ),
    "int8 in an excluded module": (
        "dtypes",
        {"algo": SQ},
        quantization(exclude_modules=["*lm_head", QKV]),
        "int8, float16 is needed",
    ),
    "unused KV scales": (
        "kv-scales-unused",
        {"algo": SQ},
        quantization(kv_cache_quant_algo=None),
        "kv_cache_quant_algo is null",
    ),
    "shape": ("shapes", {"algo": SQ}, tensor(f"{QKV}.weights_scaling_factor", lambda a: a[:-1]), "[127]"),
    "vocabulary": (
        "vocabulary-padding",
        {"tp": 2, "vocab_size": 95},
        tensor("lm_head.weight", lambda a: np.concatenate([a, a[:1]])),
        "[49, 64], [48, 64] is needed",
    ),
    "dtype": (
        "dtypes",
        {"algo": SQ},
        tensor(f"{QKV}.weights_scaling_factor", lambda a: a.astype(np.float16)),
        "float16, float32 is needed",
    ),
    "int8 in W8A16": (
        "weight-only-int8",
        {"algo": "W8A16"},
        tensor(f"{QKV}.weight", lambda a: np.ones(a.shape, np.int8)),
        "per_channel_scale",
    ),
    "ranks": ("ranks-agree", {"tp": 2}, tensor("transformer.ln_f.weight", lambda a: a[:-1], rank=1), "ln_f"),
    "infinite scale": ("scales-positive", {"algo": SQ}, tensor(f"{QKV}.weights_scaling_factor", at(3, np.inf)), "inf"),
    "zero scale": ("scales-positive", {"algo": SQ}, tensor(f"{QKV}.prequant_scaling_factor", at(3, 0)), "0.0"),
    "negative scale": ("scales-positive", {"algo": SQ}, tensor(f"{QKV}.activation_scaling_factor", at(0, -1)), "-1"),
    "NaN weight": ("weights-finite", {}, tensor("transformer.ln_f.weight", at(3, np.nan)), "holds nan at [3]"),
    "NaN in FP8": ("weights-finite", {"algo": "FP8"}, tensor(f"{QKV}.weight", at((2, 3), np.nan)), "nan at [2, 3]"),
    "all zero": ("int8-zero", {"algo": SQ}, tensor(f"{QKV}.weight", lambda a: a * 0), "all int8 weights are zero"),
    "alpha 1.0": ("activation-scales-equal", {"algo": SQ}, all_activation_scales, "alpha 1.0"),
}


def rules_of(findings: list[Finding]) -> set[str]:
    return {finding.rule for finding in findings}


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "phi3"])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_what_the_writer_writes_breaks_no_rule(family: str, tp: int, tmp_path: Path) -> None:
    assert validate_checkpoint(write(tmp_path, None, family, tp=tp, vocab_size=95)) == []


@pytest.mark.parametrize("algo", ["W8A16", *ALGOS])
@pytest.mark.parametrize("ranks", [{}, {"pp": 2}])
def test_no_quantized_layout_breaks_a_rule(algo: str, ranks: dict[str, int], tmp_path: Path) -> None:
    assert validate_checkpoint(write(tmp_path, algo, **ranks)) == []


@pytest.mark.parametrize("case", BREACHES)
def test_a_breach_is_found_and_named(case: str, tmp_path: Path) -> None:
    rule, built, damage, text = BREACHES[case]
    folder = write(tmp_path, **built)
    assert rule not in rules_of(validate_checkpoint(folder))
    damage(folder)
    findings = [finding for finding in validate_checkpoint(folder) if finding.rule == rule]
    assert findings, f"{rule} is silent"
    assert text in findings[0].text
    assert "\n" not in findings[0].text


UNFIT: dict[str, tuple[str, dict[str, Any], str]] = {
    # case: rule, what to write, what the finding must say; the checkpoint is whole, but TensorRT-LLM cannot hold it
    "qwen3 dense bias": ("family-limits", {"family": "qwen3", "attention_bias": True}, "attention.dense"),
    "phi3 head size": ("family-limits", {"family": "phi3", "head_dim": 32}, "head_size"),
    "kernel tile": ("kernel-tile", {"algo": "W8A16", "intermediate_size": 80}, "multiples of 32 bytes"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_models_that_tensorrt_llm_cannot_hold(case: str, tmp_path: Path) -> None:
    rule, built, text = UNFIT[case]
    findings = validate_checkpoint(write(tmp_path, **built))
    assert rules_of(findings) == {rule}
    assert text in findings[0].text


def test_illegal_ranks_name_the_legal_ones(tmp_path: Path) -> None:
    folder = write(tmp_path / "tp", tp=4)
    config(mapping={"tp_size": 3})(folder)
    findings = {finding.rule: finding for finding in validate_checkpoint(folder)}
    assert findings["tensor-parallel"].hint == "tp can be 1, 2, 4"
    folder = write(tmp_path / "pp", pp=2)
    config(num_hidden_layers=3)(folder)
    findings = {finding.rule: finding for finding in validate_checkpoint(folder)}
    assert findings["pipeline-parallel"].hint == "pp can be 1, 3"


def test_every_rule_has_a_failing_case() -> None:
    tried = {rule for rule, *_ in (*BREACHES.values(), *UNFIT.values())}
    assert tried | {"tensor-parallel", "pipeline-parallel"} == {*RULES, "readable"}


@pytest.mark.parametrize("golden", ["int8def-0.37", "sq_kvbmm-0.37", "sq_kvout-0.37", "wo8-0.47"])
def test_known_faults_of_modelopts_exports(golden: str) -> None:
    expected = {
        "int8def-0.37": {"prequant-missing"},
        "sq_kvbmm-0.37": {"activation-scales-equal"},
        "sq_kvout-0.37": {"activation-scales-equal"},
        "wo8-0.47": {"rotary-base", "rotary-scaling", "exclude-embedding", "extra-tensors", "weight-only-int8"},
    }
    assert rules_of(validate_checkpoint(MODELOPT / golden)) == expected[golden]


def test_contents_can_be_left_out(tmp_path: Path) -> None:
    folder = write(tmp_path)
    tensor("transformer.ln_f.weight", at(3, np.nan))(folder)
    assert validate_checkpoint(folder, contents=False) == []


def test_what_cannot_be_opened_is_one_finding(tmp_path: Path) -> None:
    (finding,) = validate_checkpoint(tmp_path / "nowhere")
    assert finding.rule == "readable"
    assert finding.fatal
