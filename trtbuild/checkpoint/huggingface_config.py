"""DecoderSpec → `config.json` of a Hugging Face folder: the inverse of `huggingface.read_config_spec`."""

from __future__ import annotations

from typing import Any

from trtbuild.checkpoint.architectures import ARCHITECTURES
from trtbuild.checkpoint.spec import DecoderSpec


def _bias_flags(spec: DecoderSpec) -> dict[str, bool]:
    """The config flags that the family's row reads its biases from."""
    rule = ARCHITECTURES[spec.family].bias
    present = {rule.qkv: spec.qkv_bias, rule.dense: spec.dense_bias, rule.mlp: spec.mlp_bias}
    return {flag: value for flag, value in present.items() if isinstance(flag, str)}


def _windows(spec: DecoderSpec) -> dict[str, Any]:
    if spec.sliding_window is None:
        return {"sliding_window": None, "use_sliding_window": False}
    windows: dict[str, Any] = {"sliding_window": spec.sliding_window, "use_sliding_window": True}
    if spec.sliding_layers is not None:
        windows["layer_types"] = ["sliding_attention" if s else "full_attention" for s in spec.sliding_layers]
    return windows


def _rope(spec: DecoderSpec) -> dict[str, Any]:
    """The spelling of transformers 4, which transformers 5 reads as well."""
    scaling = None if spec.rope.scaling is None else dict(spec.rope.scaling)
    rope: dict[str, Any] = {"rope_theta": spec.rope.base, "rope_scaling": scaling}
    if spec.rope.rotary_pct != 1.0:
        rope["partial_rotary_factor"] = spec.rope.rotary_pct
    if scaling is not None and scaling["rope_type"] == "longrope":
        rope["original_max_position_embeddings"] = scaling.pop("original_max_position_embeddings")
    return rope


def config_of(spec: DecoderSpec) -> dict[str, Any]:
    """The config of a model with this spec, in its family's own keys; its dtype is `spec.dtype`."""
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[spec.family].huggingface],
        "model_type": spec.family,
        "dtype": spec.dtype,
        "torch_dtype": spec.dtype,
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
        "tie_word_embeddings": spec.tie_word_embeddings,
        "pad_token_id": None,  # left out, some families take one that a small vocabulary does not have
        **_bias_flags(spec),
        **_windows(spec),
        **_rope(spec),
    }
    if spec.bos_token_id is not None:
        config["bos_token_id"] = spec.bos_token_id
    if spec.eos_token_ids:
        config["eos_token_id"] = spec.eos_token_ids[0] if len(spec.eos_token_ids) == 1 else list(spec.eos_token_ids)
    return config
