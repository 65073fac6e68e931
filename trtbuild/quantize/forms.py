"""What `trtbuild quantize --format` can write, as one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trtbuild.checkpoint.spec import Decoder
from trtbuild.checkpoint.trtllm import write_checkpoint
from trtbuild.errors import UsageError, did_you_mean
from trtbuild.profile import EngineLimits
from trtbuild.progress import Progress
from trtbuild.quantize.unified_hf import write_unified_hf


@dataclass(frozen=True)
class Serving:
    """How many ranks the result is for, and the limits it will run with where the format can say so."""

    tp: int = 1
    pp: int = 1
    limits: EngineLimits = field(default_factory=EngineLimits)


@dataclass(frozen=True)
class Form:
    """One row: `write(decoder, folder, serving, progress)` fills an existing folder whose manifest is of `kind`."""

    name: str
    kind: str
    summary: str
    write: Callable[[Decoder, Path, Serving, Progress], None]


def _write_trtllm(decoder: Decoder, out: Path, serving: Serving, progress: Progress) -> None:
    write_checkpoint(decoder, out, tp=serving.tp, pp=serving.pp, progress=progress)


def _write_unified(decoder: Decoder, out: Path, serving: Serving, progress: Progress) -> None:
    write_unified_hf(decoder, out, limits=serving.limits, tp=serving.tp, pp=serving.pp, progress=progress)


TRTLLM, UNIFIED_HF = "trtllm", "unified-hf"

FORMS: Mapping[str, Form] = {
    row.name: row
    for row in (
        Form(TRTLLM, "checkpoint", "TensorRT-LLM checkpoint, what every engine is built from", _write_trtllm),
        Form(UNIFIED_HF, "model", "Hugging Face names with scales, for tensorrt_llm ≥ 1.3", _write_unified),
    )
}
"""Name on the command line → form."""


def form_of(name: str) -> Form:
    """The form of that name; raises UsageError with the list and the closest name."""
    if name in FORMS:
        return FORMS[name]
    guess, names = did_you_mean(name, FORMS), f"formats: {', '.join(FORMS)}"
    raise UsageError(f"no format is called {name!r}", hint=f"{guess} {names}" if guess else names)
