"""Rules about `config.json` of a TensorRT-LLM checkpoint: keys, exclusions, families, and sizes against the ranks."""

from __future__ import annotations

from collections.abc import Iterator

from trtbuild.checkpoint.assembly import listed
from trtbuild.checkpoint.spec import Quantization, module_path
from trtbuild.checkpoint.trtllm_config import FAMILIES
from trtbuild.checkpoint.trtllm_findings import Breach, Subject
from trtbuild.checkpoint.trtllm_layouts import (
    LINEAR_LAYOUTS,
    PLUGIN_SUFFIX,
    WEIGHT_ONLY_BITS,
    linear_modules,
    linear_shape_of_rank,
)
from trtbuild.checkpoint.trtllm_sharding import legal_pp, legal_tp, tp_obstacle

_WRONG_DEFAULTS = {
    "hidden_act": "gelu",
    "position_embedding_type": "learned_absolute",
    "vocab_size": "none",
    "max_position_embeddings": "2048 positions",
    "num_key_value_heads": "num_attention_heads",
    "intermediate_size": "4 · hidden_size",
    "norm_epsilon": "1e-5",
}
_POSITIONS = ("rope_gpt_neox", "long_rope")
_KV_ALGOS = ("INT8", "FP8", "NVFP4")


def wrong_defaults(subject: Subject) -> Iterator[Breach]:
    config = subject.files.config
    for key, default in _WRONG_DEFAULTS.items():
        if config.get(key) is None:
            yield Breach(f"config.json has no {key}; TensorRT-LLM would take {default}")
    positions = config.get("position_embedding_type")
    if positions is not None and positions not in _POSITIONS:
        yield Breach(f"position_embedding_type is {positions!r}; this family rotates ({' or '.join(_POSITIONS)})")


def rotary_base(subject: Subject) -> Iterator[Breach]:
    if subject.files.config.get("rotary_base") is None:
        yield Breach("config.json has no rotary_base; TensorRT-LLM would silently take 10000")


def rotary_scaling(subject: Subject) -> Iterator[Breach]:
    if "rotary_scaling" not in subject.files.config.values and subject.files.config.get("rotary_base") is None:
        yield Breach("config.json has neither rotary_scaling nor rotary_base, so a scaling may have been lost")


def long_rope(subject: Subject) -> Iterator[Breach]:
    scaling = subject.spec.rope.scaling or {}
    if subject.spec.family != "phi3" or "short_factor" not in scaling:
        return
    for key in ("longrope_scaling_short_factors", "longrope_scaling_long_factors", "original_max_position_embeddings"):
        if subject.files.config.get(key) is None:
            yield Breach(f"rotary_scaling is longrope, but {key}, which is what TensorRT-LLM's phi3 reads, is missing")


def quant_algo(subject: Subject) -> Iterator[Breach]:
    quantization = subject.quantization
    if quantization.quant_algo not in LINEAR_LAYOUTS:
        known = ", ".join(algo for algo in LINEAR_LAYOUTS if algo)
        yield Breach(f"quant_algo {quantization.quant_algo} has no layout here, its tensors are not checked ({known})")
    if quantization.kv_cache_quant_algo not in (None, *_KV_ALGOS):
        yield Breach(f"kv_cache_quant_algo {quantization.kv_cache_quant_algo} is none of {', '.join(_KV_ALGOS)}")


def exclude_head(subject: Subject) -> Iterator[Breach]:
    exclude = subject.quantization.exclude_modules
    if exclude is not None and subject.quantization.quantizes("lm_head"):
        yield Breach(f"exclude_modules {list(exclude)} replaces the default list and does not name lm_head")


_QUANTIZE_EMBEDDINGS = ("W8A16", "W4A16")
"""Algorithms whose table of replaced modules has Embedding, so that only the default list protects it."""


def exclude_embedding(subject: Subject) -> Iterator[Breach]:
    quantization = subject.quantization
    if quantization.quant_algo not in _QUANTIZE_EMBEDDINGS or quantization.exclude_modules is None:
        return
    if quantization.quantizes("transformer.vocab_embedding"):
        yield Breach(f"with this list {quantization.quant_algo} quantizes the embedding too")


def exclude_ignored(subject: Subject) -> Iterator[Breach]:
    if (subject.quantization.quant_algo or "").endswith(PLUGIN_SUFFIX):
        excluded = [path for path, _ in subject.linears() if not subject.quantization.quantizes(path)]
        if excluded:
            yield Breach(f"{subject.quantization.quant_algo} ignores exclude_modules, but it names {listed(excluded)}")


