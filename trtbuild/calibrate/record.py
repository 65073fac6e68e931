"""The calibration record: a folder that holds what calibration saw, and nothing that depends on how it was run.

    record.json        schema, trtbuild version, fingerprints of model and tokenizer, the samples (SHA-256 and length)
    samples.npz        token ids of the few samples that errors are measured on, and the attention their tokens receive
    layers/0000.npz …  per smoothing group: channel counts and maxima, histogram of the tensor; histograms of K and V
    manifest.json      kind "record"

Samples are kept in the order of their hashes, and the samples to measure on are the first of that order: so the record
of two disjoint data sets is made from their records (`merge_records`) and equals, byte for byte, that of one run over
both.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from trtbuild import __version__
from trtbuild.calibrate.channels import BUCKETS, ChannelCounts, ChannelSum
from trtbuild.calibrate.histogram import Histogram, merge
from trtbuild.checkpoint.spec import Array
from trtbuild.errors import InputRefused
from trtbuild.progress import Progress, silent
from trtbuild.store.atomic import atomic_directory
from trtbuild.store.fingerprint import fingerprint_json
from trtbuild.store.manifest import damaged_files, read_manifest, write_manifest

SCHEMA = 1
KIND = "record"
MEASURED_TOKENS = 4096
"""Samples are kept to measure on, in the order of their hashes, until they hold this many tokens."""

SMOOTHING_GROUPS: Mapping[str, tuple[str, ...]] = {
    "attention.qkv": ("attention.qkv",),
    "attention.dense": ("attention.dense",),
    "mlp.fc": ("mlp.fc", "mlp.gate"),
    "mlp.proj": ("mlp.proj",),
}
"""Linears that share one input, hence one smoothing vector and one activation scale, named by their first."""

_RECORD_NAME = "record.json"
_SAMPLES_NAME = "samples.npz"


@dataclass(frozen=True)
class SampleEntry:
    """A sample by the SHA-256 of its token ids (int32, little-endian)."""

    sha256: str
    tokens: int


@dataclass(frozen=True)
class RecordInfo:
    """What a record was made from. `samples` is sorted by hash; a sample given twice counts twice."""

    model: str
    tokenizer: str
    num_layers: int
    samples: tuple[SampleEntry, ...]
    schema: int = SCHEMA
    trtbuild: str = __version__

    @property
    def num_tokens(self) -> int:
        return sum(sample.tokens for sample in self.samples)

    @property
    def seq_len(self) -> int:
        """Tokens of the longest sample."""
        return max(sample.tokens for sample in self.samples)

    def data_fingerprint(self) -> str:
        """SHA-256 over the samples, whatever order they were given in."""
        return _entries_fingerprint(self.samples)


@dataclass(frozen=True)
class GroupStatistics:
    """Input of one smoothing group: per channel, and as one tensor before smoothing."""

    channels: ChannelCounts
    tensor: Histogram


@dataclass(frozen=True)
class LayerStatistics:
    """What one layer saw: by smoothing group, and K (after the rotary embedding) and V as a cache would hold them."""

    groups: Mapping[str, GroupStatistics]
    k: Histogram
    v: Histogram


@dataclass(frozen=True)
class MeasuredSample:
    """Token ids int32 [T] and the attention each token receives F32 [T], averaged over heads and layers."""

    ids: Array
    received: Array


@dataclass(frozen=True)
class Record:
    """A record opened for reading; layers are read when asked for."""

    path: Path
    info: RecordInfo
    measured: tuple[MeasuredSample, ...]

    def layer(self, index: int) -> LayerStatistics:
        return read_layer_statistics(self.path / layer_name(index))

    def fingerprint(self) -> str:
        """SHA-256 of the record's content (through its manifest)."""
        manifest = read_manifest(self.path)
        assert manifest is not None
        return fingerprint_json(manifest.content_hashes())


def layer_name(index: int) -> str:
    return f"layers/{index:04d}.npz"


def sample_hash(ids: Array) -> str:
    """SHA-256 of token ids as int32, little-endian."""
    return hashlib.sha256(np.ascontiguousarray(ids, "<i4").tobytes()).hexdigest()


