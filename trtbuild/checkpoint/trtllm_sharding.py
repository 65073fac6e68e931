"""How tensors of an unsharded decoder lie across the ranks of a TensorRT-LLM checkpoint.

Tensor parallel: attention.qkv, mlp.fc, mlp.gate and lm_head are cut along their outputs (rows), attention.dense and
mlp.proj along their inputs (columns); q, k and v are cut separately, KV heads are duplicated when there are fewer than
ranks, and the vocabulary is padded with zero rows to a multiple of the ranks. Scales follow the dimension they belong
to. Pipeline parallel: each stage numbers its layers from 0; the first has the embedding, the last ln_f and lm_head.
Checked bit for bit against checkpoints that nvidia-modelopt 0.37 and 0.47 export.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trtbuild.checkpoint.spec import EMBEDDING, DecoderSpec, layer_prefix
from trtbuild.checkpoint.trtllm_config import FAMILIES, Ranks
from trtbuild.errors import UsageError

ROWS, COLUMNS = "rows", "columns"

MODULE_CUTS: Mapping[str, str] = {
    "attention.qkv": ROWS,
    "attention.dense": COLUMNS,
    "mlp.fc": ROWS,
    "mlp.gate": ROWS,
    "mlp.proj": COLUMNS,
    "lm_head": ROWS,
    "vocab_embedding": ROWS,
}
"""Module → the side of its weight [out, in] that tensor parallelism cuts; modules not named here are replicated."""

SUFFIX_AXES: Mapping[str, Mapping[str, int | None]] = {
    "weight": {ROWS: 0, COLUMNS: 1},
    "bias": {ROWS: 0, COLUMNS: None},
    "weights_scaling_factor": {ROWS: 0, COLUMNS: 1},  # [1], [out] or [out, in/group]
    "weights_scaling_factor_2": {ROWS: None, COLUMNS: None},
    "activation_scaling_factor": {ROWS: None, COLUMNS: None},
    "prequant_scaling_factor": {ROWS: None, COLUMNS: 0},
    "per_channel_scale": {ROWS: -1, COLUMNS: None},  # [1, out] of SmoothQuant, [out] of weight-only
    "smoother": {ROWS: None, COLUMNS: -1},
    "act_scale": {ROWS: None, COLUMNS: None},
}
"""Tensor of a module → the axis that a cut along rows or columns of the weight means for it."""


@dataclass(frozen=True)
class Piece:
    """`length` entries along the cut axis: where they start in the whole tensor and in the rank's tensor."""

    start: int
    local_start: int
    length: int


@dataclass(frozen=True)
class Split:
    """How one tensor is cut: along `axis`, each of `sections` (lengths) on its own; axis None is a whole tensor.

    `units` are the indivisible parts (heads) a section consists of; where ranks outnumber them, they are duplicated.
    `share` is the length on each rank of a padded tensor, whose last ranks end in zeros; None when cut evenly.
    """

    axis: int | None
    sections: tuple[int, ...] = ()
    units: tuple[int, ...] = ()
    tp: int = 1
    share: int | None = None

    @property
    def local_length(self) -> int:
        """Length of the cut axis on every rank."""
        return sum(self._share(length, units) for length, units in zip(self.sections, self.units, strict=True))

    def _share(self, length: int, units: int) -> int:
        return length // min(self.tp, units) if self.share is None else self.share

    def _begin(self, length: int, units: int, tp_rank: int) -> int:
        if self.share is not None:
            return min(tp_rank * self.share, length)
        return tp_rank * min(self.tp, units) // self.tp * self._share(length, units)

    def pieces(self, tp_rank: int) -> list[Piece]:
        """What of the whole lies on a rank, a piece of each section; padding is what they leave of its length."""
        pieces, section_start, local_start = [], 0, 0
        for length, units in zip(self.sections, self.units, strict=True):
            share, begin = self._share(length, units), self._begin(length, units, tp_rank)
            pieces.append(Piece(section_start + begin, local_start, min(share, length - begin)))
            section_start += length
            local_start += share
        return pieces


WHOLE = Split(None)


_LAYER = re.compile(r"transformer\.layers\.(0|[1-9]\d{0,6})\.(.+)")


def layer_of(name: str) -> tuple[int, str] | None:
    """(layer number, rest of the name) of a tensor inside a decoder layer, None for any other."""
    match = _LAYER.fullmatch(name)
    return None if match is None else (int(match[1]), match[2])


def module_of(name: str) -> tuple[str, str]:
    """(module, suffix) of a tensor name: `transformer.layers.3.mlp.fc.weight` → ("mlp.fc", "weight")."""
    inside = layer_of(name)
    module, _, suffix = (name.removeprefix("transformer.") if inside is None else inside[1]).rpartition(".")
    return module, suffix


