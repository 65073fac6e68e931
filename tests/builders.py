"""Tiny random Hugging Face folders of every family, written without torch; enough for shapes, too small for truth."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

DTYPES: Mapping[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}

_COMMON: Mapping[str, Any] = {
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32},
    "phi3": {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "pad_token_id": 0},
}
"""Family → the part of its `config.json` that differs from `_COMMON`."""

LLAMA3_ROPE: Mapping[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def family_config(family: str, **changes: Any) -> dict[str, Any]:
    """A complete `config.json` of a tiny model; a value of None in `changes` is written as null."""
    return {**_COMMON, **FAMILIES[family], "torch_dtype": "float32", **changes}


def tensor_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name → shape of every tensor that Hugging Face stores for this config."""
    family = config["model_type"]
    hidden, ffn, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    heads = config["num_attention_heads"]
    q, kv = heads * head, (config["num_key_value_heads"] or heads) * head
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}"
        shapes[f"{p}.input_layernorm.weight"] = shapes[f"{p}.post_attention_layernorm.weight"] = (hidden,)
        linears = {"self_attn.o_proj": (hidden, q), "mlp.down_proj": (hidden, ffn)}
        if family == "phi3":
            linears |= {"self_attn.qkv_proj": (q + 2 * kv, hidden), "mlp.gate_up_proj": (2 * ffn, hidden)}
        else:
            linears |= {"self_attn.q_proj": (q, hidden), "self_attn.k_proj": (kv, hidden)}
            linears |= {"self_attn.v_proj": (kv, hidden), "mlp.gate_proj": (ffn, hidden), "mlp.up_proj": (ffn, hidden)}
        biased: tuple[str, ...] = ()
        if family == "qwen2" or config.get("attention_bias"):
            biased += ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        if config.get("attention_bias") and family in ("llama", "qwen3"):
            biased += ("self_attn.o_proj",)
        if config.get("mlp_bias"):
            biased += ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
        for name, shape in linears.items():
            shapes[f"{p}.{name}.weight"] = shape
            if name in biased:
                shapes[f"{p}.{name}.bias"] = shape[:1]
        if family == "qwen3":
            shapes[f"{p}.self_attn.q_norm.weight"] = shapes[f"{p}.self_attn.k_norm.weight"] = (head,)
    return shapes


def random_tensors(config: Mapping[str, Any], *, dtype: str = "float32", seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights whose activations stay near one; norms near one; biases small."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in sorted(tensor_shapes(config).items()):
        if name.endswith("norm.weight"):
            values = 1 + 0.1 * rng.standard_normal(shape)
        elif name.endswith("bias"):
            values = 0.1 * rng.standard_normal(shape)
        else:
            values = rng.standard_normal(shape) / np.sqrt(shape[-1])
        tensors[name] = values.astype(np.float32).astype(DTYPES[dtype])
    return tensors


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """A byte-level tokenizer of exactly `vocab_size` entries (the 256 bytes need more than 258; else fewer bytes)."""
    specials = ["<unk>", "<s>", "</s>"]
    alphabet = [chr(c) for c in range(33, 127)] + ["Ġ", "Ċ"]
    words = [w for w in alphabet if w not in specials][: vocab_size - len(specials)]
    vocab = {token: i for i, token in enumerate(specials + words)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": i,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for i, token in enumerate(specials)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "unk_token": "<unk>", "vocab": vocab, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "chat_template": "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def write_huggingface(
    folder: Path, family: str = "llama", *, dtype: str = "float32", seed: int = 0, shards: int = 1, **changes: Any
) -> Path:
    """Write a whole tiny Hugging Face folder (config, weights in `shards` files, tokenizer, generation config)."""
    folder.mkdir(parents=True, exist_ok=True)
    config = family_config(family, **{"torch_dtype": dtype, **changes})
    tensors = random_tensors(config, dtype=dtype, seed=seed)
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        names = sorted(tensors)
        index: dict[str, str] = {}
        for shard in range(shards):
            file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
            part = {name: tensors[name] for name in names[shard::shards]}
            save_file(part, folder / file, metadata={"format": "pt"})
            index |= dict.fromkeys(part, file)
        total = sum(t.nbytes for t in tensors.values())
        document = {"metadata": {"total_size": total}, "weight_map": index}
        (folder / "model.safetensors.index.json").write_text(json.dumps(document), encoding="utf-8")
    write_tokenizer(folder, config["vocab_size"])
    generation = {"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"]}
    (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    return folder
