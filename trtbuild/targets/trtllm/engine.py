"""The engine directory: what trtllm-build leaves there, and whether it is what was asked for.

    config.json       {"version", "pretrained_config", "build_config": {…, "plugin_config": {…}}}
    rank{r}.engine    one per rank
Layout and keys from `Engine.save` and `BuildConfig.to_dict` of the builder; read there, checked only against the
stand-in of the tests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild.errors import InputRefused, MachineLacks
from trtbuild.targets.trtllm.command import BuildSettings, build_words, effective_values

CONFIG_NAME = "config.json"
TOKENIZER_FOLDER = "tokenizer"
"""Tokenizer files lie apart: Hugging Face's loader would take the engine's config.json for the model's."""

LOG_NAME = "build.log"


@dataclass(frozen=True)
class EngineConfig:
    """An engine's `config.json`. `build` holds the limits, `plugin` the plugin settings, `pretrained` the model."""

    version: str
    pretrained: Mapping[str, Any]
    build: Mapping[str, Any]
    plugin: Mapping[str, Any]

    @property
    def tp(self) -> int:
        return int(self.pretrained.get("mapping", {}).get("tp_size", 1))

    @property
    def pp(self) -> int:
        return int(self.pretrained.get("mapping", {}).get("pp_size", 1))

    @property
    def world(self) -> int:
        return self.tp * self.pp

    @property
    def paged_kv(self) -> bool:
        """Whether the KV cache is paged; the enum is spelled PAGED, paged or KVCacheType.PAGED across versions."""
        kind = str(self.build.get("kv_cache_type") or "").rsplit(".", 1)[-1].lower()
        return kind == "paged" or (kind in ("", "none") and self.plugin.get("paged_kv_cache") is True)


def read_config(directory: Path) -> EngineConfig:
    """Read an engine's config. Raises InputRefused when it is missing or not one."""
    path = directory / CONFIG_NAME
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        build = raw["build_config"]
        return EngineConfig(str(raw["version"]), raw["pretrained_config"], build, build["plugin_config"])
    except FileNotFoundError as error:
        raise InputRefused("no config.json: not a TensorRT-LLM engine", where=directory) from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputRefused(f"not the config of a TensorRT-LLM engine ({error})", where=path) from error


def check_directory(directory: Path, settings: BuildSettings, version: str | None) -> EngineConfig:
    """Read a freshly built engine and compare it with what was asked for.

    Raises InputRefused with every difference: version, ranks, limits, and the three settings of in-flight batching.
    """
    config = read_config(directory)
    differences = list(_differences(directory, config, settings, version))
    if differences:
        raise InputRefused(
            f"trtllm-build wrote another engine than was asked for: {'; '.join(differences)}", where=directory
        )
    return config


def _differences(directory: Path, config: EngineConfig, settings: BuildSettings, version: str | None) -> Iterator[str]:
    asked = effective_values(build_words(settings))
    if version is not None and config.version != version:
        yield f"version {config.version} instead of {version}"
    if (config.tp, config.pp) != (settings.ranks.tp, settings.ranks.pp):
        yield f"tp {config.tp} pp {config.pp} instead of tp {settings.ranks.tp} pp {settings.ranks.pp}"
    for rank in range(settings.ranks.world):
        engine = directory / f"rank{rank}.engine"
        if not engine.is_file() or engine.stat().st_size == 0:
            yield f"{engine.name} is missing or empty"
    algo = (config.pretrained.get("quantization") or {}).get("quant_algo")
    if algo != settings.quantization.quant_algo:
        yield f"quant_algo {algo} instead of {settings.quantization.quant_algo}"
    for name in ("max_batch_size", "max_seq_len", "max_beam_width"):
        if config.build.get(name) != asked[f"--{name}"]:
            yield f"{name} {config.build.get(name)} instead of {asked[f'--{name}']}"
    tokens = config.build.get("max_num_tokens")
    wanted = asked["--max_num_tokens"]
    if not isinstance(tokens, int) or not isinstance(wanted, int) or not 0 < tokens <= wanted:  # it may be reduced
        yield f"max_num_tokens {tokens} instead of {wanted}"
    if not config.plugin.get("gpt_attention_plugin"):
        yield "the attention plugin is off"
    if config.plugin.get("remove_input_padding") is not True:
        yield "the input is padded"
    if not config.paged_kv:
        yield f"the KV cache is not paged (kv_cache_type {config.build.get('kv_cache_type')})"
    paged_context = asked["--use_paged_context_fmha"] == "enable"
    if bool(config.plugin.get("use_paged_context_fmha")) != paged_context:
        yield f"paged context FMHA is {'off' if paged_context else 'on'}"


def require_loadable(
    config: EngineConfig, where: Path, version: str | None, built_sm: int | None, sm: int | None
) -> None:
    """Raise MachineLacks when an engine was built by another release or for another SM than is here.

    The runtime says the same as "Version tag does not match" or a bare assertion, without the way out.
    """
    again = "build it again here: `trtbuild build CHECKPOINT -o ENGINE --target trtllm`"
    if version is not None and version != config.version:
        raise MachineLacks(f"built by tensorrt_llm {config.version}, here is {version}", where=where, hint=again)
    if built_sm is not None and sm is not None and built_sm != sm:
        raise MachineLacks(f"built for SM {built_sm}, the GPU here is SM {sm}", where=where, hint=again)
