"""How much of what INT8 costs an epoch of LoRA brings back: quantize, fine-tune against it, merge, quantize again.

    python benchmarks/recover_quality.py MODEL -o DIR [--calibration entropy] [--share 0.05] [--json OUT]

MODEL is a Hugging Face folder or what trtbuild can open as llama (a GGUF file, say). Needs torch, transformers and
peft. DIR receives both checkpoints and the adapter between them. docs/recover-quality.md explains and quotes it.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import huggingface_folder
import numpy as np
import peft
import torch
import transformers

from trtbuild.calibrate.corpus import builtin_calibration, builtin_evaluation, encode_document, tokenized_samples
from trtbuild.calibrate.forward import hidden_states
from trtbuild.checkpoint.architectures import ARCHITECTURES
from trtbuild.checkpoint.linear import Linear, read_linear
from trtbuild.checkpoint.lora import merge_lora
from trtbuild.checkpoint.opening import open_decoder, open_model
from trtbuild.checkpoint.spec import LINEAR_MODULES, Array, Decoder
from trtbuild.checkpoint.tokenizer import load_tokenizer
from trtbuild.quantize.score import Baseline, Score, baseline_of, score

TRAINING_SEED = 1
"""Another order of the documents than the one calibration takes (`quantize --seed` is 0)."""
_WARMUP_STEPS = 3


def quantized_modules(checkpoint: Decoder) -> Iterator[tuple[str, Linear, slice]]:
    """Every INT8 linear under the path Hugging Face gives it, and its rows of what the checkpoint stores.

    For families whose linears are stored apart, which is all but phi3.
    """
    spec = checkpoint.spec
    for layer in range(spec.num_layers):
        for module in LINEAR_MODULES:
            linear = read_linear(checkpoint, layer, module)
            if linear.activation_scale is None:
                continue
            pieces = ARCHITECTURES[spec.family].modules[module]
            sizes = [len(linear.weight)] if len(pieces) == 1 else [spec.q_rows, spec.kv_rows, spec.kv_rows]
            start = 0
            for piece, rows in zip(pieces, sizes, strict=True):
                if piece.parts != 1:
                    raise SystemExit(f"{spec.family} stores {piece.module} as one linear; this script cannot split it")
                yield f"model.layers.{layer}.{piece.module}", linear, slice(start, start + rows)
                start += rows


class RoundedInput:
    """What an INT8 linear sees of its input: x ← clip(rint(x · p / s), −128, 127) · s / p.

    The gradient passes straight through the rounding: it is one, and zero where the input is clipped. The division by p
    puts the rounding error where the float weights are, so that the adapter beside them meets during training the very
    input it meets after it was merged into them.
    """

    def __init__(self, linear: Linear) -> None:
        assert linear.activation_scale is not None
        self._scale = linear.activation_scale
        self._prequant = torch.from_numpy(prequant(linear))

    def __call__(self, _module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        (x,) = inputs
        levels = torch.clamp(x * self._prequant / self._scale, -128, 127)
        rounding = (torch.round(levels) - levels).detach()
        return ((levels + rounding) * self._scale / self._prequant,)


def prequant(linear: Linear) -> Array:
    """F32 [in]; ones where there is none."""
    if linear.prequant_scale is None:
        return np.ones(linear.weight.shape[1], np.float32)
    return np.asarray(linear.prequant_scale, np.float32)


def student(folder: Path, checkpoint: Decoder, rank: int) -> peft.PeftModel:
    """The model with the checkpoint's INT8 weights and scales in its linears, and an untrained adapter beside each."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    hooks = {}
    for name, linear, rows in quantized_modules(checkpoint):
        assert linear.weight_scale is not None
        weight = linear.weight[rows] * linear.weight_scale[rows, None] * prequant(linear)
        with torch.no_grad():
            model.get_submodule(name).weight.copy_(torch.from_numpy(weight))
        hooks[name] = RoundedInput(linear)
    torch.manual_seed(0)  # the start of the adapter
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=list(hooks), task_type="CAUSAL_LM")
    wrapped = peft.get_peft_model(model, config)
    for name, hook in hooks.items():
        wrapped.base_model.model.get_submodule(name).register_forward_pre_hook(hook)
    return wrapped


