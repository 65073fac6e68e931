"""What the benchmark itself costs: the engine under the load generator against a bare loop, in turn, in one process.

    python benchmarks/harness_overhead.py ENGINE [--in-flight 16] [--requests 64] [--tokens 64] [--runs 5] [--json OUT]

ENGINE is a CPU engine of trtbuild. The bare loop gives the same requests to OpenVINO GenAI with the fewest calls it
needs: add_request, step, and a read of each handle; the engine's max_batch_size keeps 16 of them in flight. Bound:
the harness keeps 98 % of its tokens per second (the median of the pairs, each measured back to back).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from trtbuild.bench.driver import Driver
from trtbuild.bench.loadgen import Prompt, Window, run_load
from trtbuild.bench.loads import Replay
from trtbuild.bench.warmup import WarmupRule
from trtbuild.targets.cpu.driver import CpuDriver, generation_config, open_pipeline
from trtbuild.targets.cpu.loading import load_engine
from trtbuild.targets.serving import Request

BOUND = 0.98


def bare(pipeline: Any, prompts: list[Prompt]) -> float:
    """Tokens per second of the shortest loop that gets every answer."""
    import openvino

    tokens, running = 0, []
    start = time.perf_counter()
    for number, prompt in enumerate(prompts):
        request = Request(number, prompt.token_ids, prompt.max_new_tokens, ignore_eos=True)
        ids = openvino.Tensor(np.asarray(prompt.token_ids, np.int64)[None])
        running.append(pipeline.add_request(number, ids, generation_config(request, prompt.max_new_tokens, ())))
    while pipeline.has_non_finished_requests():
        pipeline.step()
        for handle in running:
            while handle.can_read():
                tokens += sum(len(output.generated_ids) for output in handle.read().values())
    return tokens / (time.perf_counter() - start)


def harnessed(driver: Driver, prompts: list[Prompt]) -> float:
    """Tokens per second of the same requests under the load generator, from the first submit to the last token."""
    window = Window(len(prompts), 0.0, math.inf, math.inf, WarmupRule(max_requests=0))
    run = run_load(driver, prompts, Replay((0.0,) * len(prompts)), window)
    return run.window_tokens / run.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path)
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    cpu = load_engine(arguments.engine)
    vocab_size, limits = int(cpu.engine.settings["vocab_size"]), cpu.engine.limits
    limits = dataclasses.replace(limits, max_batch_size=arguments.in_flight)
    driver = CpuDriver(arguments.engine, limits, cpu.properties, vocab_size=vocab_size)
    pipeline = open_pipeline(arguments.engine, limits, cpu.properties)
    rng = random.Random(0)
    # Answers of different lengths: both loops then have in-flight batching to do, and no steps that all share.
    lengths = [arguments.tokens // 2 + rng.randrange(arguments.tokens) for _ in range(arguments.requests)]
    prompts = [Prompt(tuple(rng.randrange(vocab_size) for _ in range(32)), n, True) for n in lengths]
    for measure, engine in ((bare, pipeline), (harnessed, driver)):
        measure(engine, prompts[: arguments.in_flight])
    pairs = []
    for run in range(arguments.runs):
        # The order alternates, so that a machine that grows slower favours neither.
        first = bare(pipeline, prompts) if run % 2 == 0 else 0.0
        ours = harnessed(driver, prompts)
        pairs.append((first or bare(pipeline, prompts), ours))
        print(f"bare {pairs[-1][0]:.1f} tok/s, harness {ours:.1f} tok/s, ratio {ours / pairs[-1][0]:.4f}")
    ratio = statistics.median(ours / plain for plain, ours in pairs)
    print(f"median ratio {ratio:.4f} at {arguments.in_flight} in flight (bound {BOUND})")
    if arguments.json:
        document = {"in_flight": arguments.in_flight, "pairs_tok_s": pairs, "median_ratio": ratio, "bound": BOUND}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if ratio >= BOUND else 1)


if __name__ == "__main__":
    main()
