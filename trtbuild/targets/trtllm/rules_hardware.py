"""Pre-flight rules about the GPU and the host: which precision runs on which SM, and what fits where."""

from __future__ import annotations

from collections.abc import Iterator

from trtbuild.checkpoint.trtllm_sharding import legal_tp
from trtbuild.errors import MachineLacks, UsageError
from trtbuild.targets.base import BuildOptions
from trtbuild.targets.trtllm.footprint import footprint, kv_bytes_per_token, weights_bytes
from trtbuild.targets.trtllm.rules import SMOOTHQUANT, WEIGHT_ONLY, Problem, Rule, Situation

_MIN_SM = {"FP8": 89, "FP8_PER_CHANNEL_PER_TOKEN": 89, "W4A8_AWQ": 89, "NVFP4": 100}
_PER_CHANNEL_PER_TOKEN = ("FP8_PER_CHANNEL_PER_TOKEN",)
_SM100_PLUGINS = (
    "--gemm_swiglu_plugin",
    "--fp8_rowwise_gemm_plugin",
    "--low_latency_gemm_plugin",
    "--low_latency_gemm_swiglu_plugin",
    "--bert_context_fmha_fp32_acc",
)


def _one_sm(s: Situation) -> Iterator[Problem]:
    if len(s.requested_sms) > 1:
        listed = ", ".join(map(str, s.requested_sms))
        yield Problem(
            f"a TensorRT-LLM engine is for one SM, not for {listed}", "build on a GPU of each, one engine each"
        )
    elif s.requested_sms and s.device.count and s.device.sm != s.requested_sms[0]:
        yield Problem(
            f"trtllm-build builds for the GPU it runs on, SM {s.device.sm}, not for SM {s.requested_sms[0]}",
            "leave --sm out, or build on that GPU",
        )


def _blackwell(s: Situation) -> Iterator[Problem]:
    if not s.sm_within(100, 120):
        return
    algo, kv = s.quantization.quant_algo, s.quantization.kv_cache_quant_algo
    hint = "quantize to fp8 or nvfp4 for this GPU"
    if algo in (*WEIGHT_ONLY, *SMOOTHQUANT, *_PER_CHANNEL_PER_TOKEN):
        yield Problem(f"{algo} is refused on SM {s.device.sm} (all of SM 100-119)", hint)
    if kv == "INT8":
        yield Problem(f"INT8 KV cache is refused on SM {s.device.sm} (all of SM 100-119)", "use an FP8 KV cache")


def _sm100_plugins(s: Situation) -> Iterator[Problem]:
    if s.device.sm == 100:
        for flag in _SM100_PLUGINS:
            if s.on(flag):
                yield Problem(f"{flag} is not supported on SM 100", "leave it out")


def _swiglu_plugin(s: Situation) -> Iterator[Problem]:
    if s.on("--gemm_swiglu_plugin") and s.device.sm not in (None, 90, 100):
        yield Problem(f"--gemm_swiglu_plugin is for Hopper (SM 90), not SM {s.device.sm}", "leave it out")


def _minimum_sm(s: Situation) -> Iterator[Problem]:
    if s.device.sm is None:
        return
    algo, kv = s.quantization.quant_algo, s.quantization.kv_cache_quant_algo
    needed = _MIN_SM.get(algo or "", 0)
    if s.device.sm < needed:
        yield Problem(
            f"{algo} needs SM {needed} or newer, {s.device.name} is SM {s.device.sm}",
            "quantize to int8, int8-wo or int4-awq",
        )
    if kv in ("FP8", "NVFP4") and s.device.sm < _MIN_SM[kv]:
        yield Problem(
            f"{kv} KV cache needs SM {_MIN_SM[kv]} or newer, {s.device.name} is SM {s.device.sm}",
            "leave the KV cache unquantized",
        )
    if s.spec.dtype == "bfloat16" and s.device.sm < 80:
        yield Problem(f"bfloat16 needs SM 80 or newer, {s.device.name} is SM {s.device.sm}", "quantize to fp16")
    elif s.device.sm < 80:
        yield Problem(f"SM {s.device.sm} is older than what NVIDIA lists for these releases", None, False)


