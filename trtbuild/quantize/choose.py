"""Layer by layer over the record's samples: try, choose, quantize, and keep the result on disk until it is written."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trtbuild.calibrate.channels import bucket_points, smoothed_histogram
from trtbuild.calibrate.forward import (
    Layer,
    Rotary,
    dequantized,
    each_sample,
    embed,
    fake_quantize,
    read_layer,
    rotary_table,
    single_threaded_blas,
    token_scales,
)
from trtbuild.calibrate.histogram import Histogram
from trtbuild.calibrate.record import SMOOTHING_GROUPS, LayerStatistics, Record
from trtbuild.calibrate.smoothing import prequant_factors
from trtbuild.calibrate.threshold import scale_of
from trtbuild.checkpoint.linear import Linear
from trtbuild.checkpoint.spec import Array, Decoder, Tensor, layer_prefix
from trtbuild.progress import Progress, silent
from trtbuild.quantize.compensate import compensated
from trtbuild.quantize.compensate import factors as compensation_factors
from trtbuild.quantize.int8 import weight_scales
from trtbuild.quantize.measure import (
    READS_RESIDUAL,
    Captured,
    Rows,
    capture,
    choose_rows,
    floored,
    harm,
    token_squares,
)
from trtbuild.quantize.schemes import QuantizedGroup, Scheme
from trtbuild.quantize.trials import Trial, try_all, weight_maxima


@dataclass(frozen=True)
class GroupChoice:
    """What was found out about one smoothing group of a layer, and what was chosen for it."""

    layer: int
    group: str
    trials: tuple[Trial, ...]
    chosen: Trial
    harm: float
    """Error of the layer's output, relative to the residual stream, when only this group is quantized."""
    weights: int
    histogram: Histogram
    """Of the smoothed activation."""
    unsmoothed: Histogram
    activation_scale: float
    dead_channels: int
    files: Mapping[str, Path]
    """Name of each tensor of the group → its `.npy` file."""

    @property
    def key(self) -> tuple[int, str]:
        return self.layer, self.group

    @property
    def modules(self) -> tuple[str, ...]:
        return SMOOTHING_GROUPS[self.group]


Choose = Callable[[Sequence[Trial]], Trial]


def least_error(trials: Sequence[Trial]) -> Trial:
    """The trial with the least error; the first of equal ones."""
    return min(trials, key=lambda trial: trial.error)


def least_error_of(method: str, trials: Sequence[Trial]) -> Trial:
    """The strength with the least error when one method is forced."""
    return least_error([trial for trial in trials if trial.method == method])


@dataclass(frozen=True)
class _LayerWork:
    index: int
    layer: Layer
    captured: Captured
    statistics: LayerStatistics
    rows: Rows
    tables: Mapping[int, Rotary]
    scheme: Scheme
    folder: Path


def _compensation(group: str, prequant: Array, activation_scale: float, work: _LayerWork) -> list[Array]:
    """The factors along which the group's weights are rounded, from its inputs as INT8 keeps them.

    A function of its own, because those inputs, smoothed and rounded, are the largest things held for a layer.
    """
    x = work.captured.inputs[group]
    smooth = x * prequant
    seen = fake_quantize(smooth, token_scales(smooth) if work.scheme.per_token else activation_scale)
    del smooth
    sizes = np.square(x).sum(axis=1) if group in READS_RESIDUAL else token_squares(work.captured)
    return compensation_factors(seen, work.rows.all_weights / floored(sizes))


def _quantize_group(group: str, trial: Trial, work: _LayerWork) -> QuantizedGroup:
    layer, scheme = work.layer, work.scheme
    channels = work.statistics.groups[group].channels
    factors = prequant_factors(channels.maxima, weight_maxima(layer, group), trial.alpha)
    prequant = scheme.effective(layer, group, factors)
    activation_scale = scale_of(trial.threshold)
    upper = _compensation(group, prequant, activation_scale, work)
    levels, scales = {}, {}
    for module in SMOOTHING_GROUPS[group]:
        divided = layer.linears[module].weight / prequant
        scales[module] = weight_scales(divided)
        levels[module] = compensated(divided, scales[module], upper)
    amax = float(np.max(channels.maxima * prequant, initial=0))
    return QuantizedGroup(group, prequant, levels, scales, activation_scale, amax)


