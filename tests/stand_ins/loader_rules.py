"""The rules TensorRT-LLM's loader applies to a checkpoint, written from its description, not from trtbuild."""

from __future__ import annotations

import fnmatch
import json
import math
import struct
from pathlib import Path
from typing import Any

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Phi3ForCausalLM")
FLOATS = {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}


class LoaderError(Exception):
    """What the real loader raises: class name and message."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def read_header(path: Path) -> dict[str, tuple[str, list[int]]]:
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    return {name: (entry["dtype"], entry["shape"]) for name, entry in header.items() if name != "__metadata__"}


def check(directory: Path) -> tuple[dict[str, Any], int]:
    """The config and its world size; raises LoaderError as the loader does."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    if "architecture" not in config:
        raise LoaderError("KeyError", "'architecture'")
    if config["architecture"] not in ARCHITECTURES:
        raise LoaderError("KeyError", f"'{config['architecture']}'")
    for key in ("dtype", "hidden_size", "num_hidden_layers", "num_attention_heads"):
        if key not in config:
            raise LoaderError("TypeError", f"__init__() missing 1 required positional argument: '{key}'")
    mapping = config["mapping"]
    tp, pp, world = mapping["tp_size"], mapping["pp_size"], mapping["world_size"]
    if world != tp * pp * mapping.get("cp_size", 1):
        raise LoaderError("ValueError", f"world_size must equal to tp_size * pp_size * cp_size, but got {world}")
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    if heads % tp or config["hidden_size"] % tp or config["intermediate_size"] % tp:
        raise LoaderError("AssertionError", f"sizes are not divisible by tp_size {tp}")
    if kv % tp and tp % kv:
        raise LoaderError("AssertionError", "KV cache head number must be divisible by tp_size or the other way round")
    if config["num_hidden_layers"] % pp:
        raise LoaderError("AssertionError", "layers are not divisible by pp_size")
    for rank in range(world):
        path = directory / f"rank{rank}.safetensors"
        if not path.is_file():
            raise LoaderError("AssertionError", "")
        _check_rank(config, read_header(path), tp_rank=rank % tp, pp_rank=rank // tp)
    return config, world


def _check_rank(
    config: dict[str, Any], stored: dict[str, tuple[str, list[int]]], *, tp_rank: int, pp_rank: int
) -> None:
    del tp_rank  # every tensor-parallel rank has the same shapes
    expected = _expected(config, stored, pp_rank)
    missing = {name for name in expected if name not in stored}
    if missing:
        raise LoaderError("RuntimeError", f"Required but not provided tensors:{missing}")
    for name, shape in expected.items():
        if stored[name][1] != list(shape):
            raise LoaderError(
                "RuntimeError",
                f"Encounter error 'The value updated is not the same shape as the original. Updated: "
                f"{tuple(stored[name][1])}, original: {tuple(shape)}' for parameter '{name}'",
            )


def _expected(
    config: dict[str, Any], stored: dict[str, tuple[str, list[int]]], pp_rank: int
) -> dict[str, tuple[int, ...]]:
    mapping, quantization = config["mapping"], config.get("quantization") or {}
    tp, pp = mapping["tp_size"], mapping["pp_size"]
    hidden, ffn = config["hidden_size"], config["intermediate_size"] // tp
    heads, kv = config["num_attention_heads"] // tp, max(1, config["num_key_value_heads"] // tp)
    head = config.get("head_size") or hidden // config["num_attention_heads"]
    fused = config["architecture"] == "Phi3ForCausalLM"
    linears = {
        "attention.qkv": ((heads + 2 * kv) * head, hidden),
        "attention.dense": (hidden, heads * head),
        "mlp.fc": (2 * ffn if fused else ffn, hidden),
        "mlp.proj": (hidden, ffn),
    }
    if not fused:
        linears["mlp.gate"] = (ffn, hidden)
    vocab = math.ceil(config["vocab_size"] / tp)
    split_embedding = tp > 1 and config.get("use_parallel_embedding", False)
    shapes: dict[str, tuple[int, ...]] = {}
    if pp_rank == 0:
        shapes["transformer.vocab_embedding.weight"] = (vocab if split_embedding else config["vocab_size"], hidden)
    if pp_rank == pp - 1:
        shapes["transformer.ln_f.weight"] = (hidden,)
        shapes["lm_head.weight"] = (vocab, hidden)
    per_stage = config["num_hidden_layers"] // pp
    for layer in range(per_stage):
        prefix = f"transformer.layers.{layer}"
        shapes[f"{prefix}.input_layernorm.weight"] = shapes[f"{prefix}.post_layernorm.weight"] = (hidden,)
        for module, (out, inp) in linears.items():
            shapes |= _linear(f"{prefix}.{module}", out, inp, quantization, stored)
        if quantization.get("kv_cache_quant_algo") in ("INT8", "FP8"):
            shapes[f"{prefix}.attention.kv_cache_scaling_factor"] = (1,)
    return shapes


def _linear(
    path: str,
    out: int,
    inp: int,
    quantization: dict[str, Any],
    stored: dict[str, tuple[str, list[int]]],
) -> dict[str, tuple[int, ...]]:
    algo = quantization.get("quant_algo")
    excluded = quantization.get("exclude_modules") or ["*lm_head", "*vocab_embedding"]
    prefix, module = path.rsplit(".", 2)[0], ".".join(path.rsplit(".", 2)[1:])
    weight = {f"{path}.weight": (out, inp)}
    plugin = algo is not None and algo.endswith("_PLUGIN")
    if algo is None or (not plugin and any(fnmatch.fnmatchcase(path, pattern) for pattern in excluded)):
        return weight
    group = quantization.get("group_size") or 128
    if algo == "W8A16":
        if stored.get(f"{path}.weight", ("F16", []))[0] == "I8":  # taken as already converted, so the scale is missed
            return {**weight, f"{path}.per_channel_scale": (out,)}
        return weight
    if algo == "W8A8_SQ_PER_CHANNEL":
        return {
            **weight,
            f"{path}.weights_scaling_factor": (out,),
            f"{path}.activation_scaling_factor": (1,),
            f"{path}.prequant_scaling_factor": (inp,),
        }
    if algo == "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN":
        smoother = {f"{path}.smoother": (1, inp)} if module in ("attention.dense", "mlp.proj") else {}
        norm = "input_layernorm" if module == "attention.qkv" else "post_layernorm"
        return {**weight, f"{path}.per_channel_scale": (1, out), f"{prefix}.{norm}.scale_to_int": (1,), **smoother}
    if algo == "FP8":
        return {**weight, f"{path}.weights_scaling_factor": (1,), f"{path}.activation_scaling_factor": (1,)}
    if algo in ("W4A16_AWQ", "W4A8_AWQ"):
        if inp % group:
            raise LoaderError("AssertionError", f"{path}: {inp} is not a multiple of group_size {group}")
        shapes: dict[str, tuple[int, ...]] = {
            f"{path}.weight": (out // 2, inp),
            f"{path}.weights_scaling_factor": (out, inp // group),
            f"{path}.prequant_scaling_factor": (inp,),
        }
        if algo == "W4A8_AWQ":
            shapes |= {f"{path}.weights_scaling_factor_2": (1,), f"{path}.activation_scaling_factor": (1,)}
        return shapes
    if algo == "NVFP4":
        return {
            f"{path}.weight": (out, inp // 2),
            f"{path}.weights_scaling_factor": (out, inp // 16),
            f"{path}.weights_scaling_factor_2": (),
            f"{path}.activation_scaling_factor": (),
        }
    raise LoaderError("ValueError", f"Unsupported quantization algorithm: {algo}")
