"""Checkpoint → ONNX with a cache of fixed slots → OnnxParser → one serialized engine for all the GPUs asked for."""

from __future__ import annotations

import dataclasses
import gc
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtbuild.checkpoint.spec import Decoder
from trtbuild.checkpoint.tokenizer import load_tokenizer
from trtbuild.checkpoint.trtllm import read_checkpoint
from trtbuild.graph.decoder import write_onnx
from trtbuild.progress import Progress
from trtbuild.store.atomic import atomic_directory, check_replaceable
from trtbuild.store.manifest import write_manifest
from trtbuild.targets.assets import with_tokenizer, write_assets
from trtbuild.targets.base import BuildOptions, Limits, engine_settings, refuse_fatal
from trtbuild.targets.tensorrt_rtx import diagnosis, timing_cache
from trtbuild.targets.tensorrt_rtx.api import Api, load_api
from trtbuild.targets.tensorrt_rtx.geometry import Geometry, geometry, profiles
from trtbuild.targets.tensorrt_rtx.loading import PLAN_NAME
from trtbuild.targets.tensorrt_rtx.machine import first_gpu, require_installed
from trtbuild.targets.tensorrt_rtx.monitor import PhaseTree, progress_monitor
from trtbuild.targets.tensorrt_rtx.peak import peak_memory
from trtbuild.targets.tensorrt_rtx.preflight import preflight


def build(checkpoint: Path, out: Path, limits: Limits, options: BuildOptions, progress: Progress) -> Path:
    """Build the engine directory `out`; nothing is written when anything fails.

    Raises InputRefused for a checkpoint, tokenizer or graph that cannot be used, DoesNotFit for limits and GPUs it
    cannot be built for, MachineLacks where TensorRT is not installed.
    """
    decoder = with_tokenizer(read_checkpoint(checkpoint, model_folder=options.tokenizer), options.tokenizer)
    tokenizer = load_tokenizer(decoder.assets, spec=decoder.spec, where=decoder.location)
    refuse_fatal(preflight(decoder, limits, options), checkpoint)
    installed = require_installed()
    check_replaceable(out)
    for note in decoder.notes:
        progress.note(note)
    sms = target_sms(options.sms)
    shape = geometry(decoder.spec, limits)
    with atomic_directory(out) as folder, peak_memory() as peak:
        write_assets(folder, decoder, tokenizer.stop_token_ids)
        plan = folder / PLAN_NAME
        write_plan(decoder, plan, shape, limits.max_seq_len, sms, progress)
        settings = engine_settings(
            "tensorrt-rtx",
            limits,
            options,
            decoder,
            sms=list(sms),
            library=installed.flavour.module,
            library_version=installed.version,
            plan_bytes=plan.stat().st_size,
            peak_build_memory_bytes=peak(),
            geometry=dataclasses.asdict(shape),
        )
        inputs = {"checkpoint": decoder.fingerprint(), "tokenizer": tokenizer.fingerprint()}
        write_manifest(folder, "engine", inputs=inputs, settings=settings, packages=[installed.distribution])
    return out


def target_sms(wanted: Sequence[int]) -> tuple[int, ...]:
    """The SM versions to build for, sorted and each once; this machine's GPU where none is named."""
    gpu = first_gpu()
    return tuple(sorted(set(wanted))) or ((gpu.sm,) if gpu is not None else ())


def write_plan(
    decoder: Decoder, plan: Path, shape: Geometry, max_seq_len: int, sms: Sequence[int], progress: Progress
) -> None:
    """Write the ONNX graph beside `plan`, build it, and remove it. Weights stay in its external data file."""
    intermediate = plan.parent / "onnx"
    intermediate.mkdir()
    try:
        model = write_onnx(
            decoder,
            intermediate,
            max_seq_len=max_seq_len,
            compute=decoder.spec.dtype,
            slots=shape.slots,
            progress=progress,
        )
        build_plan(model, plan, shape, sms, progress)
    finally:
        shutil.rmtree(intermediate)


