"""Calibration records: the same bytes whatever the order, threads, interruptions and division of the data."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from builders import family_config, random_tensors, write_huggingface
from safetensors.numpy import save_file

from trtbuild.calibrate.channels import count_channels
from trtbuild.calibrate.collect import calibrate_to, work_folder
from trtbuild.calibrate.forward import decoder_layer, embed, read_layer, rotary_table
from trtbuild.calibrate.histogram import histogram_of
from trtbuild.calibrate.record import merge_records, open_record
from trtbuild.checkpoint.opening import open_model
from trtbuild.errors import InputRefused


def _samples(count: int = 9, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 96, int(length)).astype(np.int32) for length in rng.integers(1, 50, count)]


def _bytes(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_huggingface(tmp_path_factory.mktemp("model") / "m", "qwen3"))


@pytest.fixture(scope="module")
def whole(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "record"
    calibrate_to(open_model(model), _samples(), out, tokenizer_fingerprint="t", threads=2)
    return out


@pytest.mark.parametrize("threads", [1, 5])
def test_order_and_threads_do_not_matter(model: str, whole: Path, tmp_path: Path, threads: int) -> None:
    samples = _samples()[::-1]
    calibrate_to(open_model(model), samples, tmp_path / "r", tokenizer_fingerprint="t", threads=threads)
    assert _bytes(tmp_path / "r") == _bytes(whole)


def test_merged_records_are_the_record_of_one_run(model: str, whole: Path, tmp_path: Path) -> None:
    samples = _samples()
    parts = [samples[:2], samples[2:3], samples[3:]]
    for index, part in enumerate(parts):
        calibrate_to(open_model(model), part, tmp_path / str(index), tokenizer_fingerprint="t")
    merge_records([tmp_path / "2", tmp_path / "0", tmp_path / "1"], tmp_path / "merged")
    assert _bytes(tmp_path / "merged") == _bytes(whole)


def test_samples_to_measure_on_are_a_part_that_merges(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtbuild.calibrate.record.MEASURED_TOKENS", 60)
    samples = _samples()
    for name, part in (("ab", samples), ("a", samples[:4]), ("b", samples[4:])):
        calibrate_to(open_model(model), part, tmp_path / name)
    merged = merge_records([tmp_path / "a", tmp_path / "b"], tmp_path / "merged")
    assert _bytes(tmp_path / "merged") == _bytes(tmp_path / "ab")
    assert 0 < len(merged.measured) < len(samples)


def test_records_that_overlap_or_differ_do_not_merge(model: str, whole: Path, tmp_path: Path) -> None:
    calibrate_to(open_model(model), _samples()[:1], tmp_path / "same", tokenizer_fingerprint="t")
    with pytest.raises(InputRefused, match="holds a sample that"):
        merge_records([whole, tmp_path / "same"], tmp_path / "merged")
    calibrate_to(open_model(model), _samples(2, seed=1), tmp_path / "other", tokenizer_fingerprint="u")
    with pytest.raises(InputRefused, match="another tokenizer"):
        merge_records([whole, tmp_path / "other"], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


_KILLED = """
import contextlib, os, signal, sys
from pathlib import Path
import numpy as np
from trtbuild.calibrate.collect import calibrate_to
from trtbuild.checkpoint.opening import open_model

class Killer:
    @contextlib.contextmanager
    def task(self, title, total):
        def advance(units):
            if title == "calibrating layer 2 of 2":
                os.kill(os.getpid(), signal.SIGKILL)
        yield advance
    def note(self, text):
        pass

