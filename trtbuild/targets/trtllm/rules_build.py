"""Pre-flight rules about flags and limits: what `build()` and the trtllm-build command enforce or silently change."""

from __future__ import annotations

from collections.abc import Iterator

from trtbuild.errors import UsageError
from trtbuild.targets.trtllm.command import FP8_WEIGHTS, TOKENS_PER_BLOCK
from trtbuild.targets.trtllm.flags import OURS
from trtbuild.targets.trtllm.rules import WEIGHT_ONLY, Problem, Rule, Situation

MAX_VOLUME = 2**31 - 1
"""Elements TensorRT allows in one tensor."""

_USUAL_MAX_NUM_TOKENS = 16384
_REQUIRED_FOR_IN_FLIGHT = {
    "--gpt_attention_plugin": "attention plugin",
    "--remove_input_padding": "packed input",
    "--kv_cache_type": "paged KV cache",
}
_SCALES_LEFT_OUT = ("su", "longrope", "llama3")
"""Rope types whose factor does not stretch max_position_embeddings: it already counts the long context."""


def _flags(s: Situation) -> Iterator[Problem]:
    for bad in s.bad_flags:
        yield Problem(bad.text, bad.hint)


def _own_paths(s: Situation) -> Iterator[Problem]:
    for flag in OURS:
        if flag in s.given:
            yield Problem(f"{flag} is decided by trtbuild", "leave it out")
    for flag in ("--model_config", "--model_cls_file", "--model_cls_name"):
        if flag in s.given:
            yield Problem(f"{flag} would build something else than the checkpoint", "leave it out")
    if "--build_config" in s.given:
        yield Problem("--build_config makes trtllm-build ignore every size flag", "give the sizes as flags instead")
    for flag in ("--dry_run", "--visualize_network"):
        if flag in s.given:
            yield Problem(f"{flag} leaves no engine", "use `trtbuild build --dry-run`, which needs no GPU")


def _in_flight_batching(s: Situation) -> Iterator[Problem]:
    wrong = {"--kv_cache_type": s.flags["--kv_cache_type"] != "paged"}
    wrong |= {flag: not s.on(flag) for flag in _REQUIRED_FOR_IN_FLIGHT if flag not in wrong}
    off = [f"{_REQUIRED_FOR_IN_FLIGHT[flag]} ({flag} {s.flags[flag]})" for flag, bad in wrong.items() if bad]
    if off:
        yield Problem(
            f"in-flight batching needs attention plugin, packed input and paged KV; off: {', '.join(off)}",
            f"leave {' and '.join(flag for flag, bad in wrong.items() if bad)} out",
        )


def _paged_kv_agrees(s: Situation) -> Iterator[Problem]:
    if "--paged_kv_cache" in s.given:
        yield Problem(
            f"--paged_kv_cache {s.given['--paged_kv_cache']} is deprecated and must agree with --kv_cache_type "
            f"{s.flags['--kv_cache_type']}",
            "leave it out: the KV cache is paged",
        )


def _context_fmha(s: Situation) -> Iterator[Problem]:
    if not s.on("--context_fmha"):
        for flag in ("--use_paged_context_fmha", "--use_fp8_context_fmha"):
            if s.given.get(flag) == "enable":
                yield Problem(f"{flag} enable is switched off by --context_fmha disable", "enable --context_fmha")


def _int8_kv(s: Situation) -> Iterator[Problem]:
    if s.quantization.kv_cache_quant_algo != "INT8":
        return
    if s.given.get("--use_paged_context_fmha") == "enable":
        yield Problem(
            "INT8 KV cache switches --use_paged_context_fmha off", "leave the flag out, or quantize the KV cache to FP8"
        )
    yield Problem(
        "INT8 KV cache: no KV block reuse and no chunked context", "FP8 KV cache on SM 89 or newer keeps both", False
    )


def _fp8_kv(s: Situation) -> Iterator[Problem]:
    if s.quantization.kv_cache_quant_algo == "FP8" and s.quantization.quant_algo not in FP8_WEIGHTS:
        yield Problem(
            f"FP8 KV cache with {s.quantization.quant_algo or 'unquantized'} weights: no KV block reuse and no chunked "
            "context",
            f"weights of {', '.join(FP8_WEIGHTS)} keep both",
            s.given.get("--use_paged_context_fmha") == "enable",
        )


