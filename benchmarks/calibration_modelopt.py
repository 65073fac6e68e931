"""INT8 by trtbuild and by nvidia-modelopt: the same model, samples and machine, whole commands, scored the same way.

    python benchmarks/calibration_modelopt.py MODEL --modelopt VENV [--samples 36] [--seq-len 512] [--evaluate 16]
                                              [--only NAME…] [--keep DIR] [--json OUT]

MODEL is anything trtbuild opens (llama family); VENV an environment with modelopt, torch and transformers. All start
from the same FP32 Hugging Face folder. `max` is INT8_SMOOTHQUANT_CFG as it is; `entropy` is SmoothQuant with strength
0.5 and its HistogramCalibrator, as documented for it. trtbuild is asked for INT8 within its default budget, and with
almost everything in INT8 (`WIDE`). trtbuild's time includes choosing, and scoring on its validation split. Scores are
of the fake-quantized numpy forward of each checkpoint against the source, on held-out text. It judges nothing:
`docs/figures.md` has the bounds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import huggingface_folder
import numpy as np
from processes import measure

from trtbuild.calibrate.corpus import builtin_evaluation, tokenized_samples
from trtbuild.calibrate.forward import hidden_states
from trtbuild.calibrate.samples import samples_for
from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.spec import LINEAR_MODULES, Decoder, module_path
from trtbuild.checkpoint.tokenizer import load_tokenizer
from trtbuild.checkpoint.trtllm import read_checkpoint
from trtbuild.quantize.run import hold_out
from trtbuild.quantize.score import baseline_of, score

WIDE = """\
name: wide
description: Almost everything in INT8.
precisions: [fp32, int8]
quality: {max_perplexity_change_pct: 3.0, max_kl: 0.066}
"""
"""Half of a profile's limits is what quantization may use of them on its validation split."""

WORKER = Path(__file__).with_name("modelopt_int8.py")


def int8_share(decoder: Decoder) -> float:
    """Share of the linear weights that are INT8."""
    sizes = {True: 0, False: 0}
    for layer in range(decoder.spec.num_layers):
        for module in LINEAR_MODULES:
            tensor = decoder.tensors[f"{module_path(layer, module)}.weight"]
            sizes[tensor.dtype == np.int8] += int(np.prod(tensor.shape))
    return sizes[True] / sum(sizes.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--modelopt", type=Path, required=True, metavar="VENV")
    parser.add_argument("--samples", type=int, default=36)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--evaluate", type=int, default=16)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--keep", type=Path, help="work in this folder and leave it")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        work = arguments.keep or Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        source = open_model(arguments.model)
        folder = work / "huggingface"
        if not folder.exists():
            huggingface_folder.write(source, folder, "float32")
        kept, _ = hold_out(samples_for(source, None, arguments.samples, arguments.seq_len).ids)
        np.save(work / "samples.npy", np.stack(kept))
        python = str(arguments.modelopt / "bin" / "python")
        (work / "wide.yaml").write_text(WIDE, encoding="utf-8")
        quantize = [
            *(sys.executable, "-m", "trtbuild", "quantize", str(folder), "-p", "int8"),
            *("--samples", str(arguments.samples), "--seq-len", str(arguments.seq_len)),
        ]
        commands = {
            "trtbuild": [*quantize, "-o"],
            "trtbuild wide": [*quantize, "--profile", str(work / "wide.yaml"), "-o"],
            "modelopt max": [python, str(WORKER), str(folder), str(work / "samples.npy"), "max"],
            "modelopt entropy": [python, str(WORKER), str(folder), str(work / "samples.npy"), "entropy"],
        }
        tokenizer = load_tokenizer(source.assets, spec=source.spec, where=source.location)
        text = tokenized_samples(tokenizer, builtin_evaluation(), arguments.evaluate, arguments.seq_len).ids
        baseline = baseline_of(source, text, hidden_states(source, text))
        results = {}
        for name, command in commands.items():
            if arguments.only and name not in arguments.only:
                continue
            out = work / name.replace(" ", "-")
            cost = measure([*command, str(out)])
            checkpoint = read_checkpoint(out)
            # modelopt 0.47 with transformers 5 loses the rotary fields
            candidate = dataclasses.replace(
                checkpoint, spec=dataclasses.replace(checkpoint.spec, rope=source.spec.rope)
            )
            found = score(source, baseline, hidden_states(candidate, text))
            results[name] = {
                **asdict(cost),
                "int8_share": int8_share(checkpoint),
                "perplexity_change_pct": found.perplexity_change_pct,
                **asdict(found),
            }
            print(
                f"{name}: {cost.wall_s:.0f} s, {cost.cpu_s:.0f} s of CPU, peak {cost.peak_bytes / 1e6:.0f} MB; "
                f"{results[name]['int8_share']:.1%} INT8, perplexity {found.perplexity_change_pct:+.2f} %, "
                f"KL {found.kl:.4f}, top-1 {found.top1_pct:.1f} %",
                flush=True,
            )
        ours = results.get("trtbuild")
        for name, theirs in results.items():
            if ours and name.startswith("modelopt"):
                time_ratio, memory_ratio = theirs["wall_s"] / ours["wall_s"], theirs["peak_bytes"] / ours["peak_bytes"]
                print(f"{name} takes {time_ratio:.2f} times the time and {memory_ratio:.2f} times the memory")
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
