"""Profiles: what a deployment must achieve, what is built for it and how it is measured, as one checked YAML file.

The description of each field here is the only text about it: `docs/profiles.md` and every error are made from it.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from trtbuild.data import PROFILES
from trtbuild.errors import UsageError
from trtbuild.strict_yaml import Document, read_yaml

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

_Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
_Positive = Annotated[float, Field(gt=0)]
_NotNegative = Annotated[float, Field(ge=0)]


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ValueError(otherwise)


@dataclass(frozen=True, config=_STRICT)
class Calibration:
    """How INT8 is calibrated."""

    method: Annotated[
        Literal["auto", "entropy", "max", "percentile", "mse"],
        Field(description="How thresholds are chosen; `auto` takes, tensor by tensor, what loses least."),
    ] = "auto"
    samples: Annotated[_Count, Field(description="Samples of calibration text.")] = 128
    seq_len: Annotated[_Count, Field(ge=2, description="Tokens in each sample.")] = 512


@dataclass(frozen=True, config=_STRICT)
class EngineLimits:
    """The limits every engine is built for, in TensorRT-LLM's terms."""

    max_batch_size: Annotated[_Count, Field(description="Sequences in flight.")] = 16
    max_input_len: Annotated[_Count, Field(description="Longest prompt, in tokens.")] = 1024
    max_seq_len: Annotated[_Count, Field(description="Longest prompt plus answer, in tokens.")] = 2048
    max_num_tokens: Annotated[
        _Count,
        Field(description="Tokens of one engine step over all sequences; longer prompts are processed in chunks."),
    ] = 2048
    kv_pool_tokens: Annotated[
        _Count | None,
        Field(description="Size of the paged KV pool, in tokens; null is `max_batch_size` full sequences."),
    ] = None

    @model_validator(mode="after")
    def _consistent(self) -> EngineLimits:
        _require(self.max_input_len < self.max_seq_len, "max_input_len must be below max_seq_len")
        _require(self.max_num_tokens >= self.max_batch_size, "max_num_tokens must be at least max_batch_size")
        pool = self.kv_pool_tokens
        _require(pool is None or pool >= self.max_seq_len, "kv_pool_tokens must hold one sequence of max_seq_len")
        return self


@dataclass(frozen=True, config=_STRICT)
class Slo:
    """What users are promised. Goodput counts the requests that meet all of it; null promises nothing."""

    ttft_ms: Annotated[_Positive | None, Field(description="Time to first token, in milliseconds.")] = None
    tpot_ms: Annotated[_Positive | None, Field(description="Time per output token after the first.")] = None
    latency_p99_ms: Annotated[
        _Positive | None, Field(description="Latency of a whole answer: of each request, and at the 99th percentile.")
    ] = None
    rate_qps: Annotated[_Positive | None, Field(description="Requests per second at which all of this must hold.")] = (
        None
    )


@dataclass(frozen=True, config=_STRICT)
class Quality:
    """What a precision may lose against the baseline; null does not limit."""

    max_perplexity_change_pct: Annotated[_NotNegative | None, Field(description="Rise of perplexity, in percent.")] = (
        None
    )
    max_kl: Annotated[
        _NotNegative | None, Field(description="Mean KL divergence from the baseline, in nats per token.")
    ] = None
    min_top1_pct: Annotated[
        float | None, Field(ge=0, le=100, description="Positions where the most likely token is the same, in percent.")
    ] = None
    within_measurement_error: Annotated[
        bool,
        Field(
            description="Allow no loss that can be told from none: the interval of the paired perplexity difference "
            "must reach zero, or the difference stay below `rounding_pct`."
        ),
    ] = False
    rounding_pct: Annotated[
        _NotNegative,
        Field(description="Perplexity difference, in percent, that mere rounding of equal models explains."),
    ] = 0.05


