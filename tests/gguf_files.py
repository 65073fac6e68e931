"""Tiny GGUF files of every readable architecture, written with the gguf package from the builders' weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from builders import family_config, random_tensors

_RENAMED = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def _permuted(weights: np.ndarray, heads: int) -> np.ndarray:
    """Rows as llama.cpp's converter stores those of Q and K of a llama: the two halves of each head interleaved."""
    half = weights.shape[0] // heads // 2
    return weights.reshape(heads, 2, half, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


def gguf_tensors(family: str, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Hugging Face tensors under GGUF names, in GGUF row order."""
    result = {}
    for name, values in tensors.items():
        stem, kind = name.rsplit(".", 1)
        if stem in _TOP:
            result[f"{_TOP[stem]}.{kind}"] = values
            continue
        _, _, layer, module = stem.split(".", 3)
        if family == "llama" and module in ("self_attn.q_proj", "self_attn.k_proj"):
            heads = config["num_attention_heads" if "q_proj" in module else "num_key_value_heads"]
            values = _permuted(values, heads)
        result[f"blk.{layer}.{_RENAMED[module]}.{kind}"] = values
    return result


def write_gguf(
    path: Path,
    family: str = "llama",
    *,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    metadata: Mapping[str, Any] | None = None,
    extra: Mapping[str, np.ndarray] | None = None,
    split_max_tensors: int = 0,
    head_dim: int = 64,
    **changes: Any,
) -> dict[str, np.ndarray]:
    """Write a model and return its weights as Hugging Face would have them (before quantizing to `kind`).

    Matrices are stored as `kind`, everything else as F32. `metadata` adds or overrides keys (without a value of
    None, which removes one); `extra` adds tensors.
    """
    config = family_config(family, hidden_size=256, intermediate_size=256, head_dim=head_dim, **changes)
    tensors = random_tensors(config)
    keys: dict[str, Any] = {
        f"{family}.block_count": config["num_hidden_layers"],
        f"{family}.context_length": config["max_position_embeddings"],
        f"{family}.embedding_length": config["hidden_size"],
        f"{family}.feed_forward_length": config["intermediate_size"],
        f"{family}.attention.head_count": config["num_attention_heads"],
        f"{family}.attention.head_count_kv": config["num_key_value_heads"],
        f"{family}.attention.key_length": head_dim,
        f"{family}.attention.value_length": head_dim,
        f"{family}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        f"{family}.rope.freq_base": config["rope_theta"],
        **(metadata or {}),
    }
    writer = gguf.GGUFWriter(path, str(keys.pop("general.architecture", family)), split_max_tensors=split_max_tensors)
    for key, value in keys.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif value is not None:
            writer.add_array(key, value)
    for name, values in {**gguf_tensors(family, config, tensors), **(extra or {})}.items():
        if values.ndim == 2 and kind != gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors
