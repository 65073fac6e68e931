"""Hub tensors under Hugging Face names: which linears a family stores, and how each quant_algo is spelled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from trtbuild.checkpoint.architectures import ARCHITECTURES
from trtbuild.checkpoint.huggingface import NORMS, QK_NORMS
from trtbuild.checkpoint.safetensors_writer import Layout
from trtbuild.checkpoint.spec import (
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    Array,
    Decoder,
    DecoderSpec,
    Tensor,
    layer_prefix,
    module_path,
)
from trtbuild.errors import InputRefused
from trtbuild.quantize.int8 import rounded, weight_scales

_F32 = np.dtype(np.float32)


@dataclass(frozen=True)
class Output:
    """One tensor to write: its name and layout, and how it is made of the arrays of its group."""

    name: str
    layout: Layout
    make: Callable[[list[Array]], Array]


@dataclass(frozen=True)
class Group:
    """Tensors of the hub that are read together, and what is written of them."""

    sources: tuple[Tensor, ...]
    outputs: tuple[Output, ...]

    @property
    def size_bytes(self) -> int:
        return sum(output.layout.size_bytes for output in self.outputs)


@dataclass(frozen=True)
class Share:
    """A linear of the Hugging Face model: rows `start` … `stop` of the hub's modules put one below the other."""

    module: str
    hub_modules: tuple[str, ...]
    start: int
    stop: int


def shares_of(spec: DecoderSpec) -> list[Share]:
    """How the family's stored linears are cut from, or joined of, the hub's."""
    found: dict[str, list[tuple[int, str, int, int]]] = {}
    for hub_module, pieces in ARCHITECTURES[spec.family].modules.items():
        rows = spec.linear_shape(hub_module)[0]
        lengths = (spec.q_rows, spec.kv_rows, spec.kv_rows) if len(pieces) == 3 else (rows,)
        start = 0
        for piece, length in zip(pieces, lengths, strict=True):
            found.setdefault(piece.module, []).append((piece.part, hub_module, start, start + length))
            start += length
    shares = []
    for module, parts in found.items():
        ordered = sorted(parts)
        hub_modules = tuple(hub_module for _, hub_module, _, _ in ordered)
        first, last = ordered[0][2], ordered[0][3] if len(ordered) == 1 else sum(part[3] for part in ordered)
        shares.append(Share(module, hub_modules, first, last))
    return shares


def _rows(start: int, stop: int) -> Callable[[list[Array]], Array]:
    def make(arrays: list[Array]) -> Array:
        return (arrays[0] if len(arrays) == 1 else np.concatenate(arrays))[start:stop]

    return make


def _scalar(arrays: list[Array]) -> Array:
    if any(not np.array_equal(array, arrays[0]) for array in arrays):
        raise InputRefused("linears that the model stores as one were quantized with different scales")
    return np.asarray(arrays[0], np.float32).reshape(())


def _shared(arrays: list[Array]) -> Array:
    if any(not np.array_equal(array, arrays[0]) for array in arrays):
        raise InputRefused("linears that the model stores as one were smoothed differently")
    return arrays[0]


def _joined(arrays: list[Array], start: int, stop: int) -> Array:
    return np.asarray(_rows(start, stop)(arrays), np.float32)


def _quantized_weight(start: int, stop: int) -> Callable[[list[Array]], Array]:
    def make(arrays: list[Array]) -> Array:
        weight = _joined(arrays, start, stop)
        return rounded(weight, weight_scales(weight))

    return make


def _weight_only_scale(start: int, stop: int) -> Callable[[list[Array]], Array]:
    return lambda arrays: weight_scales(_joined(arrays, start, stop)).astype(np.float32)


@dataclass(frozen=True)
class Format:
    """How one quant_algo is spelled: hub suffix → (suffix, kind); kinds are rows, scalar and shared."""

    suffixes: Mapping[str, tuple[str, str]]
    quantizes_weights: bool = False


FORMATS: Mapping[str, Format] = {
    "W8A16": Format({"weight": ("weight", "rows"), "weights_scaling_factor": ("weight_scale", "rows")}, True),
    "W8A8_SQ_PER_CHANNEL": Format(
        {
            "weight": ("weight", "rows"),
            "weights_scaling_factor": ("weight_scale", "rows"),
            "activation_scaling_factor": ("input_scale", "scalar"),
            "prequant_scaling_factor": ("pre_quant_scale", "shared"),
        }
    ),
}
"""quant_algo → its spelling. The other algorithms are exported by modelopt itself (`quantize/modelopt.py`)."""

