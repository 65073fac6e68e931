"""A stand-in for trtllm-bench: flags, data set rules, the memory log lines and the report of throughput and latency."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from common import GPU_MIB, GPU_NAME, GPUS, VERSION, crash, fail_if_told, log, record_call
from strict_flags import bench_rows, parse, refuse

KV_ELEMENT = {"INT8": 1, "FP8": 1}
SUBCOMMANDS = ("throughput", "latency", "build")


def read_dataset(path: Path, limit: int) -> list[dict[str, Any]]:
    requests = []
    for line in path.read_text(encoding="utf-8").splitlines():
        data = json.loads(line)
        for key in ("task_id", "output_tokens"):
            if key not in data:
                crash("KeyError", f"'{key}'")
        ids = data.get("input_ids", data.get("logits"))
        if ids is None and "prompt" not in data:
            crash("KeyError", "'prompt'")
        requests.append({"isl": len(ids), "osl": data["output_tokens"]})
    return requests[:limit] if limit else requests


def percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    at = {f"p{q}": ordered[min(len(ordered) - 1, int(len(ordered) * q / 100))] for q in (50, 90, 95, 99)}
    return {"minimum": ordered[0], "maximum": ordered[-1], "average": sum(ordered) / len(ordered), **at}


def extra_options(path: str | None) -> dict[str, str]:
    """The scalar settings of `kv_cache_config`; the real tool reads any YAML, this reads the form trtbuild writes."""
    if path is None:
        return {}
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    assert lines[0] == "kv_cache_config:", lines
    return dict(line.strip().split(": ", 1) for line in lines[1:] if ": " in line)


def memory_log(engine: Path, config: dict[str, Any], cache: dict[str, str]) -> None:
    """The lines of the runtime, in the order and spelling of its documentation."""
    model, build = config["pretrained_config"], config["build_config"]
    tp, pp = model["mapping"]["tp_size"], model["mapping"]["pp_size"]
    element = KV_ELEMENT.get(model["quantization"].get("kv_cache_quant_algo"), {"float32": 4}.get(model["dtype"], 2))
    per_token = (
        2 * model["num_hidden_layers"] // pp * max(1, model["num_key_value_heads"] // tp) * model["head_size"] * element
    )
    size = int((engine / "rank0.engine").read_bytes().split(b", ")[1].split()[0])
    activation_mib = build["max_num_tokens"] * model["hidden_size"] * 20 / 2**20
    log(f"Loaded engine size: {size / 2**20:.0f} MiB")
    log(f"[MemUsageChange] Allocated {activation_mib:.2f} MiB for execution context memory.")
    log("[MemUsageChange] Allocated 43.29 MB GPU memory for runtime buffers.")
    log("[MemUsageChange] Allocated 180.30 MB GPU memory for decoder.")
    total = GPU_MIB / 1024
    available = total - size / 2**30 - activation_mib / 1024 - 1.0
    log(
        f"Memory usage when calculating max tokens in paged kv cache: total: {total:.2f} GiB, "
        f"available: {available:.2f} GiB"
    )
    block = build["plugin_config"]["tokens_per_block"]
    log(f"Number of tokens per block: {block}.")
    fraction = float(cache.get("free_gpu_memory_fraction", 0.9))
    tokens = min(int(available * fraction * 2**30 / per_token), int(cache.get("max_tokens", 2**62))) // block * block
    log(f"[MemUsageChange] Allocated {tokens * per_token / 2**30:.2f} GiB for max tokens in paged KV cache ({tokens}).")


def report(
    given: dict[str, Any], top: dict[str, Any], config: dict[str, Any], requests: list[dict[str, Any]], concurrency: int
) -> dict[str, Any]:
    model, build = config["pretrained_config"], config["build_config"]
    mapping = model["mapping"]
    step_ms = 2.0 + 0.05 * concurrency
    ttft = [5.0 + 0.01 * r["isl"] for r in requests]
    latency = [t + step_ms * (r["osl"] - 1) for t, r in zip(ttft, requests, strict=True)]
    total_ms = sum(latency) / concurrency
    out = sum(r["osl"] for r in requests)
    inp = sum(r["isl"] for r in requests)
    document: dict[str, Any] = {
        "engine": {
            "model": top["--model"],
            "model_path": str(top.get("--model_path")),
            "engine_dir": given["--engine_dir"],
            "version": VERSION,
            "backend": "TRT",
            "dtype": model["dtype"],
            "kv_cache_dtype": model["quantization"].get("kv_cache_quant_algo"),
            "quantization": model["quantization"].get("quant_algo"),
            "max_input_length": build["max_input_len"],
            "max_sequence_length": build["max_seq_len"],
        },
        "machine": {"name": GPU_NAME, "memory.total": GPU_MIB / 1024, "clocks.mem": 9.0},
        "world_info": {
            "tp_size": mapping["tp_size"],
            "pp_size": mapping["pp_size"],
            "ep_size": None,
            "world_size": mapping["world_size"],
            "max_batch_size": build["max_batch_size"],
            "max_num_tokens": build["max_num_tokens"],
            "scheduling_policy": "GUARANTEED_NO_EVICT",
            "kv_cache_percentage": given.get("--kv_cache_free_gpu_mem_fraction", 0.9) * 100,
            "issue_rate": 1e9,
        },
        "request_info": {
            "num_requests": len(requests),
            "avg_num_concurrent_requests": float(concurrency),
            "avg_input_length": inp / len(requests),
            "avg_output_length": out / len(requests),
        },
        "performance": {
            "total_latency_ms": total_ms,
            "avg_request_latency_ms": sum(latency) / len(latency),
            "request_throughput_req_s": len(requests) / total_ms * 1000,
            "system_output_throughput_tok_s": out / total_ms * 1000,
            "system_total_throughput_tok_s": (inp + out) / total_ms * 1000,
            "output_throughput_per_user_tok_s": 1000 / step_ms,
            "output_throughput_per_gpu_tok_s": out / total_ms * 1000 / mapping["world_size"],
            "request_latency_percentiles_ms": percentiles(latency),
        },
        "dataset": {"isl": inp, "osl": out},
    }
    if given.get("--streaming") or "streaming" in top:
        tpot = [step_ms for _ in requests]
        document["streaming_metrics"] = {
            "token_output_speed_tok_s": 1000 / step_ms,
            "avg_ttft_ms": sum(ttft) / len(ttft),
            "avg_tpot_ms": step_ms,
            "tpot_percentiles": percentiles(tpot),
            "ttft_percentiles": percentiles(ttft),
            "gen_tps_percentiles": percentiles([1000 / value for value in tpot]),
        }
    return document


def main() -> None:
    record_call()
    words = sys.argv[1:]
    split = next((i for i, word in enumerate(words) if word in SUBCOMMANDS), None)
    if split is None:
        refuse("Missing command.", "click")
    top = parse(words[:split], bench_rows("top_level"), style="click")
    if "--model" not in top:
        refuse("Missing option '--model' / '-m'.", "click")
    command = words[split]
    given = parse(words[split + 1 :], bench_rows(command), style="click")
    fail_if_told("BENCH")
    if given.get("--backend", "pytorch") != "tensorrt":
        crash("ValueError", "this engine cannot be run by the PyTorch backend")
    if "--max_seq_len" in given:
        crash("AssertionError", "max_seq_len is not a runtime parameter for the tensorrt backend")
    if "--dataset" not in given:
        crash("AttributeError", "'NoneType' object has no attribute 'read'")
    engine = Path(given["--engine_dir"])
    config = json.loads((engine / "config.json").read_text(encoding="utf-8"))
    if config["version"] != VERSION:
        crash("RuntimeError", "Version tag does not match. Note: Current Version: 228, Serialized Engine Version: 237")
    world = config["pretrained_config"]["mapping"]["world_size"]
    if world > GPUS:
        crash("RuntimeError", f"MPI size {GPUS} != TP size {world} * PP size 1")
    requests = read_dataset(Path(given["--dataset"]), given.get("--num_requests", 0))
    longest = max(r["isl"] + r["osl"] for r in requests)
    if longest > config["build_config"]["max_seq_len"]:
        crash(
            "RuntimeError", f"Engine supports a max sequence of {config['build_config']['max_seq_len']}, got {longest}"
        )
    cache = extra_options(given.get("--extra_llm_api_options"))
    paged_context = config["build_config"]["plugin_config"]["use_paged_context_fmha"]
    chunked = given.get("--enable_chunked_context", command == "throughput")
    if not paged_context and (chunked or cache.get("enable_block_reuse") == "true"):
        crash("RuntimeError", "chunked context and block reuse require paged context FMHA")
    memory_log(engine, config, cache)
    concurrency = given.get("--concurrency", -1 if command == "throughput" else 1)
    if command == "latency":
        top["streaming"] = True
    if concurrency < 1:
        concurrency = min(len(requests), config["build_config"]["max_batch_size"])
    document = report(given, top, config, requests, concurrency)
    Path(given["--report_json"]).write_text(json.dumps(document, indent=4), encoding="utf-8")


if __name__ == "__main__":
    main()
