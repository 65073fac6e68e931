"""GGUF files against the model transformers loads from the same file."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf_files import write_gguf

from trtbuild.calibrate.forward import logits
from trtbuild.checkpoint.opening import open_model


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_1"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_weights_and_logits_equal_transformers(tmp_path: Path, family: str, kind: str) -> None:
    vocabulary = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [f"t{i}" for i in range(96)],
        "tokenizer.ggml.token_type": [1] * 96,
        "tokenizer.ggml.merges": ["t 1"],
        f"{family}.vocab_size": 96,
    }
    head_dim = 128 if family == "qwen3" else 64  # transformers takes no other head size from a qwen3 file
    kind_of = gguf.GGMLQuantizationType[kind]
    write_gguf(tmp_path / "m.gguf", family, kind=kind_of, head_dim=head_dim, metadata=vocabulary)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="m.gguf", dtype=torch.float32, attn_implementation="eager"
    ).eval()
    decoder = open_model(str(tmp_path / "m.gguf"))
    for i, layer in enumerate(theirs.model.layers):
        attention = layer.self_attn
        qkv = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
        ours = decoder.tensors[f"transformer.layers.{i}.attention.qkv.weight"].read()
        np.testing.assert_array_equal(ours.astype(np.float32), qkv.detach().numpy())
    ids = np.random.default_rng(0).integers(0, 96, 20)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(ids)[None]).logits[0].numpy()
    np.testing.assert_allclose(logits(decoder, ids), expected, atol=1e-3)
