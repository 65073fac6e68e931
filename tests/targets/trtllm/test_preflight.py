"""Wrong inputs, each refused by a named rule with its numbers and a way out, before trtllm-build is ever called."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from stand_ins import nvidia_machine
from trtllm_checkpoints import change_config, write_trtllm

from trtbuild.cards import find_card
from trtbuild.checkpoint.spec import Decoder, DecoderSpec, Quantization, RopeSpec
from trtbuild.checkpoint.trtllm import read_checkpoint
from trtbuild.errors import TrtbuildError
from trtbuild.progress import silent
from trtbuild.targets.base import BuildOptions, Limits
from trtbuild.targets.registry import load_target
from trtbuild.targets.trtllm.preflight import PLAN_RULES, RULES

TARGET = load_target("trtllm")
LIMITS = Limits(max_batch_size=4, max_input_len=128, max_seq_len=256, max_num_tokens=512)


def limits(**changes: int) -> Limits:
    return dataclasses.replace(LIMITS, **changes)


def extra(*words: str) -> BuildOptions:
    return BuildOptions(extra=words)


@dataclasses.dataclass(frozen=True)
class Wrong:
    """One wrong input: the rule that must refuse it, what its text and hint must say, and how it is made."""

    rule: str
    text: str
    hint: str
    limits: Limits = LIMITS
    options: BuildOptions = dataclasses.field(default_factory=BuildOptions)
    checkpoint: dict[str, Any] = dataclasses.field(default_factory=dict)
    spoil: Callable[[Path], None] | None = None
    sm: int = 89
    gpus: int = 1
    environment: dict[str, str] = dataclasses.field(default_factory=dict)


def config(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: change_config(folder, **changes)


def tensors(change: Callable[[dict[str, np.ndarray]], None]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        path = folder / "rank0.safetensors"
        arrays = load_file(path)
        change(arrays)
        save_file(arrays, path)

    return spoil


def _drop_scale(arrays: dict[str, np.ndarray]) -> None:
    del arrays["transformer.layers.1.mlp.proj.activation_scaling_factor"]


def _negative_scale(arrays: dict[str, np.ndarray]) -> None:
    arrays["transformer.layers.0.mlp.fc.weights_scaling_factor"][3] = -1


def _int8_weight_only(arrays: dict[str, np.ndarray]) -> None:
    name = "transformer.layers.0.mlp.fc.weight"
    arrays[name] = np.ones(arrays[name].shape, np.int8)


SMALL_GPU = {"STAND_IN_GPU_MIB": "512"}

WRONG: dict[str, Wrong] = {
    "attention plugin off": Wrong(
        "in-flight-batching",
        "--gpt_attention_plugin disable",
        "leave",
        options=extra("--gpt_attention_plugin", "disable"),
    ),
    "padded input": Wrong(
        "in-flight-batching", "packed input", "leave", options=extra("--remove_input_padding=disable")
    ),
    "continuous KV": Wrong(
        "in-flight-batching", "--kv_cache_type continuous", "leave", options=extra("--kv_cache_type", "continuous")
    ),
    "paged_kv_cache": Wrong("paged-kv-agrees", "deprecated", "leave", options=extra("--paged_kv_cache", "disable")),
    "paged context without FMHA": Wrong(
        "context-fmha",
        "switched off by --context_fmha disable",
        "enable --context_fmha",
        options=extra("--context_fmha", "disable", "--use_paged_context_fmha", "enable"),
    ),
    "paged context with INT8 KV": Wrong(
        "int8-kv-cache",
        "INT8 KV cache",
        "FP8",
        options=extra("--use_paged_context_fmha", "enable"),
        checkpoint={"kv_cache": "INT8"},
    ),
    "paged context with FP8 KV": Wrong(
        "fp8-kv-cache",
        "FP8 KV cache with unquantized weights",
        "W4A8_AWQ",
        options=extra("--use_paged_context_fmha", "enable"),
        checkpoint={"kv_cache": "FP8"},
    ),
    "FP8 context FMHA": Wrong(
        "fp8-context-fmha", "unquantized", "leave it out", options=extra("--use_fp8_context_fmha", "enable")
    ),
    "INT8 on SM 100": Wrong("blackwell-int8", "SM 100", "fp8", checkpoint={"precision": "int8"}, sm=100),
    "INT8 weights on SM 103": Wrong("blackwell-int8", "W8A16", "nvfp4", checkpoint={"precision": "int8-wo"}, sm=103),
    "INT8 KV on SM 110": Wrong("blackwell-int8", "INT8 KV cache", "FP8 KV", checkpoint={"kv_cache": "INT8"}, sm=110),
    "plugin on SM 100": Wrong(
        "sm100-plugins", "--low_latency_gemm_plugin", "leave", options=extra("--low_latency_gemm_plugin", "fp8"), sm=100
    ),
    "swiglu plugin on Ada": Wrong(
        "swiglu-plugin", "Hopper", "leave", options=extra("--gemm_swiglu_plugin", "fp8"), sm=89
    ),
    "FP8 on Ampere": Wrong("minimum-sm", "FP8 needs SM 89", "int8", checkpoint={"precision": "fp8"}, sm=86),
    "NVFP4 on Hopper": Wrong("minimum-sm", "NVFP4 needs SM 100", "int8", checkpoint={"precision": "nvfp4"}, sm=90),
    "BF16 on Turing": Wrong("minimum-sm", "bfloat16 needs SM 80", "fp16", checkpoint={"precision": "bf16"}, sm=75),
    "step below a block": Wrong(
        "max-num-tokens", "less than one KV block of 32", "at least 32", limits(max_num_tokens=16)
    ),
    "step below the batch": Wrong(
        "max-num-tokens", "less than max_batch_size 64", "at least 64", limits(max_batch_size=64, max_num_tokens=48)
    ),
    "prompt above the step": Wrong(
        "prompt-in-one-step",
        "max_input_len 200 must fit max_num_tokens 100",
        "raise max_num_tokens to 200",
        limits(max_input_len=200, max_num_tokens=100),
        checkpoint={"kv_cache": "INT8"},
    ),
    "optimum above the step": Wrong(
        "opt-num-tokens", "opt_num_tokens 1000", "lower it to 512", options=extra("--opt_num_tokens", "1000")
    ),
    "optimum with profiles": Wrong(
        "opt-num-tokens",
        "--multiple_profiles",
        "leave one",
        options=extra("--opt_num_tokens", "64", "--multiple_profiles", "enable"),
    ),
    "2^31 elements": Wrong(
        "tensor-volume",
        "max_num_tokens 9000000 × qkv rows 512",
        f"at most {(2**31 - 1) // 512}",
        limits(max_num_tokens=9_000_000, max_batch_size=4000),
    ),
    "2^31 logits": Wrong(
        "tensor-volume",
        "vocab_size 2048",
        f"at most {(2**31 - 1) // 2048}",
        limits(max_num_tokens=1_100_000, max_batch_size=5000),
        extra("--gather_context_logits"),
        checkpoint={"vocab_size": 2048},
    ),
    "beyond the positions": Wrong(
        "positions", "above the 4096 positions", "lower max_seq_len to 4096", limits(max_seq_len=5000)
    ),
    "prompt above the sequence": Wrong(
        "limits", "max_input_len 300 is above max_seq_len 256", "255", limits(max_input_len=300)
    ),
    "no batch": Wrong("limits", "max_batch_size is 0", "positive", limits(max_batch_size=0)),
    "pool below a sequence": Wrong("kv-pool", "a KV pool of 100 tokens", "256", limits(kv_pool_tokens=100)),
    "unknown flag": Wrong("flags", "no --max_output_len", "max_seq_len", options=extra("--max_output_len", "128")),
    "tp_size": Wrong("flags", "no --tp_size", "quantize --tp", options=extra("--tp_size", "2")),
    "misspelt flag": Wrong("flags", "no --gemm_plugn", "--gemm_plugin", options=extra("--gemm_plugn", "auto")),
    "wrong choice": Wrong("flags", "one of auto, float16", "--help", options=extra("--gemm_plugin", "float64")),
    "wrong type": Wrong("flags", "whole number", "--help", options=extra("--max_beam_width", "two")),
    "no value": Wrong("flags", "takes 1 value", "--help", options=extra("--max_beam_width")),
    "our path": Wrong("own-paths", "--output_dir", "leave", options=extra("--output_dir", "/x")),
    "build_config file": Wrong(
        "own-paths", "ignore every size flag", "as flags", options=extra("--build_config", "b.json")
    ),
    "dry_run flag": Wrong("own-paths", "no engine", "--dry-run", options=extra("--dry_run")),
    "reduce fusion on one rank": Wrong(
        "single-family-switches", "tp 1", "leave", options=extra("--reduce_fusion", "enable")
    ),
    "pp reduce scatter": Wrong(
        "single-family-switches", "Mixtral", "leave", options=extra("--pp_reduce_scatter", "enable")
    ),
    "streaming LLM": Wrong("single-family-switches", "removed", "leave", options=extra("--streamingllm", "enable")),
    "fused MLP": Wrong(
        "fused-mlp", "W8A16", "leave", options=extra("--use_fused_mlp", "enable"), checkpoint={"precision": "int8-wo"}
    ),
    "fast build of weight-only": Wrong(
        "fast-build", "W8A16", "leave", options=extra("--fast_build"), checkpoint={"precision": "int8-wo"}
    ),
    "draft logits": Wrong(
        "draft-logits",
        "max_draft_len",
        "leave one",
        options=extra("--gather_context_logits", "--max_draft_len", "4"),
    ),
    "no workers": Wrong("workers", "workers is 0", "at least 1", options=extra("--workers", "0")),
    "odd block": Wrong("tokens-per-block", "power of two", "32", options=extra("--tokens_per_block", "48")),
    "two SMs": Wrong("one-sm", "not for 86, 89", "each", options=BuildOptions(sms=(86, 89))),
    "another SM": Wrong("one-sm", "SM 89, not for SM 86", "--sm out", options=BuildOptions(sms=(86,))),
    "GPU too small": Wrong("gpu-memory", "exceed the 0.50 GiB", "larger GPU", environment=SMALL_GPU),
    "KV cache without scales": Wrong(
        "kv-cache", "INT8 KV cache needs scaling factors", "quantize again", options=BuildOptions(kv_cache="int8")
    ),
    "KV cache of another world": Wrong("kv-cache", "u8", "leave", options=BuildOptions(kv_cache="u8")),
    "no tokenizer": Wrong("tokenizer", "no tokenizer.json", "--tokenizer", checkpoint={"tokenizer": False}),
    "head size": Wrong("head-size", "head_size 16", "256", checkpoint={"head_dim": 16}),
    "quant_algo INT8": Wrong(
        "quant-algo", "INT8", "W8A8_SQ_PER_CHANNEL", spoil=config(quantization={"quant_algo": "INT8"})
    ),
    "quant_algo misspelt": Wrong(
        "quant-algo", "W8A61", "did you mean W8A16", spoil=config(quantization={"quant_algo": "W8A61"})
    ),
    "missing scale": Wrong(
        "loader-missing-tensors",
        "transformer.layers.1.mlp.proj.activation_scaling_factor",
        "again",
        checkpoint={"precision": "int8"},
        spoil=tensors(_drop_scale),
    ),
    "negative scale": Wrong(
        "loader-scales-positive",
        "transformer.layers.0.mlp.fc.weights_scaling_factor",
        "again",
        checkpoint={"precision": "int8"},
        spoil=tensors(_negative_scale),
    ),
    "weight-only already INT8": Wrong(
        "loader-weight-only-int8",
        "mlp.fc",
        "int8-wo",
        checkpoint={"precision": "int8-wo"},
        spoil=tensors(_int8_weight_only),
    ),
    "rotary base lost": Wrong("loader-rotary-base", "rotary_base", "config.json", spoil=config(rotary_base=None)),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_refused_before_the_tool_is_called(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = WRONG[case]
    machine = nvidia_machine(tmp_path / "machine", monkeypatch, gpus=wrong.gpus, sm=wrong.sm)
    for name, value in wrong.environment.items():
        monkeypatch.setenv(name, value)
    checkpoint = write_trtllm(tmp_path, **wrong.checkpoint)
    if wrong.spoil:
        wrong.spoil(checkpoint)
    findings = TARGET.preflight(read_checkpoint(checkpoint), wrong.limits, wrong.options)
    fatal = [finding for finding in findings if finding.fatal]
    found = [finding for finding in fatal if finding.rule == wrong.rule]
    assert found, fatal
    assert wrong.text in found[0].text
    assert wrong.hint in (found[0].hint or "")
    with pytest.raises(TrtbuildError) as caught:
        TARGET.build(checkpoint, tmp_path / "engine", wrong.limits, wrong.options, silent)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code in (2, 3, 4, 5)
    assert not machine.calls("trtllm-build")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ckpt", "hf", "machine"]


def test_there_are_enough_of_them() -> None:
    assert len(WRONG) >= 30
    named = {rule.name for rule in (*RULES, *PLAN_RULES)}
    only_notes = {"dtype", "gpus-for-ranks", "sliding-window"}
    elsewhere = {"divisibility", "groups", "packed-alignment", "host-memory"}
    assert named - only_notes - elsewhere == {wrong.rule for wrong in WRONG.values() if "loader" not in wrong.rule}


LLAMA_8B = DecoderSpec("llama", 4096, 32, 32, 8, 128, 14336, 128256, 131072, 1e-5, RopeSpec(5e5))
QWEN_72B = DecoderSpec("qwen2", 8192, 80, 64, 8, 128, 29568, 152064, 32768, 1e-6, RopeSpec(1e6))


def planned(spec: DecoderSpec, algo: str | None = None, group: int | None = None, kv: str | None = None) -> Decoder:
    return Decoder(spec, {}, "", str, Quantization(algo, kv, group_size=group), {"tokenizer.json": b"{}"})


PLANNED: list[tuple[str, Decoder, BuildOptions, str, str]] = [
    # Thread 21: intermediate 29568 / 128 = 231 groups is odd, so tp 2 cuts a group in half.
    ("groups", planned(QWEN_72B, "W4A16_AWQ", 128), BuildOptions(tp=2), "14784 inputs per rank", "tp can be 1"),
    ("groups", planned(LLAMA_8B, "W4A16_AWQ", 256), BuildOptions(), "group_size 256", "128"),
    ("divisibility", planned(LLAMA_8B), BuildOptions(tp=3), "32 is not divisible by tp 3", "1, 2, 4, 8, 16, 32"),
    ("divisibility", planned(LLAMA_8B), BuildOptions(pp=3), "32 layers are not divisible by pp 3", "1, 2, 4, 8, 16"),
    ("packed-alignment", planned(QWEN_72B, "W4A16"), BuildOptions(tp=64), "462 outputs per rank = 231", "smaller tp"),
    ("gpu-memory", planned(LLAMA_8B), BuildOptions(card=find_card("RTX 4070")), "of RTX 4070 12GB", "--tp 2"),
    ("minimum-sm", planned(LLAMA_8B, "FP8"), BuildOptions(card=find_card("A10")), "A10 24GB is SM 86", "int8"),
    ("blackwell-int8", planned(LLAMA_8B, "W8A8_SQ_PER_CHANNEL"), BuildOptions(card=find_card("B200")), "SM 100", "fp8"),
]


@pytest.mark.parametrize(("rule", "decoder", "options", "text", "hint"), PLANNED)
def test_a_plan_is_judged_without_checkpoint_or_gpu(
    rule: str, decoder: Decoder, options: BuildOptions, text: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    found = [f for f in TARGET.preflight(decoder, Limits(), options) if f.fatal and f.rule == rule]
    assert found
    assert text in found[0].text
    assert hint in (found[0].hint or "")


def test_rope_factor_stretches_the_positions_except_for_types_that_count_it_already() -> None:
    def longest(scaling: dict[str, Any]) -> list[str]:
        spec = dataclasses.replace(LLAMA_8B, max_position_embeddings=8192, rope=RopeSpec(5e5, scaling))
        wide = Limits(4, 1024, 32768, 8192)
        return [f.rule for f in TARGET.preflight(planned(spec), wide, BuildOptions(card=find_card("H200"))) if f.fatal]

    assert longest({"rope_type": "yarn", "factor": 4.0}) == []
    assert longest({"rope_type": "llama3", "factor": 8.0}) == ["positions"]


def test_sm120_runs_smoothquant() -> None:
    options = BuildOptions(card=find_card("RTX 5090"))
    assert not [f for f in TARGET.preflight(planned(LLAMA_8B, "W8A8_SQ_PER_CHANNEL"), Limits(), options) if f.fatal]


def test_host_memory_counts_the_ranks_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("trtbuild.targets.trtllm.preflight.memory", lambda: (40 << 30, 20 << 30))
    rules = [f.rule for f in TARGET.preflight(planned(LLAMA_8B), Limits(), BuildOptions(tp=2)) if f.fatal]
    assert rules == []  # two ranks of 8 GB
    bigger = dataclasses.replace(LLAMA_8B, num_layers=64)
    findings = [f for f in TARGET.preflight(planned(bigger), Limits(), BuildOptions(tp=2)) if f.fatal]
    assert [f.rule for f in findings] == ["host-memory"]
    assert "2 rank(s)" in findings[0].text
