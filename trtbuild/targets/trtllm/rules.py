"""The shape of a pre-flight rule, and the facts it judges; the rules themselves are in the `rules_*` modules.

A rule needs no GPU and no tensorrt_llm. Each repeats what the builder, the loader or the runtime of 1.0-1.2 enforces,
silently changes, or fails on deep inside; those were read in its source, not seen happening.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trtbuild.checkpoint.spec import DecoderSpec, Quantization
from trtbuild.checkpoint.trtllm_config import Ranks
from trtbuild.errors import DoesNotFit, TrtbuildError
from trtbuild.targets.base import Limits
from trtbuild.targets.trtllm.command import BuildSettings, build_words, effective_values
from trtbuild.targets.trtllm.flags import BadFlag, Values, parse_arguments

WEIGHT_ONLY = ("W8A16", "W4A16", "W8A16_GPTQ", "W4A16_GPTQ", "W4A16_AWQ", "W4A8_AWQ")
SMOOTHQUANT = (
    "W8A8_SQ_PER_CHANNEL",
    "W8A8_SQ_PER_TENSOR_PLUGIN",
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN",
    "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN",
    "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN",
)


@dataclass(frozen=True)
class Device:
    """The GPU an engine is meant for; a field is None where it is not known."""

    name: str = "the GPU"
    sm: int | None = None
    memory_bytes: int | None = None
    count: int | None = None


@dataclass(frozen=True)
class Situation:
    """Everything the rules look at. `given` are the flags of `extra` alone, `flags` the values the tool would use."""

    settings: BuildSettings
    device: Device
    requested_sms: tuple[int, ...] = ()
    requested_kv_cache: str | None = None
    host_available_bytes: int | None = None
    has_tokenizer: bool = True

    @property
    def spec(self) -> DecoderSpec:
        return self.settings.spec

    @property
    def quantization(self) -> Quantization:
        return self.settings.quantization

    @property
    def ranks(self) -> Ranks:
        return self.settings.ranks

    @property
    def limits(self) -> Limits:
        return self.settings.limits

    @property
    def flags(self) -> Values:
        return effective_values(build_words(self.settings))

    @property
    def given(self) -> Values:
        return parse_arguments(self.settings.extra)[0]

    @property
    def bad_flags(self) -> list[BadFlag]:
        return parse_arguments(self.settings.extra)[1]

    def number(self, flag: str) -> int:
        """Value of an integer flag that always has one."""
        value = self.flags[flag]
        assert isinstance(value, int)
        return value

    def on(self, flag: str) -> bool:
        """Whether a switch or plugin is on."""
        return self.flags.get(flag) not in (None, False, "disable")

    def sm_within(self, low: int, high: int) -> bool:
        """Whether the SM is known and low ≤ SM < high."""
        return self.device.sm is not None and low <= self.device.sm < high


@dataclass(frozen=True)
class Problem:
    """What a rule found: the numbers and the way out. A problem that is not `fatal` is told and the build goes on."""

    text: str
    hint: str | None = None
    fatal: bool = True


@dataclass(frozen=True)
class Rule:
    """A named rule; `check` yields a problem for each violation, and a fatal one is raised as `error`."""

    name: str
    check: Callable[[Situation], Iterator[Problem]]
    error: type[TrtbuildError] = DoesNotFit
