"""The flags of `trtllm-build` in tensorrt_llm 1.1 and 1.2: name, type, choices and default.

Source: `tensorrt_llm/commands/build.py` and `tensorrt_llm/plugin/plugin.py` of that era. Release 1.0 lies between the
versions that were read; the command in `command.py` uses only flags that all of them have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trtbuild.errors import did_you_mean

SWITCH = ("enable", "disable")
_PLUGIN = ("auto", "float16", "float32", "bfloat16", "int32", "disable")
_LOG_LEVELS = ("internal_error", "error", "warning", "info", "verbose", "debug", "trace")


@dataclass(frozen=True)
class Flag:
    """One flag: `kind` is "str", "int", "str+" (one or more values) or "flag" (takes no value)."""

    kind: str
    default: str | int | bool | None = None
    choices: tuple[str, ...] = ()


def _switch(default: str) -> Flag:
    return Flag("str", default, SWITCH)


BUILD_FLAGS: Mapping[str, Flag] = {
    "--checkpoint_dir": Flag("str"),
    "--model_config": Flag("str"),
    "--build_config": Flag("str"),
    "--model_cls_file": Flag("str"),
    "--model_cls_name": Flag("str"),
    "--output_dir": Flag("str", "engine_outputs"),
    "--max_batch_size": Flag("int", 2048),
    "--max_input_len": Flag("int", 1024),
    "--max_seq_len": Flag("int"),
    "--max_beam_width": Flag("int", 1),
    "--max_num_tokens": Flag("int", 8192),
    "--opt_num_tokens": Flag("int"),
    "--max_encoder_input_len": Flag("int", 1024),
    "--max_prompt_embedding_table_size": Flag("int", 0),
    "--kv_cache_type": Flag("str", "paged", ("continuous", "paged", "disabled")),
    "--paged_kv_cache": Flag("str"),
    "--input_timing_cache": Flag("str"),
    "--output_timing_cache": Flag("str", "model.cache"),
    "--profiling_verbosity": Flag("str", "layer_names_only", ("layer_names_only", "detailed", "none")),
    "--strip_plan": Flag("flag", False),
    "--weight_sparsity": Flag("flag", False),
    "--weight_streaming": Flag("flag", False),
    "--fast_build": Flag("flag", False),
    "--workers": Flag("int", 1),
    "--log_level": Flag("str", "info", _LOG_LEVELS),
    "--enable_debug_output": Flag("flag", False),
    "--visualize_network": Flag("str"),
    "--dry_run": Flag("flag", False),
    "--monitor_memory": Flag("flag", False),
    "--logits_dtype": Flag("str", None, ("float16", "float32")),
    "--gather_context_logits": Flag("flag", False),
    "--gather_generation_logits": Flag("flag", False),
    "--gather_all_token_logits": Flag("flag", False),
    "--lora_dir": Flag("str+"),
    "--lora_ckpt_source": Flag("str", "hf", ("hf", "nemo")),
    "--lora_target_modules": Flag("str+"),
    "--max_lora_rank": Flag("int", 64),
    "--speculative_decoding_mode": Flag(
        "str", None, ("draft_tokens_external", "lookahead_decoding", "medusa", "explicit_draft_tokens", "eagle")
    ),
    "--max_draft_len": Flag("int", 0),
    "--bert_attention_plugin": Flag("str", "auto", _PLUGIN),
    "--gpt_attention_plugin": Flag("str", "auto", _PLUGIN),
    "--gemm_plugin": Flag("str", None, ("auto", "float16", "float32", "bfloat16", "int32", "fp8", "nvfp4", "disable")),
    "--gemm_swiglu_plugin": Flag("str", "disable", ("fp8", "disable")),
    "--fp8_rowwise_gemm_plugin": Flag("str", "disable", _PLUGIN),
    "--lora_plugin": Flag("str", "disable", _PLUGIN),
    "--dora_plugin": _switch("disable"),
    "--moe_plugin": Flag("str", "auto", _PLUGIN),
    "--mamba_conv1d_plugin": Flag("str", "auto", _PLUGIN),
    "--nccl_plugin": Flag("str", "auto", _PLUGIN),
    "--low_latency_gemm_plugin": Flag("str", "disable", ("fp8", "disable")),
    "--low_latency_gemm_swiglu_plugin": Flag("str", "disable", ("fp8", "disable")),
    "--gemm_allreduce_plugin": Flag("str", "disable", ("float16", "bfloat16", "disable")),
    "--context_fmha": _switch("enable"),
    "--bert_context_fmha_fp32_acc": _switch("disable"),
    "--remove_input_padding": _switch("enable"),
    "--tokens_per_block": Flag("int", 32),
    "--use_paged_context_fmha": _switch("enable"),
    "--use_fp8_context_fmha": _switch("enable"),
    "--fuse_fp4_quant": _switch("disable"),
    "--multiple_profiles": _switch("disable"),
    "--paged_state": _switch("enable"),
    "--streamingllm": _switch("disable"),
    "--norm_quant_fusion": _switch("disable"),
    "--reduce_fusion": _switch("disable"),
    "--user_buffer": _switch("disable"),
    "--use_fused_mlp": _switch("enable"),
    "--pp_reduce_scatter": _switch("disable"),
}

ALIASES = {"--max_decoder_seq_len": "--max_seq_len", "--max_multimodal_len": "--max_prompt_embedding_table_size"}

GONE: Mapping[str, str] = {
    "--tp_size": "tensor parallelism is fixed by the checkpoint: `trtbuild quantize --tp N`",
    "--pp_size": "pipeline parallelism is fixed by the checkpoint: `trtbuild quantize --pp N`",
    "--max_output_len": "it was replaced by max_seq_len (prompt plus answer)",
    "--use_inflight_batching": "in-flight batching is on when attention plugin, packed input and paged KV are",
    "--rotary_base": "the checkpoint's config.json carries it",
    "--rotary_scaling": "the checkpoint's config.json carries it",
    "--weight_only_precision": "the checkpoint's quantization decides: `trtbuild quantize -p int8-wo`",
    "--strongly_typed": "every engine is strongly typed now",
    "--auto_parallel": "it was removed before 1.1",
    "--gpus_per_node": "it was removed before 1.1",
    "--cluster_key": "it was removed before 1.1",
    "--builder_opt": "it was removed",
    "--builder_force_num_profiles": "it was removed",
}
"""Flags that older releases or tutorials have and this window has not, with what to do instead."""

OURS = ("--checkpoint_dir", "--output_dir", "--input_timing_cache", "--output_timing_cache")
"""Flags whose value is a path that trtbuild decides."""

Values = dict[str, str | int | bool | tuple[str, ...]]


@dataclass(frozen=True)
class BadFlag:
    """An argument the command would not take, and the way out."""

    text: str
    hint: str


def parse_arguments(arguments: Sequence[str]) -> tuple[Values, list[BadFlag]]:
    """Read command line words as trtllm-build would; what it would refuse comes back as BadFlag, with the reason."""
    values: Values = {}
    bad: list[BadFlag] = []
    words = [part for word in arguments for part in _split(word)]
    while words:
        word = words.pop(0)
        name = ALIASES.get(word, word)
        flag = BUILD_FLAGS.get(name)
        given: list[str] = []
        while words and not words[0].startswith("--"):
            given.append(words.pop(0))
        if flag is None:
            bad.append(BadFlag(f"trtllm-build has no {word}", _closest(word)))
            continue
        problem = _problem(flag, given)
        if problem:
            bad.append(BadFlag(f"{word} {problem}", "see the flags of trtllm-build --help"))
        elif flag.kind == "flag":
            values[name] = True
        elif flag.kind == "str+":
            values[name] = tuple(given)
        else:
            values[name] = int(given[0]) if flag.kind == "int" else given[0]
    return values, bad


def _split(word: str) -> list[str]:
    return word.split("=", 1) if word.startswith("--") and "=" in word else [word]


def _problem(flag: Flag, given: Sequence[str]) -> str | None:
    expected = {"flag": (0, 0), "str+": (1, None)}.get(flag.kind, (1, 1))
    if len(given) < (expected[0] or 0) or (expected[1] is not None and len(given) > expected[1]):
        return f"takes {expected[0] if expected[1] is not None else 'one or more'} value(s), not {len(given)}"
    if flag.kind == "int" and not given[0].lstrip("-").isdigit():
        return f"takes a whole number, not {given[0]!r}"
    if flag.choices and given[0] not in flag.choices:
        return f"takes one of {', '.join(flag.choices)}, not {given[0]!r}"
    return None


def _closest(word: str) -> str:
    if word in GONE:
        return GONE[word]
    return did_you_mean(word, BUILD_FLAGS) or "leave it out"
