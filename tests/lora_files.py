"""Random LoRA adapters as peft lays them out, for models of the builders."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from builders import tensor_shapes
from safetensors.numpy import save_file


def lora_tensors(
    config: Mapping[str, Any], targets: Iterable[str], rank: int, seed: int = 0, ranks: Mapping[str, int] | None = None
) -> dict[str, np.ndarray]:
    """Factors for every module of the model whose last name is one of `targets`; `ranks` by whole module name."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}
    shapes = {**tensor_shapes(config), "lm_head.weight": (config["vocab_size"], config["hidden_size"])}
    for name, shape in shapes.items():
        module, _, kind = name.rpartition(".")
        if kind != "weight" or module.rpartition(".")[2] not in targets:
            continue
        r = (ranks or {}).get(module, rank)
        rows, columns = shape
        prefix = f"base_model.model.{module}"
        if module.endswith("embed_tokens"):
            tensors[f"{prefix}.lora_embedding_A"] = rng.standard_normal((r, rows)).astype(np.float32)
            tensors[f"{prefix}.lora_embedding_B"] = rng.standard_normal((columns, r)).astype(np.float32)
        else:
            tensors[f"{prefix}.lora_A.weight"] = rng.standard_normal((r, columns)).astype(np.float32)
            tensors[f"{prefix}.lora_B.weight"] = rng.standard_normal((rows, r)).astype(np.float32)
    return tensors


def write_lora(
    folder: Path,
    config: Mapping[str, Any],
    targets: tuple[str, ...],
    *,
    rank: int = 4,
    seed: int = 0,
    ranks: Mapping[str, int] | None = None,
    extra: Mapping[str, np.ndarray] | None = None,
    **settings: Any,
) -> dict[str, np.ndarray]:
    """Write a peft folder and return its tensors. `settings` change `adapter_config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    adapter = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "r": rank,
        "lora_alpha": 8,
        "lora_dropout": 0.0,
        "target_modules": list(targets),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "modules_to_save": None,
        "use_rslora": False,
        "use_dora": False,
        "rank_pattern": {},
        "alpha_pattern": {},
        **settings,
    }
    (folder / "adapter_config.json").write_text(json.dumps(adapter), encoding="utf-8")
    tensors = {**lora_tensors(config, targets, rank, seed, ranks), **(extra or {})}
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return tensors