def _fp8_context_fmha(s: Situation) -> Iterator[Problem]:
    if s.given.get("--use_fp8_context_fmha") == "enable" and s.quantization.quant_algo not in FP8_WEIGHTS:
        yield Problem(
            f"FP8 context FMHA is switched off for {s.quantization.quant_algo or 'unquantized'} weights",
            f"leave it out, or quantize to one of {', '.join(FP8_WEIGHTS)}",
        )


def _limits(s: Situation) -> Iterator[Problem]:
    for name in ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens", "max_beam_width"):
        if s.number(f"--{name}") < 1:
            yield Problem(f"{name} is {s.number(f'--{name}')}", f"give a positive {name}")
    longest, total = s.number("--max_input_len"), s.number("--max_seq_len")
    if longest > total:
        yield Problem(
            f"max_input_len {longest} is above max_seq_len {total}", f"lower max_input_len to at most {total - 1}"
        )


def _positions(s: Situation) -> Iterator[Problem]:
    scaling = s.spec.rope.scaling or {}
    factor = 1.0 if scaling.get("rope_type") in _SCALES_LEFT_OUT else float(scaling.get("factor") or 1.0)
    positions, length = int(s.spec.max_position_embeddings * factor), s.number("--max_seq_len")
    if length > positions:
        yield Problem(
            f"max_seq_len {length} is above the {positions} positions of the model "
            f"({s.spec.max_position_embeddings} × rope factor {factor:g}); trtllm-build would only warn",
            f"lower max_seq_len to {positions}",
        )


def _max_num_tokens(s: Situation) -> Iterator[Problem]:
    tokens, batch = s.number("--max_num_tokens"), s.number("--max_batch_size")
    total = batch * s.number("--max_seq_len")
    block = s.number("--tokens_per_block")
    if s.on("--context_fmha") and tokens < block:
        yield Problem(
            f"max_num_tokens {tokens} is less than one KV block of {block} tokens", f"give at least {block} tokens"
        )
    if tokens < batch:
        yield Problem(
            f"max_num_tokens {tokens} is less than max_batch_size {batch}: a step could not serve every sequence",
            f"raise max_num_tokens to at least {batch} or lower max_batch_size to {tokens}",
        )
    if tokens > total:
        text = f"max_num_tokens {tokens} is above max_batch_size × max_seq_len = {total}; trtllm-build reduces it"
        yield Problem(text, f"lower max_num_tokens to {total}", False)
    elif tokens > _USUAL_MAX_NUM_TOKENS:
        yield Problem(f"max_num_tokens {tokens} above {_USUAL_MAX_NUM_TOKENS} costs activation memory", None, False)


def _prompt_in_one_step(s: Situation) -> Iterator[Problem]:
    if s.settings.paged_context and s.on("--use_paged_context_fmha") and s.on("--context_fmha"):
        return
    tokens, longest = s.number("--max_num_tokens"), s.number("--max_input_len")
    if tokens < longest:
        yield Problem(
            f"without chunked context a prompt of max_input_len {longest} must fit max_num_tokens {tokens}",
            f"raise max_num_tokens to {longest} or lower max_input_len to {tokens}",
        )


def _opt_num_tokens(s: Situation) -> Iterator[Problem]:
    tokens = s.given.get("--opt_num_tokens")
    if tokens is None:
        return
    if s.on("--multiple_profiles"):
        yield Problem("--opt_num_tokens cannot go with --multiple_profiles enable", "leave one of the two out")
    if isinstance(tokens, int) and not 0 < tokens <= s.number("--max_num_tokens"):
        most = s.number("--max_num_tokens")
        yield Problem(f"opt_num_tokens {tokens} is not within 1 … max_num_tokens {most}", f"lower it to {most}")


def _tokens_per_block(s: Situation) -> Iterator[Problem]:
    block = s.number("--tokens_per_block")
    if block < 1 or block & (block - 1):
        yield Problem(f"tokens_per_block {block} is not a power of two", f"leave it at {TOKENS_PER_BLOCK}")


def _draft_logits(s: Situation) -> Iterator[Problem]:
    gathers = s.given.get("--gather_context_logits") or s.given.get("--gather_all_token_logits")
    if gathers and s.number("--max_draft_len") > 0:
        yield Problem("context logits cannot be gathered with max_draft_len > 0", "leave one of the two out")


