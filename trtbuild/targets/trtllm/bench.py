"""Measure an engine with trtllm-bench: a throughput run per concurrency, a low-latency run, GPU memory meanwhile.

Written from the tool's documentation and source (1.1); run only against the stand-in of the tests.

With the runtime's default the KV pool takes 0.9 of what is free, so that the peak says the size of the GPU and nothing
of the precision. Here the pool is fixed to the tokens the engine's limits ask for (`max_tokens`), the same for every
precision, and the log tells what would have been free for it.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trtbuild.errors import InputRefused
from trtbuild.machine import gpus
from trtbuild.progress import Progress, silent
from trtbuild.targets.base import Engine, read_engine
from trtbuild.targets.measured import ToolLoad, ToolMeasurement, ToolMemory
from trtbuild.targets.serving import Request
from trtbuild.targets.trtllm.container import Mount, containerized, image_version
from trtbuild.targets.trtllm.engine import TOKENIZER_FOLDER, EngineConfig, read_config, require_loadable
from trtbuild.targets.trtllm.gpu_memory import GpuMemorySampler
from trtbuild.targets.trtllm.launch import OPTIONS_NAME, options_text
from trtbuild.targets.trtllm.process import Completed, run_logged
from trtbuild.targets.trtllm.report import read_memory, read_report
from trtbuild.targets.trtllm.triage import diagnose
from trtbuild.targets.trtllm.version import installed_version

BENCH = "trtllm-bench"
DATASET_NAME = "dataset.jsonl"

_KV_ELEMENT_BYTES: Mapping[str | None, float] = {"INT8": 1, "FP8": 1, "NVFP4": 0.5625}
_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def measure(
    engine: Path,
    requests: Sequence[Request],
    concurrencies: Sequence[int],
    *,
    warmup: int = 2,
    log: Path | None = None,
    progress: Progress = silent,
) -> ToolMeasurement:
    """Run trtllm-bench once per concurrency; 1 is its latency command, whose settings favour a single request.

    All requests go into one data set that every run answers as a whole. `log` (by default
    `ENGINE.bench.log`) receives all the tool said. Raises
    InputRefused for requests the engine cannot take, MachineLacks for an engine of another release or SM, and the
    triaged cause when the tool fails.
    """
    built = read_engine(engine)
    config = read_config(engine)
    image = built.settings.get("container")
    version = image_version(image) if image else installed_version()
    here = gpus()
    require_loadable(config, engine, version, built.settings.get("sm"), here[0].sm if here else None)
    check_requests(requests, config, engine)
    log = log or engine.absolute().with_name(f"{engine.absolute().name}.bench.log")
    log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="trtbuild-bench-") as scratch:
        folder = Path(scratch)
        write_dataset(folder / DATASET_NAME, requests)
        (folder / OPTIONS_NAME).write_text(options_text(_bench_options(engine, built)), encoding="utf-8")
        runs: list[tuple[ToolLoad, Completed, int | None]] = []
        with progress.task("trtllm-bench", total=len(concurrencies)) as advance:
            for concurrency in concurrencies:
                report = folder / f"report-{concurrency}.json"
                command = bench_command(
                    engine,
                    built,
                    config,
                    folder,
                    report,
                    concurrency,
                    len(requests),
                    warmup,
                    _stop_id(requests, engine),
                )
                if image:
                    mounts = (Mount(engine.absolute(), "/engine"), Mount(folder, "/bench", True))
                    command = containerized(command, image, mounts)
                runs.append(_run(command, report, concurrency, log))
                advance(1)
    memory = _memory(runs, kv_bytes_per_token(config), built)
    return ToolMeasurement(tuple(load for load, _, _ in runs), memory, tuple(_notes(memory, built, config)))


def write_dataset(path: Path, requests: Iterable[Request]) -> None:
    """JSON Lines as trtllm-bench reads them: task_id and output_tokens are required, input_ids win over a prompt."""
    with path.open("w", encoding="utf-8") as file:
        for number, request in enumerate(requests):
            line = {
                "task_id": number,
                "input_ids": [int(token) for token in request.token_ids],
                "output_tokens": request.max_new_tokens,
            }
            file.write(json.dumps(line) + "\n")


def check_requests(requests: Sequence[Request], config: EngineConfig, engine: Path) -> None:
    """Raise InputRefused for an empty data set, or a request that is longer than the engine's max_seq_len."""
    if not requests:
        raise InputRefused("no request to measure with", where=engine, hint="give at least one prompt")
    limit = int(config.build["max_seq_len"])
    longest = max(requests, key=lambda request: len(request.token_ids) + request.max_new_tokens)
    total = len(longest.token_ids) + longest.max_new_tokens
    if total > limit:
        raise InputRefused(
            f"a request of {len(longest.token_ids)} + {longest.max_new_tokens} = {total} tokens is above the engine's "
            f"max_seq_len {limit}",
            where=engine,
            hint="shorten the prompts or answers, or build with a larger --max-seq-len",
        )