_FLOATING = Format({"weight": ("weight", "rows")})


def _format_of(decoder: Decoder, hub_modules: tuple[str, ...], layer: int) -> Format:
    paths = [module_path(layer, module) for module in hub_modules]
    quantized = {decoder.quantization.quantizes(path) for path in paths}
    if len(quantized) > 1:
        raise InputRefused(
            f"{' and '.join(paths)} are one linear of this model, but only one of them is quantized",
            where=decoder.location,
        )
    return FORMATS[decoder.quantization.quant_algo or ""] if quantized == {True} else _FLOATING


def _linear_groups(decoder: Decoder, share: Share, layer: int) -> Iterator[Group]:
    form = _format_of(decoder, share.hub_modules, layer)
    target = f"model.layers.{layer}.{share.module}"

    def sources(suffix: str) -> tuple[Tensor, ...]:
        paths = [f"{module_path(layer, module)}.{suffix}" for module in share.hub_modules]
        return tuple(decoder.tensors[path] for path in paths if path in decoder.tensors)

    rows = share.stop - share.start
    weights = sources("weight")
    if form.quantizes_weights and weights[0].dtype != np.int8:
        outputs = (
            Output(
                f"{target}.weight",
                Layout(np.dtype(np.int8), (rows, weights[0].shape[1])),
                _quantized_weight(share.start, share.stop),
            ),
            Output(f"{target}.weight_scale", Layout(_F32, (rows,)), _weight_only_scale(share.start, share.stop)),
        )
        yield Group(weights, outputs)
    else:
        for suffix, (spelled, kind) in form.suffixes.items():
            parts = sources(suffix)
            if not parts:
                continue
            yield Group(parts, (_spelled(f"{target}.{spelled}", parts[0], kind, share.start, share.stop),))
    biases = sources("bias")
    if biases:
        yield Group(biases, (_spelled(f"{target}.bias", biases[0], "rows", share.start, share.stop),))


def _spelled(name: str, tensor: Tensor, kind: str, start: int, stop: int) -> Output:
    if kind == "scalar":
        return Output(name, Layout(_F32, ()), _scalar)
    if kind == "shared":
        return Output(name, Layout(tensor.dtype, tensor.shape), _shared)
    return Output(name, Layout(tensor.dtype, (stop - start, *tensor.shape[1:])), _rows(start, stop))


def _renamed(name: str, tensor: Tensor) -> Group:
    return Group((tensor,), (Output(name, Layout(tensor.dtype, tensor.shape), _shared),))


def groups_of(decoder: Decoder) -> Iterator[Group]:
    spec = decoder.spec
    yield _renamed("model.embed_tokens.weight", decoder.tensors[EMBEDDING])
    shares = shares_of(spec)
    norms = {**NORMS, **(QK_NORMS if spec.qk_norm else {})}
    for layer in range(spec.num_layers):
        for hub_name, name in norms.items():
            yield _renamed(f"model.layers.{layer}.{name}", decoder.tensors[f"{layer_prefix(layer)}.{hub_name}"])
        for share in shares:
            yield from _linear_groups(decoder, share, layer)
        if decoder.quantization.kv_cache_quant_algo is not None:
            yield from _kv_scales(decoder, layer)
    yield _renamed("model.norm.weight", decoder.tensors[FINAL_NORM])
    if not spec.tie_word_embeddings:
        yield _renamed(HEAD, decoder.tensors[HEAD])


def _kv_scales(decoder: Decoder, layer: int) -> Iterator[Group]:
    path = f"{layer_prefix(layer)}.attention"
    merged = decoder.tensors[f"{path}.kv_cache_scaling_factor"]
    for letter in "kv":
        own = decoder.tensors.get(f"{path}.{letter}_cache_scaling_factor", merged)
        name = f"model.layers.{layer}.self_attn.{letter}_proj.{letter}_scale"
        yield Group((own,), (Output(name, Layout(_F32, ()), _scalar),))
