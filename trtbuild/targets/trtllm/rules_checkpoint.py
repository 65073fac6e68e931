"""Pre-flight rules about the checkpoint: algorithm, heads, how it is cut over ranks, scales, tokenizer."""

from __future__ import annotations

from collections.abc import Iterator

from trtbuild.checkpoint.spec import LINEAR_MODULES
from trtbuild.checkpoint.trtllm_sharding import legal_pp, legal_tp, tp_obstacle
from trtbuild.errors import InputRefused, did_you_mean
from trtbuild.targets.trtllm.footprint import rank_spec
from trtbuild.targets.trtllm.rules import SMOOTHQUANT, WEIGHT_ONLY, Problem, Rule, Situation

BUILDABLE = (
    *WEIGHT_ONLY,
    *SMOOTHQUANT,
    "W4A8_QSERVE_PER_GROUP",
    "W4A8_QSERVE_PER_CHANNEL",
    "FP8",
    "FP8_PER_CHANNEL_PER_TOKEN",
    "MIXED_PRECISION",
    "NVFP4",
)
"""quant_algo names that the engine path builds; INT8, FP8_BLOCK_SCALES and the MXFP4 ones are for other backends."""

KV_ALGOS = ("INT8", "FP8", "NVFP4")

HEAD_SIZES = (32, 48, 64, 80, 96, 104, 112, 128, 144, 160, 192, 224, 256)
"""Head sizes the attention plugin has generation kernels for (its `decoderMaskedMultiheadAttention` instantiations)."""

_GROUPED = {"W4A16_AWQ": 128, "W4A8_AWQ": 128, "W4A16_GPTQ": 128, "NVFP4": 16}
_DTYPE_NAMES = {"float32": "FP32", "float16": "FP16", "bfloat16": "BF16"}
_PACKED_ALIGNMENT_BYTES = 32
_WEIGHT_BYTES = {"W8A16": 1.0, "W4A16": 0.5, "W4A16_AWQ": 0.5, "W4A8_AWQ": 0.5}


def _quant_algo(s: Situation) -> Iterator[Problem]:
    algo, kv = s.quantization.quant_algo, s.quantization.kv_cache_quant_algo
    if algo is not None and algo not in BUILDABLE:
        hint = did_you_mean(algo, BUILDABLE) or f"one of {', '.join(BUILDABLE)}"
        if algo == "INT8":
            hint = "INT8 weights and activations are W8A8_SQ_PER_CHANNEL: `trtbuild quantize -p int8`"
        yield Problem(f"quant_algo {algo} is not one that trtllm-build can build", hint)
    if kv is not None and kv not in KV_ALGOS:
        yield Problem(f"kv_cache_quant_algo {kv} does not exist", f"one of {', '.join(KV_ALGOS)}, or null")


def _divisibility(s: Situation) -> Iterator[Problem]:
    tp, pp = s.ranks.tp, s.ranks.pp
    obstacle = tp_obstacle(s.spec, tp)
    if obstacle:
        yield Problem(obstacle, f"tp can be {', '.join(map(str, legal_tp(s.spec)))}")
    if s.spec.num_layers % pp:
        yield Problem(
            f"{s.spec.num_layers} layers are not divisible by pp {pp}",
            f"pp can be {', '.join(map(str, legal_pp(s.spec)))}",
        )


def _head_size(s: Situation) -> Iterator[Problem]:
    if s.spec.head_size not in HEAD_SIZES:
        yield Problem(
            f"head_size {s.spec.head_size}: the attention plugin has no kernel for it",
            f"it has {', '.join(map(str, HEAD_SIZES))}; the cpu target runs any",
        )


def _groups(s: Situation) -> Iterator[Problem]:
    algo = s.quantization.quant_algo or ""
    if algo not in _GROUPED:
        return
    group = s.quantization.group_size or _GROUPED[algo]
    if algo != "NVFP4" and group not in (64, 128):
        yield Problem(f"group_size {group}: the groupwise kernels have 64 and 128", "quantize with group_size 128")
        return
    local = rank_spec(s.spec, s.ranks)
    for module in LINEAR_MODULES:
        inputs = local.linear_shape(module)[1]
        if inputs % group:
            legal = [
                tp
                for tp in legal_tp(s.spec)
                if s.spec.linear_shape(module)[1] % (tp * group) == 0 or module not in ("attention.dense", "mlp.proj")
            ]
            way = f"tp can be {', '.join(map(str, legal))}" if legal else f"{algo} cannot hold this model"
            yield Problem(f"{module} has {inputs} inputs per rank, not a multiple of group_size {group}", way)


def _packed_alignment(s: Situation) -> Iterator[Problem]:
    width = _WEIGHT_BYTES.get(s.quantization.quant_algo or "")
    if width is None:
        return
    local = rank_spec(s.spec, s.ranks)
    for module in LINEAR_MODULES:
        for side, length in zip(("outputs", "inputs"), local.linear_shape(module), strict=True):
            if (length * width) % _PACKED_ALIGNMENT_BYTES:
                yield Problem(
                    f"{module} has {length} {side} per rank = {length * width:g} bytes, the kernels of "
                    f"{s.quantization.quant_algo} need a multiple of {_PACKED_ALIGNMENT_BYTES}",
                    "use a smaller tp, or int8 or fp16",
                )


def _kv_cache(s: Situation) -> Iterator[Problem]:
    asked = (s.requested_kv_cache or "auto").upper()
    if asked in ("AUTO", (s.quantization.kv_cache_quant_algo or _DTYPE_NAMES[s.spec.dtype])):
        return
    if asked in KV_ALGOS:
        yield Problem(
            f"{asked} KV cache needs scaling factors from calibration, and the checkpoint has none",
            f"quantize again with a {asked} KV cache; without its scales the builder ends in a calibration failure",
        )
    else:
        yield Problem(
            f"KV cache {asked.lower()} is not one of a TensorRT-LLM engine",
            "leave --kv-cache out: the checkpoint decides",
        )


def _dtype(s: Situation) -> Iterator[Problem]:
    if s.spec.dtype == "float32":
        yield Problem(
            "float32 runs without fused attention: no KV block reuse, no chunked context, slow",
            "fp16 or bf16 is what these engines are made for",
            False,
        )


def _sliding_window(s: Situation) -> Iterator[Problem]:
    window = s.spec.sliding_window
    if window is not None and s.limits.max_seq_len > window:
        yield Problem(
            f"the model attends to the last {window} tokens; the engine does so only when the runtime is told",
            f"start it with max_attention_window {window}, as `trtbuild`'s launch lines do",
            False,
        )


def _tokenizer(s: Situation) -> Iterator[Problem]:
    if not s.has_tokenizer:
        yield Problem("the checkpoint carries no tokenizer.json", "give its folder with --tokenizer DIR")


RULES: tuple[Rule, ...] = (
    Rule("quant-algo", _quant_algo, InputRefused),
    Rule("head-size", _head_size, InputRefused),
    Rule("kv-cache", _kv_cache, InputRefused),
    Rule("dtype", _dtype, InputRefused),
    Rule("sliding-window", _sliding_window, InputRefused),
    Rule("tokenizer", _tokenizer, InputRefused),
)

PLAN_RULES: tuple[Rule, ...] = (
    Rule("divisibility", _divisibility, InputRefused),
    Rule("groups", _groups, InputRefused),
    Rule("packed-alignment", _packed_alignment, InputRefused),
)
"""What `checkpoint.trtllm_validate` finds in a written checkpoint, said of one that is only planned."""