def _entries_fingerprint(entries: Sequence[SampleEntry]) -> str:
    return fingerprint_json([[entry.sha256, entry.tokens] for entry in entries])


def data_fingerprint(samples: Sequence[Array]) -> str:
    """The fingerprint that a record of these samples (token ids, one row each) has for its data."""
    entries = [SampleEntry(sample_hash(ids), len(ids)) for ids in samples]
    return _entries_fingerprint(sorted(entries, key=lambda entry: entry.sha256))


def measured_count(entries: Sequence[SampleEntry]) -> int:
    """How many of the sorted samples are kept to measure on: the first until they hold MEASURED_TOKENS."""
    tokens = 0
    for index, entry in enumerate(entries):
        tokens += entry.tokens
        if tokens >= MEASURED_TOKENS:
            return index + 1
    return len(entries)


def write_arrays(file: BinaryIO, arrays: Mapping[str, Array]) -> None:
    """A compressed `.npz` whose bytes depend on the arrays only (no time stamps; integers in their smallest type)."""
    np.savez_compressed(file, **{name: _smallest(array) for name, array in sorted(arrays.items())})  # type: ignore[arg-type]


def _smallest(array: Array) -> Array:
    if array.dtype != np.int64 or array.size == 0 or array.min() < 0:
        return array
    largest = int(array.max())
    return array.astype(next(t for t in (np.uint8, np.uint16, np.uint32, np.int64) if largest <= np.iinfo(t).max))


