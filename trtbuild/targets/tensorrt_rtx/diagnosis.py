"""From TensorRT's log to one sentence: the first cause, the node it happened in, the tensor it is about."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from trtbuild.errors import DoesNotFit, InputRefused, MachineLacks, TrtbuildError
from trtbuild.targets.tensorrt_rtx.api import Message

NO_DRIVER = "cudaError 35"
"""Said on every failure where no driver is; never the cause of a failed build, always that of a failed start."""

_CONSEQUENCES = (NO_DRIVER, "ModelImporter.cpp:14", "--- Begin node ---", "--- End node ---")
_WHERE = re.compile(r"\s*In \w+ at /\S+:\d+\)?")
_PREFIX = re.compile(
    r"^(?:\w+::\w+: )?(?:\[[^\]]*\] )?Error Code \d+: (?:[\w ]+ \()?(?:\[[^\]]*\] )?|^Assertion failed: [^:]*: "
)
_CONDITION = re.compile(r'^[\w()>.-]+ && "(.*)"$')
_QUOTED = re.compile(r"['\"`]([\w./:-]*[./][\w./:-]*)['\"`]")
_LEADING = re.compile(r"^((?:[\w-]+\.)*[\w-]+/[\w./-]+|(?:past_key_values|present|transformer)\.[\w./]+|\w+): ")
_TENSOR = re.compile(r"\b(?:tensor|input|output|network input)\b[^\w]*[\"'(]?((?:past_key_values|present)\.[\w.]+|\w+)")


@dataclass(frozen=True)
class Cause:
    """What failed, with the ONNX node and the tensor where TensorRT names them."""

    text: str
    node: str | None = None
    tensor: str | None = None

    @property
    def sentence(self) -> str:
        return f"{self.text} (tensor {self.tensor})" if self.tensor and self.tensor not in self.text else self.text


@dataclass(frozen=True)
class Remedy:
    """A known cause: a pattern in its text, the error it is raised as, and what to do about it."""

    pattern: str
    error: type[TrtbuildError]
    hint: str


REMEDIES = (
    Remedy(
        r"Plugin not found|[Nn]o importer registered",
        InputRefused,
        "this TensorRT's ONNX parser does not know the operator: install a newer one",
    ),
    Remedy(r"HW-specific datatypes|for Turing", DoesNotFit, "leave SM75 out of --sm, or build fp16"),
    Remedy(r"CHECK\(composite_op->is_decomposable", InputRefused, "no fused attention exists for this head size"),
    Remedy(
        r"[Oo]ut of memory|MEM_ALLOC|bad_alloc|OutOfMemory",
        DoesNotFit,
        "see `trtbuild plan`; build where more memory is free",
    ),
    Remedy(
        r"volume|exceeds? .*(?:limit|maximum)", DoesNotFit, "lower --max-batch-size, --max-seq-len or --max-num-tokens"
    ),
    Remedy(r"[Oo]ptimization profile|kOPT|kMIN|kMAX", InputRefused, "report this with the limits it was built with"),
    Remedy(r"cudaError|Cuda Runtime|driver version", MachineLacks, "check the NVIDIA driver with nvidia-smi"),
)
"""First match wins. Each pattern is one that TensorRT-RTX 1.7.1 was seen to say, or says in its documentation."""

_UNKNOWN = Remedy("", TrtbuildError, "set TRTBUILD_DEBUG=1 and report it with the checkpoint's config.json")


def clean(text: str) -> str:
    """A message without source locations, error numbers and trailing brackets of TensorRT's own."""
    line = next((line.strip() for line in text.splitlines() if _is_cause(line)), text.strip())
    line = _PREFIX.sub("", _WHERE.sub("", line))
    line = _PREFIX.sub("", line).strip().rstrip(".")
    line = _CONDITION.sub(r"\1", line)
    return line[:-1].strip() if line.endswith(")") and line.count("(") < line.count(")") else line


def _is_cause(line: str) -> bool:
    stripped = line.strip()
    return bool(stripped) and not stripped.startswith("Invalid Node - ") and not any(c in line for c in _CONSEQUENCES)


def from_log(messages: Iterable[Message]) -> Cause | None:
    """The first error that is a cause and not a consequence; None where the log has none."""
    for message in messages:
        if message.error and _is_cause(message.text):
            return _cause(clean(message.text), None)
    return None


def from_parser(parser: Any) -> Cause | None:
    """The first error of an OnnxParser, with the node it stopped at."""
    if not parser.num_errors:
        return None
    error = parser.get_error(0)
    node = error.node_name() or None
    operator = error.node_operator()
    cause = _cause(clean(error.desc()), node)
    return Cause(f"{operator}: {cause.text}" if operator else cause.text, cause.node, cause.tensor)


def _cause(text: str, node: str | None) -> Cause:
    leading = _LEADING.match(text)
    if leading is not None:
        text = text[leading.end() :]
        node = node or leading.group(1)
    if node is None:
        quoted = _QUOTED.search(text)
        node = quoted.group(1) if quoted is not None else None
    tensor = _TENSOR.search(text)
    return Cause(text, node, tensor.group(1) if tensor is not None else None)


def failure(doing: str, cause: Cause | None, where: str) -> TrtbuildError:
    """The exception of a failed step, by the table of remedies."""
    if cause is None:
        return TrtbuildError(f"{doing}: TensorRT gives no reason", where=where, hint=_UNKNOWN.hint)
    remedy = next((r for r in REMEDIES if re.search(r.pattern, cause.text)), _UNKNOWN)
    return remedy.error(f"{doing}: {cause.sentence}", where=cause.node or where, hint=remedy.hint)
