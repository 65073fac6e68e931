"""The numpy forward against transformers, for every family and rope type."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from builders import LLAMA3_ROPE, write_huggingface

from trtbuild.calibrate.forward import logits
from trtbuild.checkpoint.opening import open_model

_LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [1.0 + 0.5 * i for i in range(8)],
}
CASES = {
    "llama": ("llama", {}),
    "llama-llama3-rope": ("llama", {"rope_scaling": LLAMA3_ROPE}),
    "llama-linear-rope": ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    "llama-yarn-rope": (
        "llama",
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
    ),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-head-dim": ("llama", {"head_dim": 32}),
    "llama-multi-head": ("llama", {"num_key_value_heads": 4}),
    "mistral": ("mistral", {}),
    "mistral-window": ("mistral", {"sliding_window": 16}),
    "qwen2": ("qwen2", {}),
    "qwen2-window": ("qwen2", {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 1}),
    "qwen3": ("qwen3", {}),
    "phi3": ("phi3", {}),
    "phi3-longrope": ("phi3", {"rope_scaling": _LONG, "original_max_position_embeddings": 64}),
}


@pytest.mark.parametrize("tokens", [1, 7, 300])
@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(tmp_path: Path, case: str, tokens: int) -> None:
    family, changes = CASES[case]
    folder = write_huggingface(tmp_path / "m", family, max_position_embeddings=512, **changes)
    ids = np.random.default_rng(1).integers(0, 96, tokens)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        expected = model(torch.from_numpy(ids)[None]).logits[0].numpy()
    actual = logits(open_model(str(folder)), ids)
    assert actual.dtype == np.float32
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-3)
