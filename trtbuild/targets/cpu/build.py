"""Checkpoint → ONNX → stateful OpenVINO model → checked engine directory."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from trtbuild.calibrate.forward import find_blas
from trtbuild.checkpoint.spec import Decoder
from trtbuild.checkpoint.tokenizer import load_tokenizer
from trtbuild.checkpoint.trtllm import read_checkpoint
from trtbuild.errors import TrtbuildError
from trtbuild.graph.decoder import write_onnx
from trtbuild.progress import Progress
from trtbuild.store.atomic import atomic_directory, check_replaceable
from trtbuild.store.manifest import describe_files, write_manifest
from trtbuild.targets.assets import with_tokenizer, write_assets
from trtbuild.targets.base import BuildOptions, Limits, engine_settings, refuse_fatal
from trtbuild.targets.cpu.loading import MODEL_XML
from trtbuild.targets.cpu.machine import PACKAGES, int8_features
from trtbuild.targets.cpu.paged import check_paged_attention
from trtbuild.targets.cpu.preflight import preflight
from trtbuild.targets.cpu.properties import EXACT, NATIVE, default_kv_cache, kv_bytes_per_token, plugin_properties
from trtbuild.targets.cpu.selfcheck import CheckResult, Reference, check_engine, reference

_FULL_BYTES = 1 << 20
"""A disk with less free than this after a failed write was full."""

_NATIVE_INT8_ALGOS = frozenset({"W8A8_SQ_PER_CHANNEL"})
"""quant_algos whose Q/DQ pairs the plugin may run in its own INT8 kernels."""


def build(checkpoint: Path, out: Path, limits: Limits, options: BuildOptions, progress: Progress) -> Path:
    """Build the engine directory `out`; nothing is written when anything fails.

    Raises InputRefused for a checkpoint or tokenizer that cannot be used, DoesNotFit for limits it cannot hold, and
    TrtbuildError when the finished engine does not compute what the checkpoint means.
    """
    decoder = with_tokenizer(read_checkpoint(checkpoint, model_folder=options.tokenizer), options.tokenizer)
    tokenizer = load_tokenizer(decoder.assets, spec=decoder.spec, where=decoder.location)
    refuse_fatal(preflight(decoder, limits, options), checkpoint)
    check_replaceable(out)
    for note in decoder.notes:
        progress.note(note)
    kv_cache = options.kv_cache or default_kv_cache(decoder.spec.dtype, decoder.quantization.kv_cache_quant_algo)
    find_blas()  # before a thread computes beside the imports below
    with _background() as background, atomic_directory(out) as folder:
        expected = reference(decoder, limits.max_seq_len, background)
        fingerprint = background.submit(decoder.fingerprint)
        write_assets(folder, decoder, tokenizer.stop_token_ids)
        write_model(decoder, folder, limits.max_seq_len, progress)
        files = background.submit(describe_files, folder)
        kernels, checked = _check(decoder, folder, expected, progress)
        settings = engine_settings(
            "cpu",
            limits,
            options,
            decoder,
            kv_cache=kv_cache,
            kv_bytes_per_token=kv_bytes_per_token(decoder.spec, kv_cache),
            int8_kernels=kernels,
            int8_features=sorted(int8_features()),
            checked=dataclasses.asdict(checked),
            vocab_size=decoder.spec.vocab_size,
        )
        inputs = {"checkpoint": fingerprint.result(), "tokenizer": tokenizer.fingerprint()}
        write_manifest(folder, "engine", files.result(), inputs=inputs, settings=settings, packages=PACKAGES)
    progress.note(
        f"{checked.method} differ from the numpy forward by {checked.prompt:.1e}, decoding by {checked.decode:.1e}"
    )
    return out


@contextlib.contextmanager
def _background() -> Iterator[Executor]:
    """One thread; what it has not begun when the block is left is dropped, so that a failure does not wait for it."""
    executor = ThreadPoolExecutor(1)
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


def write_model(decoder: Decoder, folder: Path, max_seq_len: int, progress: Progress) -> None:
    """Write `openvino_model.xml` and `.bin`: through ONNX, whose weights stay mapped from disk on the way."""
    import openvino

    from trtbuild.targets.cpu.stateful import make_stateful

    intermediate = folder / "onnx"
    intermediate.mkdir()
    try:
        onnx_path = write_onnx(decoder, intermediate, max_seq_len=max_seq_len, progress=progress)
        model = openvino.Core().read_model(onnx_path)
        make_stateful(model, decoder.spec)
        _save(model, folder / MODEL_XML)
        del model
    finally:
        shutil.rmtree(intermediate)


def _save(model: Any, path: Path) -> None:
    """Write the model; OpenVINO reports a failed write without its reason, so the likely one is looked up."""
    import openvino

    try:
        openvino.save_model(model, path, compress_to_fp16=False)
    except RuntimeError as error:
        full = shutil.disk_usage(path.parent).free < _FULL_BYTES
        code = errno.ENOSPC if full else errno.EIO
        raise OSError(code, os.strerror(code), str(path)) from error


def _check(decoder: Decoder, folder: Path, expected: Reference, progress: Progress) -> tuple[str | None, CheckResult]:
    """Check the written model; choose how W8A8 runs. Raises TrtbuildError when no way computes what is meant."""
    check_paged_attention(folder / MODEL_XML, decoder.spec)
    candidates: list[str | None] = [None]
    if decoder.quantization.quant_algo in _NATIVE_INT8_ALGOS:
        candidates = [NATIVE, EXACT] if int8_features() else [EXACT]
    with progress.task("checking the engine", total=len(candidates)) as advance:
        for kernels in candidates:
            result = check_engine(folder, expected, plugin_properties("f32", kernels))
            advance(1)
            if result.passed:
                return kernels, result
            if kernels == NATIVE:
                progress.note(
                    f"native INT8 kernels differ by {result.prompt:.1e}: W8A8 runs in FP32 arithmetic instead"
                )
    raise TrtbuildError(
        f"the built engine differs from the checkpoint: prompt {result.prompt:.1e}, decode {result.decode:.1e}",
        where=decoder.location,
        hint="nothing was written; report this with the checkpoint's config.json",
    )
