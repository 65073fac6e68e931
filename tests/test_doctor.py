"""The report on a machine: this one, and pretended ones with GPUs, other releases and broken environments."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from stand_ins import nvidia_machine

from trtbuild import machine as machines
from trtbuild.doctor import Report, examine
from trtbuild.machine import CPU_FEATURES, INT8_DOT_FEATURES, cpu_features, free_disk_bytes, gpus, memory
from trtbuild.targets.registry import TARGETS


def check(report: Report, name: str) -> tuple[bool | None, str]:
    found = next(check for check in report.checks if check.name == name)
    return found.ok, found.text


def test_this_machine_is_described(tmp_path: Path) -> None:
    report = examine(tmp_path)
    assert [target.name for target in report.targets] == list(TARGETS)
    assert all(target.build.ok or target.build.reason for target in report.targets)
    cpu = report.targets[0]
    assert cpu.build.ok
    assert cpu.run.ok
    assert 0 < report.machine.available_bytes <= report.machine.memory_bytes
    assert report.free_disk_bytes > 0
    assert "numpy" in report.packages
    assert not set(report.packages) & set(report.missing)
    json.dumps(dataclasses.asdict(report))


def test_without_gpu_and_package_every_way_out_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_machine(tmp_path / "m", monkeypatch, version=None, gpus=0)
    report = examine(tmp_path)
    trtllm = next(target for target in report.targets if target.name == "trtllm")
    assert not trtllm.build.ok
    assert "--container" in (trtllm.build.hint or "")
    assert report.window == "absent"
    assert report.default_target == "cpu"
    assert check(report, "NVIDIA GPU")[0] is None


def test_a_machine_that_builds_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_machine(tmp_path / "m", monkeypatch, gpus=2)
    report = examine(tmp_path)
    trtllm = next(target for target in report.targets if target.name == "trtllm")
    assert trtllm.build.ok
    assert trtllm.versions == {"tensorrt_llm": "1.2.1"}
    assert [(gpu.name, gpu.sm) for gpu in report.machine.gpus] == [("NVIDIA L40S", 89)] * 2
    assert check(report, "NVIDIA's tools")[0] is True
    assert check(report, "tensorrt_llm") == (True, "1.2.1 builds engines")
    (installed,) = [release for release in report.releases if release.installed]
    assert installed.version == "1.2.1"


@pytest.mark.parametrize(("version", "name"), [("1.3.0rc29", "removed"), ("0.20.0", "too old")])
def test_a_release_without_the_engine_path(
    version: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvidia_machine(tmp_path / "m", monkeypatch, version=version)
    report = examine(tmp_path)
    assert report.window == name
    assert check(report, "tensorrt_llm")[0] is False


def test_an_environment_that_does_not_fit_is_named_before_anything_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = nvidia_machine(tmp_path / "m", monkeypatch)
    info = machine.root / "site" / "torch-2.13.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0\n", encoding="utf-8")
    ok, text = check(examine(tmp_path), "tensorrt_llm environment")
    assert ok is False
    assert "torch 2.13.0 (needs >=2.9.1,<=2.10.0a0)" in text


def test_an_mpi_that_cannot_start_is_found_by_starting_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = nvidia_machine(tmp_path / "m", monkeypatch)
    mpirun = machine.root / "bin" / "mpirun"
    mpirun.write_text("#!/bin/sh\necho 'PRTE ERROR: Bad parameter' >&2\nexit 1\n")
    ok, text = check(examine(tmp_path), "MPI")
    assert ok is False
    assert "PRTE ERROR: Bad parameter" in text
    mpirun.unlink()
    assert "not installed" in check(examine(tmp_path), "MPI")[1]


def test_features_are_complete_groups_of_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    def flags(text: str) -> tuple[str, ...]:
        monkeypatch.setattr(machines, "_cpuinfo", lambda: {"flags": text})
        return cpu_features()

    assert flags("fpu avx2 f16c") == ("avx2", "f16c")
    assert "avx512" not in flags("avx512f")  # the kernels need bw and vl as well
    assert "avx512" in flags("avx512f avx512bw avx512vl avx512_vnni")
    assert flags("amx_tile amx_int8") == ("amx_int8",)
    assert flags("") == ()
    assert set(INT8_DOT_FEATURES) <= {name for name, _ in CPU_FEATURES}


def test_memory_respects_a_control_group(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {"/sys/fs/cgroup/memory.max": 1 << 30, "/sys/fs/cgroup/memory.current": 800 << 20}
    monkeypatch.setattr(machines, "_read_number", numbers.get)
    monkeypatch.setattr(machines, "_group_cache_bytes", lambda: 300 << 20)
    assert memory() == (1 << 30, (1024 - 800 + 300) << 20)


@pytest.mark.parametrize(
    ("output", "count"),
    [
        ("0, NVIDIA A10, 23028, 22000, 8.6, 550.1", 1),
        ("0, NVIDIA GB10, [N/A], [N/A], 12.1, 580.1", 1),
        ("garbage", 0),
        ("", 0),
    ],
)
def test_what_nvidia_smi_says_is_read_whatever_it_is(
    output: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{output}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert len(gpus()) == count
    program.write_text("#!/bin/sh\nexit 9\n")
    assert gpus() == ()


def test_free_disk_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    assert free_disk_bytes(tmp_path / "a" / "b") == pytest.approx(free_disk_bytes(tmp_path), rel=0.1)
