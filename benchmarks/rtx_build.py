"""SmolLM2 as TensorRT-RTX engines, built on any machine: what it takes and what comes out.

    python benchmarks/rtx_build.py MODEL [--checkpoints DIR] [--keep DIR] [--large]

For every row of ROWS: take the checkpoint DIR/PRECISION that `trtbuild run` left, or quantize MODEL (int8 from a few
samples of the built-in text, by maxima), run `trtbuild build` as a process of its own, and print its time, its peak
memory from outside and as the manifest has it, and the engine's size beside what `trtbuild plan` foresaw. Exits with 1
when an engine is not one, or when size or memory are off the plan by more than a quarter. --large builds one random
FP16 decoder whose engine is above 2 GB instead, which needs 10 GB of memory.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
from processes import Cost, measure

from trtbuild.calibrate.samples import samples_for
from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.spec import Array, Decoder, Tensor
from trtbuild.checkpoint.trtllm import read_checkpoint
from trtbuild.quantize.precisions import PRECISIONS
from trtbuild.quantize.run import quantize_to
from trtbuild.targets.base import BuildOptions, Engine, Limits, read_engine
from trtbuild.targets.registry import load_target
from trtbuild.targets.tensorrt_rtx.machine import installed

ROWS = (("fp16", "89"), ("fp16", "86,120"), ("int8-wo", "89"), ("int8-wo", "86,120"), ("int8", "89"))
LIMITS = Limits(max_batch_size=8, max_input_len=512, max_seq_len=1024, max_num_tokens=512)
TOLERANCE = 0.25


def checkpoint(decoder: Decoder, precision: str, ready: Path | None, work: Path) -> Path:
    if ready is not None and (ready / precision).is_dir():
        return ready / precision
    out = work / f"checkpoint-{precision}"
    if not out.exists():
        samples = samples_for(decoder, None, 8, 128).ids if PRECISIONS[precision].needs_calibration else ()
        quantize_to(decoder, out, precision, samples=samples, calibration="max", budget=None)
    return out


def large(model: Decoder) -> Decoder:
    """A wide decoder of random weights (2.8 GB in FP16) with the tokenizer of `model`; nothing is held in memory."""
    spec = dataclasses.replace(
        model.spec,
        hidden_size=4096,
        num_layers=5,
        num_heads=32,
        num_kv_heads=8,
        head_size=128,
        intermediate_size=14336,
        tie_word_embeddings=False,
        dtype="float16",
    )

    def tensor(name: str, shape: tuple[int, ...]) -> Tensor:
        # Other numbers in each tensor: TensorRT stores equal weights once.
        def read() -> Array:
            block = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(1 << 20) / 64
            return np.resize(block.astype(np.float16), shape)

        return Tensor(np.dtype(np.float16), shape, name, read)

    tensors = {name: tensor(name, shape) for name, shape in spec.float_shapes().items()}
    return Decoder(spec, tensors, "random", lambda: "random", assets=model.assets)


def build(source: Path, out: Path, sms: str) -> Cost:
    words = [f"--{name.replace('_', '-')}={value}" for name, value in vars(LIMITS).items() if value is not None]
    command = [sys.executable, "-m", "trtbuild", "build", str(source), "-o", str(out), "--target", "tensorrt-rtx"]
    return measure([*command, "--sm", sms, *words])


def faults(engine: Engine, source: Path) -> list[str]:
    """What is wrong with a built engine, against its own magic and the plan."""
    target, decoder = load_target("tensorrt-rtx"), read_checkpoint(source)
    plan = target.footprint(decoder.spec, decoder.quantization, engine.limits, BuildOptions())
    found = [] if "as it should" in target.examine(engine.path)["engine_file"] else ["not an engine file"]
    for name, foreseen in (("plan_bytes", plan.disk_bytes), ("peak_build_memory_bytes", plan.build_peak_bytes)):
        actual = engine.settings[name]
        if abs(actual / foreseen - 1) > TOLERANCE:
            found.append(f"{name} {actual / 1e6:.0f} MB, planned {foreseen / 1e6:.0f} MB")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--checkpoints", type=Path, metavar="DIR", help="use the checkpoints in this folder")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep checkpoints and engines here")
    parser.add_argument("--large", action="store_true", help="one engine above 2 GB")
    arguments = parser.parse_args()
    if installed() is None:
        print("TensorRT-RTX is not installed here: no engine was built")
        return 0
    decoder = open_model(arguments.model)
    rows: tuple[tuple[str, str], ...] = ROWS
    if arguments.large:
        decoder, rows = large(decoder), (("fp16", "89"),)
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        work = arguments.keep or Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        print("precision  SM        build s   peak MB (outside / manifest)   engine MB")
        for precision, sms in rows:
            source = checkpoint(decoder, precision, arguments.checkpoints, work)
            out = work / f"engine-{precision}-sm{sms.replace(',', '-')}"
            cost = build(source, out, sms)
            engine = read_engine(out)
            size, peak = (engine.settings[name] / 1e6 for name in ("plan_bytes", "peak_build_memory_bytes"))
            line = f"{precision:<9}  {sms:<8} {cost.wall_s:8.1f}   {cost.peak_bytes / 1e6:8.0f} / {peak:<8.0f}"
            print(f"{line}           {size:8.1f}", flush=True)
            for fault in faults(engine, source):
                failed = True
                print(f"  FAULT: {fault}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
