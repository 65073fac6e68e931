"""The hub in memory: what a decoder is (`DecoderSpec`), and its tensors, lazily, under TensorRT-LLM's names.

Whatever a model was read from (Hugging Face folder, GGUF, TensorRT-LLM checkpoint of any tp/pp), it becomes one
`Decoder` with the tensor names of an unsharded TensorRT-LLM checkpoint:

    transformer.vocab_embedding.weight                          [vocab, hidden]
    transformer.layers.{i}.input_layernorm.weight               [hidden]
    transformer.layers.{i}.attention.qkv.weight                 [(heads + 2·kv_heads)·head_size, hidden]
    transformer.layers.{i}.attention.qkv.bias                   where the family has one
    transformer.layers.{i}.attention.q_layernorm.weight         [head_size], families with QK-norm; k_layernorm too
    transformer.layers.{i}.attention.dense.weight               [hidden, heads·head_size]
    transformer.layers.{i}.post_layernorm.weight                [hidden]
    transformer.layers.{i}.mlp.fc.weight                        [intermediate, hidden]   (HF gate_proj)
    transformer.layers.{i}.mlp.gate.weight                      [intermediate, hidden]   (HF up_proj)
    transformer.layers.{i}.mlp.proj.weight                      [hidden, intermediate]
    transformer.ln_f.weight                                     [hidden]
    lm_head.weight                                              [vocab, hidden]          (the embedding when tied)

and, for a quantized linear module L, `L.weights_scaling_factor` F32 [out], `L.activation_scaling_factor` F32 [1]
and `L.prequant_scaling_factor` [in]. The meaning of a quantized linear is defined in `linear.py`.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

LINEAR_MODULES = ("attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj")
"""The linear modules of a decoder layer, in the order the forward meets them."""

EMBEDDING = "transformer.vocab_embedding.weight"
FINAL_NORM = "transformer.ln_f.weight"
HEAD = "lm_head.weight"


def layer_prefix(layer: int) -> str:
    return f"transformer.layers.{layer}"


def module_path(layer: int, module: str) -> str:
    """Path of a module as `exclude_modules` spells it, for example `transformer.layers.3.mlp.proj`."""
    return f"{layer_prefix(layer)}.{module}"


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding: `base` is rope_theta; `scaling` the Hugging Face dict spelled with `rope_type`, or None.

    `rotary_pct` is the share of head_size that rotates (1.0 in all but partial-rotary models).
    """

    base: float
    scaling: Mapping[str, Any] | None = None
    rotary_pct: float = 1.0


@dataclass(frozen=True)
class DecoderSpec:
    """Everything the forward, the graph and the hub need to know about a decoder besides its tensors."""

    family: str
    """Row of the table in `architectures.py`: llama, mistral, qwen2, qwen3, phi3."""
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    norm_epsilon: float
    rope: RopeSpec
    hidden_act: str = "silu"
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    dense_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    sliding_layers: tuple[bool, ...] | None = None
    """Per layer, whether `sliding_window` applies; None means every layer (when a window is set)."""
    dtype: str = "float16"
    """dtype of the source weights: float32, float16 or bfloat16."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def window_of(self, layer: int) -> int | None:
        """Sliding attention window of a layer in tokens, None when it attends to everything before it."""
        if self.sliding_window is None:
            return None
        return self.sliding_window if self.sliding_layers is None or self.sliding_layers[layer] else None

    @property
    def q_rows(self) -> int:
        return self.num_heads * self.head_size

    @property
    def kv_rows(self) -> int:
        return self.num_kv_heads * self.head_size

    def linear_shape(self, module: str) -> tuple[int, int]:
        """[out, in] of one of LINEAR_MODULES."""
        return {
            "attention.qkv": (self.q_rows + 2 * self.kv_rows, self.hidden_size),
            "attention.dense": (self.hidden_size, self.q_rows),
            "mlp.fc": (self.intermediate_size, self.hidden_size),
            "mlp.gate": (self.intermediate_size, self.hidden_size),
            "mlp.proj": (self.hidden_size, self.intermediate_size),
        }[module]

    def has_bias(self, module: str) -> bool:
        if module == "attention.qkv":
            return self.qkv_bias
        return self.dense_bias if module == "attention.dense" else self.mlp_bias

    def float_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name → shape of every tensor of the unquantized, unsharded decoder (always with an lm_head)."""
        shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (self.vocab_size, self.hidden_size)}
        for layer in range(self.num_layers):
            prefix = layer_prefix(layer)
            shapes[f"{prefix}.input_layernorm.weight"] = (self.hidden_size,)
            shapes[f"{prefix}.post_layernorm.weight"] = (self.hidden_size,)
            if self.qk_norm:
                shapes[f"{prefix}.attention.q_layernorm.weight"] = (self.head_size,)
                shapes[f"{prefix}.attention.k_layernorm.weight"] = (self.head_size,)
            for module in LINEAR_MODULES:
                shape = self.linear_shape(module)
                shapes[f"{prefix}.{module}.weight"] = shape
                if self.has_bias(module):
                    shapes[f"{prefix}.{module}.bias"] = shape[:1]
        shapes[FINAL_NORM] = (self.hidden_size,)
        shapes[HEAD] = (self.vocab_size, self.hidden_size)
        return shapes


@dataclass(frozen=True)
class Quantization:
    """The `quantization` block of a TensorRT-LLM `config.json`."""

    quant_algo: str | None = None
    kv_cache_quant_algo: str | None = None
    exclude_modules: tuple[str, ...] | None = None
    group_size: int | None = None
    has_zero_point: bool | None = None
    pre_quant_scale: bool | None = None
    smoothquant_val: float | None = None

    def quantizes(self, path: str) -> bool:
        """Whether the linear module at `path` is quantized (the loader's rule: fnmatchcase on exclude_modules)."""
        if self.quant_algo is None:
            return False
        patterns = ("*lm_head",) if self.exclude_modules is None else self.exclude_modules
        return not any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


@dataclass(frozen=True)
class Tensor:
    """A tensor that is read only when asked for.

    `read()` returns an array of `shape` and `dtype` (bfloat16 and float8 through ml_dtypes), a view of a
    memory-mapped file wherever no assembly is needed. `source` names file and tensor for error messages.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    source: str
    read: Callable[[], Array]


@dataclass(frozen=True)
class Decoder:
    """A model opened for reading: spec, lazy tensors under the hub's names, and the files that travel with it.

    `assets` maps file names (tokenizer.json, tokenizer_config.json, generation_config.json, chat_template.jinja …)
    to their content. `location` is what the user named. `notes` are things worth telling ("head tied to embedding").
    """

    spec: DecoderSpec
    tensors: Mapping[str, Tensor]
    location: str
    fingerprint: Callable[[], str]
    """SHA-256 over the content of spec, quantization and weight files; computed when called."""
    quantization: Quantization = field(default_factory=Quantization)
    assets: Mapping[str, bytes] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