model, samples, out = sys.argv[1:]
arrays = np.load(samples)
samples = [arrays[name] for name in arrays.files]
calibrate_to(open_model(model), samples, Path(out), tokenizer_fingerprint="t", progress=Killer())
"""


def _killed(model: str, out: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "samples.npz", *_samples())
    command = [sys.executable, "-c", _KILLED, model, str(tmp_path / "samples.npz"), str(out)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL


class _Notes:
    def __init__(self) -> None:
        self.titles: list[str] = []
        self.notes: list[str] = []

    @contextlib.contextmanager
    def task(self, title: str, total: float) -> Iterator[Callable[[float], None]]:
        del total
        self.titles.append(title)
        yield [].append

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_a_killed_run_continues_to_the_same_bytes(model: str, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "record"
    _killed(model, out, tmp_path)
    assert not out.exists()
    notes = _Notes()
    calibrate_to(open_model(model), _samples(), out, tokenizer_fingerprint="t", progress=notes)
    assert notes.titles == ["calibrating layer 2 of 2"]
    assert _bytes(out) == _bytes(whole)
    assert not work_folder(out).exists()


def test_a_killed_run_of_something_else_is_not_continued(model: str, tmp_path: Path) -> None:
    out = tmp_path / "record"
    _killed(model, out, tmp_path)
    for samples, fingerprint in ((_samples()[:-1], "t"), (_samples(), "u")):
        with pytest.raises(InputRefused, match="unfinished calibration"):
            calibrate_to(open_model(model), samples, out, tokenizer_fingerprint=fingerprint)
    other = write_huggingface(tmp_path / "other", "qwen3", seed=1)
    with pytest.raises(InputRefused, match="unfinished calibration"):
        calibrate_to(open_model(str(other)), _samples(), out, tokenizer_fingerprint="t")


def test_statistics_are_those_of_the_inputs(model: str, whole: Path) -> None:
    """Against a plain pass over the samples that keeps every input."""
    decoder, record = open_model(model), open_record(whole)
    seen: dict[str, list[np.ndarray]] = {}

    def observe(name: str, value: np.ndarray) -> None:
        seen.setdefault(name, []).append(value.reshape(len(value), -1))

    layer = read_layer(decoder, 0)
    for state in embed(decoder, _samples()):
        decoder_layer(state, layer, rotary_table(decoder.spec, len(state)), observe)
    statistics = record.layer(0)
    for group, found in statistics.groups.items():
        values = np.concatenate(seen[group])
        assert np.array_equal(found.channels.whole().counts, count_channels(values).whole().counts)
        assert np.array_equal(found.channels.maxima, np.abs(values).max(axis=0))
        assert np.array_equal(found.tensor.counts, histogram_of(values).counts)
    assert np.array_equal(statistics.k.counts, histogram_of(np.concatenate(seen["attention.k"])).counts)
    assert statistics.v.amax == np.abs(np.concatenate(seen["attention.v"])).max()


def test_attention_received_adds_up_to_the_tokens(whole: Path) -> None:
    record = open_record(whole)
    assert [len(sample.ids) for sample in record.measured] == [entry.tokens for entry in record.info.samples]
    for sample in record.measured:
        assert sample.received.sum() == pytest.approx(len(sample.ids), rel=1e-5)
        assert (sample.received >= 0).all()


def test_infinite_activations_name_layer_tensor_and_sample(tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path / "m", "llama", num_hidden_layers=3)
    config = family_config("llama", num_hidden_layers=3)
    tensors = random_tensors(config)
    tensors["model.layers.1.mlp.up_proj.weight"] *= np.float32(1e38)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    notes = _Notes()
    with pytest.raises(InputRefused, match=r"layer 1, (mlp\.proj|output): .*sample \d+"):
        calibrate_to(open_model(str(folder)), _samples(), tmp_path / "r", progress=notes)
    assert notes.titles[-1] == "calibrating layer 2 of 3"
    assert not (tmp_path / "r").exists()


def test_damage_is_refused(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match="not a calibration record"):
        open_record(tmp_path)
    broken = tmp_path / "broken"
    shutil.copytree(whole, broken)
    layer = broken / "layers" / "0001.npz"
    layer.write_bytes(layer.read_bytes()[:-50])
    with pytest.raises(InputRefused, match="cut off"):
        open_record(broken)
    manifest = json.loads((broken / "manifest.json").read_text())
    manifest["files"]["layers/0001.npz"]["size_bytes"] -= 50
    (broken / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputRefused, match="damaged"):
        open_record(broken).layer(1)


def test_ids_outside_the_vocabulary_are_refused(model: str, tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match="token id 96 is outside"):
        calibrate_to(open_model(model), [np.array([1, 96])], tmp_path / "r")
    with pytest.raises(InputRefused, match="no samples"):
        calibrate_to(open_model(model), [], tmp_path / "r")
