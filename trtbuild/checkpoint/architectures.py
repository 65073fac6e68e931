"""The table of decoder families: one row says how a family is spelled, stored and configured.

Adding a family of this shape (RMSNorm, gated MLP, rotary attention) means adding a row, nothing else.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trtbuild.checkpoint.fields import Fields
from trtbuild.errors import InputRefused


@dataclass(frozen=True)
class Piece:
    """A share of the rows of a stored linear: `part` of `parts` equal ones. Pieces are concatenated along rows."""

    module: str
    part: int = 0
    parts: int = 1


_SEPARATE: Mapping[str, tuple[Piece, ...]] = {
    "attention.qkv": (Piece("self_attn.q_proj"), Piece("self_attn.k_proj"), Piece("self_attn.v_proj")),
    "attention.dense": (Piece("self_attn.o_proj"),),
    "mlp.fc": (Piece("mlp.gate_proj"),),
    "mlp.gate": (Piece("mlp.up_proj"),),
    "mlp.proj": (Piece("mlp.down_proj"),),
}
_FUSED: Mapping[str, tuple[Piece, ...]] = {
    **_SEPARATE,
    "attention.qkv": (Piece("self_attn.qkv_proj"),),
    "mlp.fc": (Piece("mlp.gate_up_proj", 0, 2),),
    "mlp.gate": (Piece("mlp.gate_up_proj", 1, 2),),
}

Windows = tuple["int | None", "tuple[bool, ...] | None"]
"""`sliding_window` and `sliding_layers` of a DecoderSpec."""


def _no_window(config: Fields, num_layers: int) -> Windows:
    del config, num_layers
    return None, None


def _window_everywhere(config: Fields, num_layers: int) -> Windows:
    del num_layers
    return (None if config.get("sliding_window") is None else config.count("sliding_window")), None


def _window_by_layer(config: Fields, num_layers: int) -> Windows:
    """Qwen: a window only with `use_sliding_window`, on the layers `layer_types` names or from `max_window_layers`."""
    if not config.flag("use_sliding_window", False) or config.get("sliding_window") is None:
        return None, None
    window = config.count("sliding_window")
    types = config.get("layer_types")
    if types is None:
        first = config.get("max_window_layers")
        if not isinstance(first, int) or isinstance(first, bool) or first < 0:
            raise config.refuse("max_window_layers", f"is {first!r}, a count is needed")
        layers = tuple(i >= first for i in range(num_layers))
    else:
        known = ("sliding_attention", "full_attention")
        if not isinstance(types, list) or len(types) != num_layers or any(t not in known for t in types):
            raise config.refuse("layer_types", f"must name one of {' or '.join(known)} for each layer")
        layers = tuple(t == "sliding_attention" for t in types)
    return (window, layers) if any(layers) else (None, None)


@dataclass(frozen=True)
class Bias:
    """Which linears have a bias: always, or when one of these config flags is set."""

    qkv: bool | str = False
    dense: bool | str = False
    mlp: bool | str = False


@dataclass(frozen=True)
class Architecture:
    """One family. Fields beyond the names say where it differs from a plain llama."""

    family: str
    """`model_type` of its Hugging Face config."""
    huggingface: str
    """Class named in `architectures`."""
    trtllm: str
    """`architecture` of its TensorRT-LLM checkpoint."""
    modules: Mapping[str, tuple[Piece, ...]] = field(default_factory=lambda: _SEPARATE)
    """Linear of the hub → the stored pieces it is made of."""
    bias: Bias = Bias()
    qk_norm: bool = False
    windows: Callable[[Fields, int], Windows] = _no_window
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What transformers assumes where config.json is silent, if it differs from `DEFAULTS`."""
    rope_spellings: Mapping[str, str] = field(default_factory=dict)
    """rope_type values that mean another type in this family."""
    gguf: str | None = None
    """`general.architecture` of its GGUF files, None when they are not read."""
    gguf_permuted: bool = False
    """Whether llama.cpp stores the rows of Q and K with the two rotary halves of a head interleaved."""


DEFAULTS: Mapping[str, Any] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "partial_rotary_factor": 1.0,
    "max_position_embeddings": 2048,
}
"""What transformers assumes for every family where config.json is silent. Source: its configuration_*.py files."""

_QWEN_DEFAULTS = {
    "max_position_embeddings": 32768,
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "max_window_layers": 28,
}

ARCHITECTURES: Mapping[str, Architecture] = {
    row.family: row
    for row in (
        Architecture(
            "llama",
            "LlamaForCausalLM",
            "LlamaForCausalLM",
            bias=Bias(qkv="attention_bias", dense="attention_bias", mlp="mlp_bias"),
            gguf="llama",
            gguf_permuted=True,
        ),
        Architecture(
            "mistral",
            "MistralForCausalLM",
            "MistralForCausalLM",
            windows=_window_everywhere,
            defaults={"num_key_value_heads": 8, "sliding_window": 4096, "max_position_embeddings": 131072},
        ),
        Architecture(
            "qwen2",
            "Qwen2ForCausalLM",
            "Qwen2ForCausalLM",
            bias=Bias(qkv=True),
            windows=_window_by_layer,
            defaults=_QWEN_DEFAULTS,
            gguf="qwen2",
        ),
        Architecture(
            "qwen3",
            "Qwen3ForCausalLM",
            "Qwen3ForCausalLM",
            bias=Bias(qkv="attention_bias", dense="attention_bias"),
            qk_norm=True,
            windows=_window_by_layer,
            defaults={**_QWEN_DEFAULTS, "head_dim": 128},
            gguf="qwen3",
        ),
        Architecture(
            "phi3",
            "Phi3ForCausalLM",
            "Phi3ForCausalLM",
            modules=_FUSED,
            windows=_window_everywhere,
            defaults={
                "rms_norm_eps": 1e-5,
                "max_position_embeddings": 4096,
                "original_max_position_embeddings": 4096,
            },
            rope_spellings={"yarn": "longrope"},
        ),
    )
}
"""family → row."""


def architecture_of(family: str | None, classes: tuple[str, ...], where: str) -> Architecture:
    """The row for a config's `model_type` and `architectures`.

    Raises InputRefused naming an unsupported family, the supported ones and the closest of them.
    """
    row = ARCHITECTURES.get(family or "")
    if row is None and not family:
        row = next((r for r in ARCHITECTURES.values() if r.huggingface in classes), None)
    if row is None:
        raise _unknown(family or (classes[0] if classes else "unnamed"), tuple(ARCHITECTURES), where)
    if classes and row.huggingface.lower() not in [name.lower() for name in classes]:
        raise InputRefused(
            f"{classes[0]} is not the causal language model of family {row.family}",
            where=where,
            hint=f"a folder with architecture {row.huggingface} is needed",
        )
    return row


def architecture_of_gguf(name: str, where: str) -> Architecture:
    """The row for a GGUF file's `general.architecture`. Raises InputRefused like `architecture_of`."""
    rows = {row.gguf: row for row in ARCHITECTURES.values() if row.gguf is not None}
    row = rows.get(name)
    if row is None:
        raise _unknown(name, tuple(rows), where)
    return row


def _unknown(name: str, supported: tuple[str, ...], where: str) -> InputRefused:
    close = difflib.get_close_matches(name.lower(), supported, n=1, cutoff=0.5)
    hint = f"supported: {', '.join(supported)}" + (f"; the closest is {close[0]}" if close else "")
    return InputRefused(f"model family {name!r} is not supported", where=where, hint=hint)
