"""Calibration: one forward pass over all samples, layer by layer, that leaves a record.

In memory are one layer, the samples in work (two per thread) and the layer's statistics. The hidden states lie in two
files that take turns (layer i reads one and writes the other), so memory does not depend on the number of samples, and
a run that was killed continues after its last finished layer, to the same bits.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trtbuild.calibrate.channels import ChannelCounts, ChannelSum, count_channels, first_not_finite
from trtbuild.calibrate.forward import (
    Layer,
    Rotary,
    available_cores,
    check_ids,
    decoder_layer,
    each_sample,
    read_layer,
    rotary_table,
)
from trtbuild.calibrate.histogram import Histogram, histogram_of, merge
from trtbuild.calibrate.record import (
    SMOOTHING_GROUPS,
    GroupStatistics,
    LayerStatistics,
    MeasuredSample,
    Record,
    RecordInfo,
    SampleEntry,
    layer_name,
    measured_count,
    open_record,
    sample_hash,
    write_layer_statistics,
    write_record_files,
)
from trtbuild.checkpoint.spec import EMBEDDING, Array, Decoder
from trtbuild.errors import InputRefused
from trtbuild.progress import Progress, silent
from trtbuild.store.atomic import atomic_directory, atomic_file, check_replaceable
from trtbuild.store.fingerprint import fingerprint_json

_STATE_NAME = "state.json"


@dataclass(frozen=True)
class _Seen:
    """What one layer saw of one sample."""

    channels: Mapping[str, ChannelCounts]
    histograms: Mapping[str, Histogram]
    received: Array | None


class HiddenStates:
    """Hidden states F32 [T, hidden] of all samples in a file; samples are read and written independently."""

    def __init__(self, path: Path, lengths: Sequence[int], hidden_size: int) -> None:
        self._path = path
        self._shapes = [(length, hidden_size) for length in lengths]
        rows = np.concatenate([[0], np.cumsum(lengths)])
        self._offsets = [int(row) * hidden_size * 4 for row in rows]

    def __enter__(self) -> HiddenStates:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def read(self, sample: int) -> Array:
        state = np.empty(self._shapes[sample], np.float32)
        view, offset = state.data.cast("B"), self._offsets[sample]
        done = 0
        while done < len(view):
            got = os.preadv(self._descriptor, [view[done:]], offset + done)
            if got == 0:
                raise InputRefused("is shorter than it was written", where=self._path, hint="delete it and start again")
            done += got
        return state

    def write(self, sample: int, state: Array) -> None:
        view, offset = np.ascontiguousarray(state, np.float32).data.cast("B"), self._offsets[sample]
        done = 0
        while done < len(view):
            done += os.pwrite(self._descriptor, view[done:], offset + done)


@dataclass(frozen=True)
class _Run:
    """One calibration: samples in the order of their hashes, and where its unfinished state lies."""

    decoder: Decoder
    samples: tuple[Array, ...]
    given: tuple[int, ...]
    """Number of each sample in the caller's order, for messages."""
    info: RecordInfo
    work: Path
    threads: int

    @property
    def measured(self) -> int:
        return measured_count(self.info.samples)

    def hidden(self, layer: int) -> HiddenStates:
        """The states that enter a layer."""
        lengths = [len(ids) for ids in self.samples]
        return HiddenStates(self.work / f"hidden-{layer % 2}", lengths, self.decoder.spec.hidden_size)

    def received_path(self, layer: int) -> Path:
        return self.work / f"received-{layer:04d}.npy"


def _order(decoder: Decoder, samples: Sequence[Array]) -> tuple[list[Array], list[int], tuple[SampleEntry, ...]]:
    """Samples as int32 in the order given, their canonical order, and their entries in that order."""
    if not samples:
        raise InputRefused("there are no samples to calibrate with")
    checked = [check_ids(decoder.spec, ids).astype(np.int32) for ids in samples]
    hashes = [sample_hash(ids) for ids in checked]
    order = sorted(range(len(checked)), key=lambda i: hashes[i])
    return checked, order, tuple(SampleEntry(hashes[i], len(checked[i])) for i in order)


def _info(decoder: Decoder, entries: tuple[SampleEntry, ...], tokenizer_fingerprint: str) -> RecordInfo:
    return RecordInfo(decoder.fingerprint(), tokenizer_fingerprint, decoder.spec.num_layers, entries)


def same_calibration(info: RecordInfo, decoder: Decoder, samples: Sequence[Array], tokenizer_fingerprint: str) -> bool:
    """Whether calibrating `decoder` with `samples` would give the record that `info` describes."""
    return info == _info(decoder, _order(decoder, samples)[2], tokenizer_fingerprint)


def _prepare(
    decoder: Decoder, samples: Sequence[Array], work: Path, tokenizer_fingerprint: str, threads: int | None
) -> _Run:
    checked, order, entries = _order(decoder, samples)
    info = _info(decoder, entries, tokenizer_fingerprint)
    return _Run(decoder, tuple(checked[i] for i in order), tuple(order), info, work, threads or available_cores())


def _finished_layers(run: _Run) -> int:
    """How many layers an earlier, killed run of the same calibration finished; starts the state when there is none."""
    fingerprint = fingerprint_json(dataclasses.asdict(run.info))
    path = run.work / _STATE_NAME
    if path.is_file():
        state = json.loads(path.read_text(encoding="utf-8"))
        if state["fingerprint"] != fingerprint:
            raise InputRefused(
                "an unfinished calibration lies here, of another model, other samples or other settings",
                where=run.work,
                hint="repeat that command to finish it, or delete this folder",
            )
        return int(state["finished"])
    shutil.rmtree(run.work, ignore_errors=True)
    (run.work / "layers").mkdir(parents=True)
    table = run.decoder.tensors[EMBEDDING].read()
    with run.hidden(0) as states:
        for index, ids in enumerate(run.samples):
            states.write(index, np.asarray(table[ids], np.float32))
    _note_finished(run, 0)
    return 0


