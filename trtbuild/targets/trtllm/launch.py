"""How to start an engine: command lines derived from its mapping, and the runtime options that belong to it.

The flags of trtllm-serve are the single-name spellings of its 1.1.0 page. The lines were run against stand-ins only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild.checkpoint.spec import DecoderSpec
from trtbuild.targets.base import Limits, read_engine
from trtbuild.targets.trtllm.engine import TOKENIZER_FOLDER, read_config
from trtbuild.targets.trtllm.footprint import KV_FREE_FRACTION

OPTIONS_NAME = "llm_api.yaml"
"""Runtime options of an engine, for `--extra_llm_api_options` of trtllm-serve and trtllm-bench."""


@dataclass(frozen=True)
class LaunchLine:
    """A way to start an engine: what for, and the words of the command."""

    purpose: str
    words: tuple[str, ...]


def runtime_options(
    spec: DecoderSpec, limits: Limits, *, paged_context: bool, max_tokens: int | None = None
) -> dict[str, Any]:
    """The content of `llm_api.yaml`: KV block reuse only where paged context FMHA is, the pool, attention windows.

    `max_tokens` fixes the KV pool; by default it is as large as `limits` say, or what the GPU has left.
    """
    cache: dict[str, Any] = {
        "enable_block_reuse": paged_context,
        "free_gpu_memory_fraction": KV_FREE_FRACTION,
    }
    tokens = max_tokens if max_tokens is not None else limits.kv_pool_tokens
    if tokens is not None:
        cache["max_tokens"] = tokens
    if spec.sliding_window is not None:
        windows = [spec.window_of(layer) or limits.max_seq_len for layer in range(spec.num_layers)]
        cache["max_attention_window"] = windows[:1] if len(set(windows)) == 1 else windows
    return {"kv_cache_config": cache}


def options_text(options: Mapping[str, Any]) -> str:
    """YAML of runtime options."""
    import yaml

    return yaml.safe_dump(dict(options), sort_keys=False)


def launch_lines(engine: Path, *, host: str = "localhost", port: int = 8000) -> list[LaunchLine]:
    """How to serve or run an engine; one with several ranks is started through mpirun where nothing else starts them.

    trtllm-serve starts its ranks itself but must be told the mapping: its default of one rank contradicts the engine.
    """
    config, limits = read_config(engine), read_engine(engine).limits
    tokenizer = str(engine / TOKENIZER_FOLDER)
    serve = (
        *("trtllm-serve", str(engine), "--backend", "tensorrt", "--tokenizer", tokenizer),
        *("--tp_size", str(config.tp), "--pp_size", str(config.pp)),
        *("--max_batch_size", str(limits.max_batch_size), "--max_num_tokens", str(limits.max_num_tokens)),
        *("--kv_cache_free_gpu_memory_fraction", str(KV_FREE_FRACTION)),
        *("--extra_llm_api_options", str(engine / OPTIONS_NAME), "--host", host, "--port", str(port)),
    )
    ranks = ("mpirun", "-n", str(config.world), "--allow-run-as-root") if config.world > 1 else ()
    example = ("python3", "run.py", "--engine_dir", str(engine), "--tokenizer_dir", tokenizer, "--max_output_len", "64")
    triton = ("launch_triton_server.py", "--world_size", str(config.world), "--model_repo", "MODEL_REPO")
    return [
        LaunchLine("an OpenAI-compatible server (in a container add --host 0.0.0.0)", serve),
        LaunchLine("TensorRT-LLM's examples/run.py", (*ranks, *example)),
        LaunchLine("Triton, with a model repository for this engine", ("python3", *triton)),
    ]