def _read_arrays(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise InputRefused(f"is damaged ({error})", where=path, hint="make the record again") from error


def _pack_histogram(name: str, histogram: Histogram) -> dict[str, Array]:
    numbers = [histogram.exponent, histogram.zeros, histogram.nans, histogram.infinities]
    return {
        f"{name}.counts": histogram.counts,
        f"{name}.numbers": np.array(numbers, np.int64),
        f"{name}.amax": np.array([histogram.amax], np.float64),
    }


def _unpack_histogram(name: str, arrays: Mapping[str, Array]) -> Histogram:
    exponent, zeros, nans, infinities = (int(n) for n in arrays[f"{name}.numbers"])
    counts = arrays[f"{name}.counts"].astype(np.int64)
    return Histogram(counts, exponent, float(arrays[f"{name}.amax"][0]), zeros, nans, infinities)


def write_layer_statistics(file: BinaryIO, statistics: LayerStatistics) -> None:
    arrays = _pack_histogram("k", statistics.k) | _pack_histogram("v", statistics.v)
    for group, seen in statistics.groups.items():
        channels = seen.channels.trimmed()
        arrays |= _pack_histogram(f"{group}.tensor", seen.tensor)
        arrays[f"{group}.first"] = np.array([channels.first], np.int64)
        arrays[f"{group}.channels"] = channels.counts
        arrays[f"{group}.maxima"] = channels.maxima
    write_arrays(file, arrays)


def read_layer_statistics(path: Path) -> LayerStatistics:
    """Raises InputRefused for a damaged file."""
    arrays = _read_arrays(path)
    try:
        groups = {
            group: GroupStatistics(
                ChannelCounts(
                    int(arrays[f"{group}.first"][0]),
                    arrays[f"{group}.channels"].astype(np.int64),
                    arrays[f"{group}.maxima"],
                ),
                _unpack_histogram(f"{group}.tensor", arrays),
            )
            for group in SMOOTHING_GROUPS
        }
        if any(s.channels.first + s.channels.counts.shape[1] > BUCKETS for s in groups.values()):
            raise ValueError("a bucket beyond the last")
        return LayerStatistics(groups, _unpack_histogram("k", arrays), _unpack_histogram("v", arrays))
    except (KeyError, ValueError, IndexError) as error:
        raise InputRefused(f"is damaged ({error})", where=path, hint="make the record again") from error


def merge_layers(parts: Sequence[LayerStatistics]) -> LayerStatistics:
    """Statistics of all samples together."""
    groups = {}
    for group in SMOOTHING_GROUPS:
        seen = [part.groups[group] for part in parts]
        total = ChannelSum(len(seen[0].channels.maxima))
        for one in seen:
            total.add(one.channels)
        groups[group] = GroupStatistics(total.total(), merge(one.tensor for one in seen))
    return LayerStatistics(groups, merge(part.k for part in parts), merge(part.v for part in parts))


def write_record_files(directory: Path, info: RecordInfo, measured: Sequence[MeasuredSample]) -> None:
    """Everything of a record but its layers, which must be there; the manifest comes last."""
    text = json.dumps(dataclasses.asdict(info), indent=1, sort_keys=True)
    (directory / _RECORD_NAME).write_text(text + "\n", encoding="utf-8")
    arrays: dict[str, Array] = {}
    for index, sample in enumerate(measured):
        arrays[f"{index:04d}.ids"] = np.asarray(sample.ids, np.int32)
        arrays[f"{index:04d}.received"] = sample.received
    with (directory / _SAMPLES_NAME).open("wb") as file:
        write_arrays(file, arrays)
    inputs = {"model": info.model, "tokenizer": info.tokenizer, "data": info.data_fingerprint()}
    settings = {"samples": len(info.samples), "tokens": info.num_tokens, "seq_len": info.seq_len}
    write_manifest(directory, KIND, inputs=inputs, settings=settings)


def open_record(path: Path) -> Record:
    """Open a record folder. Raises InputRefused when it is something else, incomplete, or of another schema."""
    manifest = read_manifest(path) if path.is_dir() else None
    if manifest is None or manifest.kind != KIND:
        raise InputRefused("is not a calibration record", where=path, hint="make one with `trtbuild calibrate`")
    damaged = damaged_files(path, manifest)
    if damaged:
        raise InputRefused(f"{damaged[0]} is missing or cut off", where=path, hint="make the record again")
    try:
        raw: dict[str, Any] = json.loads((path / _RECORD_NAME).read_text(encoding="utf-8"))
        info = RecordInfo(**{**raw, "samples": tuple(SampleEntry(**entry) for entry in raw["samples"])})
    except (ValueError, TypeError, KeyError) as error:
        raise InputRefused(f"is damaged ({error})", where=path / _RECORD_NAME, hint="make the record again") from error
    if info.schema != SCHEMA:
        raise InputRefused(
            f"has schema {info.schema}, this trtbuild reads {SCHEMA}", where=path, hint="make the record again"
        )
    arrays = _read_arrays(path / _SAMPLES_NAME)
    measured = [MeasuredSample(arrays[f"{i:04d}.ids"], arrays[f"{i:04d}.received"]) for i in range(len(arrays) // 2)]
    return Record(path, info, tuple(measured))


def merge_records(paths: Sequence[Path], out: Path, *, progress: Progress = silent) -> Record:
    """Write to `out` the record that one run over all their samples would have given.

    Raises InputRefused when the records are of different models or tokenizers, or share a sample.
    """
    records = [open_record(path) for path in paths]
    first = records[0].info
    for record in records[1:]:
        for what in ("model", "tokenizer", "trtbuild", "num_layers"):
            if getattr(record.info, what) != getattr(first, what):
                raise InputRefused(f"is of another {what} than {paths[0]}", where=record.path)
    seen: dict[str, Path] = {}
    for record in records:
        for digest in {sample.sha256 for sample in record.info.samples}:
            if digest in seen:
                raise InputRefused(
                    f"holds a sample that {seen[digest]} holds too", where=record.path, hint="merge disjoint data only"
                )
            seen[digest] = record.path
    entries = sorted((s for r in records for s in r.info.samples), key=lambda s: s.sha256)
    info = dataclasses.replace(first, samples=tuple(entries))
    measured = sorted((m for r in records for m in r.measured), key=lambda m: sample_hash(m.ids))
    with (
        atomic_directory(out) as directory,
        progress.task("merging records", total=info.num_layers) as advance,
    ):
        (directory / "layers").mkdir()
        for index in range(info.num_layers):
            merged = merge_layers([record.layer(index) for record in records])
            with (directory / layer_name(index)).open("wb") as file:
                write_layer_statistics(file, merged)
            advance(1)
        write_record_files(directory, info, measured[: measured_count(entries)])
    return open_record(out)
