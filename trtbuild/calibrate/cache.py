"""The calibration cache of TensorRT ≤ 10: scales of the unsmoothed tensors as text.

    TRT-101300-EntropyCalibration2
    name: 3d010a14                  the big-endian bytes of the float32 scale, threshold / 127

Source of the format: nvidia-modelopt `onnx/quantization/calib_utils.py`, TensorRT `samples/common/sampleEngines.cpp`.
"""

from __future__ import annotations

import struct
from pathlib import Path

from trtbuild.calibrate.record import SMOOTHING_GROUPS, Record
from trtbuild.calibrate.threshold import METHODS, scale_of
from trtbuild.checkpoint.spec import module_path
from trtbuild.errors import InputRefused
from trtbuild.store.atomic import atomic_file

HEADER = "TRT-101300-EntropyCalibration2"


def cache_scales(record: Record, method: str = "entropy") -> dict[str, float]:
    """Scale of every linear's input by the path of its module; those that share an input share the scale."""
    scales: dict[str, float] = {}
    for index in range(record.info.num_layers):
        layer = record.layer(index)
        for group, modules in SMOOTHING_GROUPS.items():
            scale = scale_of(METHODS[method](layer.groups[group].tensor))
            scales |= {module_path(index, module): scale for module in modules}
    return scales


def export_cache(record: Record, path: Path, method: str = "entropy") -> None:
    """Write the cache file for networks whose tensors bear the names of the hub's modules."""
    lines = [f"{name}: {struct.pack('>f', scale).hex()}" for name, scale in cache_scales(record, method).items()]
    with atomic_file(path) as temporary:
        temporary.write_text("\n".join([HEADER, *lines]) + "\n", encoding="utf-8")


def read_cache(path: Path) -> dict[str, float]:
    """Name → scale of a cache file. Raises InputRefused naming the line that is not one."""
    lines = path.read_text(encoding="utf-8").splitlines()
    if not lines or not lines[0].startswith("TRT-") or not lines[0].endswith("-EntropyCalibration2"):
        raise InputRefused("is not an EntropyCalibration2 cache", where=path)
    scales: dict[str, float] = {}
    for number, line in enumerate(lines[1:], 2):
        name, separator, digits = line.rpartition(": ")
        try:
            scales[name] = float(struct.unpack(">f", bytes.fromhex(digits))[0])
        except (ValueError, struct.error) as error:
            raise InputRefused(f"line {number} is not `name: hexadecimal scale`", where=path) from error
        if not separator:
            raise InputRefused(f"line {number} has no name", where=path)
    return scales
