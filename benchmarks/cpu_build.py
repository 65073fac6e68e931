"""From an FP16 checkpoint to a CPU engine: trtbuild against `optimum-cli export openvino`, whole commands, in turn.

    python benchmarks/cpu_build.py MODEL --optimum VENV [--runs 3] [--json OUT]

MODEL is anything trtbuild opens (llama family), VENV an environment with optimum-intel and openvino installed. Both
start from the same weights: trtbuild from a TensorRT-LLM checkpoint, optimum from a Hugging Face folder. trtbuild's
time includes the check of every layer against the numpy forward. Bounds: a fifth of the time, half the peak memory.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import huggingface_folder
from processes import Cost, measure

from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.trtllm import write_checkpoint
from trtbuild.quantize.cast import quantize
from trtbuild.quantize.precisions import PRECISIONS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--optimum", type=Path, required=True, metavar="VENV")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        decoder = open_model(arguments.model)
        checkpoint = work / "checkpoint"
        checkpoint.mkdir()
        write_checkpoint(quantize(decoder, PRECISIONS["fp16"]), checkpoint)
        huggingface_folder.write(decoder, work / "huggingface", "float16")
        commands = {
            "trtbuild build": [
                *(sys.executable, "-m", "trtbuild", "build", str(checkpoint), "-o", str(work / "engine")),
                *("--target", "cpu", "--max-seq-len", "2048"),
            ],
            "optimum-cli export": [
                *(str(arguments.optimum / "bin" / "optimum-cli"), "export", "openvino"),
                *("-m", str(work / "huggingface"), "--task", "text-generation-with-past"),
                *("--weight-format", "fp16", str(work / "optimum")),
            ],
        }
        costs: dict[str, list[Cost]] = {name: [] for name in commands}
        for _ in range(arguments.runs):
            for name, command in commands.items():
                for folder in ("engine", "optimum"):
                    shutil.rmtree(work / folder, ignore_errors=True)
                costs[name].append(measure(command, {"HF_HUB_OFFLINE": "1"}))
                last = costs[name][-1]
                print(f"{name:<20} {last.wall_s:6.1f} s  cpu {last.cpu_s:6.1f} s  {last.peak_bytes / 1e6:7.0f} MB")
    ours, theirs = costs.values()
    time_ratio = statistics.median(b.wall_s / a.wall_s for a, b in zip(ours, theirs, strict=True))
    cpu_ratio = statistics.median(b.cpu_s / a.cpu_s for a, b in zip(ours, theirs, strict=True))
    memory_ratio = statistics.median(a.peak_bytes / b.peak_bytes for a, b in zip(ours, theirs, strict=True))
    print(
        f"faster by {time_ratio:.1f} (bound 5), CPU time by {cpu_ratio:.1f}; peak memory {memory_ratio:.2f} (bound 0.5)"
    )
    if arguments.json:
        document = {
            "runs": {name: [vars(cost) for cost in values] for name, values in costs.items()},
            "time_ratio": time_ratio,
            "cpu_ratio": cpu_ratio,
            "memory_ratio": memory_ratio,
        }
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if time_ratio < 5 or memory_ratio > 0.5:
        sys.exit(1)


if __name__ == "__main__":
    main()