@dataclass(frozen=True, config=_STRICT)
class Workload:
    """The load an engine is measured under."""

    prompts: Annotated[
        Literal["chat", "synthetic"],
        Field(description="`chat` is built-in text through the model's chat template, `synthetic` random token ids."),
    ] = "chat"
    prompt_tokens: Annotated[
        tuple[_Count, ...], Field(min_length=1, description="Lengths of prompts, in tokens, in turn.")
    ] = (64, 128, 256)
    output_tokens: Annotated[_Count, Field(description="Tokens of every answer.")] = 64
    ignore_eos: Annotated[
        bool, Field(description="Generate `output_tokens` even where the model would stop, so that runs compare.")
    ] = True
    concurrency: Annotated[
        tuple[_Count, ...], Field(min_length=1, description="Requests in flight, one closed-loop run each.")
    ] = (1, 16)
    rates_qps: Annotated[
        tuple[_Positive, ...], Field(description="Arrival rates, one open-loop run each; empty is none.")
    ] = ()
    burstiness: Annotated[
        _Positive, Field(description="Shape of the gaps between arrivals: 1 is Poisson, below 1 comes in bursts.")
    ] = 1.0
    find_knee: Annotated[
        bool, Field(description="Search the concurrency beyond which more requests in flight bring no more throughput.")
    ] = False
    max_concurrency: Annotated[_Count, Field(description="Where the search for the knee ends at the latest.")] = 64
    repeats: Annotated[_Count, Field(description="Runs of each measurement, precisions in turn.")] = 3
    max_repeats: Annotated[
        _Count,
        Field(description="Runs of the headline load at most, while differences cannot be told as finely as asked."),
    ] = 3
    resolution_pct: Annotated[
        _Positive, Field(description="Difference of throughput that `max_repeats` should make it possible to tell.")
    ] = 10.0
    min_requests: Annotated[_Count, Field(description="Requests a measured window holds at least.")] = 32
    min_seconds: Annotated[_NotNegative, Field(description="Seconds a measured window lasts at least.")] = 10.0
    max_seconds: Annotated[_Positive, Field(description="Seconds a measured window lasts at most.")] = 300.0
    warmup_requests: Annotated[
        int, Field(ge=0, description="Requests of warm-up at most; it ends when two windows agree, 0 is none.")
    ] = 64
    warmup_seconds: Annotated[_NotNegative, Field(description="Seconds of warm-up at most.")] = 60.0
    seed: Annotated[int, Field(ge=0, le=2**31 - 1, description="Seed of arrivals, prompts and sampling.")] = 0

    @model_validator(mode="after")
    def _consistent(self) -> Workload:
        _require(self.min_seconds <= self.max_seconds, "min_seconds must not exceed max_seconds")
        return self


@dataclass(frozen=True, config=_STRICT)
class Evaluation:
    """How much text quality is measured on."""

    windows: Annotated[_Count, Field(description="Windows of held-out text for perplexity, KL and top-1.")] = 64
    window_tokens: Annotated[_Count, Field(ge=2, description="Tokens in each window; windows do not overlap.")] = 512
    answers: Annotated[int, Field(ge=0, description="Questions answered greedily for BLEU and chrF.")] = 40
    answer_tokens: Annotated[_Count, Field(description="Tokens of an answer at most.")] = 64


