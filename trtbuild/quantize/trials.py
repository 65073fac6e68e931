"""Every smoothing strength with every threshold, and the error each gives at the outputs of a linear."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trtbuild.calibrate.channels import Points, bucket_points, smoothed_histogram
from trtbuild.calibrate.forward import Layer, each_sample, fake_quantize, token_scales
from trtbuild.calibrate.record import SMOOTHING_GROUPS, LayerStatistics
from trtbuild.calibrate.smoothing import ALPHAS, prequant_factors
from trtbuild.calibrate.threshold import METHODS, scale_of
from trtbuild.checkpoint.spec import Array, DecoderSpec
from trtbuild.quantize.int8 import dequantized_weight, rounded, weight_scales
from trtbuild.quantize.measure import READS_RESIDUAL, Captured, Rows, floored, token_squares
from trtbuild.quantize.schemes import Scheme

PER_TOKEN = "per token"
"""The one method of int8-pt: scales are made while running, there is no threshold."""

_OUTPUTS = 96
"""Outputs of each section of a linear that errors are measured on while strengths are compared."""
_LARGEST_OUTPUTS = 16
"""How many of them are those of most energy: massive activations leave through one or two outputs."""


@dataclass(frozen=True)
class Trial:
    """One way to quantize a group's activations: smoothing strength and threshold, and the error it gave."""

    alpha: float | None
    method: str
    threshold: float
    error: float


def sections(spec: DecoderSpec, module: str) -> tuple[int, ...]:
    """Lengths of the parts of a linear's output whose errors are weighed each by itself."""
    if module == "attention.qkv":
        return (spec.q_rows, spec.kv_rows, spec.kv_rows)
    return (spec.linear_shape(module)[0],)


@dataclass(frozen=True)
class _Section:
    """Some outputs of one section: weight F32 [o, in], exact outputs F32 [R, o], what each output stands for [o], and
    the reference [R] of the error."""

    weight: Array
    exact: Array
    share: Array
    reference: Array


def _sections(layer: Layer, group: str, x: Array, weights: Array, residual: Array) -> list[_Section]:
    found = []
    for module in SMOOTHING_GROUPS[group]:
        ends = np.cumsum(sections(layer.spec, module))[:-1]
        for weight in np.split(layer.linears[module].weight, ends):
            exact = x @ weight.T
            # dense and proj add to the residual stream, whose size decides what their error means
            reference = floored(np.square(exact).sum(axis=1) if group in READS_RESIDUAL else residual)
            picked, share = _pick_outputs(weights @ (np.square(exact) / reference[:, None]))
            found.append(_Section(weight[picked], np.ascontiguousarray(exact[:, picked]), share, reference))
    return found


def _pick_outputs(energy: Array) -> tuple[Array, Array]:
    """The outputs of most energy [out], and some of the others with the number each of them stands for, F32."""
    order = np.argsort(-energy, kind="stable")
    if len(order) <= _OUTPUTS:
        return np.sort(order), np.ones(len(order), np.float32)
    first, rest = order[:_LARGEST_OUTPUTS], np.sort(order[_LARGEST_OUTPUTS:])
    others = rest[np.linspace(0, len(rest) - 1, _OUTPUTS - _LARGEST_OUTPUTS).astype(np.int64)]
    share = np.ones(_OUTPUTS, np.float32)
    share[_LARGEST_OUTPUTS:] = len(rest) / len(others)
    return np.concatenate([first, others]), share


@dataclass(frozen=True)
class _Group:
    """One smoothing group to try strengths on: its inputs F32 [R, in], and the weights [R] of those rows."""

    name: str
    layer: Layer
    scheme: Scheme
    x: Array
    weights: Array
    sections: tuple[_Section, ...]
    points: Points
    weight_maxima: Array


def _try_strength(task: tuple[_Group, float | None]) -> list[Trial]:
    group, alpha = task
    factors = prequant_factors(group.points.maxima, group.weight_maxima, alpha)
    prequant = group.scheme.effective(group.layer, group.name, factors)
    stored = []
    for section in group.sections:
        divided = section.weight / prequant
        scales = weight_scales(divided)
        stored.append(dequantized_weight(rounded(divided, scales), scales))
    trials = []
    for method, threshold, seen in _candidates(group, prequant):
        errors = [
            float(group.weights @ (np.square(seen @ weight.T - section.exact) @ section.share / section.reference))
            for section, weight in zip(group.sections, stored, strict=True)
        ]
        trials.append(Trial(alpha, method, threshold, float(np.mean(errors) / group.weights.sum())))
    return trials


def _candidates(group: _Group, prequant: Array) -> Iterator[tuple[str, float, Array]]:
    """Method, threshold, and what INT8 keeps of the smoothed inputs with it."""
    smooth = group.x * prequant
    if group.scheme.per_token:
        yield PER_TOKEN, 0.0, fake_quantize(smooth, token_scales(smooth))
        return
    histogram = smoothed_histogram(group.points, prequant)
    for method, find in METHODS.items():
        threshold = find(histogram)
        yield method, threshold, fake_quantize(smooth, scale_of(threshold))


def weight_maxima(layer: Layer, group: str) -> Array:
    """F32 [in]: the largest |w| of each input channel over the linears of a group."""
    maxima = [np.abs(layer.linears[module].weight).max(axis=0) for module in SMOOTHING_GROUPS[group]]
    return np.asarray(np.max(maxima, axis=0))


def try_all(
    layer: Layer,
    captured: Captured,
    rows: Rows,
    statistics: LayerStatistics,
    scheme: Scheme,
    threads: int | None,
) -> dict[str, list[Trial]]:
    """Every strength of ALPHAS with every method, for each smoothing group of a layer."""
    residual = token_squares(captured)[rows.index]

    def group_of(name: str) -> _Group:
        x = captured.rows_of(name, rows)
        return _Group(
            name,
            layer,
            scheme,
            x,
            rows.weights,
            tuple(_sections(layer, name, x, rows.weights, residual)),
            bucket_points(statistics.groups[name].channels),
            weight_maxima(layer, name),
        )

    groups = list(each_sample(group_of, list(SMOOTHING_GROUPS), threads))
    tasks = [(group, alpha) for group in groups for alpha in ALPHAS]
    trials: dict[str, list[Trial]] = {name: [] for name in SMOOTHING_GROUPS}
    for (group, _), result in zip(tasks, each_sample(_try_strength, tasks, threads), strict=True):
        trials[group.name] += result
    return trials
