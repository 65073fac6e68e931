"""Everything that can be known wrong before trtllm-build is called, as one run over the tables of rules."""

from __future__ import annotations

from pathlib import Path

from trtbuild.checkpoint.spec import Decoder
from trtbuild.checkpoint.trtllm_config import Ranks, load_config, parse_ranks
from trtbuild.errors import InputRefused
from trtbuild.machine import gpus, memory
from trtbuild.store.manifest import read_manifest
from trtbuild.targets.base import BuildOptions, Finding, Limits
from trtbuild.targets.trtllm import rules_build, rules_checkpoint, rules_hardware
from trtbuild.targets.trtllm.command import BuildSettings
from trtbuild.targets.trtllm.rules import Device, Rule, Situation

RULES: tuple[Rule, ...] = (*rules_checkpoint.RULES, *rules_build.RULES, *rules_hardware.RULES)
"""Every rule, in the order they are told: what the checkpoint is, what was asked for, what the hardware can do."""

PLAN_RULES: tuple[Rule, ...] = (*rules_checkpoint.PLAN_RULES, *RULES)

RANK_0 = "rank0.safetensors"
_TOKENIZER = "tokenizer.json"


def check(situation: Situation, rules: tuple[Rule, ...] = RULES) -> list[Finding]:
    """All findings of the rules; an empty list means that nothing known is in the way."""
    return [
        Finding(rule.name, problem.text, problem.hint, problem.fatal, rule.error)
        for rule in rules
        for problem in rule.check(situation)
    ]


def local_device(options: BuildOptions) -> Device:
    """The card a plan is for, the first GPU of this machine, or the SM that `options` names when there is neither."""
    if options.card is not None:
        return Device(options.card.title, options.card.sm, options.card.memory_bytes or None)
    found = gpus()
    if found:
        return Device(found[0].name, found[0].sm or None, found[0].memory_bytes or None, len(found))
    return Device(sm=options.sms[0] if options.sms else None)


def checkpoint_ranks(location: str | Path, options: BuildOptions) -> Ranks:
    """tp and pp of a checkpoint folder; those of a plan for anything else."""
    if not _is_checkpoint(location):
        return Ranks(options.tp, options.pp)
    return parse_ranks(load_config(Path(location)))


def _is_checkpoint(location: str | Path) -> bool:
    return (Path(location) / RANK_0).is_file()


def settings_of(decoder: Decoder, limits: Limits, options: BuildOptions, device: Device) -> BuildSettings:
    """What the command is made from. One worker process per rank as far as there are GPUs for them.

    trtllm-build clamps its workers to the GPUs, and 0 workers crash its process pool, so never fewer than one is asked
    for; with one worker all ranks are built in one process, which keeps the memory of the earlier ones.
    """
    ranks = checkpoint_ranks(decoder.location, options)
    workers = max(1, min(ranks.world, device.count or 1))
    return BuildSettings(decoder.spec, decoder.quantization, ranks, limits, workers, options.extra)


def preflight(decoder: Decoder, limits: Limits, options: BuildOptions) -> list[Finding]:
    """Judge a checkpoint, limits and options for this machine; needs neither a GPU nor tensorrt_llm.

    For a plan, where there is no checkpoint yet, the rules about its cut over ranks stand in for the loader's.
    """
    device = local_device(options)
    tokenizer = options.tokenizer is not None and (options.tokenizer / _TOKENIZER).is_file()
    situation = Situation(
        settings=settings_of(decoder, limits, options, device),
        device=device,
        requested_sms=options.sms,
        requested_kv_cache=options.kv_cache,
        host_available_bytes=None if options.card is not None else memory()[1],
        has_tokenizer=tokenizer or _TOKENIZER in decoder.assets,
    )
    if not _is_checkpoint(decoder.location):
        return check(situation, PLAN_RULES)
    return [*_loader_findings(Path(decoder.location)), *check(situation)]


def _loader_findings(location: Path) -> list[Finding]:
    """What the loader would refuse; the weights themselves are read only where trtbuild did not write them."""
    from trtbuild.checkpoint.trtllm import validate_checkpoint

    foreign = read_manifest(location) is None
    return [
        Finding(
            f"loader-{found.rule}",
            f"{found.tensor}: {found.text}" if found.tensor else found.text,
            found.hint,
            found.fatal,
            InputRefused,
        )
        for found in validate_checkpoint(location, contents=foreign)
    ]
