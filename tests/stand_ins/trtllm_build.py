"""A stand-in for trtllm-build: its flags, its checks, its files; the engine itself is a few bytes.

Order of events, defaults and messages follow `tensorrt_llm/commands/build.py` and `builder.py` as the facts in
tests/data/trtllm describe them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from common import GPUS, SM, VERSION, crash, fail_if_told, log, record_call
from loader_rules import LoaderError, check
from strict_flags import build_rows, parse, table

BLACKWELL_REFUSES = ("W8A16", "W4A16", "W4A16_AWQ", "W4A8_AWQ", "W8A8_SQ_PER_CHANNEL")


def plugin_config(given: dict[str, Any], dtype: str) -> dict[str, Any]:
    plugin = {row["name"]: row["default"] for row in table("plugin_config_fields")["fields"]}
    for name in plugin:
        value = given.get(f"--{name}")
        if value is not None:
            plugin[name] = {"enable": True, "disable": None if name.endswith("_plugin") else False}.get(value, value)
    plugin["dtype"] = dtype
    if plugin["streamingllm"]:
        crash("AssertionError", "StreamingLLM is deprecated")
    if SM == 100 and any(plugin[name] for name in ("gemm_swiglu_plugin", "low_latency_gemm_plugin")):
        crash("NotImplementedError", "not supported on SM 100")
    return {name: dtype if value == "auto" else value for name, value in plugin.items()}


def build_config(given: dict[str, Any], config: dict[str, Any], plugin: dict[str, Any]) -> dict[str, Any]:
    fields = {row["name"]: row["default"] for row in table("build_config_fields")["fields"]}
    for name in fields:
        if f"--{name}" in given:
            fields[name] = given[f"--{name}"]
    if fields["max_seq_len"] is None:
        fields["max_seq_len"] = config["max_position_embeddings"]
    if fields["max_input_len"] > fields["max_seq_len"]:
        fields["max_input_len"] = fields["max_seq_len"]
    fields["max_num_tokens"] = min(fields["max_num_tokens"], fields["max_batch_size"] * fields["max_seq_len"])
    if plugin["context_fmha"] and fields["max_num_tokens"] < plugin["tokens_per_block"]:
        crash("ValueError", "max_num_tokens must be at least tokens_per_block")
    fields["kv_cache_type"] = f"KVCacheType.{str(given.get('--kv_cache_type', 'paged')).upper()}"
    fields["plugin_config"] = plugin
    fields["lora_config"] = {}
    for name in table("build_config_fields")["dropped_in_json"][0].split(" are ")[0].split(" and "):
        fields.pop(name, None)
    return fields


def quantization_rules(config: dict[str, Any], plugin: dict[str, Any]) -> None:
    quantization = config.get("quantization") or {}
    algo, kv = quantization.get("quant_algo"), quantization.get("kv_cache_quant_algo")
    if 100 <= SM < 120 and (algo in BLACKWELL_REFUSES or "_SQ_" in (algo or "") or kv == "INT8"):
        crash("RuntimeError", f"{algo} is not supported on SM {SM}")
    if not plugin["context_fmha"] or kv == "INT8" or (kv == "FP8" and algo not in ("FP8", "W4A8_AWQ", "NVFP4")):
        plugin["use_paged_context_fmha"] = False
    if config["mapping"]["world_size"] == 1:
        plugin["nccl_plugin"] = None


def main() -> None:
    record_call()
    fail_if_told("BUILD")
    given = parse(sys.argv[1:], build_rows(), style="argparse")
    if given.get("--checkpoint_dir") is None and given.get("--model_config") is None:
        crash("AttributeError", "'NoneType' object has no attribute 'lower'")
    out = Path(given.get("--output_dir", "engine_outputs"))
    out.mkdir(parents=True, exist_ok=True)
    workers = min(GPUS, given.get("--workers", 1))
    if given.get("--multiple_profiles") == "enable" and "--opt_num_tokens" in given:
        crash("RuntimeError", "multiple_profiles is enabled, while opt_num_tokens is set.")
    checkpoint = Path(given["--checkpoint_dir"])
    try:
        config, world = check(checkpoint)
    except LoaderError as error:
        crash(error.kind, str(error))
    if workers == 0:
        crash("ValueError", "max_workers must be greater than 0")
    plugin = plugin_config(given, config["dtype"])
    quantization_rules(config, plugin)
    build = build_config(given, config, plugin)
    for rank in range(world):
        size = (checkpoint / f"rank{rank}.safetensors").stat().st_size
        (out / f"rank{rank}.engine").write_bytes(b"stand-in engine of rank %d, %d bytes of weights" % (rank, size))
        log(f"Total time of building Unnamed Network {rank}: 00:00:01")
    document = {"version": VERSION, "pretrained_config": config, "build_config": build}
    (out / "config.json").write_text(json.dumps(document, indent=4), encoding="utf-8")
    cache = Path(given.get("--output_timing_cache", "model.cache"))
    cache.write_bytes(b"timings")
    log(f"Timing cache serialized to {cache}")
    log("Total time of building all engines: 00:00:02")


if __name__ == "__main__":
    main()
