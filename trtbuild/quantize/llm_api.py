"""The LLM-API options of a unified checkpoint: the limits of a profile in the words of tensorrt_llm's `LlmArgs`.

Used as `trtllm-serve DIR --extra_llm_api_options DIR/llm_api.yaml`, or as keyword arguments of `tensorrt_llm.LLM`.
Source: `tensorrt_llm/llmapi/llm_args.py` (TorchLlmArgs, KvCacheConfig, SchedulerConfig), 1.0 to 1.4.
"""

from __future__ import annotations

from typing import Any

from trtbuild.profile import EngineLimits

FILE_NAME = "llm_api.yaml"

FREE_MEMORY_FRACTION = 0.9
"""Share of the memory left after the weights that the KV pool takes when its size is not given; LlmArgs' default."""


def llm_api_options(
    limits: EngineLimits, kv_cache_quant_algo: str | None, *, tp: int = 1, pp: int = 1
) -> dict[str, Any]:
    """Options for engines of these limits; a KV pool without a size takes its share of the free memory."""
    kv_cache: dict[str, Any] = {
        "dtype": "auto" if kv_cache_quant_algo is None else kv_cache_quant_algo.lower(),
        "enable_block_reuse": True,
        "free_gpu_memory_fraction": FREE_MEMORY_FRACTION,
    }
    if limits.kv_pool_tokens is not None:
        kv_cache["max_tokens"] = limits.kv_pool_tokens
    return {
        "tensor_parallel_size": tp,
        "pipeline_parallel_size": pp,
        "max_batch_size": limits.max_batch_size,
        "max_num_tokens": limits.max_num_tokens,
        "max_seq_len": limits.max_seq_len,
        "enable_chunked_prefill": limits.max_input_len > limits.max_num_tokens,
        "kv_cache_config": kv_cache,
        "scheduler_config": {"capacity_scheduler_policy": "GUARANTEED_NO_EVICT"},
    }


def llm_api_yaml(options: dict[str, Any]) -> str:
    """The options as the YAML document that trtllm-serve reads."""
    import yaml

    text: str = yaml.safe_dump(options, sort_keys=False)
    return text