def stage_of(name: str, num_layers: int, pp: int) -> tuple[int, str]:
    """Pipeline stage that holds a tensor of the hub, and its name there."""
    inside = layer_of(name)
    if inside is None:
        return (0 if name == EMBEDDING else pp - 1), name
    stage, local = divmod(inside[0], num_layers // pp)
    return stage, f"{layer_prefix(local)}.{inside[1]}"


def hub_name(name: str, stage: int, num_layers: int, pp: int) -> str:
    """Name in the hub of a tensor of a stage's rank file; the inverse of `stage_of`."""
    inside = layer_of(name)
    return name if inside is None else f"{layer_prefix(inside[0] + stage * (num_layers // pp))}.{inside[1]}"


def cut_axis(name: str, shape: tuple[int, ...], embedding_axis: int | None) -> int | None:
    """The axis along which tensor parallelism cuts a tensor of this name, or None when every rank holds the whole.

    `embedding_axis` is the sharding dimension of the embedding, None when it is not shared out.
    """
    module, suffix = module_of(name)
    if module == "vocab_embedding":
        return embedding_axis
    cut = MODULE_CUTS.get(module)
    axis = None if cut is None else SUFFIX_AXES.get(suffix, {}).get(cut)
    if axis is not None and axis < 0:
        axis += len(shape)
    return None if axis is None or axis >= len(shape) or math.prod(shape) == 1 else axis


Sections = tuple[tuple[int, ...], tuple[int, ...]]
"""Lengths and units of the parts of a tensor's rows that are cut separately; see `Split`."""


def row_sections(spec: DecoderSpec, module: str) -> Sections | None:
    """(lengths, units) of the sections of a module's rows that are cut separately, None when there is only one."""
    if module == "attention.qkv":
        return (spec.q_rows, spec.kv_rows, spec.kv_rows), (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
    if module == "mlp.fc" and FAMILIES[spec.family].fused_mlp:
        return ((spec.intermediate_size,) * 2,) * 2
    return None


_PACKINGS = (1, 2)
"""Rows of the weight in one row of the tensor: 4-bit types pack two."""


def _sectioned(sections: Sections, axis: int, tp: int, fits: Callable[[Split], bool]) -> Split | None:
    """The split of a tensor whose rows have sections, in the first packing that fits."""
    lengths, units = sections
    splits = (Split(axis, tuple(length // packing for length in lengths), units, tp) for packing in _PACKINGS)
    return next(filter(fits, splits), None)


def split_whole(
    spec: DecoderSpec, name: str, shape: tuple[int, ...], tp: int, embedding_axis: int | None = 0
) -> Split | None:
    """The split of a tensor given its unsharded shape, None when it cannot be cut into equal parts."""
    axis = cut_axis(name, shape, embedding_axis)
    if axis is None:
        return WHOLE
    length = shape[axis]
    if is_vocabulary(name) and axis == 0:
        return Split(axis, (length,), (length,), tp, share=math.ceil(length / tp))
    sections = row_sections(spec, module_of(name)[0])
    if sections is None:
        split: Split | None = Split(axis, (length,), (length,), tp)
    else:
        split = _sectioned(sections, axis, tp, lambda split: sum(split.sections) == length)
    if split is None or any(n % min(tp, u) for n, u in zip(split.sections, split.units, strict=True)):
        return None
    return split


def split_local(
    spec: DecoderSpec, name: str, local_shape: tuple[int, ...], tp: int, embedding_axis: int | None = 0
) -> Split | None:
    """The split of a tensor given the shape each rank holds, None when no unsharded shape fits."""
    axis = cut_axis(name, local_shape, embedding_axis)
    if axis is None:
        return WHOLE
    length = local_shape[axis]
    if is_vocabulary(name) and axis == 0:
        if length * tp < spec.vocab_size:
            return None
        return Split(axis, (spec.vocab_size,), (spec.vocab_size,), tp, share=length)
    sections = row_sections(spec, module_of(name)[0])
    if sections is None:
        return Split(axis, (length * tp,), (length * tp,), tp)
    return _sectioned(sections, axis, tp, lambda split: split.local_length == length)


def is_vocabulary(name: str) -> bool:
    """Whether the rows of this tensor are the vocabulary, which is padded to a multiple of the ranks."""
    return module_of(name)[0] in ("lm_head", "vocab_embedding")


def legal_tp(spec: DecoderSpec, limit: int = 64) -> list[int]:
    """Tensor-parallel sizes up to `limit` that this decoder can be cut into."""
    return [tp for tp in range(1, limit + 1) if tp_obstacle(spec, tp) is None]


def tp_obstacle(spec: DecoderSpec, tp: int) -> str | None:
    """Why a decoder cannot be cut into `tp` ranks, or None when it can."""
    for name, size in (
        ("num_attention_heads", spec.num_heads),
        ("hidden_size", spec.hidden_size),
        ("intermediate_size", spec.intermediate_size),
    ):
        if size % tp:
            return f"{name} {size} is not divisible by tp {tp}"
    if spec.num_kv_heads % tp and tp % spec.num_kv_heads:
        return f"num_key_value_heads {spec.num_kv_heads} is neither a multiple nor a divisor of tp {tp}"
    return None


def legal_pp(spec: DecoderSpec) -> list[int]:
    """Pipeline-parallel sizes that this decoder can be cut into."""
    return [pp for pp in range(1, spec.num_layers + 1) if spec.num_layers % pp == 0]


def check_ranks(spec: DecoderSpec, ranks: Ranks) -> None:
    """Raise UsageError, naming the legal values, when a decoder cannot be cut that way."""
    obstacle = tp_obstacle(spec, ranks.tp)
    if obstacle:
        raise UsageError(obstacle, hint=f"tp can be {', '.join(map(str, legal_tp(spec)))}")
    if ranks.pp > 1 and not FAMILIES[spec.family].pipeline:
        raise UsageError(f"TensorRT-LLM's {spec.family} has no pipeline stages, pp {ranks.pp} asked", hint="use pp 1")
    if spec.num_layers % ranks.pp:
        raise UsageError(
            f"{spec.num_layers} layers are not divisible by pp {ranks.pp}",
            hint=f"pp can be {', '.join(map(str, legal_pp(spec)))}",
        )
