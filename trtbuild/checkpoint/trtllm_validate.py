"""What TensorRT-LLM's loader and builder demand of a checkpoint, as one table of named rules that need no GPU.

The loader checks names and shapes only while a GPU engine is being built, takes a wrong dtype as it is, and fills in
wrong defaults silently; here every rule is checked from config and headers, and scales and weights from their bytes.
Sources: TensorRT-LLM 1.0-1.2 `models/modeling_utils.py`, `quantization/`, `builder.py`, and reports in its issues.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtbuild.checkpoint import trtllm_rules_config as config
from trtbuild.checkpoint import trtllm_rules_tensors as tensors
from trtbuild.checkpoint.spec import DecoderSpec
from trtbuild.checkpoint.trtllm_findings import Check, Finding, Subject
from trtbuild.checkpoint.trtllm_layouts import LINEAR_LAYOUTS, Expected, expected_tensors
from trtbuild.checkpoint.trtllm_reader import RankFiles, open_rank_files, read_spec
from trtbuild.checkpoint.trtllm_sharding import tp_obstacle
from trtbuild.errors import InputRefused

_REPAIR = "quantize the model again with trtbuild, or export it again with the tool that wrote this"
_CONFIG_REPAIR = "take the value from config.json of the model it was made from, or quantize it again with trtbuild"
_HEAD_HINT = 'add "*lm_head" to exclude_modules'
_EMBEDDING_HINT = 'leave exclude_modules null, or add "*lm_head" and "*vocab_embedding" to it'


@dataclass(frozen=True)
class Rule:
    """A row of the table: what it checks, and whether a breach stops a build."""

    check: Check
    hint: str | None = None
    fatal: bool = True
    reads_weights: bool = False


RULES: dict[str, Rule] = {
    "wrong-defaults": Rule(config.wrong_defaults, _CONFIG_REPAIR),
    "rotary-base": Rule(config.rotary_base, _CONFIG_REPAIR),
    "rotary-scaling": Rule(config.rotary_scaling, _CONFIG_REPAIR),
    "long-rope": Rule(config.long_rope, _CONFIG_REPAIR),
    "qwen-type": Rule(config.qwen_type, "set it to the model_type of the model: qwen2 or qwen3"),
    "family-limits": Rule(config.family_limits),
    "bias-flag": Rule(config.bias_flag, "set attn_bias to what the tensors hold"),
    "quant-algo": Rule(config.quant_algo, fatal=False),
    "exclude-head": Rule(config.exclude_head, _HEAD_HINT),
    "exclude-embedding": Rule(config.exclude_embedding, _EMBEDDING_HINT),
    "exclude-ignored": Rule(config.exclude_ignored, "quantize these modules, or take W8A8_SQ_PER_CHANNEL (int8)"),
    "exclude-unknown": Rule(config.exclude_unknown, "correct the pattern", fatal=False),
    "tensor-parallel": Rule(config.tensor_parallel),
    "pipeline-parallel": Rule(config.pipeline_parallel),
    "group-size": Rule(config.groups),
    "kernel-tile": Rule(config.kernel_tile, "choose another tp, or another precision"),
    "missing-tensors": Rule(tensors.missing, _REPAIR),
    "prequant-missing": Rule(
        tensors.prequant, "add ones of shape [in] in the checkpoint's dtype, or quantize with trtbuild"
    ),
    "extra-tensors": Rule(tensors.extra, fatal=False),
    "kv-scales-unused": Rule(
        tensors.kv_scales_unused, "set kv_cache_quant_algo to INT8 or FP8 to use them", fatal=False
    ),
    "shapes": Rule(tensors.shapes, _REPAIR),
    "vocabulary-padding": Rule(tensors.vocabulary, _REPAIR),
    "dtypes": Rule(tensors.dtypes, _REPAIR),
    "weight-only-int8": Rule(tensors.weight_only_in_file, "store floating weights: trtbuild quantize -p int8-wo does"),
    "ranks-agree": Rule(tensors.ranks_agree, _REPAIR),
    "scales-positive": Rule(tensors.scales, _REPAIR, reads_weights=True),
    "weights-finite": Rule(tensors.finite, _REPAIR, reads_weights=True),
    "int8-zero": Rule(tensors.int8_zero, _REPAIR, reads_weights=True),
    "activation-scales-equal": Rule(tensors.activations_equal, fatal=False, reads_weights=True),
}
"""Name → rule. `readable` is the rule behind the table: the folder is a checkpoint that can be opened at all."""


def _expected(files: RankFiles, spec: DecoderSpec) -> tuple[dict[str, Expected], ...]:
    known = files.quantization.quant_algo in LINEAR_LAYOUTS
    if not known or tp_obstacle(spec, files.ranks.tp) or spec.num_layers % files.ranks.pp:
        return ()
    if spec.num_layers > sum(len(row[0].tensors) for row in files.files):
        return ()  # far fewer tensors than layers: the reader's refusal says so
    return tuple(
        expected_tensors(spec, files.quantization, files.ranks, dtype=spec.dtype, embedding_axis=files.embedding_axis)
    )


def validate_checkpoint(path: Path | str, *, contents: bool = True) -> list[Finding]:
    """Check a checkpoint folder against every rule of RULES; an empty list means TensorRT-LLM would load it.

    `contents` false leaves out the rules that read weights. Nothing is raised for a bad checkpoint: one that cannot be
    opened gives a single finding of rule `readable`.
    """
    try:
        files = open_rank_files(Path(path))
        spec = read_spec(files)
        subject = Subject(files, spec, files.quantization, _expected(files, spec))
    except InputRefused as refusal:
        return [Finding("readable", str(refusal), hint=refusal.hint)]
    return [
        Finding(name, breach.text, breach.tensor, breach.hint or rule.hint, rule.fatal)
        for name, rule in RULES.items()
        if contents or not rule.reads_weights
        for breach in rule.check(subject)
    ]
