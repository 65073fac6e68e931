"""TensorRT-LLM checkpoint → Decoder: any tp and pp, written by trtbuild, nvidia-modelopt or convert_checkpoint.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from trtbuild.checkpoint.assembly import Extent, content_fingerprint
from trtbuild.checkpoint.fields import Fields, read_json
from trtbuild.checkpoint.huggingface import read_config_spec
from trtbuild.checkpoint.huggingface_files import read_assets
from trtbuild.checkpoint.kinds import recognise
from trtbuild.checkpoint.safetensors import SafetensorsFile, StoredTensor, read_header
from trtbuild.checkpoint.spec import (
    EMBEDDING,
    HEAD,
    LINEAR_MODULES,
    Array,
    Decoder,
    DecoderSpec,
    Quantization,
    Tensor,
    layer_prefix,
)
from trtbuild.checkpoint.trtllm_config import (
    CONFIG_NAME,
    FAMILIES,
    OURS,
    ROTARY_BASE_DEFAULT,
    Ranks,
    load_config,
    parse_quantization,
    parse_ranks,
    parse_spec,
)
from trtbuild.checkpoint.trtllm_exclusions import over_all_layers
from trtbuild.checkpoint.trtllm_sharding import WHOLE, Split, cut_axis, hub_name, layer_of, module_of, split_local
from trtbuild.errors import InputRefused
from trtbuild.store.fingerprint import fingerprint_json

_KERNEL_LAYOUT_ALGOS = ("W8A16", "W4A16")


@dataclass(frozen=True)
class RankFiles:
    """A checkpoint folder with all headers read: `files[stage][tp_rank]`."""

    directory: Path
    config: Fields
    ranks: Ranks
    quantization: Quantization
    files: tuple[tuple[SafetensorsFile, ...], ...]

    @property
    def embedding_axis(self) -> int | None:
        """Axis along which the embedding is shared out, None when every rank holds it whole."""
        if not self.config.flag("use_parallel_embedding", False):
            return None
        return 1 if self.config.get("embedding_sharding_dim") == 1 else 0

    def names(self, stage: int) -> list[str]:
        return list(self.files[stage][0].tensors)

    def stored(self, stage: int, name: str) -> list[StoredTensor]:
        """The tensor of that name in each tp rank of a stage. Raises InputRefused when a rank lacks it or differs."""
        tensors: list[StoredTensor] = []
        for file in self.files[stage]:
            tensor = file.tensors.get(name)
            if tensor is None:
                raise InputRefused(f"tensor {name} is missing", where=file.path)
            if tensors and (tensor.dtype, tensor.shape) != (tensors[0].dtype, tensors[0].shape):
                raise InputRefused(
                    f"{tensor.dtype}{tensor.shape} here, {tensors[0].dtype}{tensors[0].shape} in the first rank",
                    where=tensor.source,
                )
            tensors.append(tensor)
        return tensors


def open_rank_files(directory: Path) -> RankFiles:
    """Read `config.json` and the header of every rank file. Raises InputRefused when one is missing or broken."""
    if not directory.is_dir():
        raise InputRefused("no such folder", where=directory)
    config = load_config(directory)
    ranks = parse_ranks(config)
    paths = [[directory / ranks.file_name(stage, tp) for tp in range(ranks.tp)] for stage in range(ranks.pp)]
    missing = [path.name for row in paths for path in row if not path.is_file()]
    if missing:
        raise InputRefused(
            f"missing {', '.join(missing[:4])}{' …' if len(missing) > 4 else ''}: "
            f"config.json says tp {ranks.tp} × pp {ranks.pp}",
            where=directory,
        )
    files = tuple(tuple(read_header(path) for path in row) for row in paths)
    return RankFiles(directory, config, ranks, parse_quantization(config), files)


def read_spec(checkpoint: RankFiles) -> DecoderSpec:
    """DecoderSpec of the checkpoint; biases and QK-norm are taken from the tensors, which are what runs."""
    names = checkpoint.files[0][0].tensors
    prefix = layer_prefix(0)
    return parse_spec(
        checkpoint.config,
        biases={module: f"{prefix}.{module}.bias" in names for module in LINEAR_MODULES},
        qk_norm=f"{prefix}.attention.q_layernorm.weight" in names,
    )


def assemble(shards: list[StoredTensor], split: Split, sections: tuple[int, ...] | None = None) -> Array:
    """The whole tensor (or some of its sections) from its shards: duplicates dropped, padding left out."""
    if split.axis is None:
        return shards[0].read()
    arrays = [shard.read() for shard in shards]
    pieces = []
    for section in range(len(split.sections)) if sections is None else sections:
        seen = set()
        for tp_rank, array in enumerate(arrays):
            piece = split.pieces(tp_rank)[section]
            if piece.start in seen or piece.length == 0:
                continue
            seen.add(piece.start)
            index = (slice(None),) * split.axis + (slice(piece.local_start, piece.local_start + piece.length),)
            pieces.append(array[index])
    if len(arrays) == 1 and sum(piece.shape[split.axis] for piece in pieces) == arrays[0].shape[split.axis]:
        return arrays[0]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=split.axis)


def _lazy(shards: list[StoredTensor], split: Split, sections: tuple[int, ...] | None = None) -> Tensor:
    shape = list(shards[0].shape)
    if split.axis is not None:
        chosen = range(len(split.sections)) if sections is None else sections
        shape[split.axis] = sum(split.sections[section] for section in chosen)
    source = shards[0].source if len(shards) == 1 else f"{shards[0].path.parent}:{shards[0].name}"
    return Tensor(shards[0].dtype, tuple(shape), source, lambda: assemble(shards, split, sections))


def _tensors(checkpoint: RankFiles, spec: DecoderSpec) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    tp, pp = checkpoint.ranks.tp, checkpoint.ranks.pp
    fused = FAMILIES[spec.family].fused_mlp
    for stage in range(pp):
        for name in checkpoint.names(stage):
            shards = checkpoint.stored(stage, name)
            split = split_local(spec, name, shards[0].shape, tp, checkpoint.embedding_axis)
            if split is None:
                raise InputRefused(
                    f"shape {shards[0].shape} does not fit the sizes in config.json with tp {tp}",
                    where=shards[0].source,
                )
            hub = hub_name(name, stage, spec.num_layers, pp)
            if fused and module_of(name)[0] == "mlp.fc":
                cut = cut_axis(name, shards[0].shape, None) is not None
                gate = hub.replace(".mlp.fc.", ".mlp.gate.")
                tensors[gate] = _lazy(shards, split, (0,)) if cut else _lazy(shards, WHOLE)
                tensors[hub] = _lazy(shards, split, (1,)) if cut else _lazy(shards, WHOLE)
            else:
                tensors[hub] = _lazy(shards, split)
    return tensors


def _check_layers(checkpoint: RankFiles, spec: DecoderSpec) -> None:
    per_stage, rest = divmod(spec.num_layers, checkpoint.ranks.pp)
    if rest:
        raise InputRefused(
            f"{spec.num_layers} layers do not divide into pp {checkpoint.ranks.pp}", where=checkpoint.directory
        )
    for row in checkpoint.files:
        found = {inside[0] for inside in map(layer_of, row[0].tensors) if inside is not None}
        if len(found) != per_stage:
            raise InputRefused(
                f"holds {len(found)} decoder layers, but config.json says {spec.num_layers} over "
                f"{checkpoint.ranks.pp} pipeline stages",
                where=row[0].path,
            )


def _fits(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Whether a weight has its expected shape, or half of it along one axis (two 4-bit values in a byte)."""
    if shape == expected or len(shape) != 2:
        return shape == expected
    return shape in ((expected[0] // 2, expected[1]), (expected[0], expected[1] // 2))


def _check(checkpoint: RankFiles, spec: DecoderSpec, tensors: Mapping[str, Tensor]) -> None:
    for name, expected in spec.float_shapes().items():
        tensor = tensors.get(name)
        if tensor is None:
            raise InputRefused(f"tensor {name} is missing", where=checkpoint.directory)
        packed = tensor.dtype.itemsize == 1 and _fits(tensor.shape, expected)
        if tensor.shape != expected and not packed:
            raise InputRefused(f"has shape {tensor.shape}, but config.json implies {expected}", where=tensor.source)


def _refuse_kernel_layout(checkpoint: RankFiles) -> None:
    algo = checkpoint.quantization.quant_algo
    if algo in _KERNEL_LAYOUT_ALGOS and any(name.endswith(".per_channel_scale") for name in checkpoint.names(0)):
        raise InputRefused(
            f"its {algo} weights are already in GPU kernel order (int8 with per_channel_scale), which only "
            "TensorRT-LLM can read",
            where=checkpoint.directory,
            hint="convert it again without --use_weight_only, or start from the Hugging Face model",
        )


_SIZES = ("hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_size", "intermediate_size")


def _completed(spec: DecoderSpec, model_folder: Path) -> DecoderSpec:
    """`spec` with what a foreign checkpoint cannot say taken from the model's own config."""
    source = read_config_spec(model_folder / CONFIG_NAME)
    for field in _SIZES:
        here, there = getattr(spec, field), getattr(source, field)
        if here != there:
            raise InputRefused(
                f"its {field} is {there}, the checkpoint's is {here}: not the model it was made from",
                where=model_folder / CONFIG_NAME,
            )
    generation = model_folder / "generation_config.json"
    stop_ids = Fields(read_json(generation), str(generation)).token_ids("eos_token_id") if generation.is_file() else ()
    return dataclasses.replace(
        spec,
        family=source.family,
        rope=source.rope,
        sliding_window=source.sliding_window,
        sliding_layers=source.sliding_layers,
        tie_word_embeddings=source.tie_word_embeddings,
        bos_token_id=source.bos_token_id,
        eos_token_ids=stop_ids or source.eos_token_ids,
    )


def _notes(checkpoint: RankFiles, tensors: Mapping[str, Tensor], *, rope_known: bool) -> tuple[str, ...]:
    notes = []
    if not rope_known:
        notes.append(
            f"WARNING: config.json has no rotary_base, so TensorRT-LLM will use {ROTARY_BASE_DEFAULT:g} and no "
            "rotary_scaling; if the model says otherwise the engine talks nonsense. Give the folder of the original "
            "model with --tokenizer DIR, and the right values are taken from it"
        )
    quantization = checkpoint.quantization
    has = {module_of(name)[1] for name in tensors}
    if quantization.quant_algo == "W8A8_SQ_PER_CHANNEL" and "prequant_scaling_factor" not in has:
        notes.append("no prequant_scaling_factor (modelopt INT8_DEFAULT_CFG): taken as 1")
    if quantization.quant_algo == "W8A16" and "weights_scaling_factor" in has:
        notes.append("W8A16 with int8 weights in the file: readable here, but TensorRT-LLM wants floating weights")
    if quantization.kv_cache_quant_algo is None and "kv_cache_scaling_factor" in has:
        notes.append("KV cache scales are present, but kv_cache_quant_algo is null: they are not used")
    return tuple(notes)


def _fingerprint(checkpoint: RankFiles, spec: DecoderSpec) -> Callable[[], str]:
    extents = [
        Extent(f"{file.path.name}:{t.name}", t.dtype.name, t.shape, t.path, t.offset_bytes, t.size_bytes)
        for row in checkpoint.files
        for file in row
        for t in file.tensors.values()
    ]
    weights = content_fingerprint(spec, extents)
    return lambda: fingerprint_json({"weights": weights(), "quantization": asdict(checkpoint.quantization)})


def read_checkpoint(path: Path | str, *, model_folder: Path | None = None) -> Decoder:
    """Open a TensorRT-LLM checkpoint as one unsharded decoder, its tensors lazy.

    `model_folder` holds the config.json of the Hugging Face model it was made from; it supplies what a checkpoint that
    trtbuild did not write loses (rope, sliding window, stop tokens). What is doubtful is said in `notes`. Raises
    InputRefused for anything that is not a complete checkpoint of a supported architecture.
    """
    directory = Path(path)
    checkpoint = open_rank_files(directory)
    _refuse_kernel_layout(checkpoint)
    spec = read_spec(checkpoint)
    _check_layers(checkpoint, spec)
    rope_known = checkpoint.config.get("rotary_base") is not None
    if model_folder is not None and checkpoint.config.get(OURS) is None and recognise(model_folder) == "huggingface":
        spec, rope_known = _completed(spec, model_folder), True
    tensors = _tensors(checkpoint, spec)
    if HEAD not in tensors and EMBEDDING in tensors and checkpoint.config.get("share_embedding_table"):
        tensors[HEAD] = tensors[EMBEDDING]
    _check(checkpoint, spec, tensors)
    return Decoder(
        spec=spec,
        tensors=tensors,
        location=str(path),
        fingerprint=_fingerprint(checkpoint, spec),
        quantization=over_all_layers(checkpoint.quantization, spec.num_layers, checkpoint.ranks.pp),
        assets=read_assets(directory),
        notes=_notes(checkpoint, tensors, rope_known=rope_known),
    )
