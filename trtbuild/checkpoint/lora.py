"""LoRA adapters of peft, merged into a decoder's weights while they are read.

For each adapted linear W of an adapter with weight c:  W ← W + c · s · B · A, with s = alpha / rank, or
alpha / √rank for rslora. Adapters add up. Layout and meaning of the files: peft's `LoraConfig` and `tuners/lora`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trtbuild.checkpoint.architectures import ARCHITECTURES
from trtbuild.checkpoint.fields import Fields, read_json
from trtbuild.checkpoint.safetensors import StoredTensor, read_header
from trtbuild.checkpoint.spec import EMBEDDING, HEAD, Array, Decoder, DecoderSpec, Tensor, module_path
from trtbuild.errors import InputRefused
from trtbuild.store.fingerprint import fingerprint_file, fingerprint_json

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"

_FACTOR_NAME = re.compile(r"(?P<module>.+)\.lora_(?P<embedding>embedding_)?(?P<side>[AB])(\.default)?(\.weight)?")
_TOP_MODULES = {"embed_tokens": EMBEDDING, "lm_head": HEAD}
_PREFIX = "base_model.model."

_CHANGES_MEANING = (
    "use_dora",
    "use_qalora",
    "use_bdlora",
    "lora_bias",
    "layer_replication",
    "target_parameters",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "velora_config",
    "monteclora_config",
)
"""Settings under which the weights mean more than B · A."""

_HARMLESS_INITS = (None, True, False, "gaussian", "eva", "orthogonal")
"""Ways to start training that leave the base weights as they were; the others subtract something from them."""


@dataclass(frozen=True)
class _Target:
    """Rows of a hub tensor that a Hugging Face module feeds: its rows `source` … `source + rows` go to `start` …"""

    name: str
    start: int
    source: int
    rows: int


@dataclass(frozen=True)
class _Update:
    """`factor` · B[source : source + rows] · A, added to rows `start` … of a hub tensor; transposed for embeddings."""

    target: _Target
    a: StoredTensor
    b: StoredTensor
    factor: float
    embedding: bool

    def add_to(self, weight: Array) -> None:
        a, b = np.asarray(self.a.read(), np.float32), np.asarray(self.b.read(), np.float32)
        rows = slice(self.target.start, self.target.start + self.target.rows)
        if self.embedding:
            weight[rows] += np.float32(self.factor) * (a.T @ b.T)
        else:
            b = b[self.target.source : self.target.source + self.target.rows]
            weight[rows] += np.float32(self.factor) * (b @ a)


@dataclass(frozen=True)
class _Adapter:
    """One adapter folder: its updates, whole tensors it replaces, and its files for the fingerprint."""

    folder: Path
    weight: float
    updates: list[tuple[str, _Update]]
    replaced: Mapping[str, Tensor]


def merge_lora(decoder: Decoder, adapters: Sequence[tuple[Path, float]]) -> Decoder:
    """A decoder with LoRA adapters merged in, its tensors still lazy: each is merged when it is read.

    `adapters` are peft folders (`adapter_config.json`, `adapter_model.safetensors`) and the weight each is added
    with, 1.0 for as it was trained. Computed in float32 and rounded once to the dtype of the base weight. An adapter
    on the embedding or the head of a tied model unties them. `fan_in_fan_out` is ignored, as peft does for linears.
    Raises InputRefused, naming file and tensor, for an adapter that does not fit the decoder or that means more than
    a low-rank update.
    """
    if decoder.quantization.quant_algo is not None:
        raise InputRefused(
            f"an adapter cannot be merged into {decoder.quantization.quant_algo} weights",
            where=decoder.location,
            hint="merge it while converting the original model",
        )
    read = [_read_adapter(decoder, folder, weight) for folder, weight in adapters]
    tensors = dict(decoder.tensors)
    for adapter in read:
        for name, tensor in adapter.replaced.items():
            if tensors[name] is not decoder.tensors[name]:
                raise InputRefused(f"{name} is replaced by another adapter as well", where=adapter.folder)
            tensors[name] = tensor
    updates: dict[str, list[_Update]] = {}
    for adapter in read:
        for name, update in adapter.updates:
            updates.setdefault(name, []).append(update)
    tensors |= {name: _merged(tensors[name], todo) for name, todo in updates.items()}
    spec, notes = decoder.spec, [_note(adapter) for adapter in read]
    if spec.tie_word_embeddings and tensors[HEAD] is not tensors[EMBEDDING]:
        spec = dataclasses.replace(spec, tie_word_embeddings=False)
        notes.append("the adapter changes only one of embedding and head, so they are no longer tied")
    return dataclasses.replace(
        decoder,
        spec=spec,
        tensors=tensors,
        fingerprint=_fingerprint(decoder, read),
        notes=(*decoder.notes, *notes),
    )


def _note(adapter: _Adapter) -> str:
    share = "" if adapter.weight == 1 else f" with weight {adapter.weight:g}"
    return f"LoRA adapter {adapter.folder} merged{share}"


def _merged(base: Tensor, updates: list[_Update]) -> Tensor:
    def read() -> Array:
        weight = base.read().astype(np.float32)
        for update in updates:
            update.add_to(weight)
        return weight.astype(base.dtype, copy=False)

    return dataclasses.replace(base, source=f"{base.source} with LoRA", read=read)


def _fingerprint(decoder: Decoder, adapters: Sequence[_Adapter]) -> Callable[[], str]:
    @functools.cache
    def fingerprint() -> str:
        contents = [
            [adapter.weight, *(fingerprint_file(adapter.folder / name) for name in (CONFIG_NAME, WEIGHTS_NAME))]
            for adapter in adapters
        ]
        return fingerprint_json([decoder.fingerprint(), contents])

    return fingerprint


def _read_adapter(decoder: Decoder, folder: Path, weight: float) -> _Adapter:
    if not math.isfinite(weight):
        raise InputRefused(f"the weight of an adapter cannot be {weight}", where=folder)
    path = folder / CONFIG_NAME
    if not path.is_file():
        raise InputRefused(f"no {CONFIG_NAME} in this folder, so this is no LoRA adapter", where=folder)
    config = Fields(read_json(path), str(path))
    _check_config(config)
    stored = _stored(folder)
    targets = _targets(decoder.spec)
    factors: dict[tuple[str, bool], dict[str, StoredTensor]] = {}
    replaced: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        if tensor.dtype.name not in ("bfloat16", "float16", "float32"):
            raise InputRefused(f"is {tensor.dtype.name}, floating weights are needed", where=tensor.source)
        plain = name.removeprefix(_PREFIX)
        match = _FACTOR_NAME.fullmatch(plain)
        if match is not None:
            key = (match["module"], match["embedding"] is not None)
            factors.setdefault(key, {})[match["side"]] = tensor
            continue
        whole = _TOP_MODULES.get(_canonical(plain.removesuffix(".weight").removesuffix(".base_layer")))
        if whole is None:
            raise InputRefused("neither a LoRA factor nor a module that can be replaced", where=tensor.source)
        if tensor.shape != decoder.tensors[whole].shape:
            expected = list(decoder.tensors[whole].shape)
            raise InputRefused(f"has shape {list(tensor.shape)}, the model's is {expected}", where=tensor.source)
        replaced[whole] = _as_dtype(tensor.lazy(), decoder.tensors[whole].dtype)
    updates = []
    for (module, embedding), sides in factors.items():
        for target in _targets_of(targets, module, folder):
            update = _update(config, module, embedding, sides, target, weight, folder)
            _check_shapes(decoder, update, targets[_canonical(module)])
            updates.append((target.name, update))
    return _Adapter(folder, weight, updates, replaced)


def _as_dtype(tensor: Tensor, dtype: np.dtype[Any]) -> Tensor:
    return dataclasses.replace(tensor, dtype=dtype, read=lambda: tensor.read().astype(dtype, copy=False))


def _stored(folder: Path) -> Mapping[str, StoredTensor]:
    path = folder / WEIGHTS_NAME
    if path.is_file():
        return read_header(path).tensors
    pickled = (folder / "adapter_model.bin").is_file()
    what = "only pickled weights (adapter_model.bin), which can run code when opened" if pickled else "no weights"
    raise InputRefused(what, where=folder, hint=f"save the adapter as {WEIGHTS_NAME}; peft does so by default")


def _check_config(config: Fields) -> None:
    kind = config.text("peft_type", "LORA")
    if kind.upper() != "LORA":
        raise config.refuse("peft_type", f"is {kind}, only LORA can be merged")
    for name in _CHANGES_MEANING:
        if config.get(name):
            raise config.refuse(name, "is set: such an adapter is more than a low-rank update and is not merged")
    init = config.get("init_lora_weights")
    if init not in _HARMLESS_INITS:
        raise InputRefused(
            f"init_lora_weights is {init!r}: its base weights were changed before training",
            where=config.where,
            hint="convert it to plain LoRA with peft first (save_pretrained, path_initial_model_for_weight_conversion)",
        )


def _canonical(module: str) -> str:
    """A module's path as `layers.3.self_attn.q_proj`, `embed_tokens` or `lm_head`."""
    return module.removeprefix("model.")


