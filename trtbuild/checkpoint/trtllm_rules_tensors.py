"""Rules about the tensors of a TensorRT-LLM checkpoint: names, shapes, types, and what is in them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trtbuild.checkpoint.assembly import listed
from trtbuild.checkpoint.finite import check_finite
from trtbuild.checkpoint.safetensors import StoredTensor
from trtbuild.checkpoint.spec import Array
from trtbuild.checkpoint.trtllm_findings import Breach, Subject
from trtbuild.checkpoint.trtllm_layouts import WEIGHT_ONLY_BITS, linear_modules
from trtbuild.checkpoint.trtllm_sharding import is_vocabulary, module_of
from trtbuild.errors import InputRefused


def missing(subject: Subject) -> Iterator[Breach]:
    for expected, stored, file in subject.per_rank():
        names = [name for name in expected if name not in stored and module_of(name)[1] != "prequant_scaling_factor"]
        if names:
            yield Breach(f"{file} lacks {listed(names)}", tensor=names[0])


def prequant(subject: Subject) -> Iterator[Breach]:
    for expected, stored, file in subject.per_rank():
        names = [name for name in expected if name not in stored and module_of(name)[1] == "prequant_scaling_factor"]
        if names:
            yield Breach(
                f"{file} lacks {listed(names)}; {subject.quantization.quant_algo} needs one for each linear",
                tensor=names[0],
            )


_HARMLESS = ("k_cache_scaling_factor", "v_cache_scaling_factor")
_KV_SCALE = "kv_cache_scaling_factor"


def extra(subject: Subject) -> Iterator[Breach]:
    for expected, stored, file in subject.per_rank():
        extra = [n for n in stored if n not in expected and not n.endswith(_HARMLESS) and not n.endswith(_KV_SCALE)]
        if extra:
            yield Breach(f"{file} holds {listed(extra)}, which TensorRT-LLM will ignore", tensor=extra[0])


def kv_scales_unused(subject: Subject) -> Iterator[Breach]:
    if subject.quantization.kv_cache_quant_algo is None:
        names = [tensor.name for tensor in subject.stored() if tensor.name.endswith(f".{_KV_SCALE}")]
        if names:
            yield Breach("KV cache scales are present, but kv_cache_quant_algo is null", tensor=names[0])


def _kernel_order(stored: dict[str, StoredTensor], name: str) -> bool:
    """Whether convert_checkpoint.py wrote this weight in the order of the GPU kernels, whose shape is its own."""
    return name.endswith(".weight") and f"{name.removesuffix('weight')}per_channel_scale" in stored


def shapes(subject: Subject) -> Iterator[Breach]:
    for expected, stored, file in subject.per_rank():
        for name, want in expected.items():
            have = stored.get(name)
            if have is None or have.shape == want.shape or is_vocabulary(name):
                continue
            if subject.quantization.quant_algo in WEIGHT_ONLY_BITS and _kernel_order(stored, name):
                continue
            yield Breach(f"{file}: shape {list(have.shape)}, {list(want.shape)} is needed", tensor=name)


def vocabulary(subject: Subject) -> Iterator[Breach]:
    tp = subject.files.ranks.tp
    for expected, stored, file in subject.per_rank():
        for name in filter(is_vocabulary, expected):
            have, want = stored.get(name), expected[name].shape
            if have is not None and have.shape != want:
                padded = f"{subject.spec.vocab_size} rows padded to a multiple of tp {tp}"
                yield Breach(f"{file}: shape {list(have.shape)}, {list(want)} is needed ({padded})", tensor=name)


def dtypes(subject: Subject) -> Iterator[Breach]:
    for expected, stored, file in subject.per_rank():
        for name, want in expected.items():
            have = stored.get(name)
            if have is not None and have.dtype.name not in want.dtypes and not _int8_weight_only(subject, have):
                yield Breach(f"{file}: {have.dtype.name}, {' or '.join(want.dtypes)} is needed", tensor=name)


def _int8_weight_only(subject: Subject, tensor: StoredTensor) -> bool:
    return subject.quantization.quant_algo in ("W8A16", "W4A16") and tensor.dtype == np.int8


def weight_only_in_file(subject: Subject) -> Iterator[Breach]:
    for _, stored, file in subject.per_rank():
        names = [
            tensor.name
            for tensor in stored.values()
            if _int8_weight_only(subject, tensor) and not _kernel_order(stored, tensor.name)
        ]
        if names:
            yield Breach(
                f"{file}: {listed(names)} are int8; TensorRT-LLM's loader quantizes floating weights itself, skips "
                "these, and then lacks their per_channel_scale",
                tensor=names[0],
            )


def ranks_agree(subject: Subject) -> Iterator[Breach]:
    for row in subject.files.files:
        first = {name: (t.dtype, t.shape) for name, t in row[0].tensors.items()}
        for file in row[1:]:
            differ = [n for n, t in file.tensors.items() if first.get(n) != (t.dtype, t.shape)]
            differ += [name for name in first if name not in file.tensors]
            if differ:
                yield Breach(f"{file.path.name} and {row[0].path.name} differ in {listed(differ)}", tensor=differ[0])


_SCALES = (
    *("weights_scaling_factor", "weights_scaling_factor_2", "activation_scaling_factor", "prequant_scaling_factor"),
    *("per_channel_scale", "smoother", "act_scale", "scale_to_int", "quantization_scaling_factor"),
    *("kv_cache_scaling_factor", *_HARMLESS),
)
_CHUNK = 1 << 22


def _chunks(tensor: StoredTensor) -> Iterator[Array]:
    flat = tensor.read().reshape(-1)
    for start in range(0, len(flat), _CHUNK):
        yield flat[start : start + _CHUNK]


def scales(subject: Subject) -> Iterator[Breach]:
    for tensor in subject.stored():
        if module_of(tensor.name)[1] not in _SCALES:
            continue
        for chunk in _chunks(tensor):
            values = chunk.astype(np.float32)
            bad = ~(np.isfinite(values) & (values > 0))
            if bad.any():
                yield Breach(f"holds {values[bad][0]}; a scale is finite and above 0", tensor=tensor.source)
                break


def finite(subject: Subject) -> Iterator[Breach]:
    for tensor in subject.stored():
        if module_of(tensor.name)[1] not in _SCALES:
            try:
                check_finite(tensor.read(), tensor.source)
            except InputRefused as refusal:
                yield Breach(refusal.what, tensor=tensor.source)


def int8_zero(subject: Subject) -> Iterator[Breach]:
    for tensor in subject.stored():
        if tensor.dtype == np.int8 and not any(chunk.any() for chunk in _chunks(tensor)):
            yield Breach("all int8 weights are zero", tensor=tensor.source)


def activations_equal(subject: Subject) -> Iterator[Breach]:
    values = [
        float(tensor.read().reshape(-1)[0].astype(np.float32))
        for tensor in subject.stored()
        if module_of(tensor.name)[1] == "activation_scaling_factor" and tensor.size_bytes
    ]
    if len(values) > len(linear_modules(subject.spec)) and len(set(values)) == 1:
        yield Breach(
            f"all {len(values)} activation scales are {values[0]:.6g}: after full smoothing (alpha 1.0) calibration "
            "has nothing left to find",
            hint="smooth less: trtbuild's int8 searches for the strength, modelopt takes alpha 0.5",
        )
