"""From a decoder to a finished checkpoint folder in any precision that trtbuild quantizes itself."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trtbuild.calibrate.collect import calibrate_to, same_calibration
from trtbuild.calibrate.forward import hidden_states
from trtbuild.calibrate.record import Record, open_record, sample_hash
from trtbuild.calibrate.threshold import METHODS
from trtbuild.checkpoint.spec import Array, Decoder
from trtbuild.checkpoint.trtllm_config import Ranks
from trtbuild.checkpoint.trtllm_sharding import check_ranks
from trtbuild.errors import InputRefused, UsageError
from trtbuild.progress import Progress, silent
from trtbuild.quantize.assemble import int8_decoder, with_kv_cache
from trtbuild.quantize.budget import Budget, Decision, by_harm, decide
from trtbuild.quantize.cast import quantize, refuse_quantized
from trtbuild.quantize.choose import Choose, GroupChoice, choose_all, least_error, least_error_of
from trtbuild.quantize.forms import TRTLLM, Serving, form_of
from trtbuild.quantize.kv_cache import kv_kind, kv_ranges, kv_scales
from trtbuild.quantize.precisions import Precision, precision_of
from trtbuild.quantize.report import evidence, kv_entry, write_evidence
from trtbuild.quantize.schemes import scheme_of
from trtbuild.quantize.score import Baseline, Score, baseline_of, score
from trtbuild.store.atomic import atomic_directory, check_replaceable
from trtbuild.store.manifest import write_manifest

AUTO = "auto"
CALIBRATIONS = (AUTO, *METHODS)
"""What `--calibration` takes."""
VALIDATION_TOKENS = 4096
"""How many tokens `hold_out` sets aside by default."""

DEFAULT_BUDGET = Budget(perplexity_change_pct=0.5, kl=0.01)

_PACKAGES = ("numpy", "ml_dtypes")


@dataclass(frozen=True)
class Request:
    """What to make. `calibration` is one of CALIBRATIONS, `kv_cache` int8, fp8 or None; no `budget` keeps all INT8."""

    precision: Precision
    calibration: str
    budget: Budget | None
    kv_cache: str | None
    serving: Serving
    form: str

    @property
    def needs_record(self) -> bool:
        return self.precision.needs_calibration or self.kv_cache is not None

    def settings(self) -> dict[str, Any]:
        """Everything besides model and record that decides what is written; for the manifest."""
        return {
            "precision": self.precision.name,
            "calibration": self.calibration if self.precision.needs_calibration else None,
            "budget": dataclasses.asdict(self.budget) if self.budget and self.precision.needs_calibration else None,
            "kv_cache": self.kv_cache,
            "tp": self.serving.tp,
            "pp": self.serving.pp,
            "format": self.form,
        }


def hold_out(samples: Sequence[Array], tokens: int = VALIDATION_TOKENS) -> tuple[list[Array], list[Array]]:
    """Split samples into those to calibrate with and at least `tokens` tokens to validate on.

    Decided by the hash of each sample, so the order given does not matter. At most half of the samples are set aside,
    and a sample that occurs on both sides is not calibrated with.
    """
    order = sorted(samples, key=sample_hash, reverse=True)
    taken = count = 0
    while count < len(order) // 2 and taken < tokens:
        taken += len(order[count])
        count += 1
    held = {sample_hash(ids) for ids in order[:count]}
    kept = [ids for ids in order[count:] if sample_hash(ids) not in held]
    return (kept, order[:count]) if kept else (order, [])


def quantize_to(
    decoder: Decoder,
    out: Path,
    precision: str,
    *,
    record: Record | None = None,
    samples: Sequence[Array] = (),
    validation: Sequence[Array] = (),
    tokenizer_fingerprint: str = "",
    calibration: str = AUTO,
    budget: Budget | None = DEFAULT_BUDGET,
    kv_cache: str | None = None,
    serving: Serving = Serving(),
    form: str = TRTLLM,
    threads: int | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Write the checkpoint `out` of `decoder` in a precision (`form` is a row of FORMS), and the evidence beside it.

    Where calibration is needed, `record` is used, or made from `samples` (token ids; a killed run continues).
    `validation` are samples that calibration did not see: the budget is checked on them. Without any, it is checked on
    samples of the record, and the evidence says so. A forced `calibration` method is obeyed: nothing is left in float,
    and what that costs is reported beside what `auto` would have given.

    Returns the content of `quantization.json`. Raises UsageError for a wrong precision, method or KV type, InputRefused
    for a quantized decoder, a record of another model, validation samples that were calibrated with, or NaN.
    """
    row = precision_of(precision)
    if row.through_modelopt:
        raise UsageError(f"{precision} is written by nvidia-modelopt", hint="see trtbuild.quantize.modelopt")
    if calibration not in CALIBRATIONS:
        raise UsageError(f"no calibration is called {calibration!r}", hint=f"methods: {', '.join(CALIBRATIONS)}")
    if kv_cache is not None:
        kv_kind(kv_cache)
    request = Request(row, calibration, budget, kv_cache, serving, form)
    written = form_of(form)
    refuse_quantized(decoder)
    check_replaceable(out)
    check_ranks(decoder.spec, Ranks(serving.tp, serving.pp))
    with _record_for(decoder, out, request, record, samples, tokenizer_fingerprint, threads, progress) as ready:
        made = _Maker(decoder, request, ready, validation, threads, progress)
        with tempfile.TemporaryDirectory(
            prefix=f".trtbuild-{out.name}-{os.getpid()}-", dir=out.absolute().parent
        ) as folder:
            quantized, document, choices = made.make(Path(folder))
            inputs = {"model": decoder.fingerprint()}
            if ready is not None:
                inputs["record"] = ready.fingerprint()
            with atomic_directory(out) as directory:
                written.write(quantized, directory, serving, progress)
                write_evidence(directory, document, choices)
                write_manifest(directory, written.kind, inputs=inputs, settings=request.settings(), packages=_PACKAGES)
    return document