def _tensor_volume(s: Situation) -> Iterator[Problem]:
    tokens, tp = s.number("--max_num_tokens"), s.ranks.tp
    widths = {
        "hidden_size": s.spec.hidden_size,
        "qkv rows": (s.spec.q_rows + 2 * s.spec.kv_rows) // tp,
        "intermediate_size": s.spec.intermediate_size // tp,
    }
    if s.given.get("--gather_context_logits") or s.given.get("--gather_all_token_logits"):
        widths["vocab_size"] = s.spec.vocab_size
    name, width = max(widths.items(), key=lambda item: item[1])
    if tokens * width > MAX_VOLUME:
        yield Problem(
            f"max_num_tokens {tokens} × {name} {width} is above 2^31 - 1, which TensorRT refuses",
            f"lower max_num_tokens to at most {MAX_VOLUME // width}",
        )
    batch, length = s.number("--max_batch_size"), s.number("--max_seq_len")
    if batch * length > MAX_VOLUME:
        yield Problem(
            f"max_batch_size {batch} × max_seq_len {length} is above 2^31 - 1",
            f"lower max_batch_size to at most {MAX_VOLUME // length}",
        )


def _fused_mlp(s: Situation) -> Iterator[Problem]:
    algo = s.quantization.quant_algo
    if s.given.get("--use_fused_mlp") == "enable" and algo not in (None, "FP8", "MIXED_PRECISION"):
        yield Problem(f"--use_fused_mlp is switched off for {algo}", "leave it out")


def _single_family_switches(s: Situation) -> Iterator[Problem]:
    if s.on("--reduce_fusion") and (s.ranks.tp == 1 or s.spec.family != "llama"):
        yield Problem(
            f"--reduce_fusion needs tensor parallelism and a llama (tp {s.ranks.tp}, {s.spec.family})", "leave it out"
        )
    if s.on("--user_buffer") and not (s.on("--reduce_fusion") and s.quantization.quant_algo == "FP8"):
        yield Problem("--user_buffer needs --reduce_fusion and FP8 weights", "leave it out")
    if s.on("--pp_reduce_scatter"):
        yield Problem("--pp_reduce_scatter is for Mixtral only", "leave it out")
    if s.on("--streamingllm"):
        yield Problem("--streamingllm was removed in 1.1", "leave it out")


def _fast_build(s: Situation) -> Iterator[Problem]:
    if s.given.get("--fast_build") and s.quantization.quant_algo in WEIGHT_ONLY:
        yield Problem(f"--fast_build does not go with {s.quantization.quant_algo}", "leave it out")


def _workers(s: Situation) -> Iterator[Problem]:
    workers = s.number("--workers")
    if workers < 1:
        yield Problem(f"workers is {workers}: the process pool of trtllm-build crashes", "give at least 1")
    elif s.device.count and workers > s.device.count:
        yield Problem(f"workers {workers} is clamped to the {s.device.count} GPU(s) here", None, False)


RULES: tuple[Rule, ...] = (
    Rule("flags", _flags, UsageError),
    Rule("own-paths", _own_paths, UsageError),
    Rule("limits", _limits, UsageError),
    Rule("in-flight-batching", _in_flight_batching, UsageError),
    Rule("paged-kv-agrees", _paged_kv_agrees, UsageError),
    Rule("context-fmha", _context_fmha, UsageError),
    Rule("int8-kv-cache", _int8_kv),
    Rule("fp8-kv-cache", _fp8_kv),
    Rule("fp8-context-fmha", _fp8_context_fmha, UsageError),
    Rule("positions", _positions),
    Rule("tokens-per-block", _tokens_per_block, UsageError),
    Rule("max-num-tokens", _max_num_tokens),
    Rule("prompt-in-one-step", _prompt_in_one_step),
    Rule("opt-num-tokens", _opt_num_tokens, UsageError),
    Rule("tensor-volume", _tensor_volume),
    Rule("draft-logits", _draft_logits, UsageError),
    Rule("fused-mlp", _fused_mlp, UsageError),
    Rule("single-family-switches", _single_family_switches, UsageError),
    Rule("fast-build", _fast_build, UsageError),
    Rule("workers", _workers, UsageError),
)
