"""A large random checkpoint through `quantize -p int8`: peak memory, and how it and the time grow with the samples.

    python benchmarks/calibration_large.py WORK [--layers 28] [--hidden 3072] [--ffn 8192] [--heads 24] [--kv-heads 8]
                                           [--vocab 128256] [--samples 64 512] [--seq-len 512] [--json OUT]

The defaults are 3 billion parameters in BF16, in shards of one layer. Samples are random ids, given as a record would
be; the validation split is two of them. Bound: a peak below 2.5 GB. It should be the same for few and many samples.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import ml_dtypes
import numpy as np
from processes import measure
from safetensors.numpy import save_file

BOUND_BYTES = 2_500_000_000

_QUANTIZE = """
import sys
from pathlib import Path
import numpy as np
from trtbuild.checkpoint.opening import open_model
from trtbuild.quantize.budget import Budget
from trtbuild.quantize.run import quantize_to
model, samples, out = sys.argv[1:]
rows = list(np.load(samples))
quantize_to(open_model(model), Path(out), "int8", samples=rows[2:], validation=rows[:2], budget=Budget(None, None))
"""


def write_model(folder: Path, arguments: argparse.Namespace) -> int:
    """Write the checkpoint one shard at a time; returns its number of parameters."""
    hidden, ffn, vocab = arguments.hidden, arguments.ffn, arguments.vocab
    head = hidden // arguments.heads
    rng = np.random.default_rng(0)

    def random(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[-1]))).astype(ml_dtypes.bfloat16)

    def ones() -> np.ndarray:
        return np.ones(hidden, ml_dtypes.bfloat16)

    kv = arguments.kv_heads * head
    shapes = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (ffn, hidden),
        "mlp.up_proj": (ffn, hidden),
        "mlp.down_proj": (hidden, ffn),
    }
    folder.mkdir(parents=True)
    index: dict[str, str] = {}
    parameters = 0
    for shard in range(arguments.layers + 1):
        if shard == arguments.layers:
            tensors = {"model.embed_tokens.weight": random(vocab, hidden), "model.norm.weight": ones()}
        else:
            prefix = f"model.layers.{shard}"
            tensors = {f"{prefix}.{name}.weight": random(*shape) for name, shape in shapes.items()}
            tensors |= {f"{prefix}.{name}.weight": ones() for name in ("input_layernorm", "post_attention_layernorm")}
        file = f"model-{shard + 1:05d}-of-{arguments.layers + 1:05d}.safetensors"
        save_file(tensors, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(tensors, file)
        parameters += sum(tensor.size for tensor in tensors.values())
    document = {"metadata": {"total_size": 2 * parameters}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(document))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": arguments.layers,
        "num_attention_heads": arguments.heads,
        "num_key_value_heads": arguments.kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return parameters


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    for name, default in (("layers", 28), ("hidden", 3072), ("ffn", 8192), ("heads", 24), ("kv-heads", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--vocab", type=int, default=128256)
    parser.add_argument("--samples", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    folder = arguments.work / "model"
    if not folder.exists():
        print(f"{write_model(folder, arguments) / 1e9:.2f} billion parameters", flush=True)
    rng = np.random.default_rng(1)
    results = {}
    for count in arguments.samples:
        samples = arguments.work / f"samples-{count}.npy"
        np.save(samples, rng.integers(0, arguments.vocab, (count + 2, arguments.seq_len)).astype(np.int32))
        out = arguments.work / f"int8-{count}"
        cost = measure([sys.executable, "-c", _QUANTIZE, str(folder), str(samples), str(out)])
        results[count] = asdict(cost)
        print(
            f"{count} samples: {cost.wall_s:.0f} s, {cost.cpu_s:.0f} s of CPU, peak {cost.peak_bytes / 1e6:.0f} MB",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))
    sys.exit(max(result["peak_bytes"] for result in results.values()) >= BOUND_BYTES)


if __name__ == "__main__":
    main()