@contextlib.contextmanager
def _record_for(
    decoder: Decoder,
    out: Path,
    request: Request,
    record: Record | None,
    samples: Sequence[Array],
    tokenizer_fingerprint: str,
    threads: int | None,
    progress: Progress,
) -> Iterator[Record | None]:
    """The record to quantize with; one that is made here lies beside `out` until the checkpoint is complete."""
    if not request.needs_record:
        yield None
    elif record is not None:
        if record.info.model != decoder.fingerprint():
            raise InputRefused("is the record of another model", where=record.path, hint="calibrate this model")
        yield record
    else:
        path = out.absolute().parent / f".trtbuild.{out.name}.record"
        made = open_record(path) if path.is_dir() else None
        if made is None or not same_calibration(made.info, decoder, samples, tokenizer_fingerprint):
            shutil.rmtree(path, ignore_errors=True)
            made = calibrate_to(
                decoder,
                samples,
                path,
                tokenizer_fingerprint=tokenizer_fingerprint,
                threads=threads,
                progress=progress,
            )
        yield made
        shutil.rmtree(path, ignore_errors=True)


class _Maker:
    """One quantization: what the source makes of the validation split is computed once."""

    def __init__(
        self,
        decoder: Decoder,
        request: Request,
        record: Record | None,
        validation: Sequence[Array],
        threads: int | None,
        progress: Progress,
    ) -> None:
        self._decoder, self._request, self._record = decoder, request, record
        self._threads, self._progress = threads, progress
        self._validation, self._source = _validation_split(record, validation)

    @functools.cached_property
    def _baseline(self) -> Baseline:
        states = hidden_states(self._decoder, self._validation, self._threads)
        return baseline_of(self._decoder, self._validation, states, self._threads)

    def _score(self, candidate: Decoder) -> Score:
        states = hidden_states(candidate, self._validation, self._threads)
        return score(self._decoder, self._baseline, states, self._threads)

    def make(self, folder: Path) -> tuple[Decoder, dict[str, Any], Sequence[GroupChoice]]:
        """The quantized decoder (its tensors lie in `folder`), quantization.json, and the choices behind it."""
        request, row = self._request, self._request.precision
        choices: Sequence[GroupChoice] = ()
        decision: Decision | None = None
        auto: Score | None = None
        notes = list(self._decoder.notes)
        if row.needs_calibration:
            choices, decision, auto, more = self._calibrated(folder)
            notes += more
            floats = () if decision is None else decision.floats
            quantized = int8_decoder(self._decoder, row, choices, floats, request.settings())
        else:
            quantized = quantize(self._decoder, row)
        validation = None if decision is None else decision.score
        kv = None
        if request.kv_cache is not None and self._record is not None:
            quantized, kv, validation = self._with_kv_cache(quantized, request.kv_cache, validation)
        elif row.needs_calibration and decision is None:
            validation = self._score(quantized)
        document = evidence(
            precision=row.name,
            quant_algo=row.quant_algo,
            dtype=row.dtype,
            method=request.calibration if row.needs_calibration else "none",
            record=_record_entry(self._record),
            choices=choices,
            order=by_harm(choices),
            decision=decision,
            budget=request.budget,
            validation=validation,
            auto=auto,
            validation_tokens=sum(len(ids) for ids in self._validation) if validation else 0,
            validation_source=self._source,
            kv_cache=kv,
            notes=notes,
        )
        return quantized, document, choices

    def _choose(self, folder: Path, choose: Choose) -> list[GroupChoice]:
        assert self._record is not None
        folder.mkdir()
        scheme = scheme_of(self._request.precision)
        return choose_all(
            self._decoder, self._record, scheme, folder, choose=choose, threads=self._threads, progress=self._progress
        )

    def _calibrated(self, folder: Path) -> tuple[list[GroupChoice], Decision | None, Score | None, list[str]]:
        request, notes = self._request, []
        scheme = scheme_of(request.precision)
        if not scheme.can_exclude:
            notes.append(f"{request.precision.quant_algo} ignores exclude_modules: every linear is INT8")
            if request.calibration != AUTO:
                notes.append(f"scales are made per token while running: method {request.calibration} has no effect")
            return self._choose(folder / "auto", least_error), None, None, notes
        if request.calibration != AUTO:
            forced = self._choose(folder / "forced", functools.partial(least_error_of, request.calibration))
            unforced = self._choose(folder / "auto", least_error)
            auto = self._score(int8_decoder(self._decoder, request.precision, unforced, (), {}))
            notes.append(f"method {request.calibration} was asked for, so nothing was left in float")
            return forced, None, auto, notes
        choices = self._choose(folder / "auto", least_error)
        if request.budget is None:
            return choices, None, None, notes

        def evaluate(floats: Sequence[GroupChoice]) -> Score:
            return self._score(int8_decoder(self._decoder, request.precision, choices, floats, {}))

        return choices, decide(choices, request.budget, evaluate, progress=self._progress), None, notes

    def _with_kv_cache(
        self, quantized: Decoder, name: str, before: Score | None
    ) -> tuple[Decoder, Mapping[str, Any], Score]:
        assert self._record is not None
        kind, largest = kv_kind(name)
        ranges = kv_ranges(self._record)
        scales = kv_scales(ranges, largest)
        if before is None:
            before = self._score(quantized)
        with_cache = with_kv_cache(quantized, kind, scales)
        after = self._score(with_cache)
        entry = kv_entry(kind, ranges, scales)
        entry["cost"] = {"kl_before": before.kl, "kl_after": after.kl, "perplexity_before": before.perplexity}
        entry["cost"]["perplexity_after"] = after.perplexity
        for layer in entry["uneven_layers"]:
            k, v = ranges[layer]
            self._progress.note(f"layer {layer}: K reaches {k:.4g} and V {v:.4g}; one KV scale serves both")
        return with_cache, entry, after


def _validation_split(record: Record | None, validation: Sequence[Array]) -> tuple[list[Array], str]:
    if record is None:
        return [], "no record"
    if not validation:
        return [sample.ids for sample in record.measured], "of the calibration samples (no validation split was given)"
    seen = {sample.sha256 for sample in record.info.samples}
    for index, ids in enumerate(validation):
        if sample_hash(ids) in seen:
            raise InputRefused(f"validation sample {index} was calibrated with", hint="validate on other text")
    return [np.asarray(ids) for ids in validation], "that calibration did not see"


def _record_entry(record: Record | None) -> dict[str, Any] | None:
    if record is None:
        return None
    info = record.info
    return {
        "fingerprint": record.fingerprint(),
        "model": info.model,
        "tokenizer": info.tokenizer,
        "data": info.data_fingerprint(),
        "samples": len(info.samples),
        "tokens": info.num_tokens,
        "seq_len": info.seq_len,
        "measured_tokens": sum(len(sample.ids) for sample in record.measured),
    }
