"""Config settings of every rope type in every spelling met, for the comparison with transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_FACTORS = {
    "short_factor": [1.0 + 0.01 * i for i in range(32)],
    "long_factor": [1.0 + 0.7 * i for i in range(32)],
}
_SHAPE = {"head_dim": 64, "max_position_embeddings": 131072}

CASES: Mapping[str, tuple[str, Mapping[str, Any], tuple[int | None, ...]]] = {
    "default": ("llama", {"rope_theta": 500000.0}, (None, 4096)),
    "default-rope_parameters": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, (None,)),
    "linear-type": ("llama", {"rope_scaling": {"type": "linear", "factor": 2.5}}, (None, 4096)),
    "linear-rope_parameters": (
        "mistral",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 20000.0}},
        (None,),
    ),
    "dynamic": ("llama", {"rope_scaling": {"type": "dynamic", "factor": 4.0}}, (None, 256)),
    "llama3": (
        "llama",
        {**_SHAPE, "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", **_LLAMA3}},
        (None,),
    ),
    "llama3-factor-32": (
        "llama",
        {**_SHAPE, "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", **_LLAMA3, "factor": 32.0}},
        (None, 100000),
    ),
    "llama3-rope_parameters": (
        "llama",
        {**_SHAPE, "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, **_LLAMA3}},
        (None,),
    ),
    "yarn-type": (
        "qwen2",
        {
            "rope_theta": 1e6,
            "max_position_embeddings": 32768,
            "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        },
        (None, 60000),
    ),
    "yarn-all-settings": (
        "llama",
        {
            **_SHAPE,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 16.0,
                "original_max_position_embeddings": 4096,
                "beta_fast": 24.0,
                "beta_slow": 2.0,
                "mscale": 0.8,
                "mscale_all_dim": 0.6,
                "truncate": False,
            },
        },
        (None,),
    ),
    "yarn-attention-factor": (
        "qwen3",
        {
            "max_position_embeddings": 40960,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e6,
                "factor": 4.0,
                "original_max_position_embeddings": 32768,
                "attention_factor": 0.9,
            },
        },
        (None,),
    ),
    "yarn-silent-window": ("llama", {**_SHAPE, "rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, (None,)),
    "longrope": (
        "phi3",
        {
            "hidden_size": 256,
            "max_position_embeddings": 131072,
            "original_max_position_embeddings": 4096,
            "rope_scaling": {"type": "longrope", **_FACTORS},
        },
        (None, 4096, 4097),
    ),
    "longrope-su": (
        "phi3",
        {
            "hidden_size": 256,
            "max_position_embeddings": 131072,
            "original_max_position_embeddings": 4096,
            "rope_scaling": {"type": "su", **_FACTORS},
        },
        (None, 8192),
    ),
    "longrope-partial": (
        "phi3",
        {
            "hidden_size": 512,
            "max_position_embeddings": 131072,
            "original_max_position_embeddings": 4096,
            "partial_rotary_factor": 0.5,
            "rope_scaling": {"type": "longrope", **_FACTORS},
        },
        (None, 8192),
    ),
    "longrope-factor": (
        "llama",
        {
            **_SHAPE,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "original_max_position_embeddings": 8192,
                "factor": 8.0,
                **_FACTORS,
            },
        },
        (None, 8193),
    ),
}
"""Case → family, changes to the config, sequence lengths to ask for."""
