"""What a target is: one place that turns a hub checkpoint into an engine and runs it.

A target is a `Target` value in `registry.py`'s table; its functions import what is heavy when they are called.
An engine is a directory with a manifest of kind "engine" whose settings say target, limits and precision.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild.cards import Card
from trtbuild.checkpoint.spec import Decoder, DecoderSpec, Quantization
from trtbuild.errors import DoesNotFit, InputRefused, TrtbuildError
from trtbuild.progress import Progress
from trtbuild.quantize.precisions import Precision
from trtbuild.store.fingerprint import fingerprint_json
from trtbuild.store.manifest import Manifest, read_manifest
from trtbuild.targets.measured import ToolMeasurement
from trtbuild.targets.serving import Driver, Request, Scorer


@dataclass(frozen=True)
class Limits:
    """The limits an engine is built for, in TensorRT-LLM's terms; lengths count tokens of one sequence.

    `max_num_tokens` bounds the tokens of one engine step over all sequences (chunked context), `max_batch_size` the
    sequences in flight. `kv_pool_tokens` is the size of the paged KV pool; None means room for `max_batch_size`
    sequences of `max_seq_len`.
    """

    max_batch_size: int = 16
    max_input_len: int = 1024
    max_seq_len: int = 2048
    max_num_tokens: int = 2048
    kv_pool_tokens: int | None = None

    @property
    def pool_tokens(self) -> int:
        return self.max_batch_size * self.max_seq_len if self.kv_pool_tokens is None else self.kv_pool_tokens


@dataclass(frozen=True)
class BuildOptions:
    """What `trtbuild build` may be told besides the limits; a target refuses in preflight what it cannot honour.

    `tokenizer` is a folder whose tokenizer and generation config go into the engine when the checkpoint has none.
    `kv_cache` is the KV cache precision (the target's own default when None). `sms` are the SM versions to build for.
    `container` asks for the vendor's container image instead of local packages. `extra` are further words of the
    vendor's command, each checked against its flags before anything runs. A plan, which has no checkpoint yet, says
    with `tp` and `pp` how many ranks it is for and with `card` which GPU; a build takes the checkpoint's and this
    machine's.
    """

    tokenizer: Path | None = None
    kv_cache: str | None = None
    sms: tuple[int, ...] = ()
    container: str | None = None
    extra: tuple[str, ...] = ()
    tp: int = 1
    pp: int = 1
    card: Card | None = None


@dataclass(frozen=True)
class Availability:
    """Whether a step can run on this machine; when not, `reason` says why and `hint` what to do about it."""

    ok: bool
    reason: str = ""
    hint: str | None = None


@dataclass(frozen=True)
class Capability:
    """What of a target works here. Building needs less than running: TensorRT-RTX builds without a GPU."""

    build: Availability
    run: Availability
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """One result of preflight: the rule's name, the numbers, and the way out. Only `fatal` ones stop a build."""

    rule: str
    text: str
    hint: str | None = None
    fatal: bool = True
    error: type[TrtbuildError] = DoesNotFit
    """What a fatal one is raised as."""


@dataclass(frozen=True)
class Footprint:
    """What an engine needs, computed from the spec alone (no weights present)."""

    disk_bytes: int
    build_peak_bytes: int
    weights_bytes: int
    kv_bytes_per_token: int
    activation_bytes: int
    runtime_bytes: int
    """Of the runtime itself: libraries, kernels, and its own copies of the weights where it makes any."""
    kv_free_fraction: float | None = None
    """Share of the memory left free that the KV pool takes; None where the pool is exactly as large as asked for."""


@dataclass(frozen=True)
class Target:
    """A row of the registry. All functions are cheap to hold and import heavy packages only when called.

    `capability()` looks at package metadata and device files, never at the packages themselves.
    `preflight(decoder, limits, options)` needs neither weights nor the target's packages.
    `commands(checkpoint, out, limits, options)` are the exact command lines of the tool it would call; none when it
    builds in this process.
    `build(checkpoint, out, limits, options, progress)` writes the engine directory `out` whole or not at all.
    `footprint(spec, quantization, limits, options)` is what `trtbuild plan` shows.
    """

    name: str
    title: str
    capability: Callable[[], Capability]
    preflight: Callable[[Decoder, Limits, BuildOptions], list[Finding]]
    footprint: Callable[[DecoderSpec, Quantization, Limits, BuildOptions], Footprint]
    build: Callable[[Path, Path, Limits, BuildOptions, Progress], Path]
    open_driver: Callable[[Path], Driver]
    open_scorer: Callable[[Path], Scorer]
    commands: Callable[[Path, Path, Limits, BuildOptions], list[list[str]]] = lambda *_: []
    examine: Callable[[Path], Mapping[str, Any]] = lambda _: {}
    """What `trtbuild inspect` can say of an engine's own files beyond the manifest, without the target's packages."""
    measure: Callable[..., ToolMeasurement] | None = None
    """For engines that only a vendor's tool can drive: `measure(engine, requests, concurrencies, *, warmup, log,
    progress)` runs that tool; `open_driver` and `open_scorer` then raise MachineLacks."""
    launch: Callable[[Path], list[tuple[str, list[str]]]] = lambda _: []
    """How to start an engine outside trtbuild: (purpose, command line) pairs."""
    runs: Callable[[Precision], bool] = lambda _: True
    """Whether the target can have an engine of a precision at all, whatever the limits."""
    on_gpu: bool = True
    """Whether engines live in GPU memory; False for host memory."""


@dataclass(frozen=True)
class Engine:
    """A built engine as its manifest describes it."""

    path: Path
    target: str
    limits: Limits
    settings: Mapping[str, Any]
    manifest: Manifest

    def fingerprint(self) -> str:
        """Of what decides how the engine answers: its files, what it was made from, and what was asked of it.

        All three, because the files alone do not tell the type of the KV cache. The other settings follow from these,
        or were measured while building, and then differ between two builds of one engine.
        """
        return fingerprint_json(
            {
                "files": self.manifest.content_hashes(),
                "inputs": dict(self.manifest.inputs),
                "asked": {name: self.settings.get(name) for name in IDENTITY},
            }
        )


def fit_limits(base: Limits, spec: DecoderSpec, explicit: Mapping[str, int]) -> Limits:
    """Defaults shortened to what the model can hold, then the values a person gave, which are taken as they are."""
    max_seq_len = explicit.get("max_seq_len", min(base.max_seq_len, spec.max_position_embeddings))
    fitted = dataclasses.replace(
        base, max_seq_len=max_seq_len, max_input_len=max(1, min(base.max_input_len, max_seq_len - 1))
    )
    return dataclasses.replace(fitted, **explicit)


def limit_findings(spec: DecoderSpec, limits: Limits) -> list[Finding]:
    """The rules about limits that hold for every target."""
    findings = []

    def check(broken: bool, rule: str, text: str, hint: str) -> None:
        if broken:
            findings.append(Finding(rule, text, hint))

    for name in ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens"):
        value = getattr(limits, name)
        check(value < 1, name, f"{name} is {value}", f"give a positive {name}")
    check(
        limits.max_input_len > limits.max_seq_len,
        "max_input_len",
        f"max_input_len {limits.max_input_len} is above max_seq_len {limits.max_seq_len}",
        f"lower max_input_len to at most {limits.max_seq_len - 1} or raise max_seq_len",
    )
    check(
        limits.max_seq_len > spec.max_position_embeddings,
        "max_position_embeddings",
        f"max_seq_len {limits.max_seq_len} is above the model's {spec.max_position_embeddings} positions",
        f"lower max_seq_len to {spec.max_position_embeddings}",
    )
    check(
        limits.pool_tokens < limits.max_seq_len,
        "kv_pool",
        f"a KV pool of {limits.pool_tokens} tokens cannot hold one sequence of max_seq_len {limits.max_seq_len}",
        f"give the pool at least {limits.max_seq_len} tokens",
    )
    return findings


def refusal(request: Request, limits: Limits, vocab_size: int, in_flight: Container[int]) -> str | None:
    """Why an engine's limits or the protocol cannot take a request, None when they can."""
    length = len(request.token_ids)
    if request.id in in_flight:
        return f"request id {request.id} is in flight already"
    if length == 0:
        return "the prompt is empty"
    if length >= limits.max_seq_len:
        return f"the prompt has {length} tokens, max_seq_len {limits.max_seq_len} leaves no room to answer"
    if length > limits.max_input_len:
        return f"the prompt has {length} tokens, max_input_len is {limits.max_input_len}"
    if request.max_new_tokens < 1:
        return f"max_new_tokens is {request.max_new_tokens}"
    if not 0 <= min(request.token_ids) <= max(request.token_ids) < vocab_size:
        return f"a token id is outside the vocabulary of {vocab_size}"
    if request.temperature < 0 or not 0 < request.top_p <= 1:
        return f"temperature {request.temperature} or top_p {request.top_p} is out of range"
    return None


def refuse_fatal(findings: list[Finding], where: str | Path) -> None:
    """Raise the first fatal finding as the error it names."""
    for finding in findings:
        if finding.fatal:
            raise finding.error(f"{finding.rule}: {finding.text}", where=where, hint=finding.hint)


IDENTITY = ("target", "limits", "options")
"""The settings that `engine_identity` makes."""


def engine_identity(target: str, limits: Limits, options: BuildOptions) -> dict[str, Any]:
    """What was asked of an engine besides its checkpoint: two engines of one checkpoint that agree in it are the same.

    The tokenizer is not in it, because an engine's inputs have that tokenizer's fingerprint.
    """
    asked = {
        "kv_cache": options.kv_cache,
        "sms": list(options.sms),
        "container": options.container,
        "extra": list(options.extra),
        "tp": options.tp,
        "pp": options.pp,
    }
    return {
        "target": target,
        "limits": {**dataclasses.asdict(limits), "kv_pool_tokens": limits.pool_tokens},
        "options": asked,
    }


def engine_settings(
    target: str, limits: Limits, options: BuildOptions, decoder: Decoder, **more: Any
) -> dict[str, Any]:
    """The manifest settings of an engine, spelled alike for every target."""
    return {
        **engine_identity(target, limits, options),
        "dtype": decoder.spec.dtype,
        "quant_algo": decoder.quantization.quant_algo,
        "kv_cache_quant_algo": decoder.quantization.kv_cache_quant_algo,
        **more,
    }


def read_engine(path: Path) -> Engine:
    """Read an engine directory's manifest; raises InputRefused when it is not a whole engine that trtbuild built."""
    manifest = read_manifest(path) if path.is_dir() else None
    if manifest is None or manifest.kind != "engine":
        what = "no such folder" if not path.exists() else "not an engine folder"
        raise InputRefused(what, where=path, hint="build one with `trtbuild build CHECKPOINT -o ENGINE`")
    try:
        limits = Limits(**manifest.settings["limits"])
        return Engine(path, str(manifest.settings["target"]), limits, manifest.settings, manifest)
    except (KeyError, TypeError) as error:
        raise InputRefused(
            f"the engine's manifest lacks {error}", where=path, hint="build the engine again with this trtbuild"
        ) from error