def _gpu_memory(s: Situation) -> Iterator[Problem]:
    memory = s.device.memory_bytes
    if not memory:
        return
    need = footprint(s.spec, s.quantization, s.limits, BuildOptions(tp=s.ranks.tp, pp=s.ranks.pp))
    fixed = need.weights_bytes + need.activation_bytes + need.runtime_bytes
    one = need.kv_bytes_per_token * s.limits.max_seq_len
    if fixed + one <= memory:
        return
    fits = [tp for tp in legal_tp(s.spec) if _fixed_bytes(s, tp) + one // tp * s.ranks.tp <= memory]
    shorter = (memory - fixed) // max(1, need.kv_bytes_per_token)
    ways = [f"max_seq_len {shorter}"] if shorter > 0 else []
    ways += [f"tensor parallelism over {fits[0]} GPUs (quantize --tp {fits[0]})"] if fits else []
    yield Problem(
        f"weights {_gib(need.weights_bytes)} + activations {_gib(need.activation_bytes)} + runtime "
        f"{_gib(need.runtime_bytes)} + KV of one sequence {_gib(one)} exceed the {_gib(memory)} of {s.device.name}",
        f"fits: {' or '.join(ways)}" if ways else "choose a precision with fewer bits, or a larger GPU",
    )


def _fixed_bytes(s: Situation, tp: int) -> int:
    need = footprint(s.spec, s.quantization, s.limits, BuildOptions(tp=tp, pp=s.ranks.pp))
    return need.weights_bytes + need.activation_bytes + need.runtime_bytes


def _host_memory(s: Situation) -> Iterator[Problem]:
    if s.host_available_bytes is None:
        return
    source = weights_bytes(s.spec, s.quantization, s.ranks, checkpoint=True)
    together = s.ranks.world if s.number("--workers") == 1 else min(s.number("--workers"), s.ranks.world)
    need = source * together
    if need > s.host_available_bytes:
        yield Problem(
            f"{together} rank(s) of {_gib(source)} are held at once, of {_gib(s.host_available_bytes)} host memory "
            "available; the kernel would kill the build",
            "build on a host with more memory, or in fewer processes",
        )
    elif 2 * need > s.host_available_bytes:
        yield Problem(
            f"{_gib(need)} of weights and {_gib(s.host_available_bytes)} of host memory: users report builds that "
            "take several times the weights",
            None,
            False,
        )


def _gpus_for_ranks(s: Situation) -> Iterator[Problem]:
    if s.device.count and s.ranks.world > s.device.count:
        yield Problem(
            f"{s.ranks.world} ranks and {s.device.count} GPU(s): the ranks are built one after the other; "
            f"running needs {s.ranks.world} GPUs",
            None,
            False,
        )


def _kv_pool(s: Situation) -> Iterator[Problem]:
    per_token = kv_bytes_per_token(s.spec, s.quantization, s.ranks)
    if s.limits.pool_tokens < s.limits.max_seq_len:
        yield Problem(
            f"a KV pool of {s.limits.pool_tokens} tokens ({per_token} bytes each) cannot hold one sequence of "
            f"max_seq_len {s.limits.max_seq_len}",
            f"give the pool at least {s.limits.max_seq_len} tokens",
        )


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:.2f} GiB"


RULES: tuple[Rule, ...] = (
    Rule("one-sm", _one_sm, UsageError),
    Rule("blackwell-int8", _blackwell, MachineLacks),
    Rule("sm100-plugins", _sm100_plugins, MachineLacks),
    Rule("swiglu-plugin", _swiglu_plugin, MachineLacks),
    Rule("minimum-sm", _minimum_sm, MachineLacks),
    Rule("kv-pool", _kv_pool),
    Rule("gpu-memory", _gpu_memory),
    Rule("host-memory", _host_memory),
    Rule("gpus-for-ranks", _gpus_for_ranks),
)