def _targets(spec: DecoderSpec) -> dict[str, list[_Target]]:
    """Every Hugging Face module of the family that can be adapted → the hub rows it feeds."""
    found: dict[str, list[_Target]] = {
        "embed_tokens": [_Target(EMBEDDING, 0, 0, spec.vocab_size)],
        "lm_head": [_Target(HEAD, 0, 0, spec.vocab_size)],
    }
    for layer in range(spec.num_layers):
        for module, pieces in ARCHITECTURES[spec.family].modules.items():
            out = spec.linear_shape(module)[0]
            sizes = [out] if len(pieces) == 1 else [spec.q_rows, spec.kv_rows, spec.kv_rows]
            start = 0
            for piece, rows in zip(pieces, sizes, strict=True):
                target = _Target(f"{module_path(layer, module)}.weight", start, piece.part * rows, rows)
                found.setdefault(f"layers.{layer}.{piece.module}", []).append(target)
                start += rows
    return found


def _targets_of(targets: Mapping[str, list[_Target]], module: str, folder: Path) -> list[_Target]:
    found = targets.get(_canonical(module))
    if found is None:
        known = sorted({name.rpartition(".")[2] for name in targets})
        raise InputRefused(
            f"the adapter changes {module}, which this model does not have",
            where=folder,
            hint=f"modules that can be adapted: {', '.join(known)}",
        )
    return found


