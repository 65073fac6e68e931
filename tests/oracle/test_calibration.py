"""Thresholds and the calibration cache against nvidia-modelopt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from builders import write_huggingface
from modelopt.onnx.quantization.calib_utils import import_scales_from_calib_cache
from modelopt.torch.quantization.calib import HistogramCalibrator

from trtbuild.calibrate.cache import cache_scales, export_cache, read_cache
from trtbuild.calibrate.collect import calibrate_to
from trtbuild.calibrate.histogram import Histogram
from trtbuild.calibrate.record import Record
from trtbuild.calibrate.threshold import entropy_bins
from trtbuild.checkpoint.opening import open_model


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    folder = tmp_path_factory.mktemp("calibration")
    model = write_huggingface(folder / "m", "llama", num_hidden_layers=1)
    rng = np.random.default_rng(0)
    samples = [rng.integers(0, 96, 200) for _ in range(6)]
    return calibrate_to(open_model(str(model)), samples, folder / "record")


def _modelopt_entropy(histogram: Histogram) -> float:
    """Its search over our counts, as if it had collected them."""
    calibrator = HistogramCalibrator(8, None, False)
    calibrator._calib_hist = torch.from_numpy(histogram.counts.astype(np.float64))
    calibrator._calib_bin_edges = torch.from_numpy(np.arange(2049) * histogram.width)
    return float(calibrator.compute_amax("entropy"))


@pytest.mark.parametrize("group", ["attention.qkv", "mlp.proj"])
def test_entropy_is_modelopts_on_real_histograms(record: Record, group: str) -> None:
    histogram = record.layer(0).groups[group].tensor
    assert entropy_bins(histogram.counts) * histogram.width == pytest.approx(_modelopt_entropy(histogram), rel=1e-6)


def test_modelopt_reads_the_cache_back(record: Record, tmp_path: Path) -> None:
    path = tmp_path / "calibration.cache"
    export_cache(record, path)
    expected = cache_scales(record)
    assert len(expected) == 5
    read = import_scales_from_calib_cache(str(path))
    assert {name.removesuffix("_scale"): value for name, value in read.items()} == pytest.approx(expected)
    assert read_cache(path) == pytest.approx(expected)
