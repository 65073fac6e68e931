"""Write a model that trtbuild can open (a GGUF file, say) as a Hugging Face folder, for tools that read nothing else.

    python benchmarks/huggingface_folder.py MODEL OUT [--dtype float16]

Only what llama needs; the tokenizer files go along.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.spec import EMBEDDING, FINAL_NORM, HEAD, Decoder, layer_prefix

_LAYER = {
    "input_layernorm": "input_layernorm",
    "post_layernorm": "post_attention_layernorm",
    "attention.dense": "self_attn.o_proj",
    "mlp.fc": "mlp.gate_proj",
    "mlp.gate": "mlp.up_proj",
    "mlp.proj": "mlp.down_proj",
}


def config(decoder: Decoder, dtype: str) -> dict[str, Any]:
    spec = decoder.spec
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": spec.hidden_act,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_size,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_position_embeddings,
        "rms_norm_eps": spec.norm_epsilon,
        "rope_theta": spec.rope.base,
        "rope_scaling": spec.rope.scaling,
        "tie_word_embeddings": spec.tie_word_embeddings,
        "bos_token_id": spec.bos_token_id,
        "eos_token_id": list(spec.eos_token_ids),
        "torch_dtype": dtype,
    }


def write(decoder: Decoder, out: Path, dtype: str) -> None:
    out.mkdir(parents=True)
    spec = decoder.spec

    def read(name: str) -> np.ndarray:
        return np.ascontiguousarray(decoder.tensors[name].read().astype(dtype))

    tensors = {"model.embed_tokens.weight": read(EMBEDDING), "model.norm.weight": read(FINAL_NORM)}
    if not spec.tie_word_embeddings:
        tensors["lm_head.weight"] = read(HEAD)
    for layer in range(spec.num_layers):
        prefix, target = layer_prefix(layer), f"model.layers.{layer}"
        for ours, theirs in _LAYER.items():
            tensors[f"{target}.{theirs}.weight"] = read(f"{prefix}.{ours}.weight")
        qkv = np.split(read(f"{prefix}.attention.qkv.weight"), [spec.q_rows, spec.q_rows + spec.kv_rows])
        for letter, part in zip("qkv", qkv, strict=True):
            tensors[f"{target}.self_attn.{letter}_proj.weight"] = np.ascontiguousarray(part)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    for name, content in decoder.assets.items():
        (out / name).write_bytes(content)
    (out / "config.json").write_text(json.dumps(config(decoder, dtype), indent=1), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--dtype", default="float16", choices=("float16", "float32"))
    arguments = parser.parse_args()
    write(open_model(arguments.model), arguments.out, arguments.dtype)
