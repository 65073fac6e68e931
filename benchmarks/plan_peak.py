"""What `trtbuild plan` says of CPU engines against what their process holds with the KV pool full.

    python benchmarks/plan_peak.py CHECKPOINT ENGINE [CHECKPOINT ENGINE …] [--limits 16,512,2048] [--json OUT]

Each ENGINE was built from the CHECKPOINT before it. Every limit is max_batch_size, max_seq_len, max_num_tokens; the
engine is opened with it in a process of its own and given as many requests as fill the pool. Bound: the planned peak
is within 10 % of the kernel's high-water mark.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

BOUND = 0.10
LIMITS = ("16,512,2048", "4,512,512", "8,1024,1024")
NEW_TOKENS = 16
SHORT_TOKENS = 32


def limits_of(text: str) -> tuple[int, int, int]:
    batch, length, step = map(int, text.split(","))
    return batch, length, step


def peak_bytes(engine: Path, text: str) -> int:
    """High-water mark of a fresh process that fills the engine's pool."""
    command = [sys.executable, __file__, "--fill", str(engine), text]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def fill(engine: Path, text: str) -> None:
    """Answer a short request, then max_batch_size of max_seq_len tokens at once, and print the peak of this process.

    The short one matters: the plugin packs some weights once more for steps of few rows, when it first meets one.
    """
    from trtbuild.machine import process_memory
    from trtbuild.targets.base import Limits, read_engine
    from trtbuild.targets.cpu.driver import CpuDriver
    from trtbuild.targets.cpu.properties import plugin_properties, usable_kernels
    from trtbuild.targets.serving import Request

    batch, length, step = limits_of(text)
    settings = read_engine(engine).settings
    properties = plugin_properties(settings["kv_cache"], usable_kernels(settings))
    limits = Limits(batch, length - 1, length, step)
    driver = CpuDriver(engine, limits, properties, vocab_size=settings["vocab_size"])
    rng = np.random.default_rng(0)
    for count, tokens in ((1, SHORT_TOKENS), (batch, length - NEW_TOKENS)):
        for i in range(count):
            ids = rng.integers(5, settings["vocab_size"], tokens).tolist()
            driver.submit(Request(i, ids, NEW_TOKENS, ignore_eos=True))
        running = count
        while running:
            running -= sum(event.finish is not None for event in driver.step(None))
    sys.stdout.write(str(process_memory().peak_bytes))


def planned_bytes(checkpoint: Path, text: str) -> int:
    from trtbuild.checkpoint.trtllm import read_checkpoint
    from trtbuild.targets.base import BuildOptions, Limits
    from trtbuild.targets.registry import load_target

    batch, length, step = limits_of(text)
    decoder, limits = read_checkpoint(checkpoint), Limits(batch, length - 1, length, step)
    need = load_target("cpu").footprint(decoder.spec, decoder.quantization, limits, BuildOptions())
    fixed = need.weights_bytes + need.activation_bytes + need.runtime_bytes
    return fixed + need.kv_bytes_per_token * limits.pool_tokens


def main() -> None:
    if sys.argv[1:2] == ["--fill"]:
        fill(Path(sys.argv[2]), sys.argv[3])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="CHECKPOINT ENGINE pairs")
    parser.add_argument("--limits", action="append", help="max_batch_size,max_seq_len,max_num_tokens")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for checkpoint, engine in zip(options.folders[::2], options.folders[1::2], strict=True):
        for text in options.limits or LIMITS:
            planned, measured = planned_bytes(checkpoint, text), peak_bytes(engine, text)
            off = planned / measured - 1
            rows.append({"engine": engine.name, "limits": text, "planned": planned, "measured": measured, "off": off})
            line = f"{engine.name:16} {text:14} planned {planned / 1e6:7.0f} MB, measured {measured / 1e6:7.0f} MB"
            sys.stdout.write(f"{line}, {off:+.1%}\n")
            sys.stdout.flush()
    worst = max(abs(row["off"]) for row in rows)
    sys.stdout.write(f"worst {worst:.1%}, bound {BOUND:.0%}\n")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    sys.exit(worst > BOUND)


if __name__ == "__main__":
    main()
