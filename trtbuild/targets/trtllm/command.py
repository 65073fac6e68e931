"""The `trtllm-build` command line: which flags, and why each has its value.

Written from the flag tables and the source of tensorrt_llm 1.1/1.2; it was never run against the real tool, only
against the stand-in of the tests, which accepts exactly what those tables list.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trtbuild.checkpoint.spec import DecoderSpec, Quantization
from trtbuild.checkpoint.trtllm_config import Ranks
from trtbuild.targets.base import Limits
from trtbuild.targets.trtllm.flags import BUILD_FLAGS, Values, parse_arguments

BUILD = "trtllm-build"

TOKENS_PER_BLOCK = 32
"""Tokens of one KV block, the default of 1.1 and 1.2 (64 in 0.13)."""

FP8_WEIGHTS = ("FP8", "W4A8_AWQ", "NVFP4")
"""Algorithms with which FP8 context FMHA, and paged context FMHA over an FP8 KV cache, stay on."""

_OWN_GEMM = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4", "W4A8_AWQ")
"""Algorithms whose matmuls have kernels of their own; the plain GEMM plugin is left at the tool's choice for them."""


@dataclass(frozen=True)
class BuildSettings:
    """What the command is made from. `extra` are further words of `trtllm-build`, taken last so that they win."""

    spec: DecoderSpec
    quantization: Quantization
    ranks: Ranks
    limits: Limits
    workers: int = 1
    extra: tuple[str, ...] = ()

    @property
    def paged_context(self) -> bool:
        """Whether paged context FMHA (KV reuse, chunked context) can be on.

        The builder forces it off for an INT8 KV cache, and for an FP8 one whose weights are not FP8; the fused kernels
        take half precision only, so FP32 runs without.
        """
        kv = self.quantization.kv_cache_quant_algo
        loses_it = kv == "INT8" or (kv == "FP8" and self.quantization.quant_algo not in FP8_WEIGHTS)
        return not loses_it and self.spec.dtype != "float32"


def timing_cache(version: str, sm: int | None) -> Path:
    """Where kernel timings are kept between builds: one file per release and SM, since they are valid for no other."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "trtbuild" / "timing" / f"tensorrt_llm-{version}-sm{sm or 'any'}.cache"


def build_words(settings: BuildSettings) -> list[str]:
    """The flags that do not name a path, in the order of `trtllm-build --help`."""
    limits, spec = settings.limits, settings.spec
    fused = "disable" if spec.dtype == "float32" else "enable"
    words = [
        *("--max_batch_size", str(limits.max_batch_size)),
        *("--max_input_len", str(limits.max_input_len)),
        *("--max_seq_len", str(limits.max_seq_len)),
        *("--max_beam_width", "1"),
        *("--max_num_tokens", str(limits.max_num_tokens)),
        # In-flight batching needs these three together, so none is left to a default.
        *("--kv_cache_type", "paged"),
        *("--gpt_attention_plugin", "auto"),
        *("--remove_input_padding", "enable"),
        *("--context_fmha", fused),
        *("--use_paged_context_fmha", "enable" if settings.paged_context else "disable"),
        *("--tokens_per_block", str(TOKENS_PER_BLOCK)),
    ]
    if settings.quantization.quant_algo not in _OWN_GEMM:
        words += ["--gemm_plugin", "auto"]
    return [*words, "--workers", str(settings.workers), "--log_level", "info", *settings.extra]


def build_command(settings: BuildSettings, checkpoint: Path, out: Path, cache: Path, cache_out: Path) -> list[str]:
    """The whole command line. `cache` is read when it exists; the tool writes the new one to `cache_out`."""
    return [
        BUILD,
        *("--checkpoint_dir", str(checkpoint)),
        *("--output_dir", str(out)),
        *("--input_timing_cache", str(cache)),
        # Without this the tool drops a model.cache into the current directory.
        *("--output_timing_cache", str(cache_out)),
        *build_words(settings),
    ]


def effective_values(words: Sequence[str]) -> Values:
    """Every flag's value as the tool would see it: its default unless given."""
    defaults: Values = {name: flag.default for name, flag in BUILD_FLAGS.items() if flag.default is not None}
    given, _ = parse_arguments(words)
    return {**defaults, **given}
