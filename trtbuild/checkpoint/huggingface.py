"""Hugging Face folders: `config.json`, one or many safetensors files, tokenizer files. Opened from headers alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trtbuild.checkpoint.architectures import DEFAULTS, Architecture, architecture_of
from trtbuild.checkpoint.assembly import (
    Extent,
    check_shapes,
    concatenated,
    content_fingerprint,
    listed,
    row_slice,
)
from trtbuild.checkpoint.fields import MAX_LAYERS, Fields, read_json
from trtbuild.checkpoint.huggingface_files import read_assets, stored_tensors
from trtbuild.checkpoint.rope import read_scaling
from trtbuild.checkpoint.safetensors import StoredTensor
from trtbuild.checkpoint.spec import EMBEDDING, FINAL_NORM, HEAD, Decoder, DecoderSpec, RopeSpec, Tensor, layer_prefix
from trtbuild.errors import InputRefused

_FLOATS = ("float32", "float16", "bfloat16")
NORMS = {
    "input_layernorm.weight": "input_layernorm.weight",
    "post_layernorm.weight": "post_attention_layernorm.weight",
}
QK_NORMS = {
    "attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "attention.k_layernorm.weight": "self_attn.k_norm.weight",
}
_QUANTIZED_NAME = re.compile(
    r"\.(qweight|qzeros|scales|g_idx|SCB|absmax|quant_map|weight_packed|weight_scale(_inv|_2)?|input_scale)$"
    r"|\.weight\.(absmax|quant_map|quant_state\..*|nested_.*)$"
)
_BASE_MODEL_HINT = "start from the base model it was made from; trtbuild quantizes by itself"
_IGNORED_NAME = re.compile(r"\.rotary_emb\.inv_freq$|\.(masked_bias|attn\.bias)$")


def open_huggingface(folder: Path) -> Decoder:
    """Open a Hugging Face folder of a supported family; only headers are read.

    Raises InputRefused, naming file and tensor, for whatever cannot become a decoder: an unknown family, missing or
    damaged files, shapes that contradict the config, a missing head, an already quantized checkpoint.
    """
    config_path = folder / "config.json"
    config = read_json(config_path)
    row, spec_fields = _identify(config, str(config_path))
    _refuse_quantized_config(config, config_path)
    stored = stored_tensors(folder)
    _refuse_quantized_tensors(stored.values())
    embedding_name = _find_embedding(stored, folder)
    prefix = embedding_name.removesuffix("embed_tokens.weight")
    generation = folder / "generation_config.json"
    stop_ids = Fields(read_json(generation), str(generation)).token_ids("eos_token_id") if generation.is_file() else ()
    dtype = stored[embedding_name].dtype.name
    spec = _read_spec(row, spec_fields, dtype, stop_ids)
    notes: list[str] = []
    tensors, used = _hub_tensors(row, spec, stored, prefix, folder, notes)
    check_shapes(spec, tensors, "config.json")
    _refuse_unused(stored, used, spec, config_path)
    extents = [
        Extent(t.name, t.dtype.name, t.shape, t.path, t.offset_bytes, t.size_bytes)
        for t in stored.values()
        if t.name in used
    ]
    return Decoder(
        spec,
        tensors,
        str(folder),
        content_fingerprint(spec, extents),
        assets=read_assets(folder),
        notes=tuple(notes),
    )


def read_config_spec(config_path: Path) -> DecoderSpec:
    """The spec that a `config.json` alone describes; no weights need to be there.

    The dtype is the one the config names (`dtype` or `torch_dtype`), float16 where it names none or another kind.
    Raises InputRefused for an unknown family or a config that contradicts itself.
    """
    config = read_json(config_path)
    row, fields = _identify(config, str(config_path))
    named = str(config.get("dtype") or config.get("torch_dtype")).removeprefix("torch.")
    return _read_spec(row, fields, named if named in _FLOATS else "float16", ())


def _identify(config: Mapping[str, Any], where: str) -> tuple[Architecture, Fields]:
    family = config.get("model_type")
    classes = config.get("architectures") or []
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise InputRefused("architectures must be a list of names", where=where)
    row = architecture_of(family if isinstance(family, str) else None, tuple(classes), where)
    silent = {**DEFAULTS, **row.defaults}
    given = {name: value for name, value in config.items() if not (value is None and name in DEFAULTS)}
    return row, Fields({**silent, **given}, where)


def _refuse_quantized_config(config: Mapping[str, Any], config_path: Path) -> None:
    block = config.get("quantization_config") or config.get("compression_config")
    if block:
        method = block.get("quant_method") if isinstance(block, dict) else None
        what = f"an already quantized checkpoint ({method or 'method unnamed'})"
        raise InputRefused(what, where=config_path, hint=_BASE_MODEL_HINT)


def _refuse_quantized_tensors(stored: Iterable[StoredTensor]) -> None:
    for tensor in stored:
        if _QUANTIZED_NAME.search(tensor.name):
            raise InputRefused("an already quantized checkpoint", where=tensor.source, hint=_BASE_MODEL_HINT)
        if tensor.dtype.name not in _FLOATS and not _IGNORED_NAME.search(tensor.name):
            what = f"is {tensor.dtype.name}: an already quantized checkpoint, or weights in a type that is not read"
            raise InputRefused(what, where=tensor.source, hint=_BASE_MODEL_HINT)


def _find_embedding(stored: Mapping[str, StoredTensor], folder: Path) -> str:
    for name in ("model.embed_tokens.weight", "embed_tokens.weight"):
        if name in stored:
            return name
    raise InputRefused("missing tensor model.embed_tokens.weight", where=folder)


def _read_spec(row: Architecture, config: Fields, dtype: str, stop_ids: tuple[int, ...]) -> DecoderSpec:
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    layers = config.count("num_hidden_layers", most=MAX_LAYERS)
    kv_heads = config.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise config.refuse("num_attention_heads", f"({heads}) is not a multiple of num_key_value_heads ({kv_heads})")
    if config.get("head_dim") is None and hidden % heads:
        raise config.refuse("hidden_size", f"({hidden}) is not a multiple of num_attention_heads ({heads})")
    head_size = config.count("head_dim", hidden // heads)
    activation = config.text("hidden_act")
    if activation not in ("silu", "swish"):
        raise config.refuse("hidden_act", f"is {activation!r}, only silu is supported")
    max_positions = config.count("max_position_embeddings")
    window, sliding_layers = row.windows(config, layers)
    return DecoderSpec(
        family=row.family,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=head_size,
        intermediate_size=config.count("intermediate_size"),
        vocab_size=config.count("vocab_size"),
        max_position_embeddings=max_positions,
        norm_epsilon=config.number("rms_norm_eps"),
        rope=_read_rope(row, config, head_size, max_positions),
        tie_word_embeddings=config.flag("tie_word_embeddings", False),
        qkv_bias=_has_bias(config, row.bias.qkv),
        dense_bias=_has_bias(config, row.bias.dense),
        mlp_bias=_has_bias(config, row.bias.mlp),
        qk_norm=row.qk_norm,
        sliding_window=window,
        sliding_layers=sliding_layers,
        dtype=dtype,
        bos_token_id=next(iter(config.token_ids("bos_token_id")), None),
        eos_token_ids=stop_ids or config.token_ids("eos_token_id"),
    )


def _has_bias(config: Fields, rule: bool | str) -> bool:
    return rule if isinstance(rule, bool) else config.flag(rule, False)


def _read_rope(row: Architecture, config: Fields, head_size: int, max_positions: int) -> RopeSpec:
    """Both spellings: `rope_theta` + `rope_scaling`, and `rope_parameters` (transformers 5), which wins."""
    name = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    raw = config.get(name) or {}
    if not isinstance(raw, dict):
        raise config.refuse(name, "must be an object")
    if raw and all(isinstance(value, dict) for value in raw.values()):
        raise config.refuse(name, f"differs by layer type ({listed(raw)}), which is not supported")
    inner = Fields(raw, f"{config.where}: {name}")
    base = inner.number("rope_theta", config.number("rope_theta"))
    share = inner.number("partial_rotary_factor", config.number("partial_rotary_factor"))
    pairs, odd = divmod(int(head_size * share), 2)
    if share > 1 or odd or not pairs:
        raise config.refuse("partial_rotary_factor", f"({share}) of head size {head_size} gives no even rotary size")
    rope_type = raw.get("rope_type", raw.get("type"))
    if isinstance(rope_type, str) and rope_type in row.rope_spellings:
        raw = {**raw, "rope_type": row.rope_spellings[rope_type]}
    outer = config.get("original_max_position_embeddings")
    if outer is not None:
        raw = {**raw, "original_max_position_embeddings": config.count("original_max_position_embeddings")}
    scaling = read_scaling(raw, inner.where, rotary_pairs=pairs, original_window=max_positions)
    return RopeSpec(base, scaling, share)


def _hub_tensors(
    row: Architecture,
    spec: DecoderSpec,
    stored: Mapping[str, StoredTensor],
    prefix: str,
    folder: Path,
    notes: list[str],
) -> tuple[dict[str, Tensor], set[str]]:
    """The hub's tensors, and the names of the stored ones they are made of."""
    used: set[str] = set()
    missing: list[str] = []

    def take(name: str) -> Tensor | None:
        tensor = stored.get(name)
        if tensor is None:
            missing.append(name)
            return None
        used.add(name)
        return tensor.lazy()

    found: dict[str, Tensor | None] = {EMBEDDING: take(f"{prefix}embed_tokens.weight")}
    renamed = {**NORMS, **(QK_NORMS if spec.qk_norm else {})}
    for layer in range(spec.num_layers):
        hub, own = layer_prefix(layer), f"{prefix}layers.{layer}"
        for target, source in renamed.items():
            found[f"{hub}.{target}"] = take(f"{own}.{source}")
        for module, pieces in row.modules.items():
            for kind in ("weight", "bias") if spec.has_bias(module) else ("weight",):
                parts = [(take(f"{own}.{p.module}.{kind}"), p) for p in pieces]
                sliced = [row_slice(t, p.part, p.parts) if p.parts > 1 else t for t, p in parts if t is not None]
                found[f"{hub}.{module}.{kind}"] = concatenated(sliced) if sliced else None
    found[FINAL_NORM] = take(f"{prefix}norm.weight")
    if spec.tie_word_embeddings:
        found[HEAD] = found[EMBEDDING]
        notes.append("the head is tied to the embedding")
        if HEAD in stored:
            notes.append("the stored lm_head.weight is not used: config.json ties the head to the embedding")
            used.add(HEAD)
    else:
        found[HEAD] = take(HEAD)
    if missing == [HEAD]:
        raise InputRefused(
            "lm_head.weight is missing and config.json does not tie it to the embedding",
            where=folder,
            hint="set tie_word_embeddings to true only if the model was trained that way; otherwise download it again",
        )
    if missing:
        raise InputRefused(f"missing tensor {listed(missing)}", where=folder, hint="config.json asks for it")
    return {name: tensor for name, tensor in found.items() if tensor is not None}, used


def _refuse_unused(stored: Mapping[str, StoredTensor], used: set[str], spec: DecoderSpec, config_path: Path) -> None:
    unused = [t for name, t in stored.items() if name not in used and not _IGNORED_NAME.search(name)]
    if unused:
        raise InputRefused(
            f"tensor {listed(t.name for t in unused)} has no place in a {spec.family} of this config",
            where=config_path,
            hint="the config and the weights do not belong together",
        )