def divergence(teacher: torch.Tensor, learner: torch.Tensor) -> torch.Tensor:
    """Mean over tokens of KL(teacher ‖ learner), in nats; both are logits [T, vocab]."""
    expected, found = torch.log_softmax(teacher, dim=-1), torch.log_softmax(learner, dim=-1)
    return (expected.exp() * (expected - found)).sum(dim=-1).mean()


def train(
    folder: Path, checkpoint: Decoder, samples: Sequence[Array], out: Path, *, rank: int, learning_rate: float
) -> list[float]:
    """One epoch, a sample a step, toward the float model's own distribution; returns the KL of each step.

    The target is what the float model says, not the next token of the text: the adapter can only undo what
    quantization did, so that what comes back is not another fine-tuning in disguise.
    """
    teacher = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    learner = student(folder, checkpoint, rank)
    parameters = [parameter for parameter in learner.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0)

    def rate(step: int) -> float:
        return min(1.0, (step + 1) / _WARMUP_STEPS) * 0.5 * (1 + math.cos(math.pi * step / len(samples)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    losses = []
    for number, sample in enumerate(samples):
        ids = torch.from_numpy(np.asarray(sample, np.int64))[None]
        with torch.no_grad():
            expected = teacher(ids).logits[0]
        loss = divergence(expected, learner(ids).logits[0])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        print(f"step {number + 1}/{len(samples)}: KL {losses[-1]:.5f}", file=sys.stderr, flush=True)
    learner.save_pretrained(out)
    return losses


def quantize(model: str, out: Path, arguments: argparse.Namespace, *more: str) -> None:
    """`trtbuild quantize`, the command as anyone would give it."""
    command = [sys.executable, "-m", "trtbuild", "quantize", model, "-o", str(out), "-p", "int8", "-q", *more]
    command += ["--calibration", arguments.calibration]
    command += ["--samples", str(arguments.samples), "--seq-len", str(arguments.seq_len)]
    print("$", *command[2:], file=sys.stderr)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def scores(
    decoder: Decoder, windows: Sequence[Array], baselines: Sequence[Baseline], candidate: Decoder
) -> tuple[Score, list[float]]:
    """The score over all windows (of one length), and the KL of each."""
    states = hidden_states(candidate, windows)
    each = [score(decoder, one, [state]) for one, state in zip(baselines, states, strict=True)]

    def perplexity(values: list[float]) -> float:
        return float(np.exp(np.mean(np.log(values))))

    total = Score(
        perplexity([one.perplexity for one in each]),
        perplexity([one.baseline_perplexity for one in each]),
        float(np.mean([one.kl for one in each])),
        float(np.mean([one.top1_pct for one in each])),
    )
    return total, [one.kl for one in each]


def int8_share(folder: Path) -> float:
    """Share of the linear weights that are INT8."""
    checkpoint = open_decoder(str(folder))
    linears = [
        read_linear(checkpoint, layer, module).weight
        for layer in range(checkpoint.spec.num_layers)
        for module in LINEAR_MODULES
    ]
    return sum(w.size for w in linears if w.dtype == np.int8) / sum(w.size for w in linears)


def table(document: dict[str, Any]) -> str:
    """The rows as Markdown."""
    lines = ["| model | perplexity | change | KL (nats/token) | same top-1 | INT8 |", "|---|---|---|---|---|---|"]
    for row in document["rows"]:
        lines.append(
            f"| {row['model']} | {row['perplexity']:.3f} | {row['perplexity_change_pct']:+.2f} % | {row['kl']:.5f} | "
            f"{row['top1_pct']:.1f} % | {row['int8_share_pct']:.0f} % |"
        )
    return "\n".join(lines)


def row_of(name: str, found: Score, share: float) -> dict[str, Any]:
    return {
        "model": name,
        "perplexity": found.perplexity,
        "perplexity_change_pct": found.perplexity_change_pct,
        "kl": found.kl,
        "top1_pct": found.top1_pct,
        "int8_share_pct": 100 * share,
    }


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    decoder = open_model(arguments.model)
    folder = Path(arguments.model)
    if not folder.is_dir():
        folder = out / "model"
        if not folder.exists():
            huggingface_folder.write(decoder, folder, "float32")
    tokenizer = load_tokenizer(decoder.assets, spec=decoder.spec, where=arguments.model)
    texts = builtin_calibration()
    tokens = sum(len(encode_document(tokenizer, document)) for document in texts.documents)
    count = max(1, round(arguments.share * tokens / arguments.seq_len))
    training = tokenized_samples(tokenizer, texts, count, arguments.seq_len, seed=TRAINING_SEED).ids
    windows = tokenized_samples(tokenizer, builtin_evaluation(), arguments.windows, arguments.seq_len).ids

    seconds = {}
    before, adapter, after = out / "before", out / "adapter", out / "after"
    started = time.perf_counter()
    quantize(arguments.model, before, arguments)
    seconds["quantize"] = time.perf_counter() - started
    started = time.perf_counter()
    losses = train(
        folder,
        open_decoder(str(before)),
        training,
        adapter,
        rank=arguments.rank,
        learning_rate=arguments.learning_rate,
    )
    seconds["train"] = time.perf_counter() - started
    started = time.perf_counter()
    quantize(arguments.model, after, arguments, "--lora", str(adapter))
    seconds["merge and quantize"] = time.perf_counter() - started

    states = hidden_states(decoder, windows)
    baselines = [baseline_of(decoder, [w], [state]) for w, state in zip(windows, states, strict=True)]
    damaged, damaged_kl = scores(decoder, windows, baselines, open_decoder(str(before)))
    recovered, recovered_kl = scores(decoder, windows, baselines, open_decoder(str(after)))
    control, _ = scores(decoder, windows, baselines, merge_lora(decoder, [(adapter, 1.0)]))
    float_score = Score(damaged.baseline_perplexity, damaged.baseline_perplexity, 0.0, 100.0)
    better = sum(b < a for a, b in zip(damaged_kl, recovered_kl, strict=True))
    lost = damaged.perplexity - damaged.baseline_perplexity
    return {
        "model": arguments.model,
        "calibration": arguments.calibration,
        "training": {
            "samples": len(training),
            "tokens": len(training) * arguments.seq_len,
            "share_of_text_pct": 100 * len(training) * arguments.seq_len / tokens,
            "rank": arguments.rank,
            "learning_rate": arguments.learning_rate,
            "kl_of_each_step": losses,
        },
        "held_out": {"windows": len(windows), "tokens": len(windows) * arguments.seq_len},
        "rows": [
            row_of("float", float_score, 0.0),
            row_of("quantized", damaged, int8_share(before)),
            row_of("recovered", recovered, int8_share(after)),
            # What the adapter does where nothing was broken: the share of a gain that is not recovery shows here.
            row_of("float with the adapter", control, 0.0),
        ],
        "kl_recovered_pct": 100 * (1 - recovered.kl / damaged.kl),
        "perplexity_recovered_pct": 100 * (damaged.perplexity - recovered.perplexity) / lost if lost > 0 else None,
        "windows_with_less_kl": better,
        "seconds": seconds,
        "machine": {"cpu": platform.processor() or platform.machine(), "torch_threads": torch.get_num_threads()},
        "packages": {package.__name__: package.__version__ for package in (torch, transformers, peft)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--calibration", default="entropy", help="forced for both checkpoints: nothing stays in float")
    parser.add_argument("--samples", type=int, default=64, help="of calibration")
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--share", type=float, default=0.05, help="of the built-in calibration text, to train on")
    parser.add_argument("--windows", type=int, default=32, help="of held-out text to score")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    document = run(arguments)
    print(table(document))
    lost = document["perplexity_recovered_pct"]
    print(
        f"came back: {document['kl_recovered_pct']:.0f} % of the KL, "
        f"{'nothing was lost in' if lost is None else f'{lost:.0f} % of the'} perplexity; less KL in "
        f"{document['windows_with_less_kl']} of {document['held_out']['windows']} windows"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