def _note_finished(run: _Run, layers: int) -> None:
    state = {"fingerprint": fingerprint_json(dataclasses.asdict(run.info)), "finished": layers}
    with atomic_file(run.work / _STATE_NAME) as path:
        path.write_text(json.dumps(state), encoding="utf-8")


def _refuse_not_finite(run: _Run, layer: int, name: str, sample: int, value: Array) -> None:
    flat = value.reshape(len(value), -1)
    place = first_not_finite(flat)
    if place is not None:
        raise InputRefused(
            f"layer {layer}, {name}: {float(flat[place])} at token {place[0]}, channel {place[1]} "
            f"of sample {run.given[sample]}",
            where=run.decoder.location,
            hint="the weights or that sample are damaged; no calibration can hold such a value",
        )


def _observe_sample(
    sample: int,
    run: _Run,
    index: int,
    layer: Layer,
    tables: Mapping[int, Rotary],
    states: HiddenStates,
    out: HiddenStates,
) -> _Seen:
    channels: dict[str, ChannelCounts] = {}
    histograms: dict[str, Histogram] = {}

    def observe(name: str, value: Array) -> None:
        _refuse_not_finite(run, index, name, sample, value)
        histograms[name] = histogram_of(value)
        if name in SMOOTHING_GROUPS:
            channels[name] = count_channels(value)

    x = states.read(sample)
    received = np.zeros(len(x), np.float32) if sample < run.measured else None
    with np.errstate(over="ignore", invalid="ignore"):
        y = decoder_layer(x, layer, tables[len(x)], observe, received)
    _refuse_not_finite(run, index, "output", sample, y)
    out.write(sample, y)
    return _Seen(channels, histograms, received)


def _collect_layer(run: _Run, index: int, tables: Mapping[int, Rotary], progress: Progress) -> LayerStatistics:
    spec = run.decoder.spec
    layer = read_layer(run.decoder, index)
    sums = {group: ChannelSum(spec.linear_shape(group)[1]) for group in SMOOTHING_GROUPS}
    histograms: dict[str, Histogram] = {}
    received: list[Array] = []
    with (
        run.hidden(index) as states,
        run.hidden(index + 1) as out,
        progress.task(f"calibrating layer {index + 1} of {spec.num_layers}", total=len(run.samples)) as advance,
    ):
        work = functools.partial(
            _observe_sample, run=run, index=index, layer=layer, tables=tables, states=states, out=out
        )
        for seen in each_sample(work, range(len(run.samples)), run.threads):
            for group, part in seen.channels.items():
                sums[group].add(part)
            for name, histogram in seen.histograms.items():
                histograms[name] = merge([histograms[name], histogram]) if name in histograms else histogram
            if seen.received is not None:
                received.append(seen.received / np.float32(spec.num_heads))
            advance(1)
    np.save(run.received_path(index), np.concatenate(received))
    groups = {group: GroupStatistics(total.total(), histograms[group]) for group, total in sums.items()}
    return LayerStatistics(groups, histograms["attention.k"], histograms["attention.v"])


def _measured_samples(run: _Run) -> list[MeasuredSample]:
    layers = run.info.num_layers
    total = sum((np.load(run.received_path(index)) for index in range(layers)), np.float32(0)) / np.float32(layers)
    ends = np.cumsum([len(ids) for ids in run.samples[: run.measured]])
    parts = np.split(np.asarray(total), ends[:-1])
    return [MeasuredSample(ids, part) for ids, part in zip(run.samples[: run.measured], parts, strict=True)]


def work_folder(out: Path) -> Path:
    """Where the unfinished state of a calibration to `out` lies."""
    return out.absolute().parent / f".trtbuild.{out.name}.unfinished"


def calibrate_to(
    decoder: Decoder,
    samples: Sequence[Array],
    out: Path,
    *,
    tokenizer_fingerprint: str = "",
    threads: int | None = None,
    progress: Progress = silent,
) -> Record:
    """Run every sample (token ids, one row each) through the decoder and write the record folder `out`.

    The result does not depend on the order of the samples or the number of threads. A run that was killed goes on
    where it stopped when the same call is made again. Raises InputRefused when `out` cannot be replaced, when a sample
    does not fit the model, when an activation is NaN or infinite (naming layer, tensor and sample), and when the
    unfinished state found belongs to another calibration.
    """
    check_replaceable(out)
    run = _prepare(decoder, samples, work_folder(out), tokenizer_fingerprint, threads)
    first = _finished_layers(run)
    if first:
        progress.note(f"continuing after layer {first} of {run.info.num_layers}")
    tables = {length: rotary_table(decoder.spec, length) for length in {len(ids) for ids in run.samples}}
    for index in range(first, run.info.num_layers):
        statistics = _collect_layer(run, index, tables, progress)
        with atomic_file(run.work / layer_name(index)) as path, path.open("wb") as file:
            write_layer_statistics(file, statistics)
        _note_finished(run, index + 1)
    with atomic_directory(out) as directory:
        shutil.copytree(run.work / "layers", directory / "layers")
        write_record_files(directory, run.info, _measured_samples(run))
    shutil.rmtree(run.work, ignore_errors=True)
    return open_record(out)