def _pattern_value(config: Fields, name: str, module: str, default: float) -> float:
    """The entry of `rank_pattern` or `alpha_pattern` for a module: keys are regular expressions for its last parts."""
    patterns = config.get(name) or {}
    if not isinstance(patterns, dict):
        raise config.refuse(name, "must be an object")
    for pattern in patterns:
        try:
            matched = re.match(rf"(.*\.)?({pattern})$", module)
        except re.error as error:
            raise config.refuse(name, f"has the malformed pattern {pattern!r}") from error
        if matched:
            return Fields(patterns, f"{config.where}: {name}").number(pattern)
    return default


def _update(
    config: Fields,
    module: str,
    embedding: bool,
    sides: Mapping[str, StoredTensor],
    target: _Target,
    weight: float,
    folder: Path,
) -> _Update:
    if set(sides) != {"A", "B"}:
        raise InputRefused(f"{module} has lora_{next(iter(sides))} only, both are needed", where=folder / WEIGHTS_NAME)
    rank = _pattern_value(config, "rank_pattern", module, config.count("r"))
    alpha = _pattern_value(config, "alpha_pattern", module, config.number("lora_alpha"))
    a, b = sides["A"], sides["B"]
    if len(a.shape) != 2 or len(b.shape) != 2 or not a.shape[0] == b.shape[1] == rank:
        raise InputRefused(
            f"lora_A {list(a.shape)} and lora_B {list(b.shape)} do not have the rank {rank:g} that {CONFIG_NAME} names",
            where=a.source,
        )
    scaling = alpha / math.sqrt(rank) if config.flag("use_rslora", False) else alpha / rank
    return _Update(target, a, b, weight * scaling, embedding)


def _check_shapes(decoder: Decoder, update: _Update, targets: list[_Target]) -> None:
    columns = decoder.tensors[update.target.name].shape[1]
    rows = sum(target.rows for target in targets)
    a, b = (rows, columns) if update.embedding else (columns, rows)
    if (update.a.shape[1], update.b.shape[0]) != (a, b):
        raise InputRefused(
            f"lora_A {list(update.a.shape)} and lora_B {list(update.b.shape)} do not fit this model, where A needs {a} "
            f"columns and B {b} rows",
            where=update.a.source,
            hint="the adapter was trained on another model",
        )
