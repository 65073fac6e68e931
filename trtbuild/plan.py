"""What a model will need, per precision and target, before anything is written: disk, host memory, engine memory.

Everything follows from the spec, so a `config.json` without weights is enough. What an engine needs comes from each
target's `footprint`; here it is set against a machine or a card, and where it does not fit, the largest setting that
does is searched for.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trtbuild.cards import Card
from trtbuild.checkpoint.spec import LINEAR_MODULES, Decoder, DecoderSpec, Quantization
from trtbuild.checkpoint.trtllm_config import Ranks
from trtbuild.errors import DoesNotFit
from trtbuild.machine import Machine
from trtbuild.plan_fit import Device, largest_setting, needed_bytes, pool_tokens
from trtbuild.quantize.precisions import Precision, precision_of
from trtbuild.targets.base import BuildOptions, Finding, Limits, Target
from trtbuild.targets.registry import load_target
from trtbuild.targets.trtllm.footprint import DTYPE_BYTES
from trtbuild.targets.trtllm.footprint import weights_bytes as hub_bytes

_QUANTIZE_BASE_BYTES = 200 << 20
_CALIBRATE_BASE_BYTES = 300 << 20
"""Python with what each of the two loads, and the samples in work; measured on SmolLM2-135M."""


@dataclass(frozen=True)
class Row:
    """One precision on one target; engine figures are per rank, disk and checkpoint over all ranks.

    `pool_tokens` is what the KV pool holds, `concurrent` how many sequences of max_seq_len that is, at most
    max_batch_size; `needed_bytes` is the least device memory with which the limits can be kept. `decode_tok_s` is what
    memory bandwidth allows one sequence at best: every step reads all weights. `fits` is None where the device is not
    known. `largest` names the largest setting that fits where this one does not.
    """

    precision: str
    target: str
    device: Device
    checkpoint_bytes: int
    engine_bytes: int
    scratch_bytes: int
    quantize_peak_bytes: int
    build_peak_bytes: int
    weights_bytes: int
    activation_bytes: int
    runtime_bytes: int
    kv_bytes_per_token: int
    pool_tokens: int
    concurrent: int
    needed_bytes: int
    decode_tok_s: float | None
    fits: bool | None
    refused: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()
    largest: str | None = None

    @property
    def possible(self) -> bool:
        """Whether nothing known is in the way."""
        return self.obstacle is None

    @property
    def obstacle(self) -> str | None:
        """What is known to be in the way: a rule that refuses it, or memory that is too small."""
        if self.refused:
            return f"{self.refused[0].rule}: {self.refused[0].text}"
        if self.fits is False:
            needed, there = gib(self.needed_bytes), gib(self.device.memory_bytes)
            return f"{self.precision} on {self.target} needs {needed}, {self.device.name} has {there}"
        return None

    @property
    def disk_bytes(self) -> int:
        return self.checkpoint_bytes + self.engine_bytes

    @property
    def pool_bytes(self) -> int:
        return self.pool_tokens * self.kv_bytes_per_token

    @property
    def peak_bytes(self) -> int:
        """Memory the running engine takes on its device."""
        return self.weights_bytes + self.activation_bytes + self.runtime_bytes + self.pool_bytes


@dataclass(frozen=True)
class Plan:
    """All rows of a model, and the disk they would be written to.

    `elsewhere` marks a plan for a card that is named: that machine's disk and memory are not known.
    """

    model: str
    spec: DecoderSpec
    parameters: int
    limits: Limits
    ranks: Ranks
    rows: tuple[Row, ...]
    host_memory_bytes: int
    free_disk_bytes: int
    elsewhere: bool = False

    @property
    def disk_bytes(self) -> int:
        """Everything written: each precision's checkpoint once, every engine, and the largest scratch meanwhile."""
        checkpoints = {row.precision: row.checkpoint_bytes for row in self.rows}
        scratch = max((row.scratch_bytes for row in self.rows), default=0)
        return sum(checkpoints.values()) + sum(row.engine_bytes for row in self.rows) + scratch


def plan_document(plan: Plan) -> dict[str, Any]:
    """The plan as JSON values, derived figures included."""
    rows = [
        {
            **dataclasses.asdict(row),
            "refused": [_finding_document(finding) for finding in row.refused],
            "notes": [_finding_document(finding) for finding in row.notes],
            "disk_bytes": row.disk_bytes,
            "pool_bytes": row.pool_bytes,
            "peak_bytes": row.peak_bytes,
        }
        for row in plan.rows
    ]
    return {**dataclasses.asdict(plan), "rows": rows, "disk_bytes": plan.disk_bytes}


def _finding_document(finding: Finding) -> dict[str, str | None]:
    return {"rule": finding.rule, "text": finding.text, "hint": finding.hint}


def parameters(spec: DecoderSpec) -> int:
    """Number of weights; a tied head is not counted twice."""
    head = spec.vocab_size * spec.hidden_size if spec.tie_word_embeddings else 0
    return sum(math.prod(shape) for shape in spec.float_shapes().values()) - head


def make_plan(
    model: str,
    spec: DecoderSpec,
    precisions: Sequence[str],
    targets: Sequence[str],
    limits: Limits,
    machine: Machine,
    *,
    free_disk_bytes: int,
    card: Card | None = None,
    ranks: Ranks = Ranks(),
    calibration_tokens: int = 0,
) -> Plan:
    """Plan every precision on every target. Raises UsageError for a name that does not exist.

    `card` stands for the machine's GPU; `calibration_tokens` is samples × sequence length. Precisions that a target
    cannot run at all appear with `refused` saying why.
    """
    options = BuildOptions(tp=ranks.tp, pp=ranks.pp, card=card)
    rows = [
        _row(spec, precision_of(name), load_target(target), limits, options, machine, calibration_tokens)
        for target in targets
        for name in precisions
    ]
    return Plan(
        model,
        spec,
        parameters(spec),
        limits,
        ranks,
        tuple(rows),
        machine.available_bytes,
        free_disk_bytes,
        elsewhere=card is not None,
    )