def build_plan(model: Path, plan: Path, shape: Geometry, sms: Sequence[int], progress: Progress) -> None:
    """Turn the ONNX file `model` into the serialized engine `plan`, streamed where TensorRT can stream.

    Raises the error of `diagnosis.REMEDIES` with the first cause, the node and the tensor.
    """
    api = load_api()
    api.messages.clear()
    builder = api.trt.Builder(api.logger)
    network = parse(api, builder, model)
    config = builder.create_builder_config()
    _choose_gpus(api, config, sms)
    for profile in _optimization_profiles(builder, shape):
        config.add_optimization_profile(profile)
    cache = timing_cache.cache_path(api.installed, sms)
    timing_cache.attach(config, cache)
    with progress.task("building the engine", total=1.0) as advance:
        tree = PhaseTree(advance)
        config.progress_monitor = progress_monitor(api.trt, tree)
        done = _serialize(api, builder, network, config, plan)
        if tree.interrupted is not None:
            raise tree.interrupted
        if not done:
            raise diagnosis.failure("TensorRT cannot build this engine", diagnosis.from_log(api.messages), model.name)
        tree.complete()
    timing_cache.keep(config, cache)
    del config, network, builder
    gc.collect()


def parse(api: Api, builder: Any, model: Path) -> Any:
    """The strongly typed network of an ONNX file; raises the parser's first error with its node."""
    flag = api.trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED
    network = builder.create_network(1 << int(flag))
    parser = api.trt.OnnxParser(network, api.logger)
    if not parser.parse_from_file(str(model)):
        cause = diagnosis.from_parser(parser) or diagnosis.from_log(api.messages)
        raise diagnosis.failure("TensorRT's ONNX parser stops", cause, model.name)
    _allow_unfused_attention(api.trt, network)
    return network


def _allow_unfused_attention(trt: Any, network: Any) -> None:
    """Where no fused kernel exists (FP32, unusual head sizes) attention may run as matmul, softmax, matmul."""
    kind = getattr(trt.LayerType, "ATTENTION_INPUT", None)
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type == kind:
            # The bindings answer with the base class; assigning the real one is how they expose what is beyond it.
            layer.__class__ = trt.IAttentionInputLayer
            layer.attention.decomposable = True


def _choose_gpus(api: Api, config: Any, sms: Sequence[int]) -> None:
    """One engine for several GPUs at once; full TensorRT has no such choice and builds for the GPU it runs on."""
    if not hasattr(config, "set_compute_capability"):
        return
    config.num_compute_capabilities = len(sms)
    for index, sm in enumerate(sms):
        config.set_compute_capability(getattr(api.trt.ComputeCapability, f"SM{sm}"), index)


def _optimization_profiles(builder: Any, shape: Geometry) -> list[Any]:
    built = []
    for phase in profiles(shape):
        profile = builder.create_optimization_profile()
        for name, (least, best, greatest) in phase.items():
            profile.set_shape(name, least, best, greatest)
        built.append(profile)
    return built


def _serialize(api: Api, builder: Any, network: Any, config: Any, plan: Path) -> bool:
    """Build and write the plan; a stream never holds it whole in memory. An error of the disk is raised as it is."""
    if not hasattr(builder, "build_serialized_network_to_stream"):
        serialized = builder.build_serialized_network(network, config)
        if serialized is not None:
            with plan.open("wb") as file:
                file.write(memoryview(serialized))
        return serialized is not None

    # The base class exists only once the module is imported.
    class Writer(api.trt.IStreamWriter):  # type: ignore[misc,name-defined]
        error: OSError | None = None

        def __init__(self) -> None:
            api.trt.IStreamWriter.__init__(self)

        def write(self, data: bytes) -> int:
            try:
                return file.write(data)
            except OSError as error:
                self.error = self.error or error
                return 0

    with plan.open("wb") as file:
        writer = Writer()
        done = bool(builder.build_serialized_network_to_stream(network, config, writer))
    if writer.error is not None:
        raise writer.error
    return done