@dataclass(frozen=True, config=_STRICT)
class Profile:
    """One deployment: what it needs, which precisions may serve it, and how that is measured."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", description="Name, in small letters.")]
    description: Annotated[str, Field(min_length=1, description="What it is for, in one sentence.")]
    precisions: Annotated[
        tuple[str, ...], Field(min_length=1, description="Precisions to build and compare, in this order.")
    ] = ("fp32", "fp16", "int8-wo", "int8")
    baseline: Annotated[str, Field(description="The precision that quality is compared with.")] = "fp32"
    objective: Annotated[
        Literal["throughput", "ttft", "tpot", "latency", "memory"],
        Field(description="What decides between precisions that pass everything else."),
    ] = "throughput"
    calibration: Calibration = Calibration()
    limits: EngineLimits = EngineLimits()
    slo: Slo = Slo()
    quality: Quality = Quality()
    workload: Workload = Workload()
    evaluation: Evaluation = Evaluation()

    @model_validator(mode="after")
    def _consistent(self) -> Profile:
        _require(len(set(self.precisions)) == len(self.precisions), "precisions holds one twice")
        _require(self.baseline in self.precisions, f"the baseline {self.baseline} is not among the precisions")
        longest, limits = max(self.workload.prompt_tokens), self.limits
        _require(longest <= limits.max_input_len, f"prompts of {longest} tokens exceed max_input_len")
        whole = longest + self.workload.output_tokens
        _require(whole <= limits.max_seq_len, f"{whole} tokens of prompt and answer exceed max_seq_len")
        return self


_SECTIONS: Mapping[str, Any] = {
    field.name: type(field.default) for field in dataclasses.fields(Profile) if dataclasses.is_dataclass(field.default)
}
"""Key → dataclass of the parts of a profile."""


@functools.cache
def profile_type() -> TypeAdapter[Profile]:
    """The checked type, for reading and for the JSON schema."""
    return TypeAdapter(Profile)


def list_profiles() -> list[str]:
    """Names of the built-in profiles."""
    return sorted(path.stem for path in PROFILES.glob("*.yaml"))


def load_profile(name_or_path: str | Path) -> Profile:
    """A built-in profile by name, or one of your own by the path of its YAML file.

    Raises UsageError for a name that does not exist (with the closest one), and for a file with an unknown key, a
    value of the wrong type or limits that contradict each other, naming file, line and key.
    """
    given = str(name_or_path)
    if given in list_profiles():
        return _checked(read_yaml(PROFILES / f"{given}.yaml"), f"{given}.yaml")
    path = Path(given)
    if path.is_file():
        return _checked(read_yaml(path), given)
    if path.suffix in (".yaml", ".yml") or os.sep in given:
        raise UsageError("no such profile file", where=given)
    raise UsageError(
        f"no profile named {given!r}",
        hint=_did_you_mean(given, list_profiles()) or f"profiles: {', '.join(list_profiles())}; or the path of a file",
    )


def to_dict(profile: Profile) -> dict[str, Any]:
    """The profile with every default filled in, as plain values that JSON and YAML can hold."""
    plain: dict[str, Any] = json.loads(profile_type().dump_json(profile))
    return plain


def _checked(document: Document, where: str) -> Profile:
    if not isinstance(document.value, dict):
        raise UsageError("not a profile: keys and values are expected", where=where)
    # A section whose lines are all commented out reads as null.
    value = {key: {} if part is None and key in _SECTIONS else part for key, part in document.value.items()}
    try:
        # Through JSON, because only there a list may become a tuple while text may not become a number.
        return profile_type().validate_json(json.dumps(value))
    except ValidationError as error:
        faults = sorted(error.errors(), key=lambda fault: (document.line(_location(fault)), fault["type"] == "missing"))
        raise _refusal(faults[0], document, where, others=len(faults) - 1) from error


def _location(fault: Mapping[str, Any]) -> tuple[str | int, ...]:
    return tuple(fault["loc"])


def _refusal(fault: Mapping[str, Any], document: Document, where: str, *, others: int) -> UsageError:
    path = _location(fault)
    key = ".".join(map(str, path))
    place = f"{where} line {document.line(path)}"
    more = f" (and {others} more)" if others else ""
    kind = fault["type"]
    if kind == "unexpected_keyword_argument":
        owner = _SECTIONS[str(path[0])] if len(path) > 1 else Profile
        known = [field.name for field in dataclasses.fields(owner)]
        hint = _did_you_mean(str(path[-1]), known) or f"keys here: {', '.join(known)}"
        return UsageError(f"unknown key {key!r}{more}", where=place, hint=hint)
    if kind == "missing":
        return UsageError(f"key {key!r} is missing{more}", where=place)
    problem = str(fault["msg"]).removeprefix("Value error, ")
    return UsageError(f"{key}: {problem}{more}" if key else f"{problem}{more}", where=place)


def _did_you_mean(word: str, known: Iterable[str]) -> str | None:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else None