def require_fit(plan: Plan) -> None:
    """Raise DoesNotFit when no row can be had, naming the largest setting that fits, or when the disk is too small."""
    if not any(row.possible for row in plan.rows):
        small = [row for row in plan.rows if row.fits is False and not row.refused]
        row = min(small or plan.rows, key=lambda row: (row.largest is None, row.needed_bytes))
        if row.refused:
            raise row.refused[0].error(row.obstacle or "", where=plan.model, hint=row.refused[0].hint)
        hint = f"fits: {row.largest}" if row.largest else "fits at no setting: fewer bits, or a larger device"
        raise DoesNotFit(row.obstacle or "", where=plan.model, hint=hint)
    if not plan.elsewhere and plan.disk_bytes > plan.free_disk_bytes:
        raise DoesNotFit(
            f"{gib(plan.disk_bytes)} would be written and {gib(plan.free_disk_bytes)} are free",
            where=plan.model,
            hint="free some space, choose another disk with -o, or plan fewer precisions",
        )


def planned_quantization(precision: Precision, spec: DecoderSpec) -> tuple[DecoderSpec, Quantization]:
    """The spec and quantization block that `quantize` would write; int8 may leave more in floating point than this."""
    dtype = precision.dtype if spec.dtype != "bfloat16" or precision.quant_algo is None else "bfloat16"
    return dataclasses.replace(spec, dtype=dtype), Quantization(precision.quant_algo, group_size=precision.group_size)


def _row(
    spec: DecoderSpec,
    precision: Precision,
    target: Target,
    limits: Limits,
    options: BuildOptions,
    machine: Machine,
    calibration_tokens: int,
) -> Row:
    cast, quantization = planned_quantization(precision, spec)
    ranks = Ranks(options.tp, options.pp)
    device = _device(target, options.card, machine)
    # Memory is judged here, where the largest setting that fits can be named, so the rules get a card without any.
    judged = dataclasses.replace(options, card=Card(device.name, 0, 0, None, device.sm)) if target.on_gpu else options
    findings = target.preflight(_hollow(cast, quantization), limits, judged)
    need = target.footprint(cast, quantization, limits, options)
    pool = pool_tokens(need, limits, device)
    needed = needed_bytes(need, limits)
    fits = needed <= device.memory_bytes if device.memory_bytes else None
    weights_read = max(1, need.weights_bytes - cast.vocab_size * cast.hidden_size * DTYPE_BYTES[cast.dtype] // ranks.tp)
    return Row(
        precision=precision.name,
        target=target.name,
        device=device,
        checkpoint_bytes=hub_bytes(cast, quantization, ranks, checkpoint=True) * ranks.world,
        engine_bytes=need.disk_bytes,
        scratch_bytes=scratch_bytes(spec, precision, calibration_tokens),
        quantize_peak_bytes=quantize_peak_bytes(spec, precision),
        build_peak_bytes=need.build_peak_bytes,
        weights_bytes=need.weights_bytes,
        activation_bytes=need.activation_bytes,
        runtime_bytes=need.runtime_bytes,
        kv_bytes_per_token=need.kv_bytes_per_token,
        pool_tokens=pool,
        concurrent=min(limits.max_batch_size, pool // limits.max_seq_len),
        needed_bytes=needed,
        decode_tok_s=device.bandwidth_gb_s * 1e9 / weights_read if device.bandwidth_gb_s else None,
        fits=fits,
        refused=tuple(finding for finding in findings if finding.fatal),
        notes=tuple(finding for finding in findings if not finding.fatal),
        largest=None if fits is not False else largest_setting(cast, quantization, limits, options, device, target),
    )


def quantize_peak_bytes(spec: DecoderSpec, precision: Precision) -> int:
    """Host memory while quantizing, an estimate: tensors are streamed and hidden states lie on disk.

    What is held is the largest table in FP32, or a layer in FP32: twice to convert it, four times to calibrate it
    (weights, inputs' second moments, and both roundings of them).
    """
    layer = sum(4 * math.prod(spec.linear_shape(module)) for module in LINEAR_MODULES)
    table = 4 * spec.vocab_size * spec.hidden_size
    if precision.needs_calibration:
        return _CALIBRATE_BASE_BYTES + max(table, 4 * layer)
    return _QUANTIZE_BASE_BYTES + max(table, 2 * layer)


def scratch_bytes(spec: DecoderSpec, precision: Precision, calibration_tokens: int) -> int:
    """Disk that calibration takes while it runs: the hidden states of all tokens in FP32, before and after a layer."""
    return 2 * 4 * calibration_tokens * spec.hidden_size if precision.needs_calibration else 0


def _device(target: Target, card: Card | None, machine: Machine) -> Device:
    if not target.on_gpu:
        return Device("this machine's memory", machine.available_bytes)
    if card is not None:
        return Device(card.title, card.memory_bytes, card.bandwidth_gb_s, card.sm)
    if machine.gpus:
        gpu = machine.gpus[0]
        return Device(gpu.name, gpu.memory_bytes, sm=gpu.sm)
    return Device("no GPU here", 0)


def _hollow(spec: DecoderSpec, quantization: Quantization) -> Decoder:
    """A decoder without tensors, for the rules that look at spec and quantization only."""
    return Decoder(spec, {}, "", lambda: "", quantization, assets={"tokenizer.json": b""})


def gib(size_bytes: float) -> str:
    """A size for people."""
    return f"{size_bytes / 2**30:.1f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.0f} MiB"