def _as_linears(layer: Layer, quantized: QuantizedGroup, scheme: Scheme) -> dict[str, Linear]:
    return {
        module: dequantized(
            Linear(
                levels,
                layer.linears[module].bias,
                quantized.scales[module],
                None if scheme.per_token else quantized.activation_scale,
                scheme.per_token,
                quantized.prequant,
            )
        )
        for module, levels in quantized.levels.items()
    }


def _finish_group(group: str, work: _LayerWork, trials: Mapping[str, Sequence[Trial]], choose: Choose) -> GroupChoice:
    chosen = choose(trials[group])
    quantized = _quantize_group(group, chosen, work)
    linears = _as_linears(work.layer, quantized, work.scheme)
    tensors = work.scheme.tensors(work.layer, quantized)
    files = {}
    for name, array in tensors.items():
        full = f"{layer_prefix(work.index)}.{name}"
        files[full] = work.folder / f"{full}.npy"
        np.save(files[full], array.view(np.uint16) if array.dtype.itemsize == 2 else array)
    seen = work.statistics.groups[group]
    return GroupChoice(
        work.index,
        group,
        tuple(trials[group]),
        chosen,
        harm(work.layer, linears, work.captured, work.rows, work.tables),
        sum(levels.size for levels in quantized.levels.values()),
        smoothed_histogram(bucket_points(seen.channels), quantized.prequant),
        seen.tensor,
        quantized.activation_scale,
        int((seen.channels.maxima == 0).sum()),
        files,
    )


def choose_all(
    decoder: Decoder,
    record: Record,
    scheme: Scheme,
    folder: Path,
    *,
    choose: Choose = least_error,
    threads: int | None = None,
    progress: Progress = silent,
) -> list[GroupChoice]:
    """Try, choose and quantize every smoothing group; the quantized tensors go to files in `folder`."""
    spec, rows = decoder.spec, choose_rows(record.measured)
    states: Sequence[Array] = embed(decoder, [sample.ids for sample in record.measured])
    tables = {length: rotary_table(spec, length) for length in {len(state) for state in states}}
    choices: list[GroupChoice] = []
    # the one that takes longest first, so that the cores end together
    order = sorted(SMOOTHING_GROUPS, key=lambda group: spec.linear_shape(group)[1], reverse=True)
    with single_threaded_blas(), progress.task("choosing", total=spec.num_layers) as advance:
        for index in range(spec.num_layers):
            layer, statistics = read_layer(decoder, index), record.layer(index)
            captured = capture(states, layer, tables, threads)
            trials = try_all(layer, captured, rows, statistics, scheme, threads)
            work = _LayerWork(index, layer, captured, statistics, rows, tables, scheme, folder)
            finish = functools.partial(_finish_group, work=work, trials=trials, choose=choose)
            finished = dict(zip(order, each_sample(finish, order, threads), strict=True))
            choices += [finished[group] for group in SMOOTHING_GROUPS]
            states = captured.outputs
            advance(1)
    return choices


def stored_tensor(name: str, path: Path, dtype: np.dtype[np.generic]) -> Tensor:
    """A tensor of a choice, mapped from its file; 16-bit floats are kept as their bits, which `.npy` cannot name."""

    def read() -> Array:
        array: Array = np.load(path, mmap_mode="r")
        return array.view(dtype) if array.dtype == np.uint16 else array

    header = np.load(path, mmap_mode="r")
    return Tensor(dtype if header.dtype == np.uint16 else header.dtype, header.shape, name, read)
