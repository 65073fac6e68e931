"""Checkpoint → `trtllm-build` → checked engine directory.

Written for tensorrt_llm 1.0-1.2 and run only against the strict stand-in of the tests: the real tool needs NVIDIA's
packages and a GPU, and neither was at hand.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from trtbuild.checkpoint.spec import Decoder
from trtbuild.checkpoint.trtllm import read_checkpoint
from trtbuild.errors import MachineLacks
from trtbuild.progress import Progress
from trtbuild.store.atomic import atomic_directory, atomic_file, check_replaceable
from trtbuild.store.manifest import write_manifest
from trtbuild.targets.base import BuildOptions, Limits, engine_settings, refuse_fatal
from trtbuild.targets.trtllm.command import BuildSettings, build_command, timing_cache
from trtbuild.targets.trtllm.container import Mount, containerized, image_of, image_version, require_docker
from trtbuild.targets.trtllm.engine import LOG_NAME, TOKENIZER_FOLDER, check_directory
from trtbuild.targets.trtllm.launch import OPTIONS_NAME, options_text, runtime_options
from trtbuild.targets.trtllm.preflight import local_device, preflight, settings_of
from trtbuild.targets.trtllm.process import run_logged
from trtbuild.targets.trtllm.rules import Device
from trtbuild.targets.trtllm.triage import diagnose
from trtbuild.targets.trtllm.version import LAST_RELEASE, Window, explain_window, installed_version, window

PACKAGES = ("tensorrt_llm", "tensorrt", "torch")
"""Distributions an engine depends on to the version."""

_RANK_DONE = "Total time of building"
_ALL_DONE = "Total time of building all engines"
_CACHE_NAME = "timing.cache"


def build(checkpoint: Path, out: Path, limits: Limits, options: BuildOptions, progress: Progress) -> Path:
    """Build the engine directory `out` whole or not at all; a failed run leaves `OUT.build.log` beside it.

    Raises what pre-flight finds before anything is written, MachineLacks when neither tensorrt_llm 1.0-1.2 nor a
    container can be used, and the triaged cause when trtllm-build fails.
    """
    decoder = read_checkpoint(checkpoint)
    findings = preflight(decoder, limits, options)
    refuse_fatal(findings, checkpoint)
    device = local_device(options)
    version = _require_tool(options, device)
    check_replaceable(out)
    for finding in findings:
        progress.note(f"{finding.rule}: {finding.text}")
    settings = settings_of(decoder, limits, options, device)
    cache = timing_cache(version or "container", device.sm)
    cache.parent.mkdir(parents=True, exist_ok=True)
    failed_log = out.absolute().with_name(f"{out.absolute().name}.build.log")
    failed_log.unlink(missing_ok=True)
    with atomic_directory(out) as folder:
        new_cache = folder / _CACHE_NAME
        command = _contained(
            build_command(settings, checkpoint.absolute(), folder, cache, new_cache),
            options,
            (
                Mount(checkpoint.absolute(), "/checkpoint"),
                Mount(folder, "/engine", True),
                Mount(cache.parent, "/cache"),
            ),
        )
        _run(command, folder / LOG_NAME, failed_log, settings, progress)
        if new_cache.is_file():
            with atomic_file(cache) as kept:
                shutil.move(new_cache, kept)
        config = check_directory(folder, settings, version)
        write_tokenizer(folder, decoder, options.tokenizer)
        paged_context = config.plugin.get("use_paged_context_fmha") is True
        runtime = runtime_options(decoder.spec, limits, paged_context=paged_context)
        (folder / OPTIONS_NAME).write_text(options_text(runtime), encoding="utf-8")
        manifest_settings = engine_settings(
            "trtllm",
            limits,
            options,
            decoder,
            tp=settings.ranks.tp,
            pp=settings.ranks.pp,
            tensorrt_llm=config.version,
            sm=device.sm,
            gpu=device.name if device.count else None,
            paged_context=paged_context,
            container=None if options.container is None else image_of(options.container),
            vocab_size=decoder.spec.vocab_size,
        )
        write_manifest(
            folder,
            "engine",
            inputs={"checkpoint": decoder.fingerprint()},
            settings=manifest_settings,
            packages=PACKAGES,
        )
    return out


def commands(checkpoint: Path, out: Path, limits: Limits, options: BuildOptions) -> list[list[str]]:
    """The command line `build` runs, with the final paths; nothing is checked and nothing needs to be installed."""
    decoder = read_checkpoint(checkpoint)
    device = local_device(options)
    settings = settings_of(decoder, limits, options, device)
    cache = timing_cache(_version(options) or LAST_RELEASE, device.sm)
    source, target = checkpoint.absolute(), out.absolute()
    words = build_command(settings, source, target, cache, cache)
    mounts = (Mount(source, "/checkpoint"), Mount(target, "/engine", True), Mount(cache.parent, "/cache", True))
    return [_contained(words, options, mounts)]


def write_tokenizer(folder: Path, decoder: Decoder, given: Path | None) -> None:
    """Put the tokenizer and generation files into the engine's `tokenizer/`: the user's where given, else its own."""
    assets = dict(decoder.assets)
    if given is not None:
        assets |= {path.name: path.read_bytes() for path in given.glob("*token*.json")}
        assets |= {path.name: path.read_bytes() for path in given.glob("chat_template.*")}
    target = folder / TOKENIZER_FOLDER
    target.mkdir()
    for name, content in assets.items():
        (target / name).write_bytes(content)


def _version(options: BuildOptions) -> str | None:
    return installed_version() if options.container is None else image_version(image_of(options.container))


def _require_tool(options: BuildOptions, device: Device) -> str | None:
    """The release that will build, None when a container's tag does not say; raises MachineLacks when none can."""
    if options.container is not None:
        require_docker()
    version = _version(options)
    unknown_image = options.container is not None and version is None
    if not unknown_image and window(version) is not Window.BUILDS:
        reason, hint = explain_window(version)
        raise MachineLacks(reason, hint=hint)
    if not device.count:
        raise MachineLacks(
            "building a TensorRT-LLM engine needs an NVIDIA GPU: its kernels are chosen by running them",
            hint="--dry-run shows the command; `--target tensorrt-rtx` builds without a GPU, `--target cpu` runs here",
        )
    return version


def _contained(command: list[str], options: BuildOptions, mounts: tuple[Mount, ...]) -> list[str]:
    return command if options.container is None else containerized(command, image_of(options.container), mounts)


def _run(command: list[str], log: Path, failed_log: Path, settings: BuildSettings, progress: Progress) -> None:
    """Run the tool with one progress unit per rank; its log is kept beside the output when it fails."""
    with progress.task("trtllm-build", total=settings.ranks.world) as advance:

        def watch(line: str) -> None:
            if _RANK_DONE in line and _ALL_DONE not in line:
                advance(1)

        done = run_logged(command, log, on_line=watch)
    if done.returncode != 0:
        shutil.copyfile(log, failed_log)
        raise diagnose(dataclasses.replace(done, command=(Path(command[0]).name,)), failed_log)
