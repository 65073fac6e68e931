"""`config.json` of a TensorRT-LLM checkpoint: DecoderSpec, Quantization and mapping, to and fro.

Keys as `PretrainedConfig`, `LLaMAConfig`, `QWenConfig` and `Phi3Config` of TensorRT-LLM 1.0-1.2 read them. Several of
their defaults are wrong for these families (`rotary_base` 10000, `hidden_act` gelu …), so every key is always written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild import __version__
from trtbuild.checkpoint.architectures import ARCHITECTURES
from trtbuild.checkpoint.fields import Fields, read_json
from trtbuild.checkpoint.rope import read_scaling
from trtbuild.checkpoint.spec import DecoderSpec, Quantization, RopeSpec
from trtbuild.errors import InputRefused

CONFIG_NAME = "config.json"
ROTARY_BASE_DEFAULT = 10000.0
"""What TensorRT-LLM takes when a checkpoint does not say its rotary base."""

FLOAT_DTYPES = ("float32", "float16", "bfloat16")
"""What `dtype` of a checkpoint may be: the type of everything that is not quantized."""

OURS = "trtbuild"
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
    """The keys that only a family's config class has, and whether TensorRT-LLM fuses up and gate.

    `fused_mlp`: its MLP is one linear `mlp.fc` of 2·intermediate rows, on each rank first up_proj, then gate_proj.
    `dense_bias` and `pipeline`: whether its model class has a bias in attention.dense, and pipeline stages.
    """

    keys: Callable[[DecoderSpec], dict[str, Any]]
    fused_mlp: bool = False
    dense_bias: bool = True
    pipeline: bool = True


FAMILIES: Mapping[str, FamilyConfig] = {
    "llama": FamilyConfig(_llama_keys),
    "mistral": FamilyConfig(_llama_keys),
    "qwen2": FamilyConfig(_qwen_keys, dense_bias=False),
    "qwen3": FamilyConfig(_qwen_keys, dense_bias=False),
    "phi3": FamilyConfig(_phi3_keys, fused_mlp=True, dense_bias=False, pipeline=False),
}
"""Family of DecoderSpec → its TensorRT-LLM side."""

FAMILY_OF: Mapping[str, str] = {row.trtllm: row.family for row in ARCHITECTURES.values() if row.family in FAMILIES}
"""`architecture` of a checkpoint → family."""


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
        "architecture": ARCHITECTURES[spec.family].trtllm,
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
        OURS: {
            "sliding_window": spec.sliding_window,
            "sliding_layers": None if spec.sliding_layers is None else list(spec.sliding_layers),
            "bos_token_id": spec.bos_token_id,
            "eos_token_ids": list(spec.eos_token_ids),
        },
    }


def load_config(directory: Path) -> Fields:
    """Read `config.json` of a checkpoint folder. Raises InputRefused when it is not one."""
    path = directory / CONFIG_NAME
    if not path.is_file():
        raise InputRefused("no config.json: not a TensorRT-LLM checkpoint", where=directory)
    config = Fields(read_json(path), str(path))
    if config.get("architecture") is None:
        raise InputRefused(
            "config.json has no `architecture`: not a TensorRT-LLM checkpoint",
            where=directory,
            hint="make one with `trtbuild quantize MODEL -o CKPT`",
        )
    return config


def _block(config: Fields, name: str) -> Fields:
    value = config.get(name)
    if value is not None and not isinstance(value, dict):
        raise config.refuse(name, "must be an object")
    return Fields(value or {}, f"{config.where}: {name}")


def _optional(fields: Fields, name: str, kind: type) -> Any:
    value = fields.get(name)
    if value is not None and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
        raise fields.refuse(name, f"is {value!r}, {kind.__name__} is needed")
    return value


def parse_ranks(config: Fields) -> Ranks:
    """The `mapping` block. Raises InputRefused for context parallelism and for a world_size that is not tp·pp."""
    mapping = _block(config, "mapping")
    ranks = Ranks(mapping.count("tp_size", 1), mapping.count("pp_size", 1))
    if mapping.count("cp_size", 1) != 1:
        raise mapping.refuse("cp_size", "above 1 (context parallelism) is not supported")
    world = mapping.count("world_size", ranks.world)
    if world != ranks.world:
        raise mapping.refuse("world_size", f"is {world}, but tp_size {ranks.tp} × pp_size {ranks.pp} = {ranks.world}")
    return ranks


def parse_quantization(config: Fields) -> Quantization:
    """The `quantization` block; an absent one is no quantization."""
    block = _block(config, "quantization")
    exclude = _optional(block, "exclude_modules", list)
    if exclude is not None and not all(isinstance(pattern, str) for pattern in exclude):
        raise block.refuse("exclude_modules", "must be a list of module patterns")
    return Quantization(
        quant_algo=_optional(block, "quant_algo", str),
        kv_cache_quant_algo=_optional(block, "kv_cache_quant_algo", str),
        exclude_modules=None if exclude is None else tuple(exclude),
        group_size=None if block.get("group_size") is None else block.count("group_size"),
        has_zero_point=_optional(block, "has_zero_point", bool),
        pre_quant_scale=_optional(block, "pre_quant_scale", bool),
        smoothquant_val=None if block.get("smoothquant_val") is None else block.number("smoothquant_val"),
    )


def _parse_rope(config: Fields, head_size: int, max_positions: int) -> RopeSpec:
    rotary_pct = config.number("rotary_pct", 1.0)
    scaling = _optional(config, "rotary_scaling", dict)
    if scaling is None and config.get("longrope_scaling_short_factors") is not None:
        scaling = {
            "rope_type": "longrope",
            "short_factor": config.get("longrope_scaling_short_factors"),
            "long_factor": config.get("longrope_scaling_long_factors"),
            "original_max_position_embeddings": config.count("original_max_position_embeddings"),
        }
    if scaling is not None:
        scaling = read_scaling(
            scaling,
            f"{config.where}: rotary_scaling",
            rotary_pairs=int(head_size * rotary_pct) // 2,
            original_window=max_positions,
        )
    return RopeSpec(config.number("rotary_base", ROTARY_BASE_DEFAULT), scaling, rotary_pct)


def _parse_sliding_layers(ours: Fields, num_layers: int) -> tuple[bool, ...] | None:
    layers = _optional(ours, "sliding_layers", list)
    if layers is None:
        return None
    if len(layers) != num_layers or not all(isinstance(flag, bool) for flag in layers):
        raise ours.refuse("sliding_layers", f"must be true or false for each of {num_layers} layers")
    return tuple(layers)


def parse_spec(config: Fields, *, biases: Mapping[str, bool], qk_norm: bool) -> DecoderSpec:
    """DecoderSpec of a checkpoint; `biases` (linear module → present) and `qk_norm` come from the tensors themselves.

    Raises InputRefused for an architecture without a family and for keys of a wrong kind.
    """
    architecture = config.text("architecture")
    family = FAMILY_OF.get(architecture)
    if family is None:
        raise InputRefused(
            f"architecture {architecture} is not supported",
            where=config.where,
            hint=f"supported: {', '.join(FAMILY_OF)}",
        )
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    kv_heads = config.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise config.refuse("num_attention_heads", f"({heads}) is not a multiple of num_key_value_heads ({kv_heads})")
    head_size = config.count("head_size", hidden // heads or 1)
    num_layers, max_positions = config.count("num_hidden_layers"), config.count("max_position_embeddings")
    activation = config.text("hidden_act")
    if activation not in ("silu", "swiglu"):
        raise config.refuse("hidden_act", f"is {activation!r}, only silu is supported")
    dtype = config.text("dtype")
    if dtype not in FLOAT_DTYPES:
        raise config.refuse("dtype", f"is {dtype!r}, one of {', '.join(FLOAT_DTYPES)} is needed")
    ours = _block(config, OURS)
    return DecoderSpec(
        family=family,
        hidden_size=hidden,
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=head_size,
        intermediate_size=config.count("intermediate_size", 4 * hidden),
        vocab_size=config.count("vocab_size"),
        max_position_embeddings=max_positions,
        norm_epsilon=config.number("norm_epsilon", 1e-5),
        rope=_parse_rope(config, head_size, max_positions),
        tie_word_embeddings=config.flag("tie_word_embeddings", False),
        qkv_bias=biases.get("attention.qkv", False),
        dense_bias=biases.get("attention.dense", False),
        mlp_bias=biases.get("mlp.fc", False),
        qk_norm=qk_norm,
        sliding_window=None if ours.get("sliding_window") is None else ours.count("sliding_window"),
        sliding_layers=_parse_sliding_layers(ours, num_layers),
        dtype=dtype,
        bos_token_id=next(iter(ours.token_ids("bos_token_id")), None),
        eos_token_ids=ours.token_ids("eos_token_ids"),
    )