def bench_command(
    engine: Path,
    built: Engine,
    config: EngineConfig,
    folder: Path,
    report: Path,
    concurrency: int,
    count: int,
    warmup: int,
    stop_id: int | None,
) -> list[str]:
    """One run of trtllm-bench. The backend is named because its default is another since 1.0."""
    source = engine.absolute()
    name = str(config.pretrained.get("architecture", built.path.name))
    words = [BENCH, "--model", name, "--model_path", str(source / TOKENIZER_FOLDER), "--workspace", str(folder)]
    common = [
        *("--engine_dir", str(source), "--backend", "tensorrt", "--dataset", str(folder / DATASET_NAME)),
        *("--report_json", str(report), "--extra_llm_api_options", str(folder / OPTIONS_NAME)),
        *("--num_requests", str(count), "--warmup", str(warmup), "--concurrency", str(concurrency)),
        *("--tp", str(config.tp), "--pp", str(config.pp)),
    ]
    if concurrency == 1:
        return [*words, "latency", *common]
    chunked = "--enable_chunked_context" if built.settings.get("paged_context") else "--disable_chunked_context"
    ending = [] if stop_id is None else ["--eos_id", str(stop_id)]
    return [*words, "throughput", *common, "--streaming", chunked, *ending]


def kv_bytes_per_token(config: EngineConfig) -> int:
    """KV bytes of one token on one rank, from the engine's own description of its model."""
    model: Mapping[str, Any] = config.pretrained
    heads = int(model["num_attention_heads"])
    kv_heads = int(model.get("num_key_value_heads") or heads)
    head_size = int(model.get("head_size") or int(model["hidden_size"]) // heads)
    algo = (model.get("quantization") or {}).get("kv_cache_quant_algo")
    element = _KV_ELEMENT_BYTES.get(algo, _DTYPE_BYTES[str(model["dtype"])])
    layers = -(-int(model["num_hidden_layers"]) // config.pp)
    return int(2 * layers * -(-kv_heads // config.tp) * head_size * element)


def _bench_options(engine: Path, built: Engine) -> dict[str, Any]:
    """The engine's runtime options with the pool fixed to what its limits ask for."""
    import yaml

    stored = engine / OPTIONS_NAME
    options: dict[str, Any] = yaml.safe_load(stored.read_text(encoding="utf-8")) if stored.is_file() else {}
    cache = {**options.get("kv_cache_config", {}), "max_tokens": built.limits.pool_tokens}
    return {**options, "kv_cache_config": cache}


def _stop_id(requests: Sequence[Request], engine: Path) -> int | None:
    """The end-of-sequence id to stop at; None (the tool's -1) where answers have fixed lengths."""
    if all(request.ignore_eos for request in requests):
        return None
    path = engine / TOKENIZER_FOLDER / "generation_config.json"
    stop = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.is_file() else None
    return int(stop[0]) if isinstance(stop, list) and stop else stop if isinstance(stop, int) else None


def _run(command: list[str], report: Path, concurrency: int, log: Path) -> tuple[ToolLoad, Completed, int | None]:
    with GpuMemorySampler() as sampler:
        done = run_logged(command, log)
    if done.returncode != 0:
        raise diagnose(dataclasses.replace(done, command=(BENCH,)), log)
    return read_report(report, concurrency), done, sampler.peak_bytes


def _memory(runs: Sequence[tuple[ToolLoad, Completed, int | None]], kv_bytes: int, built: Engine) -> ToolMemory:
    """The memory of the run that used most; weights from the engine files where the log does not say them."""
    _, done, peak = max(runs, key=lambda run: run[2] or 0)
    memory = read_memory(done.lines, kv_bytes, peak)
    if memory.weights_bytes is None:
        entry = built.manifest.files.get("rank0.engine")
        memory = dataclasses.replace(memory, weights_bytes=None if entry is None else entry.size_bytes)
    return memory


def _notes(memory: ToolMemory, built: Engine, config: EngineConfig) -> Iterable[str]:
    yield "measured by trtllm-bench: TTFT counts from when it queued a request, its throughput includes start and drain"
    asked = built.limits.pool_tokens
    if memory.pool_tokens is not None and abs(memory.pool_tokens - asked) > asked // 10:
        yield f"the KV pool held {memory.pool_tokens} tokens, not the {asked} asked for"
    if memory.free_before_pool_bytes is not None:
        would = int(0.9 * memory.free_before_pool_bytes) // kv_bytes_per_token(config)
        yield f"at the runtime's default the KV pool would hold {would} tokens"
    if config.world > 1:
        yield f"memory is that of one of {config.world} ranks"