def exclude_unknown(subject: Subject) -> Iterator[Breach]:
    known = [path for path, _ in subject.linears()] + ["lm_head", "transformer.vocab_embedding"]
    for pattern in subject.quantization.exclude_modules or ():
        one = Quantization("any", exclude_modules=(pattern,))
        if pattern.startswith("transformer.layers.") and all(one.quantizes(path) for path in known):
            yield Breach(f"exclude_modules names {pattern}, which no module of a pipeline stage matches")


_QWEN = ("qwen2", "qwen3")
"""Families of QWenConfig, which needs `qwen_type` and takes attn_bias as true where it is not given."""


def qwen_type(subject: Subject) -> Iterator[Breach]:
    if subject.spec.family in _QWEN and subject.files.config.get("qwen_type") is None:
        yield Breach(f"config.json has no qwen_type; TensorRT-LLM's {subject.spec.family} cannot be made without it")


def bias_flag(subject: Subject) -> Iterator[Breach]:
    default = subject.spec.family in _QWEN
    said = subject.files.config.flag("attn_bias", default)
    if subject.spec.family != "phi3" and said != subject.spec.qkv_bias:
        held = "have" if subject.spec.qkv_bias else "lack"
        yield Breach(f"attn_bias is {said}, but the tensors {held} attention.qkv.bias")


def family_limits(subject: Subject) -> Iterator[Breach]:
    spec, family = subject.spec, FAMILIES[subject.spec.family]
    if spec.dense_bias and not family.dense_bias:
        yield Breach(f"TensorRT-LLM's {spec.family} has no bias in attention.dense, this one does")
    if subject.files.ranks.pp > 1 and not family.pipeline:
        yield Breach(f"TensorRT-LLM's {spec.family} has no pipeline stages, pp_size is {subject.files.ranks.pp}")
    if spec.family == "phi3" and spec.q_rows != spec.hidden_size:
        yield Breach(f"TensorRT-LLM's phi3 takes head_size as hidden_size / heads, here it is {spec.head_size}")


def tensor_parallel(subject: Subject) -> Iterator[Breach]:
    obstacle = tp_obstacle(subject.spec, subject.files.ranks.tp)
    if obstacle:
        yield Breach(obstacle, hint=f"tp can be {', '.join(map(str, legal_tp(subject.spec)))}")


def pipeline_parallel(subject: Subject) -> Iterator[Breach]:
    spec, pp = subject.spec, subject.files.ranks.pp
    if spec.num_layers % pp:
        yield Breach(
            f"num_hidden_layers {spec.num_layers} is not divisible by pp {pp}",
            hint=f"pp can be {', '.join(map(str, legal_pp(spec)))}",
        )


_GROUPED = {"W4A16_AWQ": None, "W4A8_AWQ": None, "NVFP4": 16}
"""quant_algo → inputs that share a scale (None: group_size of the config, 128 by default)."""


def groups(subject: Subject) -> Iterator[Breach]:
    algo, tp = subject.quantization.quant_algo, subject.files.ranks.tp
    if algo not in _GROUPED:
        return
    group = _GROUPED[algo] or subject.quantization.group_size or 128
    seen = set()
    for path, module in subject.linears():
        columns = linear_shape_of_rank(subject.spec, module, tp)[1]
        if columns % group and module not in seen and subject.quantization.quantizes(path):
            seen.add(module)
            sizes = {n: linear_shape_of_rank(subject.spec, module, n)[1] for n in legal_tp(subject.spec)}
            legal = [n for n, size in sizes.items() if size % group == 0]
            yield Breach(
                f"{columns} inputs of {module} on each rank are not a multiple of the group of {group}",
                tensor=f"{path}.weight",
                hint=f"tp can be {', '.join(map(str, legal)) or 'no value'}: choose another precision otherwise",
            )


_TILE_BYTES = 32


def kernel_tile(subject: Subject) -> Iterator[Breach]:
    bits = WEIGHT_ONLY_BITS.get(subject.quantization.quant_algo or "")
    if bits is None:
        return
    for module in linear_modules(subject.spec):
        rows, columns = linear_shape_of_rank(subject.spec, module, subject.files.ranks.tp)
        if rows * bits // 8 % _TILE_BYTES or columns * bits // 8 % _TILE_BYTES:
            yield Breach(
                f"{module} is [{rows}, {columns}] on each rank: rows and columns of {bits}-bit weights must be "
                f"multiples of {_TILE_BYTES} bytes",
                tensor=f"{module_path(0, module)}.weight",
            )
