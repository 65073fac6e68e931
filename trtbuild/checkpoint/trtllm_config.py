"""`config.json` of a TensorRT-LLM checkpoint: DecoderSpec, Quantization and mapping, to and fro.

Keys as `PretrainedConfig`, `LLaMAConfig`, `QWenConfig` and `Phi3Config` of TensorRT-LLM 1.0-1.2 read them. Several of
their defaults are wrong for these families (`rotary_base` 10000, `hidden_act` gelu …), so every key is always written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild import __version__
from trtbuild.checkpoint.spec import DecoderSpec, Quantization, RopeSpec
from trtbuild.errors import InputRefused

CONFIG_NAME = "config.json"
ROTARY_BASE_DEFAULT = 10000.0
"""What TensorRT-LLM takes when a checkpoint does not say its rotary base."""

_OURS = "trtbuild"
"""Key of what TensorRT-LLM has no key for; its loader keeps unknown keys and only logs them."""


@dataclass(frozen=True)
class Ranks:
    """The `mapping` block: tensor-parallel and pipeline-parallel sizes."""

    tp: int = 1
    pp: int = 1

    @property
    def world(self) -> int:
        return self.tp * self.pp

    def file_name(self, pp_rank: int, tp_rank: int) -> str:
        return f"rank{pp_rank * self.tp + tp_rank}.safetensors"


def _llama_keys(spec: DecoderSpec) -> dict[str, Any]:
    return {"mlp_bias": spec.mlp_bias, "attn_bias": spec.qkv_bias, "residual_mlp": False}


def _qwen_keys(spec: DecoderSpec) -> dict[str, Any]:
    return {
        "mlp_bias": spec.mlp_bias,
        "attn_bias": spec.qkv_bias,
        "qwen_type": spec.family,
        "seq_length": spec.max_position_embeddings,
        "use_logn_attn": False,
        "moe_intermediate_size": 0,
        "moe_shared_expert_intermediate_size": 0,
        "num_labels": 1,
    }


def _phi3_keys(spec: DecoderSpec) -> dict[str, Any]:
    keys: dict[str, Any] = {"hidden_act": "swiglu" if spec.hidden_act == "silu" else spec.hidden_act}
    scaling = spec.rope.scaling or {}
    if "short_factor" in scaling:
        keys |= {
            "position_embedding_type": "long_rope",
            "original_max_position_embeddings": scaling["original_max_position_embeddings"],
            "longrope_scaling_short_factors": list(scaling["short_factor"]),
            "longrope_scaling_long_factors": list(scaling["long_factor"]),
        }
    return keys


@dataclass(frozen=True)
class FamilyConfig:
    """How TensorRT-LLM names a family, the keys only its config class has, and whether it fuses up and gate.

    `fused_mlp`: its MLP is one linear `mlp.fc` of 2·intermediate rows, on each rank first up_proj, then gate_proj.
    """

    architecture: str
    keys: Callable[[DecoderSpec], dict[str, Any]]
    fused_mlp: bool = False


FAMILIES: Mapping[str, FamilyConfig] = {
    "llama": FamilyConfig("LlamaForCausalLM", _llama_keys),
    "mistral": FamilyConfig("MistralForCausalLM", _llama_keys),
    "qwen2": FamilyConfig("Qwen2ForCausalLM", _qwen_keys),
    "qwen3": FamilyConfig("Qwen3ForCausalLM", _qwen_keys),
    "phi3": FamilyConfig("Phi3ForCausalLM", _phi3_keys, fused_mlp=True),
}
"""Family of DecoderSpec → its TensorRT-LLM side."""

ARCHITECTURES: Mapping[str, str] = {row.architecture: family for family, row in FAMILIES.items()}


def _quantization_block(quantization: Quantization) -> dict[str, Any]:
    optional = {
        "group_size": quantization.group_size,
        "has_zero_point": quantization.has_zero_point,
        "pre_quant_scale": quantization.pre_quant_scale,
        "smoothquant_val": quantization.smoothquant_val,
        "exclude_modules": None if quantization.exclude_modules is None else list(quantization.exclude_modules),
    }
    return {
        "quant_algo": quantization.quant_algo,
        "kv_cache_quant_algo": quantization.kv_cache_quant_algo,
        **{key: value for key, value in optional.items() if value is not None},
    }


def build_config(spec: DecoderSpec, quantization: Quantization, ranks: Ranks, *, dtype: str) -> dict[str, Any]:
    """The whole `config.json`; `dtype` is that of the unquantized tensors (float32, float16, bfloat16)."""
    family = FAMILIES[spec.family]
    return {
        "producer": {"name": "trtbuild", "version": __version__},
        "architecture": family.architecture,
        "dtype": dtype,
        "logits_dtype": "float32",
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "hidden_size": spec.hidden_size,
        "head_size": spec.head_size,
        "intermediate_size": spec.intermediate_size,
        "norm_epsilon": spec.norm_epsilon,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_position_embeddings,
        "hidden_act": spec.hidden_act,
        "position_embedding_type": "rope_gpt_neox",
        "rotary_base": spec.rope.base,
        "rotary_scaling": None if spec.rope.scaling is None else dict(spec.rope.scaling),
        "rotary_pct": spec.rope.rotary_pct,
        "qk_layernorm": spec.qk_norm,
        "tie_word_embeddings": spec.tie_word_embeddings,
        "use_parallel_embedding": ranks.tp > 1,
        "embedding_sharding_dim": 0,
        "disable_weight_only_quant_plugin": False,
        **family.keys(spec),
        "mapping": {"world_size": ranks.world, "tp_size": ranks.tp, "pp_size": ranks.pp, "cp_size": 1},
        "quantization": _quantization_block(quantization),
        _OURS: {
            "sliding_window": spec.sliding_window,
            "sliding_layers": None if spec.sliding_layers is None else list(spec.sliding_layers),
            "bos_token_id": spec.bos_token_id,
            "eos_token_ids": list(spec.eos_token_ids),
        },
    }


class Keys:
    """Typed look-ups in `config.json`; every complaint names the file and the key."""

    def __init__(self, values: Mapping[str, Any], path: Path, prefix: str = "") -> None:
        self._values, self.path, self._prefix = values, path, prefix

    def _refuse(self, key: str, what: str) -> InputRefused:
        return InputRefused(f"{self._prefix}{key} {what}", where=self.path)

    def _get(self, key: str, default: Any) -> Any:
        value = self._values.get(key)
        if value is None:
            if default is ...:
                raise self._refuse(key, "is missing")
            return default
        return value

    def count(self, key: str, default: Any = ...) -> int:
        value = self._get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self._refuse(key, f"must be a positive whole number, not {value!r}")
        return value

    def number(self, key: str, default: Any = ...) -> float:
        value = self._get(key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
            raise self._refuse(key, f"must be a positive number, not {value!r}")
        return float(value)

    def text(self, key: str, default: Any = ...) -> Any:
        value = self._get(key, default)
        if value is not default and not isinstance(value, str):
            raise self._refuse(key, f"must be a string, not {value!r}")
        return value

    def flag(self, key: str, default: Any = ...) -> Any:
        value = self._get(key, default)
        if value is not default and not isinstance(value, bool):
            raise self._refuse(key, f"must be true or false, not {value!r}")
        return value

    def strings(self, key: str) -> tuple[str, ...] | None:
        value = self._get(key, None)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._refuse(key, f"must be a list of strings, not {value!r}")
        return tuple(value)

    def block(self, key: str) -> Keys:
        value = self._get(key, {})
        if not isinstance(value, dict):
            raise self._refuse(key, f"must be an object, not {value!r}")
        return Keys(value, self.path, f"{self._prefix}{key}.")

    def raw(self, key: str) -> Any:
        return self._values.get(key)


def load_config(directory: Path) -> Keys:
    """Read `config.json` of a checkpoint folder. Raises InputRefused when it is not one."""
    path = directory / CONFIG_NAME
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputRefused("no config.json: not a TensorRT-LLM checkpoint", where=directory) from error
    except (ValueError, RecursionError) as error:
        raise InputRefused(f"not valid JSON ({error})", where=path) from error
    if not isinstance(values, dict) or "architecture" not in values:
        raise InputRefused(
            "config.json has no `architecture`: not a TensorRT-LLM checkpoint",
            where=directory,
            hint="make one with `trtbuild quantize MODEL -o CKPT`",
        )
    return Keys(values, path)


def parse_ranks(config: Keys) -> Ranks:
    """The `mapping` block. Raises InputRefused for context parallelism and for a world_size that is not tp·pp."""
    mapping = config.block("mapping")
    ranks = Ranks(mapping.count("tp_size", 1), mapping.count("pp_size", 1))
    if mapping.count("cp_size", 1) != 1:
        raise InputRefused("context parallelism (cp_size > 1) is not supported", where=config.path)
    world = mapping.count("world_size", ranks.world)
    if world != ranks.world:
        raise InputRefused(f"world_size {world} is not tp_size {ranks.tp} × pp_size {ranks.pp}", where=config.path)
    return ranks


def parse_quantization(config: Keys) -> Quantization:
    block = config.block("quantization")
    return Quantization(
        quant_algo=block.text("quant_algo", None),
        kv_cache_quant_algo=block.text("kv_cache_quant_algo", None),
        exclude_modules=block.strings("exclude_modules"),
        group_size=block.raw("group_size"),
        has_zero_point=block.flag("has_zero_point", None),
        pre_quant_scale=block.flag("pre_quant_scale", None),
        smoothquant_val=block.raw("smoothquant_val"),
    )


def _parse_rope(config: Keys) -> RopeSpec:
    scaling = config.raw("rotary_scaling")
    if scaling is not None:
        if not isinstance(scaling, dict):
            raise InputRefused(f"rotary_scaling must be an object, not {scaling!r}", where=config.path)
        scaling = dict(scaling)
        scaling.setdefault("rope_type", scaling.pop("type", "default"))
        if scaling["rope_type"] == "default":
            scaling = None
    if scaling is None and config.raw("longrope_scaling_short_factors") is not None:
        scaling = {
            "rope_type": "longrope",
            "short_factor": config.raw("longrope_scaling_short_factors"),
            "long_factor": config.raw("longrope_scaling_long_factors"),
            "original_max_position_embeddings": config.count("original_max_position_embeddings"),
        }
    return RopeSpec(
        base=config.number("rotary_base", ROTARY_BASE_DEFAULT),
        scaling=scaling,
        rotary_pct=config.number("rotary_pct", 1.0),
    )


def parse_spec(config: Keys, *, biases: Mapping[str, bool], qk_norm: bool) -> DecoderSpec:
    """DecoderSpec of a checkpoint; `biases` (linear module → present) and `qk_norm` come from the tensors themselves.

    Raises InputRefused for an architecture without a family and for keys of a wrong kind.
    """
    architecture = config.text("architecture")
    family = ARCHITECTURES.get(architecture)
    if family is None:
        raise InputRefused(
            f"architecture {architecture} is not supported",
            where=config.path,
            hint=f"supported: {', '.join(ARCHITECTURES)}",
        )
    heads = config.count("num_attention_heads")
    hidden = config.count("hidden_size")
    hidden_act = config.text("hidden_act")
    ours = config.block(_OURS)
    layers = config.count("num_hidden_layers")
    sliding_layers = ours.raw("sliding_layers")
    return DecoderSpec(
        family=family,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=config.count("num_key_value_heads", heads),
        head_size=config.count("head_size", max(hidden // heads, 1)),
        intermediate_size=config.count("intermediate_size", 4 * hidden),
        vocab_size=config.count("vocab_size"),
        max_position_embeddings=config.count("max_position_embeddings"),
        norm_epsilon=config.number("norm_epsilon", 1e-5),
        rope=_parse_rope(config),
        hidden_act="silu" if hidden_act == "swiglu" else hidden_act,
        tie_word_embeddings=config.flag("tie_word_embeddings", False),
        qkv_bias=biases.get("attention.qkv", False),
        dense_bias=biases.get("attention.dense", False),
        mlp_bias=biases.get("mlp.fc", False),
        qk_norm=qk_norm,
        sliding_window=ours.raw("sliding_window"),
        sliding_layers=None if sliding_layers is None else tuple(sliding_layers),
        dtype=config.text("dtype"),
        bos_token_id=ours.raw("bos_token_id"),
        eos_token_ids=tuple(ours.raw("eos_token_ids") or ()),
    )
